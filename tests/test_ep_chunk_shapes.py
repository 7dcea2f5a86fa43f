"""Sizes, constants and numbers in bodies: what follows the tokens, what stays as it is, and what cannot leave."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from commcc.base.errors import InputError
from commcc.ep.chunk.grid import Grid, infer
from tests.chunk_graphs import MOE, Layers, aten, chunked, error, named, ops_of, plan_of
from tests.test_ep_chunk import EXACT, moved


def region(make, rows=8):
    """A module in which ``make`` returns what leaves it beside the tokens."""
    b = Layers()
    x = b.tokens("x", rows, 4)
    with b.module(MOE):
        y = moved(b, x)
        made = b.call(aten.neg.default, make(b, x))
    return b.done([y, made])


@pytest.mark.parametrize(
    ("sizes", "cut"),
    [([-1, 2], [[-1, 2], [-1, 2]]), ([16, -1], [[8, -1], [8, -1]]), ([16, 2], [[8, 2], [8, 2]])],
)
def test_a_view_may_leave_a_size_open(sizes, cut):
    """``-1`` follows by itself, a number of tokens becomes that of the chunk."""
    before = region(lambda b, x: b.call(aten.view.default, x, sizes))
    after = chunked(before)
    assert [node.args[1] for node in ops_of(after, "aten.view")] == cut
    assert error(before, after) < EXACT


def test_lists_of_dimensions_are_no_sizes():
    """A list of dimensions that holds the number of tokens stays as it is."""

    def squeezed(b, x):
        wide = b.call(aten.reshape.default, x, [3, 4, 1, 1])
        return b.call(aten.squeeze.dims, wide, [2, 3])

    before = region(squeezed, rows=3)
    after = chunked(before, chunks=3)
    assert [node.args[1] for node in ops_of(after, "aten.squeeze")] == [[2, 3]] * 3
    assert error(before, after) < EXACT


FACTORIES = {
    "new_zeros": lambda b, x: b.call(aten.new_zeros.default, x, [8, 4]),
    "two rows a token": lambda b, x: b.call(aten.new_zeros.default, x, [16, 2]),
    "zeros": lambda b, x: b.call(aten.zeros.default, [8, 4], dtype=torch.float64),
    "zeros_like": lambda b, x: b.call(aten.zeros_like.default, x),
    "full": lambda b, x: b.call(aten.full.default, [8, 4], 0.5, dtype=torch.float64),
    "empty_strided": lambda b, x: b.call(
        aten.fill.Scalar, b.call(aten.empty_strided.default, [8, 4], [4, 1], dtype=torch.float64), 0.5
    ),
    "new_empty_strided": lambda b, x: b.call(
        aten.fill.Scalar, b.call(aten.new_empty_strided.default, x, [8, 4], [4, 1]), 0.5
    ),
    "by columns": lambda b, x: b.call(
        aten.fill.Scalar, b.call(aten.empty_strided.default, [8, 4], [1, 8], dtype=torch.float64), 0.5
    ),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_constants_of_the_tokens_size(name):
    """Made once for each chunk, with its number of tokens."""

    makers = []

    def used(b, x):
        made = FACTORIES[name](b, x)
        source = made if made.target is not aten.fill.Scalar else made.args[0]
        makers.append(source.name)
        shape = list(made.meta["val"].shape)
        added = b.call(aten.add.Tensor, made, b.call(aten.view.default, x, shape))
        return b.call(aten.sum.dim_IntList, added, [1])  # which lies the same, however the constant does

    before = region(used)
    after = chunked(before)
    for k in range(2):
        made = named(after)[f"{makers[0]}_chunk{k}"].meta["val"]
        assert made.shape[0] == named(before)[makers[0]].meta["val"].shape[0] // 2
        assert made.is_contiguous() or made.stride() == (1, 4), "dense in a chunk as in the whole"
    assert error(before, after) < EXACT


def test_a_template_of_the_full_size_stays_full():
    """What only sizes a buffer outside of the module is made once, in full."""
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module(MOE):
        y = moved(b, x)
        template = b.call(aten.zeros.default, [8, 4], dtype=torch.float64)
    with b.module("layers.0"):
        z = b.call(aten.add.Tensor, template, y)
    before = b.done([z])
    after = chunked(before)
    assert named(after)["zeros"].args[0] == [8, 4] and "zeros_chunk0" not in named(after)
    assert error(before, after) < EXACT


def test_sums_over_tokens_that_feed_an_exchange_stay_with_their_chunk():
    """Token counts are sums over tokens; each chunk exchanges its own, and nothing adds them up."""
    before = region(lambda b, x: b.call(aten.relu.default, x))
    after = chunked(before, chunks=4)
    assert ops_of(after, "aten.add") == [] and len(ops_of(after, "aten.histc")) == 4


def test_sums_that_another_module_reads_backward():
    """Added up in the forward pass, once, for whoever reads them."""
    b = Layers()
    x, g = b.tokens("x", 8, 4), b.tokens("g", 8, 4)
    with b.module(MOE):
        y = moved(b, x)
        total = b.call(aten.sum.dim_IntList, x, [0])
    with b.module("layers.1.moe", backward=True):
        z = b.call(aten.mul.Tensor, g, total)
    before = b.done([y, z])
    after = chunked(before)
    assert [n.name for n in ops_of(after, "aten.add")] == ["sum_1_chunk_materialized"]
    assert error(before, after) < EXACT


def test_a_number_read_from_the_tokens_cannot_leave():
    """How many rows were sent: of a chunk it says nothing of the whole."""
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module(MOE):
        route = b.dispatch(x)
        y = b.combine(route.rows, route)
    with b.module("layers.0"):
        rows = b.call(aten.full.default, [route.sent[0]], 1.0)
    program = b.done([y, rows])
    text = (
        r"'_local_scalar_dense' \(aten._local_scalar_dense\) is used outside the region by 'full', but cannot be made"
    )
    with pytest.raises(InputError, match=text):
        plan_of(program)


LEAVES = {
    "what lies otherwise than chunks joined": lambda b, x: (
        [b.call(aten.t.default, b.call(aten.neg.default, x))],
        "lies in memory otherwise",
    ),
    "a view of an input": lambda b, x: ([b.call(aten.view.default, x, [32])], "in the memory of 'x'"),
    "two views of one memory": lambda b, x: (
        [made := b.call(aten.neg.default, x), b.call(aten.view.default, made, [32])],
        "in the memory of",
    ),
}


@pytest.mark.parametrize("name", LEAVES)
def test_what_a_caller_sees_of_memory_is_not_cut(name):
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module(MOE):
        y = moved(b, x)
        made, why = LEAVES[name](b, x)
    with pytest.raises(InputError, match=why):
        chunked(b.done([y, *made]))


def test_sizes_that_only_a_run_knows_are_no_tokens():
    size = ShapeEnv().create_unbacked_symint()
    assert Grid(2, inner=4).factory_dim((size + 1,)) is None


def test_samples_are_cut_with_as_many_tokens_as_activations_have():
    """Block masks have a dimension for heads where activations have one for tokens."""
    mask, activation = (2, 1, 2), (2, 256, 64)
    assert infer([mask, activation, (256, 64)], "batch") == infer([activation, mask], "batch") == Grid(2, inner=256)
