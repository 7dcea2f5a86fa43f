"""Sizes that may be symbolic, as polynomials over terms, and arithmetic that never guesses.

A size is an ``int`` or a :class:`Poly`. Polynomials are kept in one normal form, so that two sizes are
equal exactly when they compare equal::

    u0 = variable(term)          # the value of some node, by term id
    (u0 + 2) * 8 - 16 == 8 * u0  # True
    (8 * u0) // 8 == u0          # True: divides exactly
    u0 < 4                       # raises Undecidable

Limits: only what holds for every value of the variables is decided; division that is not exact,
and order that depends on a value, raise :class:`Undecidable`. Functions (floor division, modulo,
maximum) that cannot be resolved become variables of their own, named by their operands.

Shapes and strides are tuples of sizes. The last part says which reshapes are views, and whether two tensors
are laid out alike::

    view_strides((4, 8), (8, 1), (32,))    # (1,)
    view_strides((4, 8), (16, 1), (32,))   # None: only a copy has this shape
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, Union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Product of variables, by term id, sorted, with repetition.
Monomial: TypeAlias = "tuple[int, ...]"
Size: TypeAlias = Union[int, "Poly"]
Shape: TypeAlias = "tuple[Size, ...]"
#: Gives the term that stands for a function, by name, of some sizes.
Atom: TypeAlias = "Callable[[str, tuple[Size, ...]], int]"

_MAX_POWER = 8
_MAX_TERMS = 256
_MAX_DEGREE = 64
_MAX_BITS = 4096
_MAX_DEPTH = 64


class Undecidable(Exception):
    """A question about sizes or layout that has no answer for all values of the symbols, or is too large."""


class Impossible(Undecidable):
    """A call that fails for certain, so that the graph cannot run."""


class Poly:
    """A polynomial with integer coefficients that is not a constant; immutable and hashable."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self.terms == other.terms

    def __repr__(self) -> str:
        return " + ".join("*".join([str(c), *(f"t{v}" for v in m)]) for m, c in self.terms)

    def __add__(self, other: Size) -> Size:
        return _build((*self.terms, *_terms(other)))

    __radd__ = __add__

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return self + other * -1

    def __rsub__(self, other: Size) -> Size:
        return self * -1 + other

    def __mul__(self, other: Size) -> Size:
        right = _terms(other)
        degree = max(len(m) for m, _ in self.terms) + max((len(m) for m, _ in right), default=0)
        if len(self.terms) * len(right) > _MAX_TERMS or degree > _MAX_DEGREE:
            raise Undecidable("a symbolic size with too many terms")
        return _build((tuple(sorted((*m, *n))), c * d) for m, c in self.terms for n, d in right)

    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        quotient = _divide(self, other)
        if quotient is None:
            raise Undecidable("a symbolic size that may not divide exactly")
        return quotient

    def __rfloordiv__(self, other: int) -> Size:
        if other == 0:
            return 0
        raise Undecidable("division by a symbolic size")

    def __mod__(self, other: Size) -> int:
        if _divide(self, other) is None:
            raise Undecidable("a symbolic size that may not divide exactly")
        return 0

    def __rmod__(self, other: int) -> int:
        if other == 0:
            return 0
        raise Undecidable("division by a symbolic size")

    def __lt__(self, other: Size) -> bool:
        return _difference(self, other) < 0

    def __le__(self, other: Size) -> bool:
        return _difference(self, other) <= 0

    def __gt__(self, other: Size) -> bool:
        return _difference(self, other) > 0

    def __ge__(self, other: Size) -> bool:
        return _difference(self, other) >= 0


def variable(term: int) -> Poly:
    """The size whose value is what term ``term`` computes."""
    return Poly((((term,), 1),))


def product(sizes: Iterable[Size]) -> Size:
    """The product of all sizes, 1 for none."""
    result: Size = 1
    for size in sizes:
        result = result * size
        if isinstance(result, int) and result.bit_length() > _MAX_BITS:
            raise Undecidable("a size with too many digits")
    return result


def apply_function(name: str, operands: tuple[Size, ...], atom: Atom) -> Size:
    """The value of an arithmetic function: computed when decidable, else a variable named by ``atom``.

    ``atom`` returns the term id that stands for this function of these operands.
    """
    if name == "add":
        return sum(operands, start=0)
    if name == "mul":
        return product(operands)
    if name == "sub" and len(operands) == 2:
        return operands[0] - operands[1]
    if name == "neg" and len(operands) == 1:
        return operands[0] * -1
    if name in ("floordiv", "mod") and len(operands) == 2:
        known = _quotient(name, operands[0], operands[1], atom)
        if known is not None:
            return known
    if name in ("max", "min"):
        operands = tuple(sorted(set(operands), key=repr))
        if all(isinstance(o, int) for o in operands):
            return max(operands) if name == "max" else min(operands)
        if len(operands) == 1:
            return operands[0]
    return variable(atom(name, operands))


def from_expression(expression: Any, symbol: Callable[[str], Size], atom: Atom, depth: int = 0) -> Size:
    """A sympy expression as a size; ``symbol`` gives the value of a symbol by name.

    Raises :class:`Undecidable` for what is not an integer expression, or is nested too deeply.
    """
    if getattr(expression, "is_Integer", False):
        return int(expression)
    if getattr(expression, "is_Symbol", False):
        return symbol(str(expression.name))
    if depth > _MAX_DEPTH or not getattr(expression, "args", ()):
        raise Undecidable(f"a size that is not an integer expression ({type(expression).__name__})")
    operands = tuple(from_expression(a, symbol, atom, depth + 1) for a in expression.args)
    name = type(expression).__name__
    if name == "Pow":
        base, power = operands
        if not isinstance(power, int) or not 0 <= power <= _MAX_POWER:
            raise Undecidable("a size raised to a power that is not a small number")
        return product([base] * power)
    return apply_function(_FUNCTIONS.get(name, name), operands, atom)


_FUNCTIONS = {
    "Add": "add",
    "Mul": "mul",
    "FloorDiv": "floordiv",
    "CleanDiv": "floordiv",
    "Mod": "mod",
    "PythonMod": "mod",
    "Max": "max",
    "Min": "min",
}


def _terms(size: Size) -> tuple[tuple[Monomial, int], ...]:
    return size.terms if isinstance(size, Poly) else (((), size),)


def _build(terms: Iterable[tuple[Monomial, int]]) -> Size:
    merged: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        merged[monomial] = merged.get(monomial, 0) + coefficient
    kept = sorted((m, c) for m, c in merged.items() if c)
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    if len(kept) > _MAX_TERMS:
        raise Undecidable("a symbolic size with too many terms")
    return Poly(tuple(kept))


def _difference(left: Size, right: Size) -> int:
    difference = left - right
    if isinstance(difference, Poly):
        raise Undecidable("an order of sizes that depends on the value of a symbol")
    return difference


def _quotient(name: str, left: Size, right: Size, atom: Atom) -> Size | None:
    """``left // right`` or ``left % right`` in one form for all ways to write it; None where it may not exist.

    By a number, every coefficient is split: ``(5 * s + 4) // 4 == s + 1 + s // 4``.
    """
    if not isinstance(right, int) or right <= 0:
        # A divisor that may be 0 has no quotient there; negative ones are left as they are written.
        both = isinstance(left, int) and isinstance(right, int) and right != 0
        return (left // right if name == "floordiv" else left % right) if both else None
    whole = _build((m, c // right) for m, c in _terms(left))
    rest = _build((m, c % right) for m, c in _terms(left))
    if isinstance(rest, Poly):
        rest = variable(atom(name, (rest, right)))
        return rest if name == "mod" else whole + rest
    return whole + rest // right if name == "floordiv" else rest % right


def _divide(left: Size, right: Size) -> Size | None:
    """The exact quotient, None when there is none for all values; only single-term divisors are tried."""
    if isinstance(left, int) and left == 0 and right != 0:
        return 0
    divisor = _terms(right)
    if left == right:
        return 1
    if len(divisor) != 1 or divisor[0][1] == 0:
        return None
    monomial, coefficient = divisor[0]
    result = []
    for m, c in _terms(left):
        rest = _without(m, monomial)
        if rest is None or c % coefficient:
            return None
        result.append((rest, c // coefficient))
    return _build(result)


def _without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    rest = list(monomial)
    for factor in factors:
        if factor not in rest:
            return None
        rest.remove(factor)
    return tuple(rest)


def number(size: object, why: str = "symbolic sizes") -> int:
    """A size that must be a number; :class:`Undecidable`, because of ``why``, when it is not."""
    if not isinstance(size, int):
        raise Undecidable(why)
    return size


# Strides


def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides, as PyTorch makes them (empty dimensions count as one)."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (1 if size == 0 else size)
    return tuple(reversed(strides))


def relevant(shape: Shape, strides: Shape) -> Shape:
    """The strides that decide where elements are: those of dimensions of one element are set to 0."""
    if 0 in shape:
        return (0,) * len(shape)
    if 1 not in shape:
        return strides
    return tuple(0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True))


def is_contiguous(shape: Shape, strides: Shape) -> bool:
    plain = contiguous_strides(shape)
    return strides == plain or relevant(shape, strides) == relevant(shape, plain)


def view_strides(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Strides of a view of ``new`` shape with the same elements; None when only a copy can have it."""
    if 0 in new:
        return contiguous_strides(new)
    if is_contiguous(shape, strides):
        return contiguous_strides(new)
    result: list[Size] = []
    position = len(new) - 1
    for count, step in reversed(_blocks(shape, strides)):
        taken: Size = 1
        while position >= 0 and (new[position] == 1 or _is_short(taken, count)):
            result.append(taken * step)
            taken = taken * new[position]
            position -= 1
        if taken != count:
            if isinstance(taken, Poly) or isinstance(count, Poly):
                raise Undecidable("strides of symbolic sizes")
            return None
    while position >= 0:
        result.append(result[-1] if result else 1)
        position -= 1
    return tuple(reversed(result))


def _is_short(taken: Size, count: Size) -> bool:
    if isinstance(taken, int) and isinstance(count, int):
        return taken < count
    return taken != count


def _blocks(shape: Shape, strides: Shape) -> list[tuple[Size, Size]]:
    """Runs of dimensions that are one dimension in memory, as (elements, innermost stride)."""
    blocks: list[tuple[Size, Size]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if blocks and blocks[-1][1] == size * stride:
            blocks[-1] = (blocks[-1][0] * size, stride)
        else:
            blocks.append((size, stride))
    return blocks or [(product(shape), 1)]
