"""How the code of ``commcc/`` is cut: size, long functions, helpers with one caller, comments, by package.

    python tools/house_figures.py            # a table, a row for each package
    python tools/house_figures.py --check    # exit 1 where more is cut small than the limits below allow

A *one-caller helper* is a private function (``_name``) whose name stands exactly twice in its file: where it is
defined and where it is called. A *splinter* is such a helper of at most five lines, the docstring left out.
Limits: names are counted in the text, so a mention in a comment counts as a call.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "commcc"
#: Splinters per 1000 lines that `make check` allows; to be lowered with the figure, never raised.
MOST_SPLINTERS = 2.1
LONG = 25
SMALL = 5


@dataclass
class Figures:
    """Counts of one package, or of all. helpers: one-caller helpers; comments: lines with a comment."""

    files: int = 0
    lines: int = 0
    functions: int = 0
    long: int = 0
    helpers: int = 0
    splinters: int = 0
    comments: int = 0

    def add(self, path: Path) -> None:
        """Count one file."""
        text = path.read_text(encoding="utf-8")
        words = Counter(re.findall(r"\b_[a-z]\w*", text))
        self.files += 1
        self.lines += text.count("\n")
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            self.comments += token.type == tokenize.COMMENT
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            self.functions += 1
            self.long += length >= LONG
            if re.match(r"_[a-z]", node.name) and words[node.name] == 2:
                docstring = node.body[0] if ast.get_docstring(node) else None
                told = 0 if docstring is None else (docstring.end_lineno or 0) - docstring.lineno + 1
                self.helpers += 1
                self.splinters += length - told <= SMALL

    def row(self, name: str) -> str:
        """One line of the table."""
        thousand = self.lines / 1000 or 1
        return (
            f"{name:16}{self.files:6}{self.lines:8}{self.functions:7}{self.long / (self.functions or 1):8.1%}"
            f"{self.helpers / thousand:9.1f}{self.splinters / thousand:11.1f}{self.comments / thousand:10.1f}"
        )


def main() -> int:
    """Print the table; the exit code says whether the limit holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 where the limit is passed")
    check = parser.parse_args().check
    packages: dict[str, Figures] = {}
    whole = Figures()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        packages.setdefault(name, Figures()).add(path)
        whole.add(path)
    rate = whole.splinters * 1000 / whole.lines
    if check:
        if rate > MOST_SPLINTERS:
            print(f"{rate:.2f} splinters per 1000 lines, and {MOST_SPLINTERS} are allowed: join what is read together")
        return int(rate > MOST_SPLINTERS)
    print(f"{'':16}{'files':>6}{'lines':>8}{'funcs':>7}{'>=25':>8}{'helpers':>9}{'splinters':>11}{'comments':>10}")
    print(f"{'':29}{'':8}{'':8}{'per 1000 lines':>30}")
    for name, figures in sorted(packages.items()):
        print(figures.row(name))
    print(whole.row("all"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
