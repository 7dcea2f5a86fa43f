"""Symbolic sizes as text, in the two notations that files have, read without eval or sympify.

Usage::

    expr = parse_expression("Max(1, (u0//8))", symbol_of)   # as PyTorch prints it; symbol_of("u0") -> sympy.Symbol
    expression_text(expr)                                   # 'Max(1, (u0//8))'
    parse_srepr("Max(Integer(1), FloorDiv(Symbol('u0', integer=True), Integer(8)))", symbol_of)     # as .pt2 files do

Expressions are built as written wherever sympy allows (no simplification), so that the printed text
is the text that was read and hostile input cannot start a long computation.
Limits: the functions that torch prints; powers of numbers only where the result stays small; what a file says
about a symbol's sign is ignored in favour of its name (``s``: positive, ``u``: unbacked).
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import sympy
from torch.utils._sympy import functions as torch_functions

from commcc.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    SymbolOf = Callable[[str], sympy.Symbol]

_BRACKETS = re.compile(r"[][(){}]")
SYMBOL_NAME = re.compile(r"(?:s|u|zf|zuf)\d{1,9}")
_MAX_TEXT = 20_000
_MAX_DEPTH = 60
_MAX_ARGS = 64
_MAX_BITS = 512
#: A symbol in ``srepr``, with what is said about its sign.
SREPR_SYMBOL = re.compile(r"Symbol\('(\w{1,40})'[^()]*\)")

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
_POWERS = frozenset({"PowByNatural", "FloatPow", "LShift"})
_FLOAT_FUNCTIONS = ("IntTrueDiv", "FloatTrueDiv", "ToFloat", "FloatPow", "TruncToFloat", "RoundDecimal")
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "Lt",
    ast.LtE: "Le",
    ast.Gt: "Gt",
    ast.GtE: "Ge",
    ast.Eq: "Eq",
    ast.NotEq: "Ne",
}
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
#: srepr's names of functions -> the names that they are built by.
_SREPR_NAMES = {
    "Equality": "Eq",
    "Unequality": "Ne",
    "StrictLessThan": "Lt",
    "LessThan": "Le",
    "StrictGreaterThan": "Gt",
    "GreaterThan": "Ge",
}
_SREPR_CONSTANTS = {"true": sympy.true, "false": sympy.false}
_OF_TRUTH_VALUES = frozenset({"And", "Or", "Not", "Where"})
#: What a sympy or torch constructor raises when its arguments make no sense.
_CONSTRUCTOR_ERRORS = (ArithmeticError, TypeError, ValueError, AssertionError, AttributeError, IndexError)
#: What sympy does, sooner or later, with expressions that make no sense (a sum of truth values).
NONSENSE = (
    *(SyntaxError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError, LookupError),
    *(NotImplementedError, RecursionError, MemoryError),
)


def parse_expression(text: str, symbol_of: SymbolOf) -> sympy.Basic:
    """The expression that torch prints as ``text``; prints as ``text`` again if sympy can hold it so."""
    text = text.strip()
    return _parsed(text, lambda tree, evaluate: _Printed(symbol_of, evaluate).expression(tree), expression_text, text)


def parse_srepr(text: str, symbol_of: SymbolOf) -> sympy.Basic:
    """The expression that sympy's ``srepr`` spells as ``text``, built as written where sympy can hold it so."""

    def spelled(expr: object) -> str:
        return _without_signs(sympy.srepr(expr))

    return _parsed(text, lambda tree, evaluate: _from_srepr(tree, symbol_of, evaluate), spelled, _without_signs(text))


def _without_signs(text: str) -> str:
    return SREPR_SYMBOL.sub(r"\1", text).replace(" ", "")


def _parsed(
    text: str, expression_of: Callable[[ast.expr, bool], sympy.Basic], spelled: Callable[[object], str], wanted: str
) -> sympy.Basic:
    """The expression of a text, simplified if it is then still spelled as ``wanted``, else exactly as written."""
    if len(text) > _MAX_TEXT or too_deep(text, _MAX_DEPTH):
        raise InputError("a symbolic size is too long or nested too deeply")
    try:
        tree = ast.parse(text, mode="eval").body
        expr = expression_of(tree, True)
        if expr.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo, sympy.I):
            raise InputError(f"the symbolic size {text[:60]!r} has no finite value")
        # Simplified is what everything else works with.
        if spelled(expr) == wanted:
            return expr
        exact = expression_of(tree, False)
        return exact if spelled(exact) == wanted else expr
    except NONSENSE:
        # Expressions that mix numbers and truth values fail in sympy, and only when they are printed.
        raise InputError(f"cannot read the symbolic size {text[:60]!r}") from None


def too_deep(text: str, limit: int) -> bool:
    """Whether brackets nest deeper than ``limit``; cheap, for use before ``ast.parse``."""
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        depth += 1 if bracket[0] in "([{" else -1
        if depth > limit:
            return True
    return False


class _Printed:
    """Turns the syntax tree of a printed expression into sympy, one node type a method."""

    def __init__(self, symbol_of: SymbolOf, evaluate: bool) -> None:
        self.symbol_of = symbol_of
        self.evaluate = evaluate

    def expression(self, node: ast.expr) -> sympy.Basic:
        method = getattr(self, f"_{type(node).__name__}", None)
        if method is None:
            raise InputError(f"{type(node).__name__} is not allowed in a symbolic size")
        return method(node)

    def _Constant(self, node: ast.Constant) -> sympy.Basic:
        value = node.value
        # A bool is an int, so it comes first.
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
            return self._negative(value)
        if isinstance(node.op, (ast.Invert, ast.Not)):
            return _call("Not", [value])
        return value

    def _BinOp(self, node: ast.BinOp) -> sympy.Basic:
        left, right = self.expression(node.left), self.expression(node.right)
        kind = type(node.op).__name__
        if kind == "Sub":
            right = self._negative(right)
        # sympy has no division: a/b is a*b**-1.
        if kind == "Div":
            right = _call("Pow", [right, sympy.S.NegativeOne])
        name = _BINARY.get(kind)
        if name is None:
            raise InputError(f"{kind} is not allowed in a symbolic size")
        return _call(name, [left, right], evaluate=self.evaluate)

    def _negative(self, value: sympy.Basic) -> sympy.Basic:
        # A number becomes the negative number even unevaluated: "-1" is no product of two.
        return _call("Mul", [sympy.S.NegativeOne, value], evaluate=self.evaluate or value.is_number is True)

    def _Compare(self, node: ast.Compare) -> sympy.Basic:
        name = _COMPARISONS.get(type(node.ops[0]))
        if name is None or len(node.ops) != 1:
            raise InputError("only one comparison is allowed in a symbolic size")
        return _call(name, [self.expression(node.left), self.expression(node.comparators[0])])

    def _Call(self, node: ast.Call) -> sympy.Basic:
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise InputError("only plain functions are allowed in a symbolic size")
        return _call(node.func.id, [self.expression(arg) for arg in node.args], evaluate=self.evaluate)


def _from_srepr(node: ast.expr, symbol_of: SymbolOf, evaluate: bool) -> sympy.Basic:
    """The expression of a syntax tree of ``srepr``: calls, all the way down to symbols and numbers."""
    if isinstance(node, ast.Name) and node.id in _SREPR_CONSTANTS:
        return _SREPR_CONSTANTS[node.id]
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or len(node.args) > _MAX_ARGS:
        raise InputError(f"{type(node).__name__} is not allowed in a symbolic size")
    name = node.func.id
    if name == "Symbol":
        return symbol_of(_text_argument(node))
    if name == "Float":
        return sympy.Float(float(_text_argument(node)))
    if name in ("Integer", "Rational"):
        values = [_integer(arg) for arg in node.args]
        if node.keywords or len(values) != (1 if name == "Integer" else 2):
            raise InputError(f"{name} with {len(values)} numbers in a symbolic size")
        # A denominator of zero would be an infinity.
        return sympy.Integer(values[0]) if name == "Integer" else sympy.Rational(values[0], values[1] or 1)
    if node.keywords:
        raise InputError(f"{name[:40]!r} has keywords in a symbolic size")
    args = [_from_srepr(arg, symbol_of, evaluate) for arg in node.args]
    # sympy adds truth values without a word, and fails when the sum is printed.
    if name not in _OF_TRUTH_VALUES and not all(isinstance(arg, sympy.Expr) for arg in args):
        raise InputError(f"{name[:40]!r} of truth values in a symbolic size")
    return _call(_SREPR_NAMES.get(name, name), args, evaluate=evaluate)


def _text_argument(node: ast.Call) -> str:
    if not node.args or not isinstance(arg := node.args[0], ast.Constant) or type(arg.value) is not str:
        raise InputError(f"{ast.unparse(node)[:60]!r} is not allowed in a symbolic size")
    return arg.value


def _integer(node: ast.expr) -> int:
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -1, node.operand
    if not isinstance(node, ast.Constant) or type(node.value) is not int or node.value.bit_length() > _MAX_BITS:
        raise InputError(f"{ast.unparse(node)[:60]!r} is not a number that a symbolic size may hold")
    return sign * node.value


def _call(name: str, args: Sequence[sympy.Basic], *, evaluate: bool = True) -> sympy.Basic:
    """The expression ``name(*args)``: ``Add``, ``Mul``, ``Pow`` and the functions that torch prints.

    ``evaluate=False`` keeps sums and products exactly as given. Unknown names, wrong arguments and
    powers that would be huge raise :class:`InputError`.
    """
    try:
        if name in ("Add", "Mul"):
            return getattr(sympy, name)(*args, evaluate=evaluate)
        if name == "Pow":
            return _power(*args, evaluate=evaluate)
        if name in _TORCH_FUNCTIONS:
            function = getattr(torch_functions, name, None)  # older PyTorch has fewer
        else:
            function = getattr(sympy, name) if name in _SYMPY_FUNCTIONS else None
        if function is None:
            raise InputError(f"unknown function {name[:60]!r} in a symbolic size")
        return function(*args, evaluate=False)
    except _CONSTRUCTOR_ERRORS as error:
        raise InputError(f"cannot build the symbolic size {name}(...): {str(error)[:120]}") from None


def _power(base: sympy.Expr, exponent: sympy.Expr, *, evaluate: bool) -> sympy.Expr:
    """A power that is quick to compute, whatever the file says."""
    # Roots are no sizes, and take long to compute.
    if exponent.is_number and not exponent.is_Integer:
        raise InputError("a symbolic size is raised to a power that is no integer")
    if base.is_number and exponent.is_Integer:
        parts = [part for part in base.as_numer_denom() if part.is_Integer]
        bits = max((int(part).bit_length() for part in parts), default=64)
        if bits * abs(int(exponent)) > _MAX_BITS:
            raise InputError("a number in a symbolic size is too large")
    elif exponent.is_Integer and int(exponent).bit_length() > 16:
        # The base is a symbol: a hint may be put in for it later.
        raise InputError("a power in a symbolic size is too large")
    return sympy.Pow(base, exponent, evaluate=evaluate)


def expression_text(expr: object) -> str:
    """The expression as torch prints it."""
    return str(expr)


def stable_text(expr: object, symbol_of: SymbolOf) -> str:
    """A text for ``expr`` that reads back to an expression with that very text."""
    text = expression_text(expr)
    # Printing can reorder the terms, after which the text is stable.
    for _ in range(3):
        again = expression_text(parse_expression(text, symbol_of))
        if again == text:
            return text
        text = again
    raise InputError(f"the symbolic size {text[:60]!r} has no stable text")


def has_powers(expr: sympy.Basic) -> bool:
    """Whether numbers put in for the symbols could make a number too large to compute."""
    return any(part.is_Pow or type(part).__name__ in _POWERS for part in sympy.preorder_traversal(expr))


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
    # A function of which sympy knows nothing counts sizes; a symbol that is no integer is a float.
    return int if expr.is_integer is not False and not expr.is_Symbol else float
