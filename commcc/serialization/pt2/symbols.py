"""Symbolic sizes as ``.pt2`` files spell them (sympy's ``srepr``), read without eval or sympify.

Usage::

    reader = ExpressionReader(ctx)
    reader.integer({"as_expr": {"expr_str": "Mul(Integer(8), Symbol('u0', integer=True))", "hint": None}})   # SymInt
    write_scalar(symint)     # {"as_expr": {"expr_str": "Mul(Integer(8), Symbol('u0', integer=True))", "hint": None}}

Limits: the functions of :mod:`commcc.serialization.fx.symbols`; what a file says about a symbol's sign is
ignored in favour of its name (``s``: positive, ``u``: unbacked).
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import sympy

from commcc.base.errors import InputError
from commcc.serialization.fx.symbols import MAX_DEPTH, build, expression_text, too_deep

if TYPE_CHECKING:
    import torch

    from commcc.serialization.shapes import ShapeContext

_MAX_TEXT = 20_000
_MAX_ARGS = 64
_MAX_BITS = 512
_INT64 = 1 << 63
_SYMBOL = re.compile(r"Symbol\('(\w{1,40})'[^()]*\)")
#: srepr's name of a function -> the name that fx_symbols builds it by.
_RENAMED = {
    "Equality": "Eq",
    "Unequality": "Ne",
    "StrictLessThan": "Lt",
    "LessThan": "Le",
    "StrictGreaterThan": "Gt",
    "GreaterThan": "Ge",
}
_OF_TRUTH_VALUES = frozenset({"And", "Or", "Not", "Where"})
_CONSTANTS = {"true": sympy.true, "false": sympy.false}
#: What sympy does, sooner or later, with expressions that make no sense (a sum of truth values).
_NONSENSE = (
    *(SyntaxError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError, LookupError),
    *(NotImplementedError, RecursionError, MemoryError),
)


class ExpressionReader:
    """Reads symbolic sizes into one shape context, each text once."""

    def __init__(self, ctx: ShapeContext) -> None:
        self.ctx = ctx
        self._known: dict[str, sympy.Basic] = {}

    def integer(self, data: Any) -> int | torch.SymInt:
        """A SymInt of the schema: ``{"as_int": 4}`` or ``{"as_expr": ...}``."""
        ((kind, value),) = data.items()
        if kind == "as_int":
            if type(value) is not int or not -_INT64 <= value < _INT64:
                raise InputError(f"{str(value)[:40]!r} is not a 64-bit integer")
            return value
        text = _text_of(kind, value)
        expr = self.expression(text)
        try:
            if not isinstance(expr, sympy.Expr) or expr.is_integer is False:
                raise InputError(f"{text[:60]!r} is not an integer")
            return self.ctx.integer(expr)
        except _NONSENSE:
            raise InputError(f"the symbolic size {text[:60]!r} has no value") from None

    def scalar(self, data: Any, plain: type) -> Any:
        """A SymFloat or SymBool of the schema; ``plain`` is ``float`` or ``bool``."""
        ((kind, value),) = data.items()
        if kind == f"as_{plain.__name__}":
            if plain is float:
                return number(value)
            if type(value) is not bool:
                raise InputError(f"{str(value)[:40]!r} is not true or false")
            return value
        text = _text_of(kind, value)
        try:
            return self.ctx.parse_symbolic(expression_text(self.expression(text)))
        except _NONSENSE:
            raise InputError(f"the symbolic value {text[:60]!r} has no value") from None

    def declare_hint(self, value: Any) -> None:
        """Take the example value of a plain symbol from an ``as_expr``, before anything is made of it."""
        match = _SYMBOL.fullmatch(value["expr_str"])
        hint = value.get("hint")
        if match is not None and isinstance(hint, dict) and type(hint.get("as_int")) is int:
            known = self.ctx.symbols.get(match[1])
            lower, upper = (known.lower, known.upper) if known is not None else (None, None)
            self.ctx.declare(match[1], lower=lower, upper=upper, hint=hint["as_int"])

    def expression(self, text: str) -> sympy.Basic:
        """The expression of an ``expr_str``, built as written where sympy can hold it so."""
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = self._parse(text)
        return found

    def _parse(self, text: str) -> sympy.Basic:
        if len(text) > _MAX_TEXT or too_deep(text, MAX_DEPTH):
            raise InputError("a symbolic size is too long or nested too deeply")
        try:
            tree = ast.parse(text, mode="eval").body
            expr = self._build(tree, evaluate=True)
            if _plain(sympy.srepr(expr)) == _plain(text):
                return expr
            exact = self._build(tree, evaluate=False)
            return exact if _plain(sympy.srepr(exact)) == _plain(text) else expr
        except _NONSENSE:
            raise InputError(f"cannot read the symbolic size {text[:60]!r}") from None

    def _build(self, node: ast.expr, *, evaluate: bool) -> sympy.Basic:
        if isinstance(node, ast.Name) and node.id in _CONSTANTS:
            return _CONSTANTS[node.id]
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or len(node.args) > _MAX_ARGS:
            raise InputError(f"{type(node).__name__} is not allowed in a symbolic size")
        name = node.func.id
        if name == "Symbol":
            return self.ctx.symbol(_literal(node, str))
        if name in ("Integer", "Float", "Rational"):
            return _number(name, node)
        if node.keywords:
            raise InputError(f"{name[:40]!r} has keywords in a symbolic size")
        args = [self._build(arg, evaluate=evaluate) for arg in node.args]
        if name not in _OF_TRUTH_VALUES and not all(isinstance(arg, sympy.Expr) for arg in args):
            raise InputError(f"{name[:40]!r} of truth values in a symbolic size")
        return build(_RENAMED.get(name, name), args, evaluate=evaluate)


def _plain(text: str) -> str:
    """``srepr`` without what it says about the sign of symbols."""
    return _SYMBOL.sub(r"\1", text).replace(" ", "")


def _text_of(kind: str, value: Any) -> str:
    text = value["expr_str"] if kind == "as_expr" else None
    if not isinstance(text, str):
        raise InputError(f"{kind[:40]!r} is not a symbolic size")
    return text


def _literal(node: ast.Call, kind: type) -> Any:
    if not node.args or not isinstance(arg := node.args[0], ast.Constant) or type(arg.value) is not kind:
        raise InputError(f"{ast.unparse(node)[:60]!r} is not allowed in a symbolic size")
    return arg.value


def _integer(node: ast.expr) -> int:
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -1, node.operand
    if not isinstance(node, ast.Constant) or type(node.value) is not int or node.value.bit_length() > _MAX_BITS:
        raise InputError(f"{ast.unparse(node)[:60]!r} is not a number that a symbolic size may hold")
    return sign * node.value


def _number(name: str, node: ast.Call) -> sympy.Basic:
    if name == "Float":
        return sympy.Float(float(_literal(node, str)))
    values = [_integer(arg) for arg in node.args]
    if node.keywords or len(values) != (1 if name == "Integer" else 2):
        raise InputError(f"{name} with {len(values)} numbers in a symbolic size")
    return sympy.Integer(values[0]) if name == "Integer" else sympy.Rational(values[0], values[1] or 1)


def number(value: Any) -> float:
    """A float of the schema, where infinities and NaN are strings."""
    if isinstance(value, str):
        if value not in ("Infinity", "-Infinity", "NaN"):
            raise InputError(f"{value[:40]!r} is not a number")
        return float(value)
    if type(value) not in (int, float):
        raise InputError(f"{str(value)[:40]!r} is not a number")
    return float(value)


def write_number(value: float) -> float | str:
    """The opposite of :func:`number`."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


@lru_cache(maxsize=20_000)
def _srepr(expr: sympy.Basic) -> str:
    return str(sympy.srepr(expr))


def write_scalar(value: Any) -> dict[str, Any]:
    """An int, float, bool or symbolic scalar as the schema spells it."""
    if type(value) is bool:
        return {"as_bool": value}
    if type(value) is int:
        return {"as_int": value}
    if type(value) is float:
        return {"as_float": write_number(value)}
    node = value.node
    expr = node.expr
    if expr.is_number:
        kind = node.pytype
        plain = kind(expr)
        return write_scalar(plain)
    hint = hint_of(value)
    return {"as_expr": {"expr_str": _srepr(expr), "hint": None if hint is None else write_scalar(hint)}}


def hint_of(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> int | float | bool | None:
    """The example value of a symbolic scalar; None for sizes known only at run time."""
    node = value.node
    if not node.has_hint():
        return None
    hint = node.hint
    return hint if type(hint) in (int, float, bool) else None
