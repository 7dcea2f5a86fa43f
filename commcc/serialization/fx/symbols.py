"""Symbolic sizes as text: ``8*u0 + 3`` to a sympy expression and back, without eval or sympify.

Usage::

    expr = parse_expression("Max(1, (u0//8))", symbol_of)   # symbol_of("u0") -> sympy.Symbol
    expression_text(expr)                                   # 'Max(1, (u0//8))'
    expr = build("FloorDiv", [u0, sympy.Integer(8)])        # from another notation (srepr in .pt2 files)

Expressions are built as written wherever sympy allows (no simplification), so that the printed text
is the text that was read and hostile input cannot start a long computation.
Limits: the functions that torch prints; powers of numbers only where the result stays small.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import sympy
from torch.utils._sympy import functions as torch_functions

from commcc.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    SymbolOf = Callable[[str], sympy.Symbol]

MAX_TEXT = 20_000
MAX_DEPTH = 60
_MAX_BITS = 512
SYMBOL_NAME = re.compile(r"(?:s|u|zf|zuf)\d{1,9}")

_TORCH_FUNCTIONS = frozenset(
    {
        *("FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv", "CeilToInt", "FloorToInt"),
        *("CeilDiv", "IntTrueDiv", "FloatTrueDiv", "LShift", "RShift", "TruncToFloat", "TruncToInt", "RoundToInt"),
        *("RoundDecimal", "ToFloat", "FloatPow", "PowByNatural", "Identity", "Max", "Min"),
        *(f"OpaqueUnaryFn_{name}" for name in ("sqrt", "exp", "log", "log2", "cos", "sin", "tan", "tanh")),
        *(f"BitwiseFn_bitwise_{name}" for name in ("and", "or", "xor")),
    }
)
_SYMPY_FUNCTIONS = frozenset({"Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And", "Or", "Not", "Abs", "floor", "ceiling"})
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "Lt",
    ast.LtE: "Le",
    ast.Gt: "Gt",
    ast.GtE: "Ge",
    ast.Eq: "Eq",
    ast.NotEq: "Ne",
}
#: What a sympy or torch constructor raises when its arguments make no sense.
_CONSTRUCTOR_ERRORS = (ArithmeticError, TypeError, ValueError, AssertionError, AttributeError, IndexError)


@lru_cache(maxsize=256)
def _function(name: str) -> Any:
    if name in _TORCH_FUNCTIONS:
        return getattr(torch_functions, name, None)
    return getattr(sympy, name) if name in _SYMPY_FUNCTIONS else None


def build(name: str, args: Sequence[sympy.Basic], *, evaluate: bool = True) -> sympy.Basic:
    """The expression ``name(*args)``; ``Add``, ``Mul``, ``Pow`` and the functions that torch prints.

    ``evaluate=False`` keeps sums and products exactly as given. Unknown names, wrong arguments and
    powers that would be huge raise :class:`InputError`.
    """
    try:
        if name in ("Add", "Mul"):
            return getattr(sympy, name)(*args, evaluate=evaluate)
        if name == "Pow":
            return _power(*args, evaluate=evaluate)
        function = _function(name)
        if function is None:
            raise InputError(f"unknown function {name[:60]!r} in a symbolic size")
        return function(*args, evaluate=False)
    except _CONSTRUCTOR_ERRORS as error:
        raise InputError(f"cannot build the symbolic size {name}(...): {str(error)[:120]}") from None


def _power(base: sympy.Expr, exponent: sympy.Expr, *, evaluate: bool) -> sympy.Expr:
    if exponent.is_number and not exponent.is_Integer:
        raise InputError("a symbolic size is raised to a power that is no integer")
    if base.is_number and exponent.is_Integer:
        parts = [part for part in base.as_numer_denom() if part.is_Integer]
        bits = max((int(part).bit_length() for part in parts), default=64)
        if bits * abs(int(exponent)) > _MAX_BITS:
            raise InputError("a number in a symbolic size is too large")
    elif exponent.is_Integer and int(exponent).bit_length() > 16:
        raise InputError("a power in a symbolic size is too large")
    return sympy.Pow(base, exponent, evaluate=evaluate)


class _Builder:
    """Turns a checked ``ast`` expression into sympy, one node type a method."""

    def __init__(self, symbol_of: SymbolOf, *, evaluate: bool) -> None:
        self.symbol_of = symbol_of
        self.evaluate = evaluate

    def expression(self, node: ast.expr) -> sympy.Basic:
        method = getattr(self, f"_{type(node).__name__}", None)
        if method is None:
            raise InputError(f"{type(node).__name__} is not allowed in a symbolic size")
        return method(node)

    def _Constant(self, node: ast.Constant) -> sympy.Basic:
        value = node.value
        if isinstance(value, bool):
            return sympy.true if value else sympy.false
        if isinstance(value, int) and value.bit_length() <= _MAX_BITS:
            return sympy.Integer(value)
        if isinstance(value, float):
            return sympy.Float(value)
        raise InputError(f"{str(value)[:40]!r} is not allowed in a symbolic size")

    def _Name(self, node: ast.Name) -> sympy.Basic:
        if not SYMBOL_NAME.fullmatch(node.id):
            raise InputError(f"{node.id[:60]!r} is not the name of a symbolic size (u0, s77, zf1, ...)")
        return self.symbol_of(node.id)

    def _UnaryOp(self, node: ast.UnaryOp) -> sympy.Basic:
        value = self.expression(node.operand)
        if isinstance(node.op, ast.USub):
            return build("Mul", [sympy.S.NegativeOne, value], evaluate=self.evaluate or value.is_number is True)
        if isinstance(node.op, (ast.Invert, ast.Not)):
            return build("Not", [value])
        return value

    def _BinOp(self, node: ast.BinOp) -> sympy.Basic:
        left, right = self.expression(node.left), self.expression(node.right)
        kind = type(node.op).__name__
        if kind == "Sub":
            right = build("Mul", [sympy.S.NegativeOne, right], evaluate=self.evaluate or right.is_number is True)
        if kind == "Div":
            right = build("Pow", [right, sympy.S.NegativeOne])
        name = _BINARY.get(kind)
        if name is None:
            raise InputError(f"{kind} is not allowed in a symbolic size")
        return build(name, [left, right], evaluate=self.evaluate)

    def _Compare(self, node: ast.Compare) -> sympy.Basic:
        name = _COMPARISONS.get(type(node.ops[0]))
        if name is None or len(node.ops) != 1:
            raise InputError("only one comparison is allowed in a symbolic size")
        return build(name, [self.expression(node.left), self.expression(node.comparators[0])])

    def _Call(self, node: ast.Call) -> sympy.Basic:
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise InputError("only plain functions are allowed in a symbolic size")
        return build(node.func.id, [self.expression(arg) for arg in node.args], evaluate=self.evaluate)


_BINARY = {
    "Add": "Add",
    "Sub": "Add",
    "Mult": "Mul",
    "Div": "Mul",
    "FloorDiv": "FloorDiv",
    "Mod": "PythonMod",
    "Pow": "Pow",
    "BitAnd": "And",
    "BitOr": "Or",
    "LShift": "LShift",
    "RShift": "RShift",
}


def too_deep(text: str, limit: int) -> bool:
    """Whether brackets nest deeper than ``limit``; cheap, for use before ``ast.parse``."""
    depth = 0
    for bracket in re.findall(r"[][(){}]", text):
        depth += 1 if bracket in "([{" else -1
        if depth > limit:
            return True
    return False


def parse_expression(text: str, symbol_of: SymbolOf) -> sympy.Basic:
    """The expression that torch prints as ``text``; prints as ``text`` again if sympy can hold it so."""
    if len(text) > MAX_TEXT or too_deep(text, MAX_DEPTH):
        raise InputError("a symbolic size is too long or nested too deeply")
    try:
        node = ast.parse(text.strip(), mode="eval").body
        expr = _Builder(symbol_of, evaluate=True).expression(node)
        if expr.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo, sympy.I):
            raise InputError(f"the symbolic size {text[:60]!r} has no finite value")
        if expression_text(expr) == text.strip():
            return expr
        exact = _Builder(symbol_of, evaluate=False).expression(node)
        return exact if expression_text(exact) == text.strip() else expr
    except (SyntaxError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError):
        # Expressions that mix numbers and truth values fail in sympy, and only when they are printed.
        raise InputError(f"cannot read the symbolic size {text[:60]!r}") from None


def expression_text(expr: object) -> str:
    """The expression as torch prints it."""
    return str(expr)


def stable_text(expr: object, symbol_of: SymbolOf) -> str:
    """A text for ``expr`` that reads back to an expression with that very text."""
    text = expression_text(expr)
    for _ in range(3):
        again = expression_text(parse_expression(text, symbol_of))
        if again == text:
            return text
        text = again
    raise InputError(f"the symbolic size {text[:60]!r} has no stable text")


def has_powers(expr: sympy.Basic) -> bool:
    """Whether numbers put in for the symbols could make a number too large to compute."""
    return any(part.is_Pow or type(part).__name__ in _POWERS for part in sympy.preorder_traversal(expr))


_POWERS = frozenset({"PowByNatural", "FloatPow", "LShift"})
_FLOAT_FUNCTIONS = ("IntTrueDiv", "FloatTrueDiv", "ToFloat", "FloatPow", "TruncToFloat", "RoundDecimal")


def type_of(expr: sympy.Basic) -> type:
    """``int``, ``float`` or ``bool``: what kind of scalar an expression is, as torch types its symbolic scalars."""
    if isinstance(expr, sympy.logic.boolalg.Boolean) and not isinstance(expr, sympy.Symbol):
        return bool
    if expr.is_integer:
        return int
    name = type(expr).__name__
    if expr.is_Float or name in _FLOAT_FUNCTIONS or name.startswith("OpaqueUnaryFn") or expr.is_integer is False:
        return float
    if expr.is_Add or expr.is_Mul or expr.is_Pow:
        return float if any(type_of(arg) is float for arg in expr.args if not arg.is_Rational) else int
    return int if expr.is_integer is not False and not expr.is_Symbol else float
