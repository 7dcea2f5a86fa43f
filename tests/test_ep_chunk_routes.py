"""Ways to route tokens that other libraries have: counted, sorted, sent and put back otherwise, and not annotated."""

from __future__ import annotations

import operator

import pytest
import torch

from commcc.base.errors import InputError
from commcc.ep.regions import regions_of
from commcc.graph.annotations import annotations_of
from commcc.graph.index import build_index
from commcc.verify import verify
from tests.chunk_graphs import MOE, Layers, aten, chunked, error, plan_of

TOKENS, WIDTH, SLOTS = 8, 4, 16


def by_histogram(b, flat):
    return b.call(aten._to_copy.default, b.call(aten.histc.default, flat, 2, 0, 2), dtype=torch.int64)


def by_ones(b, flat):
    """zeros.scatter_add_(0, flat, ones)"""
    number = b.call(aten._to_copy.default, flat, dtype=torch.int64)
    zeros = b.call(aten.zeros.default, [2], dtype=torch.int64)
    return b.call(aten.scatter_add_.default, zeros, 0, number, b.call(aten.ones_like.default, number))


def by_one_hot(b, flat):
    """one_hot(flat).sum(0)"""
    table = b.call(aten.arange.default, 2, dtype=torch.float64)
    hot = b.call(aten.eq.Tensor, b.call(aten.unsqueeze.default, flat, 1), table)
    return b.call(aten.sum.dim_IntList, b.call(aten._to_copy.default, hot, dtype=torch.int64), [0])


def by_marks(b, flat):
    """zeros.scatter_(1, flat, 1).sum(0)"""
    number = b.call(aten._to_copy.default, b.call(aten.unsqueeze.default, flat, 1), dtype=torch.int64)
    zeros = b.call(aten.new_zeros.default, flat, [SLOTS, 2], dtype=torch.bool)
    return b.call(aten.sum.dim_IntList, b.call(aten.scatter_.value, zeros, 1, number, True), [0])


def wide(b, order, like):
    return b.call(aten.expand.default, b.call(aten.reshape.default, order, [-1, 1]), [-1, WIDTH])


def added(b, back, order, token):
    """zeros.index_add(0, token, back)"""
    zeros = b.call(aten.new_zeros.default, back, [TOKENS, WIDTH])
    return b.call(aten.index_add.default, zeros, 0, token, back)


def scattered(b, back, order, token):
    """zeros.scatter_add_(0, token of every element, back)"""
    zeros = b.call(aten.new_zeros.default, back, [TOKENS, WIDTH])
    return b.call(aten.scatter_add_.default, zeros, 0, wide(b, token, back), back)


def put(b, back, order, token):
    """empty[order] = back, two rows for each token"""
    empty = b.call(aten.new_empty.default, back, [SLOTS, WIDTH])
    rows = b.call(aten.index_put_.default, empty, [order], back)
    return b.call(aten.sum.dim_IntList, b.call(aten.reshape.default, rows, [TOKENS, 2, WIDTH]), [1])


def unsorted(b, back, order, token):
    """back[argsort(order)], two rows for each token"""
    inverse = b.call(operator.getitem, b.call(aten.sort.stable, order, stable=True), 1)
    rows = b.call(aten.index.Tensor, back, [inverse])
    return b.call(aten.sum.dim_IntList, b.call(aten.reshape.default, rows, [TOKENS, 2, WIDTH]), [1])


def routed(count, join, *, mixed=None):
    """Every token goes to two of two ranks' experts, by the sign of its first two numbers."""
    b = Layers()
    x = b.tokens("x", TOKENS, WIDTH)
    with b.module(MOE):
        chosen = b.call(aten.gt.Scalar, b.call(aten.slice.Tensor, x, 1, 0, 2), 0)
        flat = b.call(aten.reshape.default, b.call(aten._to_copy.default, chosen, dtype=torch.float64), [-1])
        order = b.call(operator.getitem, b.call(aten.sort.stable, flat, stable=True), 1)
        token = b.call(aten.div.Tensor_mode, order, 2, rounding_mode="floor")
        counts = count(b, flat)
        others = b.exchange(counts, [1, 1], [1, 1])
        sent, received = b.numbers(counts), b.numbers(others)
        picked = b.call(aten.gather.default, x, 0, wide(b, token, x))
        rows = b.call(aten.silu.default, b.exchange(picked, received, sent))
        back = b.exchange(rows, sent, received)
        y = join(b, back, mixed(b, order) if mixed else order, token)
    return b.done([y])


COUNTS, JOINS = (by_histogram, by_ones, by_one_hot, by_marks), (added, scattered, put, unsorted)


@pytest.mark.parametrize(("count", "join"), [(c, j) for c in COUNTS for j in JOINS])
@pytest.mark.sampled(5)
def test_routes_are_cut_and_proved(count, join):
    before = routed(count, join)
    after = chunked(before, chunks=2)
    assert verify(before, after).status == "proved"
    assert error(before, after) < 1e-12


def test_exchanges_without_annotations():
    """Whole numbers are counts; rows go to the experts, and come back."""
    after = chunked(routed(by_histogram, added), chunks=2)
    index = build_index(after)
    (region,) = regions_of(index, annotations_of(after, index))
    assert region.labels == ("dispatch", "combine")


@pytest.mark.parametrize("join", [put, unsorted])
def test_rows_that_are_put_back_by_another_order(join):
    """By the order in which they were sorted again by their first number: chunks would be put elsewhere."""

    def other(b, order):
        return b.call(operator.getitem, b.call(aten.sort.stable, b.call(aten.neg.default, order), stable=True), 1)

    before = routed(by_histogram, join, mixed=other)
    try:
        after = chunked(before, chunks=2)
    except InputError:
        return
    assert verify(before, after).status == "unproved"


def test_counts_of_something_else_are_not_proved():
    def of_half(b, flat):
        return by_histogram(b, b.call(aten.mul.Tensor, flat, 0.5))

    before = routed(of_half, added)
    assert plan_of(before, chunks=2).rewrite.chunked
    assert verify(before, chunked(before, chunks=2)).status == "unproved"
