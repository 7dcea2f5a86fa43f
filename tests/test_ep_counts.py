"""Rows by expert may be counted in any way that counts them: what is proved of it, and of what is no such count."""

from __future__ import annotations

import operator
import re

import pytest
import torch

from commcc.base.errors import InputError
from commcc.verify import verify
from tests.chunk_graphs import MOE as MODULE
from tests.chunk_graphs import Layers, chunked, error, plan_of

aten = torch.ops.aten
TOKENS, SEVERAL, EXPERTS = 8, 2, 2


def histc(most):
    def count(b, ids):
        counts = b.call(aten.histc.default, b.call(aten._to_copy.default, ids, dtype=torch.float32), EXPERTS, 0, most)
        return b.call(aten._to_copy.default, counts, dtype=torch.int64)

    return count


def bincount(b, ids):
    return b.call(aten.bincount.default, ids, None, EXPERTS)


def too_short(b, ids):
    return b.call(aten.bincount.default, ids, None, 1)


def weighted(b, ids):
    ones = b.call(aten.ones_like.default, ids, dtype=torch.float64)
    return b.call(aten._to_copy.default, b.call(aten.bincount.default, ids, ones, EXPERTS), dtype=torch.int64)


def marks(axes, shape):
    """As ``one_hot`` and a sum make them: which of the experts each number of a token names."""

    def count(b, ids):
        numbers = b.call(aten.view.default, ids, shape)
        table = b.call(aten.arange.default, EXPERTS)
        chosen = b.call(aten._to_copy.default, b.call(aten.eq.Tensor, numbers, table), dtype=torch.int64)
        return b.call(aten.sum.dim_IntList, chosen, axes)

    return count


def layer(count, loss=False):
    """A module that sends each token to two experts by ``count``; ``loss``: one that balances them by it."""
    b = Layers()
    x = b.tokens("x", TOKENS, 4)
    with b.module(MODULE):
        signs = b.call(aten.gt.Scalar, b.call(aten.slice.Tensor, x, 1, 0, SEVERAL), 0)
        ids = b.call(aten.view.default, b.call(aten._to_copy.default, signs, dtype=torch.int64), [TOKENS * SEVERAL])
        order = b.call(operator.getitem, b.call(aten.sort.stable, ids, stable=True), 1)
        counts = count(b, ids)
        others = b.exchange(counts, [1, 1], [1, 1])
        tables = [b.call(aten.view.default, each, [2, -1]) for each in (counts, others)]
        sent, received = (b.numbers(b.call(aten.sum.dim_IntList, table, [1])) for table in tables)
        token = b.call(aten.floor_divide.default, order, SEVERAL)
        rows = b.exchange(b.call(aten.index.Tensor, x, [token]), received, sent)
        back = b.exchange(b.call(aten.mul.Tensor, rows, 2.0), sent, received)
        y = b.call(aten.index_add.default, b.call(aten.zeros_like.default, x), 0, token, back)
        if loss:
            share = b.call(aten.div.Tensor, b.call(aten._to_copy.default, counts, dtype=torch.float64), TOKENS)
            mean = b.call(aten.mean.dim, b.call(aten.slice.Tensor, x, 1, 0, EXPERTS), [0])
            return b.done([y, b.call(aten.sum.default, b.call(aten.mul.Tensor, share, mean))])
    return b.done([y])


@pytest.mark.parametrize("count", [histc(EXPERTS), bincount, marks([0], [TOKENS * SEVERAL, 1])])
def test_counts_of_the_dispatch_in_a_loss(count):
    """Each chunk exchanges its own; the loss has those of all chunks."""
    program = layer(count, loss=True)
    after = chunked(program, chunks=2)
    assert verify(program, after).status == "proved"
    assert error(program, after) < 1e-12


def test_weights_are_no_counts():
    """Of float weights each chunk's sum would be cut to whole numbers by itself."""

    said = []

    def weighed(b, ids):
        weights = b.call(aten.mul.Tensor, b.call(aten._to_copy.default, ids, dtype=torch.float64), 0.7)
        counts = b.call(aten.bincount.default, ids, weights, EXPERTS)
        said.append(counts.meta["val"].dtype)
        return b.call(aten._to_copy.default, counts, dtype=torch.int64)

    program = layer(weighed, loss=True)
    if said[0].is_floating_point:
        with pytest.raises(InputError, match="needs all tokens"):
            plan_of(program, chunks=2)
    else:  # PyTorch 2.11 calls weighted counts whole numbers
        assert verify(program, chunked(program)).status == "unproved"


@pytest.mark.parametrize(
    "count",
    [
        histc(EXPERTS),
        histc(EXPERTS - 1),
        bincount,
        marks([0], [TOKENS * SEVERAL, 1]),
        marks([0, 1], [TOKENS, SEVERAL, 1]),
        marks([1, 0, 2], [TOKENS, SEVERAL, 1, 1]),
    ],
)
def test_counted_by_expert(count):
    program = layer(count)
    after = chunked(program)
    verdict = verify(program, after)
    assert verdict.status == "proved", (verdict.findings, verdict.unproved)
    assert error(program, after) < 1e-12


@pytest.mark.parametrize(
    ("count", "why"),
    [
        (histc(EXPERTS + 1), "not proved, at 'all_to_all_single' .* an operand that is no rows|rounded"),
        (weighted, "at 'bincount' .* which numbers there are says how long it is"),
        (too_short, "at 'bincount' .* which numbers there are says how long it is"),
    ],
)
def test_what_is_no_count_is_not_proved(count, why):
    """Of chunks whose largest numbers differ, counts would differ in length, but for an exchange that fails then."""
    program = layer(count)
    verdict = verify(program, chunked(program))
    assert verdict.status == "unproved"
    assert any(re.search(why, gap.text) for gap in verdict.unproved), verdict.unproved


@pytest.mark.parametrize(("least", "fine"), [(EXPERTS, True), (EXPERTS - 1, False), (0, False)])
def test_a_length_that_the_whole_has_by_a_check(least, fine):
    """As long as the least that was asked for: no number is larger, in a chunk neither. Else only a run can tell."""
    b = Layers()
    x = b.tokens("x", TOKENS, 4)
    with b.module(MODULE):
        route = b.dispatch(x)
        first = b.call(aten._to_copy.default, b.call(aten.select.int, x, 1, 0), dtype=torch.int64)
        counts = b.call(aten.bincount.default, first, None, least)
        counts.meta["val"] = counts.meta["val"].new_empty((EXPERTS,))
        y = b.combine(b.call(aten.mul.Tensor, route.rows, 2.0), route)
    before = b.done([y, counts])
    if fine:
        assert verify(before, chunked(before, chunks=2)).status == "proved"
        return
    with pytest.raises(InputError, match=r"'bincount' .* in a chunk as long as only a run can tell"):
        plan_of(before, chunks=2)
