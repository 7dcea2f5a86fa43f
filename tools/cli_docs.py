"""Write docs/cli.md from ``--help``, or check that it is up to date::

    python tools/cli_docs.py docs/cli.md
    python tools/cli_docs.py --check docs/cli.md

Uses what click prints, so the text depends on the click version in constraints.txt.
"""

from __future__ import annotations

import sys
from difflib import unified_diff
from pathlib import Path

import click

from commcc.cli.main import make_group

WIDTH = 100

HEAD = """# Command reference

Written by `make docs` from `--help`; `make check` fails when it is out of date.

Every command takes `--json`, `--quiet` and `--debug`, and `-h` for what follows here. Results go to standard output,
everything else to standard error, where an error is one line, `commcc: error: WHERE: WHAT; WHAT TO DO`.

With `--json` standard output holds one document whatever happens. Where there is no result it is
`{"schema": 1, "command": NAME, "error": {"kind", "message", "what", "where", "hint", "exit_code"}}`; the line on
standard error is there as well. Kinds are `input`, `option`, `output`, `graph`, `verify`, `finding`, `setup` and
`internal`.

| exit code | meaning |
|---|---|
| 0 | done; for `verify`: proved to be the same program, or with `--numeric` no difference found either way |
| 1 | findings: not the same program, or not proved to be; for `lint`: errors; for `bench`: other results |
| 2 | wrong use, or input that cannot be read; nothing was written |
| 3 | a bug in commcc, among them a rewrite that did not pass its own verification; nothing was written |
| 130 | interrupted |
| 141 | whoever read standard output stopped reading |
"""


def reference() -> str:
    """The whole document."""
    group = make_group()
    root = click.Context(group, info_name="commcc", **{**group.context_settings, "max_content_width": WIDTH})
    root.terminal_width = WIDTH
    parts = [HEAD, _section("commcc", group.get_help(root))]
    for name in group.list_commands(root):
        command = group.get_command(root, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=root)
        parts.append(_section(f"commcc {name}", command.get_help(context)))
    return "\n".join(parts)


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n```\n{text.rstrip()}\n```\n"


def main(arguments: list[str]) -> int:
    """Write or check the document; the exit code."""
    check = "--check" in arguments
    path = Path(next(a for a in arguments if not a.startswith("-")))
    wanted = reference()
    if not check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted, encoding="utf-8")
        return 0
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    if found == wanted:
        return 0
    sys.stdout.writelines(unified_diff(found.splitlines(True), wanted.splitlines(True), str(path), "make docs"))
    print(f"{path} is out of date: run 'make docs'", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
