"""Sizes that may be symbolic, as polynomials over terms, arithmetic that never guesses; what ``val`` say of tensors.

A size is an ``int`` or a :class:`Poly`. Polynomials are kept in one normal form, so that two sizes are
equal exactly when they compare equal::

    u0 = variable(term)          # the value of some node, by term id
    (u0 + 2) * 8 - 16 == 8 * u0  # True
    (8 * u0) // 8 == u0          # True: divides exactly
    u0 < 4                       # raises Undecidable

Limits: only what holds for every value of the variables is decided; division that is not exact,
and order that depends on a value, raise :class:`Undecidable`. Functions (floor division, modulo,
maximum) that cannot be resolved become variables of their own, named by their operands.

Shapes and strides are tuples of sizes. The last part reads them from a ``val``, with every symbol tied to the node that
defines it. Symbols are names (``u0``), and names mean nothing across two files. The first tensor or size that is a bare
symbol defines it; from then on the symbol stands for that node's term::

    item: "Sym(u0)"                u0 := the value of item's term
    primals_1: "f32[s7, 16]"       s7 := size 0 of primals_1

A symbol used before anything defines it stands for its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, Union

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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


def is_dense(shape: Shape, strides: Shape) -> bool:
    """Whether elements lie without holes and overlaps, dimensions in some order; False where that is not known."""
    left = [(step, size) for size, step in zip(shape, strides, strict=True) if size != 1]
    expected: Size = 1
    while left:
        inner = next((pair for pair in left if pair[0] == expected), None)
        if inner is None:
            return False
        left.remove(inner)
        expected = expected * inner[1]
    return True


def is_apart(shape: Shape | None, strides: Shape | None) -> bool:
    """Whether elements surely lie at places of their own; False where that is not known."""
    if shape is None or strides is None:
        return False
    if 0 in shape or is_dense(shape, strides):
        return True
    pairs = zip(shape, strides, strict=True)
    spans = [(step, size) for size, step in pairs if isinstance(size, int) and isinstance(step, int)]
    if len(spans) < len(shape):
        return False
    end = 1
    for step, size in sorted(span for span in spans if span[1] != 1):
        if step < end:
            return False
        end += step * (size - 1)
    return True


def strides_of(val: torch.Tensor) -> tuple[Any, ...] | None:
    """What a ``val`` says of its strides; None for what has none."""
    return tuple(val.stride()) if val.layout is torch.strided else None


# Tensors


class Meta(NamedTuple):
    """Shape, strides, dtype and device of a tensor as its ``val`` says; parts that are unknown are None."""

    shape: Shape | None
    strides: Shape | None
    dtype: torch.dtype | None
    device: str | None

    def same(self, said: Meta) -> bool:
        """Whether two tensors surely have the same shape and their elements at the same places."""
        if self.shape is None or self.strides is None or said.strides is None:
            return False
        return self.shape == said.shape and relevant(self.shape, self.strides) == relevant(self.shape, said.strides)


UNKNOWN = Meta(None, None, None, None)


#: Shape, strides, dtype and device of a tensor without symbols.
PlainMeta: TypeAlias = "tuple[Shape, Shape, torch.dtype, torch.device]"
_NUMBERS = frozenset({int})


class Table(Protocol):
    """What symbols need of :class:`commcc.verify.terms.Terms`."""

    plain_metas: dict[PlainMeta, Meta]

    def intern(self, key: tuple[Any, ...]) -> int: ...

    def function(self, name: str, operands: tuple[Size, ...]) -> int: ...


class Symbols:
    """The symbols of one graph, bound to sizes in the order of the graph; those that are ``fixed``, to numbers."""

    def __init__(self, table: Table, fixed: Mapping[str, int]) -> None:
        self._table = table
        self._bound: dict[str, Size] = dict(fixed)
        self._devices: dict[torch.device, str] = {}

    def meta_of(self, val: torch.Tensor, source: int) -> Meta:
        """Shape, strides, dtype and device of a ``val``; ``source`` defines symbols that are new here."""
        shape: Shape = tuple(val.shape)
        strides: Shape | None = strides_of(val)
        alike = None
        if strides is not None and _NUMBERS.issuperset(map(type, shape)) and _NUMBERS.issuperset(map(type, strides)):
            alike = (shape, strides, val.dtype, val.device)
            known = self._table.plain_metas.get(alike)
            if known is not None:
                return known
        else:
            shape = tuple(self._dimension(size, source, at) for at, size in enumerate(val.shape))
        if strides is not None and alike is None:
            try:
                strides = tuple(self.size(step) for step in val.stride())
            except Undecidable:
                strides = None
        device = self._devices.get(val.device) or self._devices.setdefault(val.device, str(val.device))
        meta = Meta(shape, strides, val.dtype, device)
        if alike is not None:  # without symbols it says the same everywhere
            self._table.plain_metas[alike] = meta
        return meta

    def define(self, val: Any, size: Size) -> None:
        """Bind the symbol that ``val`` consists of, if it is one and still free, to what its node computes."""
        name = _symbol_name(val)
        if name is not None:
            self._bound.setdefault(name, size)

    def mistake(self, val: Any, size: Size) -> str:
        """What a ``val`` gets wrong of a size, in words; empty when nothing is."""
        said = self.size_or(val, size) if isinstance(val, (int, torch.SymInt)) else size
        # What the tracer knew of symbols may tell a size that is a number, though nothing here says so.
        if isinstance(said, int) != isinstance(size, int) or not _differs(size, said):
            return ""
        less = said - size
        by = f"{less} less" if less > 0 else f"{-less} more"
        return f"{val}, it is {size if isinstance(size, int) else by}"

    def size(self, value: int | torch.SymInt) -> Size:
        """A size in a ``val``; raises :class:`Undecidable` for what is not integer arithmetic."""
        if isinstance(value, int):
            return value
        return from_expression(getattr(value.node, "expr", None), self._lookup, self._table.function)

    def size_or(self, value: int | torch.SymInt, other: Any) -> Any:
        """A size, or ``other`` for what is not integer arithmetic."""
        try:
            return self.size(value)
        except Undecidable:
            return other

    def _dimension(self, value: int | torch.SymInt, source: int, at: int) -> Size:
        if isinstance(value, int):
            return value
        own = variable(self._table.intern(("size", source, at)))
        self.define(value, own)
        size: Size = self.size_or(value, own)
        return size

    def _lookup(self, name: str) -> Size:
        bound = self._bound.get(name)
        return variable(self._table.intern(("symbol", name))) if bound is None else bound


def _symbol_name(val: Any) -> str | None:
    if not isinstance(val, torch.SymInt):
        return None
    expression = getattr(val.node, "expr", None)
    return str(getattr(expression, "name", "")) if getattr(expression, "is_Symbol", False) else None


def mismatch(known: Meta, said: Meta) -> str:
    """The first thing that ``said`` gets wrong, in words; empty when nothing is."""
    if known == said:
        return ""
    if _contradicts(known.shape, said.shape):
        return f"shape {_plain(said.shape)}, it is {_plain(known.shape)}"
    if None not in (known.dtype, said.dtype) and known.dtype != said.dtype:
        return f"{str(said.dtype).removeprefix('torch.')}, it is {str(known.dtype).removeprefix('torch.')}"
    if None not in (known.device, said.device) and known.device != said.device:
        return f"device {said.device}, it is {known.device}"
    if known.shape is None or known.strides is None or said.strides is None:
        return ""
    if _contradicts(relevant(known.shape, known.strides), relevant(known.shape, said.strides)):
        return f"strides {_plain(said.strides)}, they are {_plain(known.strides)}"
    return ""


def _contradicts(known: Shape | None, said: Shape | None) -> bool:
    """Whether two shapes cannot be equal; symbols under other names are given the benefit of the doubt."""
    if known is None or said is None or known == said:
        return False
    if len(known) != len(said):
        return True
    return any(_differs(a, b) for a, b in zip(known, said, strict=True))


def _differs(known: Size, said: Size) -> bool:
    if isinstance(known, int) or isinstance(said, int):
        return known != said
    return isinstance(known - said, int) and known != said


def _plain(shape: Shape | None) -> str:
    return "[" + ", ".join(str(size) if isinstance(size, int) else "?" for size in shape or ()) + "]"
