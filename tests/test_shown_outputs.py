"""The tool that writes what commands print into the documents that show it."""

from __future__ import annotations

import runpy
from pathlib import Path

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


def test_seconds_stay(tmp_path, monkeypatch):
    tool = runpy.run_path(TOOL)
    renewed = tool["renewed"]
    monkeypatch.setitem(renewed.__globals__, "printed", lambda *_: "1,000 nodes in 0.52 s\n")
    shown = "```\n$ commcc bucket g\n999 nodes in 0.31 s\n```\n"
    assert renewed(shown, tmp_path) == "```\n$ commcc bucket g\n1,000 nodes in 0.31 s\n```\n"


def test_lines_that_are_left_out_stay_out(tmp_path, monkeypatch):
    renewed = runpy.run_path(TOOL)["renewed"]
    monkeypatch.setitem(renewed.__globals__, "printed", lambda *_: "head\ntable\nrow 2\nmore\nlast\nend\n")
    shown = "```\n$ commcc bucket g\n...\ntable\nrow 1\n...\nlast\n...\n```\n"
    assert renewed(shown, tmp_path) == shown.replace("row 1", "row 2")
    whole = "```\n$ commcc bucket g\nhead\ntable\nrow 2\nmore\nlast\nend\n```\n"
    assert renewed(shown.replace("table", "a heading that is gone"), tmp_path) == whole
