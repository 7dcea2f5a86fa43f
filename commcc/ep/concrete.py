"""Numbers for symbols in sizes: which symbols a graph marks, and what becomes of values that hold them.

    marked_sizes(program)              # {"u0": 160}: what inputs say under torchtitan_chunk_symbol_hints
    sizes = Sizes(program.graph, {"u0": 160})
    sizes.value(val)                   # f32[u0, 8][8, 1]  ->  f32[160, 8][8, 1];  u0//2 + u3  ->  u3 + 80
    guard_problem(node, sizes)         # why an assert would fail, None when it holds or cannot be told

Shapes and strides are rewritten, nothing is run again. Limits: tensors are strided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch import fx
from torch.utils._pytree import tree_map

from commcc.base.errors import InputError
from commcc.graph import ops
from commcc.graph.annotations import HINTS
from commcc.graph.index.hints import SizeHints
from commcc.graph.ops.libraries import ARITHMETIC
from commcc.graph.ops.sizes import ASKING, ASSERTED, RANGES
from commcc.serialization.propagate import context_of
from commcc.serialization.shapes import input_sizes, requires_grad_of, symbols_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from commcc.graph.program import Program

_SCALARS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_KINDS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
LARGEST = 2**62


def marked_sizes(program: Program) -> dict[str, int]:
    """The number of every symbol that a node marks, by name; :class:`InputError` for marks that cannot be."""
    sizes: dict[str, int] = {}
    for node, marks in _marks(program.graph):
        where = f"node '{node.name}'"
        if not isinstance(marks, dict):
            raise InputError(f"annotation '{HINTS}' is {marks!r:.60}: a dictionary is needed", where=where)
        for key, value in marks.items():
            name = str(key)
            if type(value) is not int or not 0 < value <= LARGEST:
                raise InputError(f"annotation '{HINTS}' gives '{name:.40}' {value!r:.60}: a number from 1", where=where)
            if sizes.setdefault(name, value) != value:
                raise InputError(f"'{name}' is {value} here and {sizes[name]} at an earlier node", where=where)
    return sizes


def _marks(graph: fx.Graph) -> Iterator[tuple[fx.Node, Any]]:
    for node in graph.nodes:
        custom = node.meta.get("custom")
        for place in (node.meta, custom if isinstance(custom, dict) else {}):
            if place.get(HINTS) is not None:
                yield node, place[HINTS]


def recorded_sizes(program: Program) -> dict[str, int]:
    """The number that every symbol of an input had when the graph was made, where that is on record: in the header of
    its file, or with the symbol itself.
    """
    hints = SizeHints({}, program.header)
    sizes = {name: hints.value(size) for name, size in input_sizes(program.graph)}
    # The number of a size that data decides was one of many.
    backed = {name: number for name, number in sizes.items() if not name.startswith("u")}
    return {name: number for name, number in backed.items() if number is not None and 0 < number <= LARGEST}


class Sizes:
    """Puts numbers for symbols; ``numbers`` by name."""

    def __init__(self, graph: fx.Graph, numbers: Mapping[str, int]) -> None:
        self.numbers = dict(numbers)
        self.ctx = context_of(graph)
        self._values: dict[int, tuple[Any, Any]] = {}

    def value(self, value: Any) -> Any:
        """``value`` with numbers put in; the same object where nothing changes."""
        known = self._values.get(id(value))
        if known is not None and known[0] is value:
            return known[1]

        def leaf(old: Any) -> Any:
            if not isinstance(old, torch.Tensor) or not self.concerns(old):
                return self._scalar(old) if isinstance(old, _SCALARS) else old
            shape, stride = [list(map(self._scalar, sizes)) for sizes in (old.shape, old.stride())]
            offset = self._scalar(old.storage_offset())
            grad = requires_grad_of(old)
            return self.ctx.tensor(shape, stride, old.dtype, old.device, requires_grad=grad, storage_offset=offset)

        result = tree_map(leaf, value) if self.concerns(value) else value
        # The value is kept with the result, so that no other object takes over its id.
        self._values[id(value)] = (value, result)
        return result

    def concerns(self, value: Any) -> bool:
        """Whether one of the symbols is in a value."""
        return not symbols_of(value).isdisjoint(self.numbers)

    def _scalar(self, value: Any) -> Any:
        if isinstance(value, int) or not self.concerns(value):
            return value
        expr = value.node.expr
        numbers = {s: sympy.Integer(self.numbers[str(s)]) for s in expr.free_symbols if str(s) in self.numbers}
        return self.ctx.scalar(expr.xreplace(numbers), _KINDS[type(value)])


def only_sizes(target: Any) -> bool:
    """Whether an op computes with sizes only, so that a number may stand for its result."""
    name = ops.op_name(target)
    return name in ASKING or (name.partition(".")[0] in ARITHMETIC and not ops.is_getitem(target))


def is_guard(target: Any) -> bool:
    """Whether the op only checks a scalar."""
    return ops.op_name(target) in ASSERTED | RANGES


def holds(node: fx.Node, value_of: Callable[[Any], Any]) -> bool | None:
    """Whether a guard holds; None when its value is not a number yet. ``value_of`` gives the value of an argument."""
    if ops.op_name(node.target) in ASSERTED:
        condition = value_of(ops.argument(node, "self"))
        return bool(condition) if isinstance(condition, (bool, int)) else None
    size = value_of(ops.argument(node, "size"))
    if type(size) is not int:
        return None
    low, high = ops.argument(node, "min"), ops.argument(node, "max")
    return (low is None or size >= low) and (high is None or size <= high)


def told(numbers: Mapping[str, int]) -> str:
    """``u0 = 160, u1 = 8``."""
    return ", ".join(f"{name} = {number}" for name, number in numbers.items())
