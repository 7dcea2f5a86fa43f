"""The two parts of a graph text that may span lines: the parameters of ``forward`` and its ``return``.

Trailing comments are descriptors (``expanded_def=True``), comments of their own line are commcc's
metadata for the parameter below::

    def forward(
        self,
        # {"$target": "x"}
        x_1: "f32[32, 64][64, 1]cpu",  # ParamAOTInput(target='weight')
    ):
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commcc.base.errors import InputError
from commcc.serialization.fx.header import load
from commcc.serialization.fx.source import check_runs, expression_tree
from commcc.serialization.fx.values import dotted

if TYPE_CHECKING:
    from commcc.serialization.fx.source import Line
    from commcc.serialization.fx.values import Values

_COMMENT = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|#""")


@dataclass(frozen=True)
class Parameter:
    """One input: ``annotation`` as printed, ``default`` empty or of one value."""

    name: str
    target: str
    annotation: str | None
    default: tuple[Any, ...] = ()
    desc: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What is returned; ``desc`` has one descriptor for each element, if the text has them."""

    value: Any
    desc: list[str] | None


def read_signature(lines: list[Line], values: Values, where: str) -> list[Parameter]:
    """The parameters after ``self``; errors name the line."""
    code: list[str] = []
    descs: dict[int, str] = {}
    metas: dict[int, dict[str, Any]] = {}
    for index, (number, line) in enumerate(lines, 1):
        if line.startswith("# {"):
            metas[index + 1] = _metadata(line, f"{where}:{number}")
        bare, comment = _split_comment(line)
        code.append(bare)
        if comment:
            descs[index] = comment
    function = _parse_function("\n".join(code), f"{where}:{lines[0][0]}")
    out = []
    for arg, target, default in _parameters(function.args):
        annotation = arg.annotation
        text = annotation.value if isinstance(annotation, ast.Constant) and type(annotation.value) is str else None
        value = () if default is None else (values.value(default),)
        meta = metas.pop(arg.lineno, {})
        out.append(Parameter(arg.arg, target, text, value, descs.get(arg.lineno), meta))
    return out


def _metadata(line: str, where: str) -> dict[str, Any]:
    try:
        found = load(line[2:])
    except InputError as error:
        raise InputError(error.what, where=where) from None
    if not isinstance(found, dict):
        raise InputError("the metadata above a parameter is not an object", where=where)
    return found


def _parse_function(code: str, where: str) -> ast.FunctionDef:
    check_runs(code)
    try:
        module = compile(f"{code} pass", "<graph>", "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        raise InputError("cannot parse the parameters of 'forward'", where=where, hint="dump the graph again") from None
    function = module.body[0] if isinstance(module, ast.Module) and len(module.body) == 1 else None
    if not isinstance(function, ast.FunctionDef) or not function.args.args or function.args.args[0].arg != "self":
        raise InputError("'forward' has no parameter 'self'", where=where)
    return function


def _parameters(args: ast.arguments) -> list[tuple[ast.arg, str, ast.expr | None]]:
    """All parameters but ``self``: the syntax, the name as FX writes it, the default."""
    first_default = len(args.args) - len(args.defaults)
    out: list[tuple[ast.arg, str, ast.expr | None]] = []
    for position, arg in enumerate(args.args[1:], 1):
        default = args.defaults[position - first_default] if position >= first_default else None
        out.append((arg, arg.arg, default))
    if args.vararg is not None:
        out.append((args.vararg, f"*{args.vararg.arg}", None))
    out += [(arg, arg.arg, default) for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    if args.kwarg is not None:
        out.append((args.kwarg, f"**{args.kwarg.arg}", None))
    return out


def read_result(lines: list[Line], values: Values) -> Result:
    """The value after ``return``, which may be a pytree call around it."""
    parts = [_split_comment(line) for _, line in lines]
    descs = [comment for _, comment in parts if comment]
    code = "\n".join(text for text, _ in parts)[len("return") :].strip()
    tree = expression_tree(code)
    if isinstance(tree, ast.Call):
        if dotted(tree.func) != "pytree.tree_unflatten" or not tree.args:
            raise InputError("a call is returned; only values can be")
        tree = tree.args[0]
    value = values.value(tree)
    count = len(value) if isinstance(value, (tuple, list)) else 1
    return Result(value, descs if descs and len(descs) == count else None)


def _split_comment(line: str) -> tuple[str, str | None]:
    """A line without the comment at its end, and that comment without its ``#``."""
    if "#" not in line:
        return line, None
    for match in _COMMENT.finditer(line):
        if match[0] == "#":
            return line[: match.start()].rstrip(), line[match.end() :].strip()
    return line, None
