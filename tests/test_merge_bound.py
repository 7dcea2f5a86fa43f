"""The lower bound that holds when collectives are merged: no way to merge them ends sooner."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.serialization import load
from commcc.timing.cost import load_model
from tests.effort import examples
from tests.random_graphs import GraphBuilder, aten

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def merge_bound():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import merge_bound as module
    finally:
        sys.path.pop(0)
    return module


def price(size, root=6):
    """Concave, as most prices are: latency, and a rate that grows with bytes, but for a root of 0."""
    return 10 + root * np.sqrt(size) + size


PRICES = SimpleNamespace(of=price, slope=1.0)
MEMBERS = st.lists(st.tuples(st.integers(0, 120), st.integers(1, 60)), min_size=1, max_size=5)


def partitions(items):
    """All ways to put items into sets."""
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for at, own in enumerate(rest):
            yield [*rest[:at], [items[0], *own], *rest[at + 1 :]]


def best_end(members, others, most, root=6):
    """The soonest end of all partitions in all orders, other work where there is time for it."""
    found = np.inf
    for sets in partitions(members):
        if any(len(own) > 1 and sum(size for _, size in own) > most for own in sets):
            continue
        took = [price(sum(size for _, size in own), root) for own in sets]
        for order in permutations(range(len(sets))):
            now = 0.0
            for at in order:
                now = max(now, *(head for head, _ in sets[at])) + took[at]
            found = min(found, max(now, others + sum(took)))
    return found


@settings(max_examples=examples(100), deadline=None)
@given(MEMBERS, st.sampled_from((0, 40, 300)), st.sampled_from((30, 70, 10**9)), st.sampled_from((0, 6)))
def test_no_partition_ends_sooner(merge_bound, members, others, most, root):
    heads, sizes = zip(*members, strict=True)
    best = best_end(members, others, most, root)
    prices = SimpleNamespace(of=lambda size: price(size, root), slope=1.0)
    for pieces in (len(members), 40):
        assert merge_bound.earliest_end(heads, sizes, prices, others, most, pieces) <= best


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(0, 120), min_size=1, max_size=5), st.integers(1, 60), st.sampled_from((30, 70, 10**9)))
def test_members_of_one_size_are_not_cut(merge_bound, heads, size, most):
    """The soonest end of all partitions is that of cuts between members, in order of their heads."""
    best = best_end([(head, size) for head in heads], 0, most)
    assert merge_bound.earliest_end(heads, [size] * len(heads), PRICES, 0, most) == int(best)


def test_members_of_several_sizes_are_cut(merge_bound):
    """The best partition holds the small one back for the last one; cuts between members would end 10 later."""
    members = [(60, 60), (60, 10), (100, 60)]
    assert merge_bound.earliest_end(*zip(*members, strict=True), PRICES) <= best_end(members, 0, 10**9) < 296


def test_sums_of_members_of_one_size_have_their_prices(merge_bound):
    """Other sizes have those of the next smaller one of a grid."""
    model = load_model()
    index = build_index(load(ROOT / "sample_graphs" / "tiny_moe_ep2_bw.fx.txt.gz"))
    launch = next(n for n, facts in index.launches.items() if facts.kind == "reduce_scatter")
    transfers = [merge_bound._sized(model.transfer_of(index, launch)[0], 88 << 20)] * 45
    prices = merge_bound.Prices(model, transfers)
    mixed = merge_bound.Prices(model, [*transfers, merge_bound._sized(transfers[0], 3 << 20)])
    for count in (1, 7, 45):
        size = count * transfers[0].full_bytes
        exact = model.transfer(merge_bound._sized(transfers[0], size)).ns
        assert prices.of(np.array([size])) == exact > prices.of(np.array([size - 1]))
        assert mixed.of(np.array([size])) < exact


def test_what_is_ready_late_cannot_be_merged_for_nothing(merge_bound):
    """Two halves: merged they start at 100, apart they pay twice. The bound knows; a rate for all bytes does not."""
    members = [(0, 400), (100, 400)]
    bound = merge_bound.earliest_end(*zip(*members, strict=True), PRICES)
    assert price(800) + 40 < bound <= best_end(members, 0, 10**9)


def test_a_budget_of_memory_makes_the_bound_higher(merge_bound):
    index = build_index(load(next((ROOT / "sample_graphs").glob("tiny_llama_hsdp_bw.fx.txt*"))))
    model = load_model("h100")
    costs, own = model.price(index), live_bytes(index)
    free, loose, tight = (
        merge_bound.merge_bound(index, costs, model, budget=budget).parts["busiest stream"]
        for budget in (None, 1 << 50, own.input_bytes + 1)
    )
    assert free == loose < tight


def test_what_else_is_on_the_stream_may_run_while_members_are_not_ready(merge_bound):
    """A gather moves while a product is computed, and a reduce-scatter of the product follows both."""
    b = GraphBuilder()
    rows = b.placeholder("rows", (4096, 4096), dtype=torch.bfloat16)
    weight = b.placeholder("weight", (1024, 8192), dtype=torch.bfloat16)
    product = b.scatter(b.call(aten.mm.default, rows, rows), 8, "fsdp", "avg")
    program = b.program([b.gather(weight, 8, "fsdp"), product], {"fsdp": 8})
    model = load_model()
    result = run(program, parse_pipeline("reorder"), model=model)
    index, costs = result.first.index, result.first.prediction.costs
    step = result.last.prediction.timeline.step_ns
    assert 0.9 * step < merge_bound.merge_bound(index, costs, model).ns <= step


def test_a_cast_in_common_counts_as_a_part_of_each(merge_bound):
    program = load(ROOT / "sample_graphs" / "tiny_llama_fsdp4_bw.fx.txt.gz")
    model = load_model("h100")
    result = run(program, parse_pipeline("bucket{strategy=greedy,bucket_cap_mb=1000}"), model=model).program
    index, after = build_index(program), build_index(result)
    costs = model.price(after)
    shares = merge_bound.common_casts(index, after, costs)
    common = {after.launches[n].inputs[0] for n in after.merged_from if after.launches[n].inputs[0] in after.casts}
    fed = {index.names[cast] for facts in index.launches.values() for cast in facts.inputs if cast in index.casts}
    assert shares.keys() == fed - set(after.names)
    whole = sum(costs.ns[node] for node in common)
    assert whole - len(shares) <= sum(shares.values()) <= whole
    free = replace(costs, ns=tuple(0 if node in common else ns for node, ns in enumerate(costs.ns)))
    paid, unpaid = (
        merge_bound.merge_bound(index, model.price(index), model, [(after, prices)]).parts for prices in (costs, free)
    )
    part = "compute stream, heads and tails"
    assert paid[part] > unpaid[part]
