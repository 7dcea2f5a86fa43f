"""Sums over tokens of which views leave a module that is cut: how these lie, and who else is in their memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from commcc.ep.chunk.refuse import Refused
from commcc.graph.annotations import ROLE
from commcc.verify import verify
from tests.chunk_graphs import MOE, Layers, aten, chunked, error, ops_of

if TYPE_CHECKING:
    from torch import fx

VIEWS = {
    "every other": lambda b, s: b.call(aten.slice.Tensor, s, 0, 0, 4, 2),
    "turned": lambda b, s: b.call(aten.t.default, b.call(aten.view.default, s, [2, 2])),
    "repeated": lambda b, s: b.call(aten.expand.default, s, [3, 4]),
}
USES = {
    "computes": lambda b, s, v: b.call(aten.mul.Tensor, v, 5.0),
    "as it lies": lambda b, s, v: b.call(aten.as_strided.default, v, [2], [1]),
    "as it lies, or a copy": lambda b, s, v: b.call(aten.reshape.default, v, [-1]),
    "sum is written": lambda b, s, v: (b.call(aten.mul_.Tensor, s, 2.0), b.call(aten.sum.default, v))[1],
}


def layer(view: Any, use: Any, *, inside: bool) -> Any:
    """A view of a sum over tokens that is used outside; inside: and in the module, by what cannot run once."""
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module(MOE):
        route = b.dispatch(x)
        y = b.combine(b.call(aten.mul.Tensor, route.rows, 2.0), route)
        total = b.call(aten.sum.dim_IntList, y, [0])
        seen = view(b, total)
        squares = view(b, b.call(aten.sum.dim_IntList, b.call(aten.mul.Tensor, y, y), [0]))
        more: list[fx.Node] = [b.call(aten.add.Tensor, seen, squares)] if inside else []
    with b.module("layers.1"):
        return b.done([y, use(b, total, seen), *(b.call(aten.mul.Tensor, m, 3.0) for m in more)])


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("view", VIEWS)
def test_views_of_sums_that_leave_are_taken_of_the_whole_sum(view, use):
    before = layer(VIEWS[view], USES[use], inside=False)
    after = chunked(before, chunks=2)
    assert verify(before, after).status == "proved" and error(before, after) < 1e-12
    op = str(VIEWS[view](Layers(), Layers().tokens("s", 4)).target).rpartition(".")[0]
    assert [node for node in ops_of(after, op) if node.meta.get("custom", {}).get(ROLE) == "body"] == []


def reduced(b: Layers, total: fx.Node, view: fx.Node) -> fx.Node:
    return b.call(aten.sum.default, view)


@pytest.mark.parametrize("view", ["turned", "repeated"])
def test_parts_that_are_added_up_lie_as_pytorch_lays_them_out(view):
    """Where the module uses the view, too, it is made for each chunk, and the sum of these is no view."""
    before = layer(VIEWS[view], reduced, inside=True)
    after = chunked(before, chunks=2)
    assert verify(before, after).status == "proved" and error(before, after) < 1e-12
    added = next(n for n in after.graph.nodes if n.name.endswith("_chunk_materialized") and "add" in str(n.target))
    val = added.meta["val"]
    with val.fake_mode:
        added.meta["val"] = val.new_empty_strided(val.shape, [step * 2 for step in val.stride()])
    verdict = verify(before, after)
    assert verdict.status == "different" and "lies in memory with strides" in verdict.findings[0].text


@pytest.mark.parametrize(
    ("use", "why"),
    [
        ("computes", "lies in memory otherwise than what is put together of chunks"),
        ("as it lies", "lies in memory otherwise than what is put together of chunks"),
        ("as it lies, or a copy", "joined chunks are a copy"),
        ("sum is written", "which chunks have copies of"),
    ],
)
def test_views_that_the_module_needs_as_well_are_refused_where_memory_counts(use, why):
    with pytest.raises(Refused, match=why):
        chunked(layer(VIEWS["turned"], USES[use], inside=True), chunks=2)
