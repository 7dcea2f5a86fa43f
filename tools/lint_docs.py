"""Write the rules of ``commcc lint`` into docs/lint.md, or check that they are up to date::

python tools/lint_docs.py docs/lint.md
python tools/lint_docs.py --check docs/lint.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from commcc.report.linting import rules_manual

START, END = "<!-- rules: written by make docs -->", "<!-- end of rules -->"


def wanted(text: str) -> str:
    """The manual with the rules as they are now."""
    head, start, rest = text.partition(START)
    _, end, tail = rest.partition(END)
    if not start or not end:
        raise SystemExit(f"there is no '{START}' ... '{END}' to write between")
    return f"{head}{START}\n\n{rules_manual()}\n{END}{tail}"


def main(arguments: list[str]) -> int:
    """Write or check the document; the exit code."""
    path = Path(next(a for a in arguments if not a.startswith("-")))
    found = path.read_text(encoding="utf-8")
    text = wanted(found)
    if found == text:
        return 0
    if "--check" not in arguments:
        path.write_text(text, encoding="utf-8")
        return 0
    print(f"{path} is out of date: run 'make docs'", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
