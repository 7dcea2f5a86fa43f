"""Run the commands that a document shows, and write what they print below them, or check that it is so::

    python tools/shown_outputs.py README.md
    python tools/shown_outputs.py --check README.md

A block that is fenced with three backticks and begins with ``$ commcc`` is a command and what it prints,
on both streams. It is run in the folder that the tool is run in, by the ``commcc`` beside this Python; the files
it writes stay there. What took a time, as in ``0.89 s``, is left as it was. Where a line ``...`` stands for
lines that are left out, each part that is shown is found by its first line and stays as long as it is.
A command that names a file which is not there is an example of a reader's own; its block stays as it is.

Limits: one command a block, on its first line.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from difflib import unified_diff
from pathlib import Path

COLUMNS = "110"
_BLOCK = re.compile(r"^```\n(\$ (commcc .*)\n)([^`]*?)^```$", re.MULTILINE)
_MISSING = re.compile(r"\Acommcc: error: .*: no such file\b")
_SECONDS = re.compile(r"\b\d+\.\d\d s\b")


def printed(command: str, folder: Path) -> str:
    """What a command prints; how it ends is not looked at."""
    arguments = [str(Path(sys.executable).with_name("commcc")), *shlex.split(command)[1:]]
    settings = {**os.environ, "COLUMNS": COLUMNS, "NO_COLOR": "1"}
    done = subprocess.run(
        arguments, cwd=folder, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.strip("\n").split("\n"))


def shortened(now: str, shown: str) -> str:
    """What is printed now, cut as it is where it is shown; whole, where a part's first line is not printed any more."""
    if "...\n" not in shown.splitlines(True):
        return now
    lines, made, start = now.splitlines(True), [], 0
    timeless = [_SECONDS.sub("", line) for line in lines]
    for part in re.split(r"^\.\.\.\n", shown, flags=re.MULTILINE):
        wanted = [_SECONDS.sub("", line) for line in part.splitlines(True)]
        if wanted and wanted[0] not in timeless[start:]:
            return now
        start = timeless.index(wanted[0], start) if wanted else start
        made.append("".join(lines[start : start + len(wanted)]))
        start += len(wanted)
    return "...\n".join(made)


def renewed(text: str, folder: Path) -> str:
    """The document with what its commands print now; seconds stay where there are as many of them as before."""

    def block(found: re.Match[str]) -> str:
        line, command, shown = found.groups()
        whole = printed(command, folder)
        if _MISSING.match(whole):
            return found.group()
        now, times = shortened(whole, shown), _SECONDS.findall(shown)
        if len(times) == len(_SECONDS.findall(now)):
            earlier = iter(times)
            now = _SECONDS.sub(lambda _: next(earlier), now)
        return f"```\n{line}{now}```"

    return _BLOCK.sub(block, text)


def main(arguments: list[str]) -> int:
    """Write or check the documents; 1 if one of them is out of date."""
    check = "--check" in arguments
    stale = False
    for name in (argument for argument in arguments if not argument.startswith("-")):
        path = Path(name)
        old = path.read_text(encoding="utf-8")
        new = renewed(old, Path.cwd())
        stale |= old != new
        if check:
            sys.stdout.writelines(unified_diff(old.splitlines(True), new.splitlines(True), name, "printed now"))
        else:
            path.write_text(new, encoding="utf-8")
    return int(check and stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
