"""What a value is in a chunk, op by op: slices, parts of sums, tokens in another order, or nothing that is known."""

from __future__ import annotations

import operator

import pytest
import torch

from commcc.base.errors import InputError
from commcc.ep.chunk import rules
from commcc.ep.chunk.state import SUM
from commcc.verify import verify
from tests.chunk_graphs import MOE, Layers, aten, chunked, error, named, plan_of
from tests.test_ep_chunk import moved

EXACT = 1e-12


def program(make):
    """A region that exchanges ``x`` [8, 4], and in which ``make`` is called on it; its result is an output too."""
    b = Layers()
    x, w = b.tokens("x", 8, 4), b.weight("w", 4, 4)
    with b.module(MOE):
        y = moved(b, x)
        made = make(b, x, w)
    return b.done([y, made])


def join_of(make):
    plan = plan_of(program(make), chunks=2)
    return next((join.how, join.dim) for join in plan.rewrite.chunked[0].joins[1:])


SLICES = {
    "elementwise": lambda b, x, w: b.call(aten.mul.Tensor, x, b.call(aten.sigmoid.default, x)),
    "with what is shared": lambda b, x, w: b.call(aten.add.Tensor, x, b.call(aten.select.int, w, 0, 0)),
    "rows by a matrix": lambda b, x, w: b.call(aten.mm.default, x, w),
    "rows by a matrix, and a bias": lambda b, x, w: b.call(aten.addmm.default, b.call(aten.select.int, w, 0, 0), x, w),
    "softmax of features": lambda b, x, w: b.call(aten._softmax.default, x, 1, False),
    "mean of features": lambda b, x, w: b.call(aten.mean.dim, x, [1]),
    "features taken": lambda b, x, w: b.call(
        aten.clone.default, b.call(aten.slice.Tensor, x, 1, 1, 3), memory_format=torch.contiguous_format
    ),
    "all rows taken": lambda b, x, w: b.call(aten.slice.Tensor, b.call(aten.neg.default, x), 0, 0, 8),
    "folded with features": lambda b, x, w: b.call(aten.view.default, b.call(aten.neg.default, x), [-1]),
    "looked up": lambda b, x, w: b.call(
        aten.embedding.default, w, b.call(aten._to_copy.default, b.call(aten.gt.Scalar, x, 0), dtype=torch.int64)
    ),
    "of the sorted": lambda b, x, w: b.call(operator.getitem, b.call(aten.sort.default, x, 1), 0),
    "normalised": lambda b, x, w: b.call(
        operator.getitem, b.call(aten.native_layer_norm.default, x, [4], None, None, 1e-5), 0
    ),
    "repeated one by one": lambda b, x, w: b.call(aten.repeat_interleave.self_int, x, 2, 0),
    "padded features": lambda b, x, w: b.call(aten.cat.default, [x, x], 1),
    "features scattered": lambda b, x, w: b.call(
        aten.scatter_add.default,
        b.call(aten.zeros_like.default, x),
        1,
        b.call(aten._to_copy.default, b.call(aten.gt.Scalar, x, 0), dtype=torch.int64),
        x,
    ),
}


@pytest.mark.parametrize("name", SLICES)
@pytest.mark.sampled(2)
def test_slices(name):
    assert join_of(SLICES[name])[0] == "rows"
    before = program(SLICES[name])
    assert error(before, chunked(before, chunks=3)) < EXACT


def test_a_bias_is_the_same_for_all_rows():
    before = program(SLICES["rows by a matrix, and a bias"])
    assert verify(before, chunked(before, chunks=2)).status == "proved"


SUMS = {
    "over tokens": lambda b, x, w: b.call(aten.sum.dim_IntList, x, [0]),
    "over all": lambda b, x, w: b.call(aten.sum.default, x),
    "of products": lambda b, x, w: b.call(aten.mm.default, b.call(aten.t.default, x), x),
    "scaled by what is shared": lambda b, x, w: b.call(
        aten.mul.Tensor, b.call(aten.sum.dim_IntList, x, [0]), b.call(aten.select.int, w, 0, 0)
    ),
    "of sums": lambda b, x, w: b.call(
        aten.add.Tensor, b.call(aten.sum.dim_IntList, x, [0]), b.call(aten.sum.dim_IntList, x, [0])
    ),
    "counted in fixed bins": lambda b, x, w: b.call(aten.histc.default, x, 4, -2, 2),
    "collected in zeros": lambda b, x, w: b.call(
        aten.index_add.default,
        b.call(aten.new_zeros.default, x, [3, 4]),
        0,
        b.call(aten._to_copy.default, b.call(aten.gt.Scalar, b.call(aten.select.int, x, 1, 0), 0), dtype=torch.int64),
        x,
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums(name):
    assert join_of(SUMS[name]) == ("sum", None)
    before = program(SUMS[name])
    assert error(before, chunked(before, chunks=3)) < EXACT


def of_sum(op, *more, **named):
    def make(b, x, w):
        total = b.call(aten.sum.dim_IntList, x, [0])
        return b.call(aten.mul.Tensor, x, b.call(op, total, *more, **named))

    return make


WHOLE = {
    "bins of the data": lambda b, x, w: b.call(aten.histc.default, x, 4, 0, 0),
    "the first rows": lambda b, x, w: b.call(aten.slice.Tensor, x, 0, 0, 4),
    "one row": lambda b, x, w: b.call(aten.select.int, x, 0, 3),
    "rows put one behind another": lambda b, x, w: b.call(aten.cat.default, [x, x], 0),
    "tiled": lambda b, x, w: b.call(aten.repeat.default, x, [2, 1]),
    "the largest of all": lambda b, x, w: b.call(aten.amax.default, x),
    "a root of a sum": of_sum(aten.sqrt.default),
    "more than a sum": of_sum(aten.add.Tensor, 1.0),
    "rounded parts": of_sum(aten.div.Tensor_mode, 2.0, rounding_mode="floor"),
    "one per row with all": lambda b, x, w: b.call(aten.sub.Tensor, x, b.call(aten.amax.default, x, [0], True)),
}


UNKNOWN = {
    "all but the first": lambda b, x, w: b.call(aten.slice.Tensor, x, 0, 1, 8),
    "turned around": lambda b, x, w: b.call(aten.flip.default, x, [0]),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_nothing_is_known(name):
    with pytest.raises(InputError, match=r"region 'layers\.0\.moe': '\w+' .*; ."):
        plan_of(program(UNKNOWN[name]), chunks=2)


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.sampled(4)
def test_what_is_known_of_no_chunk_is_computed_once(name):
    """Of the whole, from what the chunks make; nothing but memory that is written in place stands against it."""
    before = program(WHOLE[name])
    after = chunked(before, chunks=2)
    assert verify(before, after).status == "proved"
    assert error(before, after) < EXACT


def test_rows_that_a_mask_lets_through():
    """As many as there are, in each chunk: sizes of its own, and a sum over them is a part of a sum."""

    def make(b, x, w):
        mask = b.call(aten.gt.Scalar, b.call(aten.select.int, x, 1, 0), 0)
        return b.call(aten.sum.dim_IntList, b.call(aten.index.Tensor, x, [mask]), [0])

    before = program(make)
    after = chunked(before, chunks=3)
    sizes = {str(node.meta["val"].shape[0]) for node in after.graph.nodes if node.name.startswith("index_1_chunk")}
    assert len(sizes) == 3 and all(size.startswith("u") for size in sizes)
    assert error(before, after) < EXACT


def numbers_along_columns(rows):
    """A number for each row, put along columns of as many: a chunk of one row would fill all of them with its own."""

    def make(b, x, w):
        zeros = b.call(aten.new_zeros.default, x, [3, rows])
        positive = b.call(aten.gt.Scalar, b.call(aten.select.int, x, 1, 0), 0)
        at = b.call(aten._to_copy.default, positive, dtype=torch.int64)
        return b.call(aten.index_put.default, zeros, [at], b.call(aten.select.int, x, 1, 1), True)

    b = Layers()
    x, w = b.tokens("x", rows, 4), b.weight("w", 4, 4)
    with b.module(MOE):
        made = [moved(b, x), make(b, x, w)]
    return b.done(made)


@pytest.mark.parametrize("rows", [2, 4])
def test_rows_that_are_broadcast_are_put_once(rows):
    before = numbers_along_columns(rows)
    after = chunked(before, chunks=rows)
    assert "index_put" in named(after)
    assert error(before, after) < EXACT
    assert verify(before, after).status == "proved"


@pytest.mark.parametrize("rows", [2, 4])
def test_rows_that_are_broadcast_in_chunks_are_not_proved(rows, monkeypatch):
    monkeypatch.setattr(rules, "mixed", lambda call: SUM)
    before = numbers_along_columns(rows)
    after = chunked(before, chunks=rows)
    assert error(before, after) > EXACT
    assert verify(before, after).status == "unproved"
