"""Machine code on disk: what a process compiled the next one reads, and what is not surely that is compiled again."""

from __future__ import annotations

import os

import numpy as np
import pytest

from commcc.base import jit, kernel_cache
from commcc.base.jit import kernel
from commcc.base.kernel_cache import VARIABLE, KernelCache


def squares(numbers):
    total = 0
    for number in numbers:
        total += number * number
    return total


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "below"))
    return tmp_path / "below" / "kernels"


@pytest.fixture
def compiled(monkeypatch):
    """How often LLVM compiled something."""
    texts, before = [], jit._optimized

    def counting(text, machine):
        texts.append(text)
        return before(text, machine)

    monkeypatch.setattr(jit, "_optimized", counting)
    return texts


def run():
    """As a process that has not called the kernel before."""
    assert kernel(squares)(np.arange(5)) == 30


def only(folder):
    (file,) = folder.iterdir()
    return file


def test_what_was_compiled_is_read(folder, compiled):
    run()
    assert len(compiled) == 1
    assert folder.stat().st_mode & 0o77 == 0
    written = only(folder).read_bytes()
    run()
    assert len(compiled) == 1
    assert only(folder).read_bytes() == written


def test_a_mask_that_leaves_writing_to_a_group(folder, compiled):
    before = os.umask(0o002)
    try:
        run()
        run()
    finally:
        os.umask(before)
    assert len(compiled) == 1


def test_another_kernel_or_compiler_is_another_file(folder, compiled, monkeypatch):
    run()

    def cubes(numbers):
        return squares_of(numbers)

    squares_of = jit.compiled(squares)
    monkeypatch.setitem(cubes.__globals__, "squares_of", squares_of)
    assert kernel(cubes)(np.arange(5)) == 30
    monkeypatch.setattr(jit, "_INLINED", 51)
    run()
    assert len(compiled) == len(list(folder.iterdir())) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:32],
        lambda content: content + b"\0",
        lambda content: content[:-40] + bytes([content[-40] ^ 1]) + content[-39:],
        lambda content: b"\0" * len(content),
    ],
)
def test_damaged_code_is_compiled_again(folder, compiled, damage):
    run()
    whole = only(folder).read_bytes()
    only(folder).write_bytes(damage(whole))
    run()
    assert len(compiled) == 2
    assert only(folder).read_bytes() == whole


@pytest.mark.parametrize("of", ["folder", "file"])
@pytest.mark.parametrize("mode", [0o722, 0o720, 0o702])
def test_what_others_may_write_to_is_not_run(folder, compiled, of, mode):
    run()
    (folder if of == "folder" else only(folder)).chmod(mode)
    run()
    assert len(compiled) == 2


def test_what_another_user_wrote_is_not_run(folder, compiled, monkeypatch):
    run()
    before = only(folder).stat()
    monkeypatch.setattr(os, "geteuid", lambda: before.st_uid + 1)
    run()
    assert len(compiled) == 2
    assert only(folder).stat().st_mtime_ns == before.st_mtime_ns


def test_without_a_folder_nothing_is_kept(tmp_path, compiled, monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run()
    run()
    assert len(compiled) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("variable", "below"), [("XDG_CACHE_HOME", "commcc"), ("HOME", ".cache/commcc")])
def test_the_usual_folder(tmp_path, compiled, monkeypatch, variable, below):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    run()
    assert only(tmp_path / below / "kernels").suffix == ".kernel"


def test_a_user_without_a_home(monkeypatch, compiled):
    def none():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(kernel_cache.Path, "home", none)
    assert KernelCache.usual() == KernelCache(None)
    run()
    assert len(compiled) == 1


def test_a_folder_that_cannot_be(tmp_path, compiled, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "below"))
    run()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    run()
    assert len(compiled) == 2
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_disk_that_is_full(folder, compiled, monkeypatch):
    def full(target, write):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kernel_cache, "replace_file", full)
    run()
    assert len(compiled) == 1
    assert not list(folder.iterdir())


def test_the_oldest_make_room(folder, compiled, monkeypatch):
    monkeypatch.setattr(kernel_cache, "_MOST", 3)
    cache = KernelCache(folder)
    for number in range(5):
        cache.write(f"{number}.kernel", b"code")
        os.utime(folder / f"{number}.kernel", (number, number))
    (folder / "other.o").write_text("not ours")
    cache.write("5.kernel", b"code")
    assert sorted(each.name for each in folder.iterdir()) == ["3.kernel", "4.kernel", "5.kernel", "other.o"]
    assert cache.read("5.kernel") == b"code"
    assert cache.read("0.kernel") is None
