"""Ways to route tokens that other libraries have: counted, sorted, sent and put back otherwise, and not annotated."""

from __future__ import annotations

import operator

import pytest
import torch

from commcc.base.errors import InputError, OptionError
from commcc.ep.chunk.rules import state_of
from commcc.ep.chunk.state import SUM
from commcc.ep.regions import regions_of
from commcc.graph.annotations import annotations_of
from commcc.graph.index import build_index
from commcc.passes.options import parse_pipeline
from commcc.report.overlapping import overlap
from commcc.run.pipeline import run
from commcc.verify import verify
from tests.chunk_graphs import MOE, Layers, Route, aten, chunked, error, plan_of

TOKENS, WIDTH, SLOTS = 8, 4, 16
MAX = torch.ops._c10d_functional.all_reduce.default


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


def by_checked_one_hot(b, flat):
    """one_hot asserts that no number is negative."""
    fine = b.call(aten.all.default, b.call(aten.ge.Scalar, flat, 0))
    b.call(aten._assert_async.msg, fine, "negative")
    return by_one_hot(b, flat)


def by_comparison(b, flat):
    """(flat[None] == arange(2)[:, None]).sum(1)"""
    numbers = b.call(aten.unsqueeze.default, b.call(aten.arange.default, 2, dtype=torch.float64), 1)
    hot = b.call(aten.eq.Tensor, b.call(aten.unsqueeze.default, flat, 0), numbers)
    return b.call(aten.sum.dim_IntList, hot, [1])


def by_marks(b, flat):
    """zeros.scatter_(1, flat, 1).sum(0)"""
    number = b.call(aten._to_copy.default, b.call(aten.unsqueeze.default, flat, 1), dtype=torch.int64)
    zeros = b.call(aten.new_zeros.default, flat, [SLOTS, 2], dtype=torch.bool)
    return b.call(aten.sum.dim_IntList, b.call(aten.scatter_.value, zeros, 1, number, True), [0])


def by_marks_in_rows(b, flat, marked=2):
    """zeros.scatter_(-1, chosen, 1).sum([0, 1]) of tokens with two choices each, of which so many are marked"""
    number = b.call(aten._to_copy.default, b.call(aten.reshape.default, flat, [TOKENS, 2, 1]), dtype=torch.int64)
    zeros = b.call(aten.new_zeros.default, flat, [TOKENS, 2, 2], dtype=torch.bool)
    number = number if marked == 2 else b.call(aten.slice.Tensor, number, 1, 0, marked)
    return b.call(aten.sum.dim_IntList, b.call(aten.scatter_.value, zeros, -1, number, True), [0, 1])


def by_marks_of_fewer(b, flat):
    return by_marks_in_rows(b, flat, marked=1)


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


def numbered(b, back, order, token):
    """numbers[order] = 0, 1, 2, ...; back[numbers]"""
    numbers = b.call(aten.arange.default, SLOTS)
    inverse = b.call(aten.index_put_.default, b.call(aten.empty_like.default, order), [order], numbers)
    rows = b.call(aten.index.Tensor, back, [inverse])
    return b.call(aten.sum.dim_IntList, b.call(aten.reshape.default, rows, [TOKENS, 2, WIDTH]), [1])


def routed(count, join, *, mixed=None, into=None, samples=0):
    """Every token goes to two of two ranks' experts, by the sign of its first two numbers."""
    b, x = into or (Layers(), None)
    if x is None:
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
        y = b.call(aten.reshape.default, y, [samples, TOKENS // samples, WIDTH]) if samples else y
    return b.done([y])


COUNTS = (by_histogram, by_ones, by_one_hot, by_checked_one_hot, by_marks, by_marks_in_rows, by_comparison)
JOINS = (added, scattered, put, unsorted, numbered)


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


@pytest.mark.parametrize("join", [put, unsorted, numbered])
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


def test_counts_of_fractions_are_not_those_of_their_whole_parts():
    """Rows are sorted by what is left of a fraction, and counted by the fraction."""
    b = Layers()
    x, w = b.tokens("x", TOKENS, WIDTH), b.tokens("w", WIDTH)
    with b.module(MOE):
        share = b.call(aten.sigmoid.default, b.call(aten.select.int, x, 1, 0))
        key = b.call(aten._to_copy.default, share, dtype=torch.int64)
        order = b.call(operator.getitem, b.call(aten.sort.stable, key, stable=True), 1)
        counts = b.call(aten._to_copy.default, b.call(aten.histc.default, share, 2, 0, 1), dtype=torch.int64)
        with b.noted(EP="dispatch", EP_token_count_exchange="dispatch"):
            others = b.exchange(counts, [1, 1], [1, 1])
        sent, received = b.numbers(counts), b.numbers(others)
        with b.noted(EP="dispatch", EP_token_exchange="dispatch"):
            rows = b.exchange(b.call(aten.index.Tensor, x, [order]), received, sent)
        y = b.combine(b.call(aten.mul.Tensor, rows, w), Route(rows, order, sent, received, x))
    before = b.done([y])
    after = chunked(before, chunks=2)
    assert verify(before, after).status == "unproved"
    assert error(before, after) > 0.1


def test_counts_of_something_else_are_not_proved():
    def of_half(b, flat):
        return by_histogram(b, b.call(aten.mul.Tensor, flat, 0.5))

    before = routed(of_half, added)
    assert plan_of(before, chunks=2).rewrite.chunked
    assert verify(before, chunked(before, chunks=2)).status == "unproved"


def compared_with_others(b, flat):
    numbers = b.call(aten.arange.start_step, 0, 4, 2, dtype=torch.float64)
    hot = b.call(aten.eq.Tensor, b.call(aten.unsqueeze.default, flat, 0), b.call(aten.unsqueeze.default, numbers, 1))
    return b.call(aten.sum.dim_IntList, hot, [1])


def put_on_others(b, back, order, token):
    """ones.index_put(order, numbers, accumulate=True): one more than where each row went."""
    ones = b.call(aten.ones_like.default, order)
    places = b.call(aten.index_put.default, ones, [order], b.call(aten.arange.default, SLOTS), True)
    rows = b.call(aten.index.Tensor, back, [places])
    return b.call(aten.sum.dim_IntList, b.call(aten.reshape.default, rows, [TOKENS, 2, WIDTH]), [1])


@pytest.mark.parametrize(
    ("count", "join"),
    [(compared_with_others, added), (by_marks_of_fewer, added), (by_histogram, put_on_others)],
)
def test_what_looks_like_counts_or_an_order_is_not_proved(count, join):
    before = routed(count, join)
    try:
        after = chunked(before, chunks=2)
    except InputError:
        return
    assert verify(before, after).status == "unproved"


def by_sample(b, mixed=False):
    """Places in the buffers of experts are given sample by sample, and every rank gets the buffers of its experts."""
    x, expert = b.tokens("x", 4, 6, WIDTH), b.weight("expert", 2, WIDTH, WIDTH)
    with b.module(MOE):
        chosen = b.call(aten.gt.Scalar, b.call(aten.slice.Tensor, x, 2, 0, 2), 0)
        hot = b.call(aten._to_copy.default, chosen, dtype=torch.float64)
        place = b.call(aten.cumsum.default, hot, 0 if mixed else 1)
        kept = b.call(
            aten.mul.Tensor,
            hot,
            b.call(aten._to_copy.default, b.call(aten.le.Scalar, place, 3), dtype=hot.meta["val"].dtype),
        )
        table = b.call(aten.arange.start, 1, 4, dtype=torch.float64)
        slot = b.call(
            aten._to_copy.default,
            b.call(aten.eq.Tensor, b.call(aten.unsqueeze.default, place, 3), table),
            dtype=torch.float64,
        )
        mask = b.call(aten.mul.Tensor, slot, b.call(aten.unsqueeze.default, kept, 3))  # sample, token, expert, slot
        flat = b.call(aten.reshape.default, mask, [4, 6, 6])
        sent = b.call(aten.bmm.default, b.call(aten.transpose.int, flat, 1, 2), x)
        sent = b.call(aten.permute.default, b.call(aten.reshape.default, sent, [4, 2, 3, WIDTH]), [1, 0, 2, 3])
        got = b.exchange(b.call(aten.clone.default, sent, memory_format=torch.contiguous_format), [1, 1], [1, 1])
        rows = b.call(aten.reshape.default, got, [1, 24, WIDTH])
        done = b.call(aten.bmm.default, rows, b.call(aten.slice.Tensor, expert, 0, 0, 1))
        back = b.exchange(b.call(aten.reshape.default, done, [2, 4, 3, WIDTH]), [1, 1], [1, 1])
        back = b.call(aten.reshape.default, b.call(aten.permute.default, back, [1, 0, 2, 3]), [4, 6, WIDTH])
        y = b.call(aten.bmm.default, flat, back)
        weights = b.call(aten.bmm.default, b.call(aten.transpose.int, rows, 1, 2), done)
    return b.done([y, weights])


def to_every_rank(b, turned=False):
    """All tokens go to all ranks, and come back from each."""
    x, w = b.tokens("x", TOKENS, WIDTH), b.weight("w", WIDTH, WIDTH)
    with b.module(MOE):
        copies = b.call(aten.expand.default, b.call(aten.unsqueeze.default, x, 0), [2, TOKENS, WIDTH])
        flat = b.call(aten.reshape.default, copies, [2 * TOKENS, WIDTH])
        rows = b.exchange(flat, [TOKENS] * 2, [TOKENS] * 2)
        done = b.call(aten.silu.default, b.call(aten.mm.default, rows, w))
        back = b.exchange(done, [TOKENS] * 2, [TOKENS] * 2)
        if turned:  # the first two rows are of the first rank, the next two of the second, ...
            pairs = b.call(aten.reshape.default, back, [TOKENS, 2, WIDTH])
            y = b.call(aten.sum.dim_IntList, pairs, [1])
        else:
            y = b.call(aten.sum.dim_IntList, b.call(aten.reshape.default, back, [2, TOKENS, WIDTH]), [0])
        weights = b.call(aten.mm.default, b.call(aten.t.default, rows), done)
    return b.done([y, weights])


@pytest.mark.parametrize("route", [by_sample, to_every_rank])
def test_exchanges_of_equal_parts_are_cut_and_proved(route):
    """A chunk has the same slice of every rank's tokens, in as many blocks as there are ranks."""
    before = route(Layers())
    after = chunked(before, chunks=2)
    assert verify(before, after).status == "proved"
    assert error(before, after) < 1e-12


@pytest.mark.parametrize("count", COUNTS)
def test_routes_of_rows_folded_with_their_samples(count):
    """A sequence is cut: in rows of two samples, a chunk has its slice of each of them."""
    b = Layers()
    x = b.tokens("x", 2, TOKENS // 2, WIDTH)
    with b.module(MOE):
        folded = b.call(aten.reshape.default, x, [TOKENS, WIDTH])
    before = routed(count, unsorted, into=(b, folded), samples=2)
    after = chunked(before, chunks=2, dim="seq")
    assert verify(before, after).status == "proved"
    assert error(before, after) < 1e-12


def test_equal_parts_that_are_not_of_tokens():
    """Rows of one rank's tokens that are taken for others are refused."""
    with pytest.raises(InputError, match=r"dimension 0 are in none of their own"):
        chunked(to_every_rank(Layers(), True), chunks=2)


def test_places_that_samples_share():
    """They are given to all samples at once, and each chunk goes on with those of its own."""
    before = by_sample(Layers(), True)
    after = chunked(before, chunks=2)
    assert verify(before, after).status == "proved"
    assert error(before, after) < 1e-12


def test_what_holds_of_all_rows_is_only_asserted():
    """Multiplied with, it would be another number in each chunk."""

    def looked_at(b, flat):
        fine = b.call(aten.all.default, b.call(aten.ge.Scalar, flat, 1))
        return by_one_hot(b, b.call(aten.mul.Tensor, flat, b.call(aten._to_copy.default, fine, dtype=torch.float64)))

    try:
        after = chunked(routed(looked_at, added), chunks=2)
    except InputError:
        return
    assert verify(routed(looked_at, added), after).status == "unproved"


@pytest.mark.parametrize("route", [by_sample, to_every_rank])
def test_exchanges_without_annotations_are_counted_with_their_bytes(route):
    """What the passes take for exchanges of tokens is in the report as such."""
    source = route(Layers())
    for node in source.graph.nodes:
        node.meta["custom"] = {"module_fqn": node.meta.get("custom", {}).get("module_fqn", "")}
    found = overlap(run(source, parse_pipeline("ep-chunk{chunks=2}")))["exchanges"]
    assert (found["token_exchanges"], found["others"]) == ([2, 4], [0, 0])
    assert found["sent_bytes"][0] == found["sent_bytes"][1] > 0
    assert sum(row["after"] for row in found["histogram"]) == 4


def of_all_tokens(b, x, y, kind):
    """What is computed of all tokens, and what becomes of ``y`` by it."""
    if kind == "a loss":
        mean = b.call(aten.mean.dim, x, [0])
        return b.call(aten.add.Tensor, y, b.call(aten.sum.default, b.call(aten.mul.Tensor, mean, mean)))
    if kind == "a capacity":
        place = b.call(aten.cumsum.default, b.call(aten.gt.Scalar, x, 0), 0)
        return b.call(aten.mul.Tensor, y, b.call(aten.le.Scalar, place, 3))
    if kind == "a norm":
        away = b.call(aten.sub.Tensor, x, b.call(aten.mean.dim, x, [0], True))
        return b.call(aten.mul.Tensor, y, b.call(aten.div.Tensor, away, b.call(aten.var.correction, x, [0])))
    total = b.call(aten.sum.dim_IntList, y, [0])
    if kind == "a share":
        return b.call(aten.add.Tensor, y, b.call(aten.sum.default, b.call(aten.div.Tensor, total, TOKENS)))
    if kind == "rounded, side by side":
        both = b.call(aten._to_copy.default, b.call(aten.stack.default, [total, total]), dtype=INT)
        return b.call(aten.add.Tensor, y, b.call(aten.select.int, both, 0, 0))
    rounded = aten.cumsum.default if kind == "rounded, one by one" else aten.sum.dim_IntList
    return b.call(aten.add.Tensor, y, b.call(rounded, total, 0 if rounded is aten.cumsum.default else [0], dtype=INT))


INT = torch.int64
ROUNDED = ("rounded, one by one", "rounded, side by side", "rounded")


def with_all_tokens(kind):
    b = Layers()
    x = b.tokens("x", TOKENS, WIDTH)

    def join(b, back, order, token):
        return of_all_tokens(b, x, added(b, back, order, token), kind)

    return routed(by_histogram, join, into=(b, x))


@pytest.mark.parametrize("kind", ["a loss", "a capacity", "a norm", "a share", *ROUNDED])
@pytest.mark.sampled(3)
def test_what_needs_all_tokens_is_computed_once(kind):
    """From what all chunks make; they go on with their slice of it. Both exchanges are cut as ever."""
    before = with_all_tokens(kind)
    after = chunked(before, chunks=2)
    assert verify(before, after).status == "proved"
    assert error(before, after) < 1e-12
    assert sum("all_to_all" in str(node.target) for node in after.graph.nodes) == 6


def test_a_share_of_a_sum_in_half_precision():
    """As a layer of bfloat16 takes the gradient of its mean: rounded as every number there, not to whole ones."""
    b = Layers()
    x = b.tokens("x", TOKENS, WIDTH)

    def join(b, back, order, token):
        y = added(b, back, order, token)
        total = b.call(aten.sum.dim_IntList, b.call(aten._to_copy.default, y, dtype=torch.bfloat16), [0])
        return b.call(aten.add.Tensor, y, b.call(aten.div.Tensor, total, TOKENS))

    before = routed(by_histogram, join, into=(b, x))
    after = chunked(before, chunks=2)
    assert verify(before, after).status == "proved"
    assert error(before, after) < 0.05


@pytest.mark.parametrize("kind", ROUNDED)
def test_parts_of_a_sum_that_are_rounded_each(kind, monkeypatch):
    """To whole numbers, by the dtype of a sum: what a planner that overlooks it makes is another program."""
    monkeypatch.setattr("commcc.ep.chunk.region.state_of", believing)
    monkeypatch.setattr("commcc.ep.chunk.leaving._rounded", lambda view, trial, members: set())
    b = Layers()
    x = b.tokens("x", TOKENS, WIDTH)

    def join(b, back, order, token):
        y = added(b, back, order, token)
        b.leaves = of_all_tokens(b, x, y, kind).all_input_nodes[1]
        return y

    done = b.done
    b.done = lambda results: done([*results, b.leaves])
    before = routed(by_histogram, join, into=(b, x))
    after = chunked(before, chunks=2)
    assert verify(before, after).status == "unproved"
    assert error(before, after) > 1e-3


def believing(call):
    return SUM if call.kinds == {"sum"} else state_of(call)


def test_experts_that_choose_their_tokens():
    """Which tokens an expert takes depends on all of them, and so does what is exchanged."""
    b = Layers()
    x = b.tokens("x", TOKENS, WIDTH)
    with b.module(MOE):
        taken = b.call(operator.getitem, b.call(aten.topk.default, b.call(aten.slice.Tensor, x, 1, 0, 2), 4, 0), 1)
        rows = b.call(aten.index.Tensor, x, [b.call(aten.reshape.default, taken, [-1])])
        got = b.exchange(rows, [4, 4], [4, 4])
        back = b.exchange(b.call(aten.silu.default, got), [4, 4], [4, 4])
        zeros = b.call(aten.new_zeros.default, x, [TOKENS, WIDTH])
        y = b.call(aten.index_add.default, zeros, 0, b.call(aten.reshape.default, taken, [-1]), back)
    with pytest.raises(InputError, match=r"'topk.*' .*needs all tokens.*each token chooses"):
        chunked(b.done([y]), chunks=2)


def counted_by_the_router(count, change=None):
    """A module of experts alone: which tokens they get, and how many, comes in from the router."""
    b = Layers()
    x = b.tokens("x", TOKENS, WIDTH)
    with b.module(MOE):
        signs = b.call(aten.gt.Scalar, b.call(aten.slice.Tensor, x, 1, 0, 2), 0)
        chosen = b.call(aten._to_copy.default, signs, dtype=torch.int64)
        flat = b.call(aten._to_copy.default, b.call(aten.reshape.default, chosen, [-1]), dtype=torch.float64)
        counts = count(b, flat)
        counts = change(b, counts) if change else counts
    with b.module(f"{MOE}.experts"):
        slots = b.call(aten.reshape.default, chosen, [-1])
        order = b.call(operator.getitem, b.call(aten.sort.stable, slots, stable=True), 1)
        token = b.call(aten.div.Tensor_mode, order, 2, rounding_mode="floor")
        sent, received = b.numbers(counts), b.numbers(b.exchange(counts, [1, 1], [1, 1]))
        picked = b.call(aten.gather.default, x, 0, wide(b, token, x))
        back = b.exchange(b.call(aten.silu.default, b.exchange(picked, received, sent)), sent, received)
        y = added(b, back, order, token)
    return b.done([y, counts] if count is by_marks else [y])


@pytest.mark.parametrize("count", [by_histogram, by_marks])
def test_tokens_counted_outside_of_the_module_are_counted_for_each_chunk(count):
    before = counted_by_the_router(count)
    after = chunked(before, f"{MOE}.experts", chunks=2)
    assert verify(before, after).status == "proved"
    assert error(before, after) < 1e-12


def test_what_else_is_done_to_counts_is_told():
    def of_all_ranks(b, counts):
        return b.call(torch.ops._c10d_functional.wait_tensor.default, b.call(MAX, counts, "max", "0"))

    before = counted_by_the_router(by_histogram, of_all_ranks)
    with pytest.raises(InputError, match=r"'wait_tensor.*comes in computed of all tokens") as refused:
        plan_of(before, f"{MOE}.experts", chunks=2)
    assert refused.value.hint == f"name the module that makes it too: modules={MOE}"


def test_patterns_that_name_nothing_are_told_where_tokens_are_exchanged():
    with pytest.raises(OptionError, match="no module 'model") as refused:
        plan_of(counted_by_the_router(by_marks), "model.layers.*.block_sparse_moe", chunks=2)
    assert refused.value.hint == f"tokens are exchanged in '{MOE}.experts': name these, or modules around them"
