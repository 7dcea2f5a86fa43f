"""Experts one after another: rows taken apart by counts, put together again; and all-reduces of tokens."""

from __future__ import annotations

import operator
import random
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from commcc.base.errors import InputError
from commcc.base.terms import Kind
from commcc.graph.modules import Matcher
from commcc.passes.strategies.entries import _blocks
from commcc.verify import verify
from commcc.verify.clones import Number
from commcc.verify.pieces import counted_in, number_of
from tests.chunk_graphs import MOE, Layers, aten, c10d, chunked, error, ops_of, plan_of

TOKENS, WIDTH, EXPERTS, RANKS = 8, 4, 4, 2
LOCAL = EXPERTS // RANKS
EXACT = 1e-12


def parted(b, rows, sizes):
    parts = b.call(aten.split_with_sizes.default, rows, sizes)
    return [b.call(operator.getitem, parts, i) for i in range(len(sizes))]


def items(b, counts, number):
    parts = b.call(aten.unbind.int, counts)
    made = [b.call(aten._local_scalar_dense.default, b.call(operator.getitem, parts, i)) for i in range(number)]
    for node in made:
        with b.mode:
            torch._check(node.meta["val"] >= 0)
    return made


def sliced(b, rows, sizes):
    """As the gradient of ``cat`` takes rows apart: from a running sum on."""
    parts, start = [], 0
    for size in sizes:
        until = b.call(operator.add, start, size)
        first = b.call(operator.sub, until, size) if parts else 0
        parts.append(b.call(aten.slice.Tensor, rows, 0, first, until))
        start = until
    return parts


def each_expert(b, parts, weights):
    return [b.call(aten.mm.default, part, weight) for part, weight in zip(parts, weights, strict=True)]


def by_segment(b, rows, segments, weights, order=(0, 2, 1, 3), apart=parted, back=(0, 2, 1, 3)):
    """The rows of each (rank, expert), with the weights of the expert; and what all of them give, in that order."""
    parts = apart(b, rows, segments)
    by_expert = b.call(aten.cat.default, [parts[i] for i in order])
    again = apart(b, by_expert, [segments[i] for i in back])
    made = each_expert(b, again, [weights[0], weights[0], weights[1], weights[1]])
    gradient = b.call(aten.mm.default, b.call(aten.t.default, again[0]), made[0])
    return b.call(aten.cat.default, [made[i] for i in (0, 2, 1, 3)]), gradient


def by_expert(b, rows, segments, weights, apart=parted, places=((0, 2), (1, 3)), exchanged=False):
    """Rows sorted by expert, taken apart by sums of counts, and put back where they came from."""
    table = b.call(aten.repeat.default, b.call(aten.arange.default, LOCAL), [RANKS])
    local = b.call(aten.index_select.default, table, 0, b.call(aten.repeat_interleave.Tensor, b.received))
    order = b.call(operator.getitem, b.call(aten.sort.stable, local, stable=True), 1)
    own = [b.call(operator.add, segments[one], segments[other]) for one, other in places]
    made = each_expert(b, apart(b, b.call(aten.index.Tensor, rows, [order]), own), weights)
    joined = b.call(aten.cat.default, made[::-1] if exchanged else made)
    back = b.call(aten.index_copy.default, b.call(aten.zeros_like.default, joined), 0, order, joined)
    return back, b.call(aten.mm.default, b.call(aten.t.default, made[0]), made[0])


def layer(experts, **options):
    """Every token goes to one of four experts on two ranks."""
    b = Layers()
    x, weights = b.tokens("x", TOKENS, WIDTH), [b.weight(f"w{i}", WIDTH, WIDTH) for i in range(LOCAL)]
    with b.module(MOE):
        signs = b.call(aten._to_copy.default, b.call(aten.gt.Scalar, x, 0), dtype=torch.int64)
        first, second = (b.call(aten.select.int, signs, 1, at) for at in (0, 1))
        expert = b.call(aten.add.Tensor, b.call(aten.mul.Tensor, first, 2), second)
        order = b.call(operator.getitem, b.call(aten.sort.stable, expert, stable=True), 1)
        zeros, ones = b.call(aten.zeros.default, [EXPERTS], dtype=torch.int64), b.call(aten.ones_like.default, expert)
        counts = b.call(aten.scatter_add.default, zeros, 0, expert, ones)
        b.received = b.exchange(counts, [LOCAL] * RANKS, [LOCAL] * RANKS)
        tables = [b.call(aten.reshape.default, each, [RANKS, LOCAL]) for each in (counts, b.received)]
        sums = [b.call(aten.sum.dim_IntList, table, [1]) for table in tables]
        sent, received = b.numbers(sums[0]), b.numbers(sums[1])
        rows = b.exchange(b.call(aten.index.Tensor, x, [order]), received, sent)
        done, gradient = experts(b, rows, items(b, b.received, EXPERTS), weights, **options)
        back = b.exchange(done, sent, received)
        y = b.call(aten.index_add.default, b.call(aten.zeros_like.default, x), 0, order, back)
    return b.done([y, gradient])


@pytest.mark.parametrize("experts", [by_segment, by_expert])
@pytest.mark.parametrize("apart", [parted, sliced])
def test_experts_one_after_another_are_cut_and_proved(experts, apart):
    before = layer(experts, apart=apart)
    after = chunked(before, chunks=2)
    assert verify(before, after).status == "proved"
    assert error(before, after) < EXACT
    assert len(ops_of(after, "aten.cat")) > 2 * len(ops_of(before, "aten.cat"))


@pytest.mark.parametrize(
    ("experts", "options"),
    [
        (by_segment, {"order": (0, 1, 2, 3)}),
        (by_segment, {"order": (2, 0, 1, 3)}),
        (by_segment, {"order": (0, 0, 1, 3)}),
        (by_segment, {"back": (0, 1, 2, 3)}),
        (by_expert, {"places": ((0, 1), (2, 3))}),
        (by_expert, {"places": ((1, 3), (0, 2))}),
        (by_expert, {"exchanged": True}),
    ],
)
def test_rows_taken_apart_by_other_numbers_are_not_proved(experts, options):
    """Each has as many rows in all; which rows a piece has is another matter."""
    before = layer(experts, **options)
    try:
        after = chunked(before, chunks=2)
    except InputError:
        return
    assert verify(before, after).status == "unproved"


def test_numbers_have_one_name_for_what_they_count():
    """Sums and differences of counts, against the counts themselves."""
    rng = random.Random(0)
    of = ("key", EXPERTS, ("tokens", TOKENS), RANKS, "g")
    rows = {("segment", *of, i): rng.randrange(100) for i in range(EXPERTS)}
    rows |= {("bin", *of[:4], i): rng.randrange(100) for i in range(EXPERTS)}

    def meant(number):
        head, *rest = number.what
        if head == "sum":
            return sum(rows[part] for part in rest)
        if head == "rows":
            kind = "segment" if rest[0][0] == "received" else "bin"
            return sum(n for part, n in rows.items() if part[0] == kind)
        if head in ("got", "sent"):
            kind, rank = ("segment", rest[6]) if head == "got" else ("bin", rest[4])
            return sum(n for part, n in rows.items() if part[0] == kind and part[-1] // LOCAL == rank)
        if head == "by expert":
            return sum(n for part, n in rows.items() if part[0] == "segment" and part[-1] % LOCAL == rest[6])
        assert head in ("segment", "bin")
        return rows[number.what]

    heads = set()
    for _ in range(400):
        kind = rng.choice(("segment", "bin"))
        counted = Counter({part: 1 for part in rows if part[0] == kind and rng.random() < 0.6})
        counted += Counter(part for part in rows if rng.random() < 0.05)
        number = number_of(counted)
        heads.add(number.what[0])
        # Rows that are sent in all are known by their order: nothing is taken from them again.
        assert counted_in(number) == counted or number.what[:1] == ("rows",)
        assert meant(number) == sum(rows[part] * times for part, times in counted.items())
    assert heads == {"sum", "rows", "got", "sent", "by expert", "segment", "bin"}
    assert number_of(Counter()) == Number(("sum",)) and counted_in(Number(("sum",))) == Counter()


def reduced(b, x, w):
    """Columns of the first weight and rows of the second are on several ranks."""
    hidden = b.call(aten.silu.default, b.call(aten.mm.default, x, w))
    return b.call(c10d.wait_tensor.default, b.call(c10d.all_reduce.default, hidden, "sum", "0"))


def tensor_parallel(routed):
    b = Layers()
    x, w = b.tokens("x", TOKENS, WIDTH), b.weight("w", WIDTH, WIDTH)
    with b.module("layers.0.mixer"):
        hidden = x if routed else reduced(b, x, w)
    with b.module(MOE):
        route = b.dispatch(hidden)
        y = b.combine(reduced(b, route.rows, w) if routed else route.rows, route)
    return b.done([y])


def test_tokens_that_ranks_add_up_are_cut():
    """Element by element: every rank has the same slice of the tokens, one launch for each chunk."""
    before = tensor_parallel(routed=False)
    after = chunked(before, "layers.*", chunks=4)
    assert verify(before, after).status == "proved"
    assert len(ops_of(after, "_c10d_functional.all_reduce")) == 4
    assert error(before, after) < EXACT


def test_received_rows_that_ranks_add_up_are_not_proved():
    """The rows of the ranks of a tensor-parallel group are the same if the model sees to it, which no graph shows."""
    before = tensor_parallel(routed=True)
    verdict = verify(before, chunked(before, "layers.*", chunks=2))
    assert verdict.status == "unproved"
    assert any("that it is the same on all ranks of group '0' is open" in gap.text for gap in verdict.unproved)


def test_tokens_that_ranks_scatter_are_refused():
    b = Layers()
    x = b.tokens("x", TOKENS, WIDTH)
    with b.module(MOE):
        route = b.dispatch(x)
        y = b.combine(route.rows, route)
        half = b.call(c10d.wait_tensor.default, b.call(c10d.reduce_scatter_tensor.default, y, "sum", 2, "0"))
    with pytest.raises(InputError, match=r"about tokens of a chunk .* of collectives, all-to-alls and all-reduces"):
        plan_of(b.done([half]), chunks=2)


def test_collectives_of_what_blocks_lie_in_are_no_entry_beside_them():
    """Sums of chunks of whole layers belong to the list of layers."""

    def collective(launch, module):
        facts = {"kind": Kind.ALL_GATHER, "group": "0", "dtype": "float32", "reduction": None}
        return SimpleNamespace(launch=launch, module=module, stands_for=1, **facts)

    paths = [
        "model.emb",
        "model.layers.0.q",
        "model.layers.0.o",
        "model.layers.1.q",
        "model.layers.1.o",
        "model.layers",
    ]
    present = [collective(at, path) for at, path in enumerate(paths)]
    entries, _ = _blocks(present, Matcher(()), False)
    assert [entry.roots for entry in entries] == [("model.layers.0",), ("model.layers.1",), ("model.emb",)]
