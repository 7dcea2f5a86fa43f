"""Whole commands whose output cannot be written, or is something that they read."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from commcc.cli.main import run

if TYPE_CHECKING:
    from pathlib import Path

SMALL = """class GraphModule(torch.nn.Module):
    def forward(self, primals_1: "f32[4, 8][8, 1]cuda:0", primals_2: "f32[4, 8][8, 1]cuda:0"):
        ag: "f32[8, 8][8, 1]cuda:0" = torch.ops._c10d_functional.all_gather_into_tensor.default(primals_1, 2, '0')
        w: "f32[8, 8][8, 1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(ag)
        ag_1: "f32[8, 8][8, 1]cuda:0" = torch.ops._c10d_functional.all_gather_into_tensor.default(primals_2, 2, '0')
        w_1: "f32[8, 8][8, 1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(ag_1)
        mm: "f32[8, 8][8, 1]cuda:0" = torch.ops.aten.mm.default(w, w_1)
        return (mm,)
"""
EARLIER = "what was there before\n"
#: Commands that write, with the flag and the extension of what they write.
WRITING = (
    (("convert",), "-o", ".fx.txt"),
    (("convert",), "-o", ".pt2"),
    (("bucket",), "-o", ".fx.txt.gz"),
    (("reorder",), "-o", ".fx.txt"),
    (("run", "--passes", "tag,bucket"), "-o", ".fx.txt"),
    (("run", "--passes", "tag,bucket"), "--plan-out", ".yaml"),
    (("simulate",), "--trace", ".json"),
    (("simulate",), "--html", ".html"),
    (("lint",), "-o", ".txt"),
    (("lint", "--update-baseline"), "--baseline", ".yaml"),
)
IDS = [f"{words[0]} {flag} {extension}" for words, flag, extension in WRITING]


@pytest.fixture
def graph(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "in.fx.txt"
    path.write_text(SMALL)
    return path


def command(words, graph, flag, target) -> list[str]:
    more = ["-o", "beside.fx.txt"] if words[0] == "run" and flag != "-o" else []
    return [words[0], str(graph), *words[1:], *more, flag, str(target), "--no-config", "-q"]


def refused(capsys, arguments) -> str:
    code = run(arguments)
    err = capsys.readouterr().err
    assert code == 2, err
    assert err.count("\n") == 1 and "error: " in err
    return err


@pytest.mark.parametrize(("words", "flag", "extension"), WRITING, ids=IDS)
def test_a_full_disk_keeps_what_was_there(words, flag, extension, graph, tmp_path, capsys):
    target = tmp_path / f"out{extension}"
    if "--update-baseline" in words:
        assert run(command(words, graph, flag, target)) == 0
    else:
        target.write_text(EARLIER)
    earlier = target.read_bytes()
    names = {path.name for path in tmp_path.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        assert "File too large" in refused(capsys, command(words, graph, flag, target))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert target.read_bytes() == earlier
    assert graph.read_text() == SMALL
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize(("words", "flag", "extension"), WRITING, ids=IDS)
@pytest.mark.parametrize("kind", ["soft link", "hard link", "folder", "device", "other name"])
def test_an_output_that_is_no_place_to_write(words, flag, extension, kind, graph, tmp_path, capsys):
    target = tmp_path / f"out{extension}"
    if kind == "folder":
        target.mkdir()
    elif kind == "device":
        target.symlink_to("/dev/full")
    elif kind == "hard link":
        os.link(graph, target)
    elif kind == "soft link":
        target.symlink_to(graph)
    else:
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "up").symlink_to(tmp_path)
        target.symlink_to(tmp_path / "sub" / "up" / graph.name)
    refused(capsys, command(words, graph, flag, target))
    assert graph.read_text() == SMALL
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".commcc")]


def other_inputs() -> list[tuple[list[str], str, str]]:
    """Arguments in which a file is both read and written."""
    return [
        (
            ["run", "in.fx.txt", "--pipeline", "f.yaml", "-o", "out.fx.txt", "--plan-out", "f.yaml"],
            "f.yaml",
            "passes: [tag]\n",
        ),
        (
            ["lint", "in.fx.txt", "--config", "f.yaml", "--baseline", "f.yaml", "--update-baseline"],
            "f.yaml",
            "rules: {}\n",
        ),
        (
            ["simulate", "in.fx.txt", "--cost", "h100,profile=f.json", "--trace", "f.json"],
            "f.json",
            '{"traceEvents": []}',
        ),
        (["verify", "in.fx.txt", "in.fx.txt", "--no-config", "--hint", "u0=x"], "in.fx.txt", SMALL),
    ]


@pytest.mark.parametrize(("arguments", "name", "content"), other_inputs())
def test_other_inputs_are_kept_too(arguments, name, content, graph, tmp_path, capsys):
    (tmp_path / name).write_text(content)
    refused(capsys, [*arguments, "-q"])
    assert (tmp_path / name).read_text() == content


@pytest.mark.parametrize(
    ("redirection", "arguments", "code"),
    [
        (">/dev/full", "passes", 2),
        (">/dev/full", "--help", 2),
        (">&-", "passes", 2),
        ("2>&- >/dev/null", "passes", 0),
        ("2>&-", "inspect", 2),
        ("2>/dev/full", "passes nothing", 2),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_streams_that_cannot_be_written(redirection, arguments, code, unbuffered, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    line = f"'{sys.executable}' -c 'from commcc.cli.main import entry; entry()' {arguments} {redirection}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert done.stderr.count("\n") <= 1


@pytest.mark.parametrize("triton", [False, True])
def test_nothing_is_looked_through_for_cycles_at_exit(triton):
    """Python's last collections take a quarter of a command on a large graph; the collector is told to skip all.

    Not where Triton is loaded, whose types say on standard error that they are left over.
    """
    shown = "print('left', len(gc.get_objects()), 'frozen', gc.get_freeze_count() > 1000)"
    loaded = "sys.modules['triton'] = sys; " if triton else ""
    entry = f"{loaded}from commcc.cli.main import entry; entry()"
    code = f"import atexit, gc, sys; atexit.register(lambda: {shown}); {entry}"
    done = subprocess.run([sys.executable, "-c", code, "passes", "-q"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    left, frozen = done.stdout.splitlines()[-1].split()[1::2]
    assert (int(left) < 1000, frozen) == (not triton, str(not triton))


def test_a_command_says_nothing_of_other_libraries_at_exit(tmp_path):
    """As Triton's types do of themselves, where there is a Triton."""
    graph = tmp_path / "one.fx.txt"
    body = 'neg: "f32[4][1]cpu" = torch.ops.aten.neg.default(a)\n        return (neg,)\n'
    graph.write_text(f'class G(torch.nn.Module):\n    def forward(self, a: "f32[4][1]cpu"):\n        {body}')
    command = [sys.executable, "-m", "commcc", "inspect", str(graph), "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
