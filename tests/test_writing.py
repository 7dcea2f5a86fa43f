"""Output files are whole, old or new, whatever happens while they are written: kills, full disks, others."""

from __future__ import annotations

import errno
import os
import pathlib
import resource
import signal
import stat
import sys
from pathlib import Path

import pytest

from commcc.base.errors import OutputError
from commcc.base.files import replace_file, same_file

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
OLD, NEW = b"old" * 1000, b"new" * 5000


def in_child(work) -> int:
    """Run ``work`` in a child: its exit code, or minus the signal that ended it."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work() or 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def write_in_pieces(stream) -> None:
    for at in range(0, len(NEW), 1000):
        stream.write(NEW[at : at + 1000])
        stream.flush()


def attempt(target: Path) -> int:
    """What a command does: 2 for an output that cannot be written."""
    try:
        replace_file(target, write_in_pieces)
    except OutputError as error:
        return 2 if "\n" not in str(error) else 1
    return 0


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(".commcc"))


@pytest.fixture(params=["unnamed", "named"])
def kind(request, monkeypatch):
    """With and without files that have no name until they are complete."""
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    return request.param


def in_place_of(monkeypatch, name: str, call) -> None:
    """Have ``os`` and pathlib call it; Python 3.10's pathlib has references of its own."""
    accessor = getattr(pathlib, "_NormalAccessor", None)
    if getattr(accessor, name, None) is getattr(os, name):
        monkeypatch.setattr(accessor, name, staticmethod(call))
    monkeypatch.setattr(os, name, call)


def deadly(monkeypatch, number: int) -> None:
    """Make the system call of that number, of those that writing makes, the last one."""
    calls = iter(range(10_000))

    def dying(name, inner):
        def call(*arguments, **keywords):
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return inner(*arguments, **keywords)

        in_place_of(monkeypatch, name, call)

    for name in ("open", "fdopen", "fchmod", "fsync", "link", "close", "replace", "unlink"):
        dying(name, getattr(os, name))


@pytest.mark.parametrize("before", [None, OLD])
def test_killed_between_system_calls(tmp_path, monkeypatch, kind, before):
    target = tmp_path / "out.json"
    outcomes = []
    for number in range(30):
        if before is None:
            target.unlink(missing_ok=True)
        else:
            target.write_bytes(before)
        with monkeypatch.context() as patches:
            deadly(patches, number)
            code = in_child(lambda: attempt(target))
        content = target.read_bytes() if target.exists() else None
        assert content in (before, NEW), number
        for name in left_behind(tmp_path):
            (tmp_path / name).unlink()
        outcomes.append((code, content == NEW))
        if code == 0:
            break
    assert outcomes[-1] == (0, True)
    killed = [new for code, new in outcomes if code == -signal.SIGKILL]
    assert len(killed) >= 4 and not killed[0]
    assert killed == sorted(killed), "once the new content is there it stays"


@pytest.mark.parametrize("offset", [0, 1, 1000, 4096, 7001, 14999])
def test_killed_while_writing(tmp_path, kind, offset):
    target = tmp_path / "out.json"
    target.write_bytes(OLD)

    def write(stream) -> None:
        stream.write(NEW[:offset])
        stream.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(lambda: replace_file(target, write)) == -signal.SIGKILL
    assert target.read_bytes() == OLD
    assert len(left_behind(tmp_path)) == (1 if kind == "named" else 0)


def test_an_error_while_writing(tmp_path, kind):
    target = tmp_path / "out.json"
    target.write_bytes(OLD)

    def write(stream) -> None:
        stream.write(NEW)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_file(target, write)
    assert target.read_bytes() == OLD
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("limit", [0, 1, 4096, 14_999])
def test_a_full_disk(tmp_path, kind, limit):
    target = tmp_path / "out.json"
    target.write_bytes(OLD)

    def work() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return attempt(target)

    assert in_child(work) == 2
    assert target.read_bytes() == OLD
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("call", ["fsync", "link", "replace"])
def test_what_the_system_refuses_last(tmp_path, monkeypatch, call):
    target = tmp_path / "out.json"
    target.write_bytes(OLD)

    def refused(*_arguments, **_keywords):
        raise OSError(errno.ENOSPC, "No space left on device")

    in_place_of(monkeypatch, call, refused)
    if call == "link":  # then the content is copied to a file with a name
        replace_file(target, write_in_pieces)
        assert target.read_bytes() == NEW
    else:
        with pytest.raises(OutputError, match="cannot be written: No space left on device"):
            replace_file(target, write_in_pieces)
        assert target.read_bytes() == OLD
    monkeypatch.undo()
    assert left_behind(tmp_path) == []


def unprivileged(work):
    def run() -> int:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        return work()

    return run


def test_a_folder_that_may_not_be_written(tmp_path, kind):
    folder = tmp_path / "folder"
    folder.mkdir()
    target = folder / "out.json"
    target.write_bytes(OLD)
    opened = [path for path in (tmp_path, *tmp_path.parents) if not path.stat().st_mode & stat.S_IXOTH]
    modes = [path.stat().st_mode & 0o777 for path in opened]
    for path in opened:
        path.chmod(0o755)
    folder.chmod(0o555)
    try:
        assert in_child(unprivileged(lambda: attempt(target))) == 2
    finally:
        folder.chmod(0o755)
        for path, mode in zip(opened, modes, strict=True):
            path.chmod(mode)
    assert target.read_bytes() == OLD
    assert left_behind(folder) == []


def test_permissions_of_the_old_file_stay(tmp_path, kind):
    target = tmp_path / "out.json"
    target.write_bytes(OLD)
    target.chmod(0o640)
    replace_file(target, write_in_pieces)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    mask = os.umask(0o027)
    try:
        replace_file(tmp_path / "fresh", write_in_pieces)
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o640


def test_two_at_once(tmp_path, kind):
    """Two processes write one file over and over; whoever reads it sees one of them, whole."""
    target = tmp_path / "out.json"
    contents = [bytes([letter]) * 50_000 for letter in b"ab"]
    target.write_bytes(contents[0])
    children = []
    for content in contents:
        child = os.fork()
        if child == 0:
            for _ in range(40):
                replace_file(target, lambda stream, content=content: stream.write(content))
            os._exit(0)
        children.append(child)
    seen = [target.read_bytes() for _ in range(300)]
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    assert set(seen) <= set(contents)
    assert target.read_bytes() in contents
    assert left_behind(tmp_path) == []


def test_links_are_followed(tmp_path, kind):
    real, link = tmp_path / "real.json", tmp_path / "sub" / "link.json"
    real.write_bytes(OLD)
    link.parent.mkdir()
    link.symlink_to(real)
    replace_file(link, write_in_pieces)
    assert link.is_symlink()
    assert real.read_bytes() == NEW
    dangling = tmp_path / "dangling.json"
    dangling.symlink_to(tmp_path / "not yet.json")
    replace_file(dangling, write_in_pieces)
    assert dangling.is_symlink()
    assert (tmp_path / "not yet.json").read_bytes() == NEW


@pytest.mark.parametrize("what", ["device", "pipe", "folder", "loop"])
def test_what_is_no_file_is_refused(tmp_path, what):
    target = tmp_path / "out.json"
    if what == "device":
        target.symlink_to("/dev/null")
    elif what == "pipe":
        os.mkfifo(target)
    elif what == "folder":
        target.mkdir()
    else:
        target.symlink_to(target)
    with pytest.raises(OutputError):
        replace_file(target, write_in_pieces)
    assert left_behind(tmp_path) == []
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_the_input_under_other_names(tmp_path):
    source = tmp_path / "in.fx.txt"
    source.write_bytes(OLD)
    (tmp_path / "soft").symlink_to(source)
    os.link(source, tmp_path / "hard")
    (tmp_path / "folder").mkdir()
    names = ("soft", "hard", "folder/../in.fx.txt", "./in.fx.txt")
    assert all(same_file(tmp_path / name, source) for name in names)
    assert not same_file(tmp_path / "other", source)


def test_no_procfs(tmp_path, monkeypatch):
    is_dir = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: str(path) != "/proc/self/fd" and is_dir(path))
    replace_file(tmp_path / "out", write_in_pieces)
    assert (tmp_path / "out").read_bytes() == NEW
