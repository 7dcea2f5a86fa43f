"""The tool that writes what commands print into the documents that show it."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
from pathlib import Path

import pytest

from commcc.cli.main import run as cli

ROOT = Path(__file__).parents[1]
TOOL = str(ROOT / "tools" / "shown_outputs.py")
SHOWN = """# Title

```
$ commcc passes tag
old words
```

```
$ commcc passes nobody
```

```
commcc passes tag     # not run
```
"""


def main(*arguments: object) -> int:
    code: int = runpy.run_path(TOOL)["main"]([str(argument) for argument in arguments])
    return code


def test_outputs_are_written_and_checked(tmp_path, capsys):
    path = tmp_path / "page.md"
    path.write_text(SHOWN)
    assert main("--check", path) == 1
    assert path.read_text() == SHOWN
    assert "-old words" in capsys.readouterr().out
    assert main(path) == 0
    text = path.read_text()
    assert "old words" not in text and "tag" in text.split("```")[1]
    assert "commcc: error" in text.split("```")[3]  # errors are shown as well
    assert text.endswith(SHOWN[SHOWN.rindex("```\ncommcc") :])
    assert main("--check", path) == 0


def test_commands_on_files_of_the_reader_stay(tmp_path):
    shown = "```\n$ commcc verify before.fx.txt after.fx.txt\nproved: the same program\n```\n"
    assert runpy.run_path(TOOL)["renewed"](shown, tmp_path) == shown


def test_seconds_stay(tmp_path, monkeypatch):
    tool = runpy.run_path(TOOL)
    renewed = tool["renewed"]
    monkeypatch.setitem(renewed.__globals__, "printed", lambda *_: "1,000 nodes in 0.52 s\n")
    shown = "```\n$ commcc bucket g\n999 nodes in 0.31 s\n```\n"
    assert renewed(shown, tmp_path) == "```\n$ commcc bucket g\n1,000 nodes in 0.31 s\n```\n"


def test_parts_are_found_whatever_they_took(tmp_path, monkeypatch):
    renewed = runpy.run_path(TOOL)["renewed"]
    monkeypatch.setitem(renewed.__globals__, "printed", lambda *_: "head\nbucket  0.52 s\n  2 buckets\nend\n")
    shown = "```\n$ commcc bucket g\n...\nbucket  0.31 s\n  1 buckets\n...\n```\n"
    assert renewed(shown, tmp_path) == shown.replace("1 buckets", "2 buckets")


def test_lines_that_are_left_out_stay_out(tmp_path, monkeypatch):
    renewed = runpy.run_path(TOOL)["renewed"]
    monkeypatch.setitem(renewed.__globals__, "printed", lambda *_: "head\ntable\nrow 2\nmore\nlast\nend\n")
    shown = "```\n$ commcc bucket g\n...\ntable\nrow 1\n...\nlast\n...\n```\n"
    assert renewed(shown, tmp_path) == shown.replace("row 1", "row 2")
    whole = "```\n$ commcc bucket g\nhead\ntable\nrow 2\nmore\nlast\nend\n```\n"
    assert renewed(shown.replace("table", "a heading that is gone"), tmp_path) == whole


#: Times of this machine, which are not those of the one that the document was written on.
MEASURED = ("commcc bench", "commcc profile")
_NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?")
_HASH = re.compile(r"\b[0-9a-f]{12}\b")


def shown_blocks() -> list[tuple[str, str, str]]:
    """Every command with an output below it on sample graphs: document, command, what is shown."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = []
    for page in pages:
        for _, command, shown in runpy.run_path(TOOL)["_BLOCK"].findall(page.read_text(encoding="utf-8")):
            if shown.strip() and "sample_graphs/" in command and not command.startswith(MEASURED):
                found.append((page.relative_to(ROOT).as_posix(), command, shown))
    return found


def words(line: str) -> str:
    """A line without its numbers and the widths of its columns."""
    return " ".join(_NUMBER.sub("#", re.sub("─+", "─", line)).split())


def fits(shown: str, now: str) -> bool:
    """Equal words, and figures within 5 % or 1; seconds, whole numbers, as of tries, and hashes are free."""
    shown, now = _HASH.sub("", shown), _HASH.sub("", now)
    if words(shown) != words(now):
        return False
    pairs = zip(*(_NUMBER.findall(re.sub(r"\d+\.\d\d s\b", "", line)) for line in (shown, now)), strict=True)
    figures = [[float(number.replace(",", "")) for number in pair] for pair in pairs if "." in pair[0] + pair[1]]
    return all(abs(a - b) <= max(1.0, 0.05 * abs(a)) for a, b in figures)


def test_figures_may_move_a_little():
    assert fits("step  796.017 ms  -37.4 %  0.89 s", "step   790.1 ms   -37.2 %  7.03 s")
    assert fits("search  5 schedules", "search  11 schedules")
    assert fits("simulated with h100-sxm, hash 6f5d13d3f533", "simulated with h100-sxm, hash 70594085fa53")
    assert not fits("simulated with h100-sxm, hash 6f5d13d3f533", "simulated with a100, hash 70594085fa53")
    assert not fits("step  796.017 ms", "step  498.172 ms")
    assert not fits("layers.0 (32, each)", "layers.0 (32, alike)")


@pytest.mark.parametrize(
    ("document", "command", "shown"), shown_blocks(), ids=[each[1][:60] for each in shown_blocks()]
)
@pytest.mark.sampled(1)
def test_documents_show_what_is_printed(document, command, shown, tmp_path, monkeypatch):
    (tmp_path / "sample_graphs").symlink_to(ROOT / "sample_graphs")
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        assert cli(shlex.split(command)[1:]) in (0, 1)
    lines, at = printed.getvalue().splitlines(), 0
    for part in re.split(r"^\.\.\.\n", shown, flags=re.MULTILINE):
        wanted = part.splitlines()
        starts = range(at, len(lines) - len(wanted) + 1)
        at = next((i for i in starts if all(map(fits, wanted, lines[i:]))), -1) + len(wanted)
        assert at >= len(wanted), f"{document}: not printed any more:\n{part}\nbut:\n{printed.getvalue()}"
