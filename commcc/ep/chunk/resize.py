"""Sizes written into a graph as numbers, that must be smaller in a chunk.

    resizes(view, ...)       # view(x, [60, 32]) with x cut along 0  ->  (Resized('size', 0, per=1),)

The number becomes ``per`` times the units of the chunk. Where the tokens of the result lie follows from where they
lie in the operand; a view that folds other dimensions with them is refused.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from commcc.ep.chunk.refuse import refuse
from commcc.graph import ops
from commcc.graph.ops.collective_table import EXCHANGE
from commcc.graph.ops.constants import SIZED, STRIDED
from commcc.graph.ops.sizes import COMPARED, GRADIENTS, NUMBERED
from commcc.graph.ops.views import EXPAND, RESHAPES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

    from commcc.ep.chunk.grid import Grid
    from commcc.ep.chunk.state import State


@dataclass(frozen=True)
class Resized:
    """An argument, or the place in a list of sizes, that becomes ``per`` times the units of a chunk."""

    argument: str
    place: int | None
    per: int


@dataclass(frozen=True)
class Sizes:
    """What a node's sizes depend on: the state of its first tensor operand, and that operand's whole shape."""

    root: str
    node: fx.Node
    grid: Grid
    state: State | None
    shape: tuple[Any, ...]

    def at(self, argument: str, place: int) -> tuple[Resized, ...]:
        """The edit for one size of a list; none where it is not a plain number, or not of tokens."""
        sizes = ops.argument(self.node, argument)
        if not isinstance(sizes, (list, tuple)) or not -len(sizes) <= place < len(sizes):
            return ()
        size = sizes[place]
        if type(size) is not int or not self.grid.multiple(size):
            return ()
        return (Resized(argument, place % len(sizes), size // self.grid.extent),)


def resizes(sizes: Sizes) -> tuple[Resized, ...]:
    """The edits that one node needs."""
    rule = _RULES.get(ops.op_name(sizes.node.target))
    return rule(sizes) if rule is not None else ()


def _view(sizes: Sizes) -> tuple[Resized, ...]:
    state, shape = sizes.state, sizes.shape
    if state is None or state.dim is None or type(shape[state.dim]) is not int:
        return ()
    result = tuple(sizes.node.meta["val"].shape)
    place = view_dim(shape, state.dim, result, sizes.grid, state.apart)
    if place is None and any(type(size) is not int for size in result):
        what = f"makes {list(result)} of {list(shape)}: how many rows that is in a chunk only a run can tell"
        refuse(sizes.root, sizes.node, what, "write the number of tokens there with x.shape of what comes in")
    if place is None:
        refuse(
            sizes.root,
            sizes.node,
            f"makes {list(result)} of {list(shape)}: the tokens of dimension {state.dim} are in none of their own",
            "a chunk's tokens lie apart there, behind samples, ranks or experts: cut along another one (dim=batch "
            "or dim=seq), or exchange as many as are counted, in their own dimension",
        )
    name = "shape" if ops.op_name(sizes.node.target) == "aten.reshape" else "size"
    return sizes.at(name, place)


def view_dim(shape: Sequence[Any], dim: int, result: Sequence[Any], grid: Grid, apart: int = 1) -> int | None:
    """Where the tokens of dimension ``dim`` of ``shape``, in ``apart`` blocks, are in a view of that shape, if whole
    units stay together there: some of what lies before them may lie in the same dimension.
    """
    outside, before = _product(shape[:dim]), 1
    for place, size in enumerate(result):
        if not outside or type(size) is not int:
            return None
        if before * size > outside * apart:
            blocks, rest = divmod(outside * apart, before)
            return None if rest or size % blocks or not grid.multiple(size // blocks) else place
        before *= size
    return None


def _product(sizes: Sequence[Any]) -> int | None:
    return prod(sizes) if all(type(size) is int for size in sizes) else None


def _expand(sizes: Sizes) -> tuple[Resized, ...]:
    if sizes.state is None or sizes.state.dim is None:
        return ()
    return sizes.at("size", sizes.state.dim - len(sizes.shape))


def _factory(sizes: Sizes) -> tuple[Resized, ...]:
    place = sizes.grid.factory_dim(tuple(sizes.node.meta["val"].shape))
    return () if place is None else sizes.at("size", place)


def _strided(sizes: Sizes) -> tuple[Resized, ...]:
    """A factory that names strides: those of the dimensions that lie around the tokens hold their number too."""
    edits = _factory(sizes)
    shape, strides = (ops.argument(sizes.node, name) for name in ("size", "stride"))
    if not edits or edits[0].place is None or not all(type(number) is int for number in (*shape, *strides)):
        return edits
    stretch = shape[edits[0].place] * strides[edits[0].place]
    around = [place for place, stride in enumerate(strides) if stride >= stretch > 0 and shape[place] > 1]
    return (*edits, *(edit for place in around for edit in sizes.at("stride", place)))


def _of_gradient(sizes: Sizes) -> tuple[Resized, ...]:
    """slice_backward and select_backward name the shape of what was sliced."""
    if sizes.state is None or sizes.state.dim is None:
        return ()
    place, dim = sizes.state.dim, ops.argument(sizes.node, "dim")
    if ops.op_name(sizes.node.target) == "aten.select_backward" and type(dim) is int:
        place += dim % (len(sizes.shape) + 1) <= place
    return sizes.at("input_sizes", place)


def _splits(sizes: Sizes) -> tuple[Resized, ...]:
    """Split sizes written into the graph say by a token's place which rank it goes to: in a chunk it has another."""
    if sizes.state is None or sizes.state.dim != 0:
        return ()
    given = [ops.argument(sizes.node, name) for name in ("output_split_sizes", "input_split_sizes")]
    ranks = len(given[0] or ())
    equal = given[0] == given[1] == [sizes.shape[0] // max(ranks, 1)] * ranks
    if sizes.state.kind == "folded" and equal and sizes.state.apart % ranks == 0:  # whole blocks for every rank
        names = ("output_split_sizes", "input_split_sizes")
        return tuple(edit for name in names for place in range(ranks) for edit in sizes.at(name, place))
    if any(type(size) is int for part in given if isinstance(part, (list, tuple)) for size in part):
        what = f"sends {given[1]} rows of the {sizes.shape[0]} that are cut: each rank gets them by their place"
        refuse(sizes.root, sizes.node, what, "exchange token counts, so that split sizes follow from the tokens")
    return ()


def _number(argument: str) -> Callable[[Sizes], tuple[Resized, ...]]:
    def rule(sizes: Sizes) -> tuple[Resized, ...]:
        size = ops.argument(sizes.node, argument)
        if type(size) is not int or not sizes.grid.multiple(size):
            return ()
        return (Resized(argument, None, size // sizes.grid.extent),)

    return rule


def _compared(sizes: Sizes) -> tuple[Resized, ...]:
    """How many rows there are in all, which Dynamo asserts of the numbers of those that an exchange sends to each rank.

    A chunk's exchange sends the rows of the chunk, and fails where its numbers do not add up to them.
    """
    number: Any
    number, size = sizes.node.args
    if type(size) is not int or not sizes.grid.multiple(size) or not sizes.node.all_input_nodes:
        return ()
    given = number.args if number.target is operator.add else number.args[0] if number.target is torch.sym_sum else []
    added: list[Any] = list(given)
    for user in added[0].users if added and hasattr(added[0], "users") else ():
        sent = ops.argument(user, "input_split_sizes") if ops.op_name(user.target) == EXCHANGE else None
        alike = sent and sorted(map(str, sent)) == sorted(map(str, added))  # in whatever order
        rows = ops.argument(user, "input").meta["val"].shape[0] if alike else None
        if type(rows) is int and rows == size:
            return (Resized("1", None, size // sizes.grid.extent),)
    return ()


_RULES: dict[str, Callable[[Sizes], tuple[Resized, ...]]] = {
    **dict.fromkeys(RESHAPES, _view),
    EXPAND: _expand,
    **dict.fromkeys(SIZED, _factory),
    **dict.fromkeys(STRIDED, _strided),
    **dict.fromkeys(GRADIENTS, _of_gradient),
    EXCHANGE: _splits,
    **dict.fromkeys(COMPARED, _compared),
    **{op: _number(argument) for op, argument in NUMBERED.items()},
}
