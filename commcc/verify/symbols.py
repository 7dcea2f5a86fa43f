"""Shapes as ``val`` states them, with every symbol tied to the node that defines it.

Symbols are names (``u0``), and names mean nothing across two files. The first tensor or size that
is a bare symbol defines it; from then on the symbol stands for that node's term::

    item: "Sym(u0)"                u0 := the value of item's term
    primals_1: "f32[s7, 16]"       s7 := size 0 of primals_1

AFTER may be fixed to sizes; BEFORE is then compared for inputs of that size::

    header of AFTER: "fixed": {"u0": 160}
    x: f32[u0, 8]   s = sym_size(x, 0)   _assert_scalar(s >= 2)      is what x: f32[160, 8] is in AFTER

This is a claim of AFTER, said with the verdict. Symbols are believed where they are a whole size of an input of
BEFORE, or an input. Comparisons of numbers are evaluated, and asserts of what is true do nothing.

Limits: a symbol used before anything defines it stands for its name. Arithmetic on fixed sizes other than that of
:mod:`commcc.verify.tracer` is taken from the values in BEFORE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from commcc.graph.ops.arithmetic import COMPARISONS
from commcc.graph.ops.sizes import RANGES
from commcc.verify.sizes import Shape, Size, Undecidable, from_expression, relevant, variable
from commcc.verify.terms import Meta, Opaque

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from commcc.graph.program import Program
    from commcc.verify.terms import Terms, Value
    from commcc.verify.verdict import Report


_NUMBERS = frozenset({int})


class Symbols:
    """The symbols of one graph, bound to sizes in the order of the graph; those that are ``fixed``, to numbers."""

    def __init__(self, table: Terms, fixed: Mapping[str, int]) -> None:
        self._table = table
        self._bound: dict[str, Size] = dict(fixed)
        self._devices: dict[torch.device, str] = {}

    def meta_of(self, val: torch.Tensor, source: int) -> Meta:
        """Shape, strides, dtype and device of a ``val``; ``source`` defines symbols that are new here."""
        known = self._table.plain_metas.get(id(val))
        if known is not None:
            return known[0]
        shape: Shape = tuple(val.shape)
        numbers = _NUMBERS.issuperset(map(type, shape))
        if not numbers:
            shape = tuple(self._dimension(size, source, at) for at, size in enumerate(val.shape))
        strides: Shape | None = tuple(val.stride()) if val.layout is torch.strided else None
        if strides is not None and not _NUMBERS.issuperset(map(type, strides)):
            numbers = False
            try:
                strides = tuple(self.size(step) for step in val.stride())
            except Undecidable:
                strides = None
        meta = Meta(shape, strides, val.dtype, self._device(val.device))
        if numbers:  # without symbols it says the same everywhere, and both graphs may have the same object
            self._table.plain_metas[id(val)] = (meta, val)
        return meta

    def _device(self, device: torch.device) -> str:
        name = self._devices.get(device)
        if name is None:
            name = self._devices[device] = str(device)
        return name

    def define(self, val: Any, size: Size) -> None:
        """Bind the symbol that ``val`` consists of, if it is one and still free, to what its node computes."""
        name = _symbol_name(val)
        if name is not None:
            self._bound.setdefault(name, size)

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
        found = self._bound.get(name)
        return variable(self._table.intern(("symbol", name))) if found is None else found


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


# Sizes that AFTER was fixed to

_KEY = "fixed"
_ASSERT = "aten._assert_scalar.default"


def fixed_sizes(before: Program, after: Program, report: Report) -> dict[str, int]:
    """Numbers that AFTER has for symbols of BEFORE's inputs; those that cannot be are findings."""
    old, new = _claims(before), _claims(after)
    there = _input_symbols(before.graph)
    found: dict[str, int] = {}
    for name, number in new.items():
        if old.get(name) == number:
            continue
        if name in old:
            report.differs("input", "", f"'{name:.40}' is fixed to {number!r:.40}, in BEFORE to {old[name]!r:.40}")
        elif type(number) is not int or number < 1:
            report.differs("input", "", f"'{name:.40}' is fixed to {number!r:.40}, which is no size")
        elif name not in there:  # the claim is of no use: inputs are compared as BEFORE has them
            report.note("input", "", f"AFTER is fixed to {name:.40} = {number}, which is no size of an input of BEFORE")
        else:
            found[name] = number
            report.note("input", "", f"compared for {name} = {number} only, which AFTER is fixed to")
    return found


def _claims(program: Program) -> Mapping[str, Any]:
    claims = program.header.get(_KEY)
    return {str(name): number for name, number in claims.items()} if isinstance(claims, dict) else {}


def _input_symbols(graph: fx.Graph) -> set[str]:
    found: set[str] = set()
    for node in graph.nodes:
        if node.op != "placeholder":
            continue
        val = node.meta.get("val")
        sizes = (*val.shape, *val.stride()) if isinstance(val, torch.Tensor) else (val,)
        symbols = (getattr(getattr(size, "node", None), "expr", None) for size in sizes)
        found.update(str(symbol) for symbol in symbols if getattr(symbol, "is_Symbol", False))
    return found


def settled(table: Terms, path: str, arguments: dict[str, Any]) -> Value | None:
    """What a comparison of numbers says, or that an assert of what is true does nothing; None for all else."""
    values = list(arguments.values())
    if path in COMPARISONS and len(values) == 2 and all(isinstance(value, int) for value in values):
        return bool(COMPARISONS[path](*values))
    if path == "torch.sym_not" and values and isinstance(values[0], bool):
        return not values[0]
    return Opaque(table.intern(("holds", path))) if _holds(path, arguments) else None


def _holds(path: str, arguments: dict[str, Any]) -> bool | None:
    if path == _ASSERT and isinstance(arguments.get("self"), int):
        return bool(arguments["self"])
    size = arguments.get("size")
    if path.rpartition(".")[0] in RANGES and isinstance(size, int):
        low, high = arguments.get("min"), arguments.get("max")
        return (low is None or size >= low) and (high is None or size <= high)
    return None
