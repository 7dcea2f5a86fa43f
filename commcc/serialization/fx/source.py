"""The outline of a graph text: classes, ``forward`` functions and comments, found line by line.

::

    class GraphModule(torch.nn.Module):            ClassText(name="GraphModule", line=1)
        def forward(self, x: "f32[4]"):              signature
            # File: a.py:3 in f, code: x + 1         body, comments included
            add = torch.ops.aten.add.Tensor(x, 1)
            return (add,)                            result
        class body_graph(torch.nn.Module): ...       children

Only single expressions ever reach Python's parser, after :func:`expression_tree` has bounded them.
Limits: one statement a line, as FX prints them; only signatures and ``return`` may span lines.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TypeAlias

from commcc.base.errors import InputError
from commcc.serialization.sources import without_colors
from commcc.serialization.symbols import too_deep

Line: TypeAlias = "tuple[int, str]"

#: Starts the comments that only commcc writes and reads.
COMMCC = "# commcc:"
_CLASS = re.compile(r"(\s*)(?:[^\s#].{0,4096}? )?class ([^\s(][^(]{0,200})\((?:torch\.)?nn\.Module\):\s*")
_FORWARD = re.compile(r"def forward\s*\(")
_KEYWORDS = re.compile(
    r"(?:if|elif|else|for|while|with|try|except|finally|async|import|from|del|global|nonlocal"
    r"|assert|raise|yield|await|break|continue|lambda|def|class)\b|@"
)
_STRINGS = re.compile(r"""\"[^"\\\n]*(?:\\.[^"\\\n]*)*\"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'""")
#: Something goes on after a closing bracket: ``x[0][0]``, ``(x) + (y)``, ``f(x).y``.
_CHAINED = re.compile(r"[\])}]\s*[^\s,=:;\])}]")
#: Nested functions, and strings with a prefix, which may hold expressions.
_ODD = re.compile(r"\blambda\b|\w''")
_LONGEST = 8 << 20
_LONGEST_RUN = 1000
_MOST_CHAINED = 200
_DEEPEST = 60
_MOST_CLASSES = 10_000


@dataclass
class ClassText:
    """One class: ``signature`` runs from ``def forward`` to its colon, ``result`` from ``return`` to the end."""

    name: str
    line: int
    indent: int
    forward_line: int = 0
    signature: list[Line] = field(default_factory=list)
    body: list[Line] = field(default_factory=list)
    result: list[Line] = field(default_factory=list)
    children: list[ClassText] = field(default_factory=list)


@dataclass
class Outline:
    """A graph text taken apart; ``comments`` are those at the top, before the first class."""

    graph: ClassText
    comments: list[Line]
    footer: list[Line]


def outline(text: str, where: str) -> Outline:
    """Find the classes and functions of a text that holds one graph (and the sub-graphs of it)."""
    scanner = _Scanner(where)
    for number, line in enumerate(without_colors(text).split("\n"), 1):
        stripped = line.strip()
        if len(stripped) > _LONGEST:
            raise scanner.fail(number, "a line is too long to be one of a graph")
        if stripped:
            scanner.line(number, line, stripped)
    return scanner.finish()


class _Scanner:
    """A line-by-line automaton; ``state`` says which part of a class the next line belongs to."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.comments: list[Line] = []
        self.footer: list[Line] = []
        self.top: ClassText | None = None
        self.open: list[ClassText] = []
        self.classes = 0
        self.state = "class"
        self.indent = 0

    def fail(self, number: int, what: str, hint: str | None = None) -> InputError:
        return InputError(what, where=f"{self.where}:{number}", hint=hint)

    def line(self, number: int, line: str, stripped: str) -> None:
        if self.state == "docstring":
            # Nothing in a docstring counts.
            self.state = "body" if stripped.endswith('"""') else self.state
        elif stripped[0] == "#" and (self.state not in ("signature", "result") or stripped.startswith(COMMCC)):
            # Comments in a signature or result are descriptors and belong to it.
            if not self.open:
                self.comments.append((number, stripped))
            elif stripped.startswith(COMMCC):
                self.footer.append((number, stripped))
            elif self.state == "body":
                self.open[-1].body.append((number, stripped))
        elif "class " in stripped and (match := _CLASS.fullmatch(line)) is not None:
            self._class(number, match)
        elif stripped.startswith("def ") and self.state != "signature":
            self._def(number, line, stripped)
        else:
            self._statement(number, line, stripped)

    def _class(self, number: int, match: re.Match[str]) -> None:
        self.classes += 1
        current = ClassText(match[2].strip(), number, len(match[1]))
        # Indentation alone says where a class ends.
        while self.open and self.open[-1].indent >= current.indent:
            self.open.pop()
        if self.open:
            self.open[-1].children.append(current)
        elif self.top is None:
            self.top = current
        else:
            raise self.fail(number, "a second graph starts here", "keep one graph in a file, or choose with FILE::NAME")
        if self.classes > _MOST_CLASSES or len(self.open) > _DEEPEST:
            raise self.fail(number, "too many nested sub-graphs")
        self.open.append(current)
        self.state = "class"

    def _def(self, number: int, line: str, stripped: str) -> None:
        self.indent = len(line) - len(line.lstrip())
        if not self.open or self.state not in ("class", "init") or self.indent <= self.open[-1].indent:
            raise self.fail(number, "a function is defined where none belongs")
        if stripped.startswith("def __init__("):
            self.state = "init"
        elif _FORWARD.match(stripped):
            self.open[-1].forward_line = number
            self.state = "signature"
            self._signature(number, stripped)
        else:
            raise self.fail(
                number, f"unexpected function {stripped[4:60].split('(')[0]!r}", "a graph has only 'forward'"
            )

    def _signature(self, number: int, stripped: str) -> None:
        current = self.open[-1]
        current.signature.append((number, stripped))
        # Annotations inside end in a comma, so that a colon ends the last line only.
        if stripped.endswith(":") and (stripped.startswith(")") or len(current.signature) == 1):
            self.state = "body"

    def _statement(self, number: int, line: str, stripped: str) -> None:
        if self.state == "signature":
            self._signature(number, stripped)
        elif self.state == "init":
            return  # builds sub-modules; never executed, and what it says is in the nested classes
        elif self.state == "class" or len(line) - len(line.lstrip()) <= self.indent:
            raise self.fail(number, f"unexpected statement outside 'forward': {stripped[:60]!r}")
        elif self.state == "result":
            self.open[-1].result.append((number, stripped))
        elif stripped.startswith("return") and not stripped[6:7].isidentifier():
            # Not a node whose name only starts with return.
            self.state = "result"
            self.open[-1].result.append((number, stripped))
        elif stripped.startswith('"""'):
            self.state = "body" if len(stripped) > 3 and stripped.endswith('"""') else "docstring"
        elif _KEYWORDS.match(stripped):
            raise self.fail(number, f"statement not allowed in a graph: {stripped[:60]!r}")
        else:
            self.open[-1].body.append((number, stripped))

    def finish(self) -> Outline:
        if self.top is None:
            raise InputError(
                "no graph in this text", where=self.where, hint="it should hold 'class ...(torch.nn.Module):'"
            )
        pending = [self.top]
        while pending:
            current = pending.pop()
            pending += current.children
            if not current.result:
                raise self.fail(
                    current.line, f"the graph {current.name[:60]!r} has no return", "the text is cut; dump it again"
                )
        return Outline(self.top, self.comments, self.footer)


def expression_tree(text: str) -> ast.expr:
    """Python's syntax tree of one expression, refused before parsing if it is deep enough to hurt the parser."""
    # Short texts cannot hurt the parser.
    if len(text) > _LONGEST_RUN:
        check_runs(text)
    try:
        # Parses only: with this flag no code object is made, and nothing is ever evaluated.
        tree = compile(text, "<graph>", "eval", ast.PyCF_ONLY_AST, dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        raise InputError(f"cannot parse {text[:80]!r}", hint="the text is damaged or cut; dump it again") from None
    assert isinstance(tree, ast.Expression)
    return tree.body


def check_runs(text: str) -> None:
    """Refuse what would make a deep tree (a long chain of operators, brackets) or a number slow to convert.

    The arguments of real graphs are long lists of short items.
    """
    # What stands in strings makes no tree.
    bare = _STRINGS.sub("''", text)
    if len(bare) > _LONGEST or _ODD.search(bare) or any(len(item) > _LONGEST_RUN for item in bare.split(",")):
        raise InputError(f"an expression is too long to be one of a graph: {text[:60]!r}")
    if any(count > _MOST_CHAINED for count, _ in enumerate(_CHAINED.finditer(bare))):
        raise InputError(f"too many operations in one expression: {text[:60]!r}")
    if too_deep(bare, _DEEPEST):
        raise InputError(f"brackets nest deeper than {_DEEPEST}: {text[:60]!r}")
