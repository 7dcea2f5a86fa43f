"""The lower bound on the step under a budget of memory: no order within the budget ends sooner, merged or not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from commcc.base.terms import Kind
from commcc.graph.memory import MemoryModel, live_bytes
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.simulate import Simulator, lower_bound
from tests.brute_force import all_orders
from tests.index_maker import IndexMaker, Shape, random_maker
from tests.oracle import solve
from tests.oracle_graphs import training_graph

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def bounds():
    """:func:`memory_bound` and :func:`merge_bound` of the benchmarks."""
    pytest.importorskip("ortools.graph.python.max_flow", reason="OR-tools is not installed: pip install ortools")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import memory_bound
        import merge_bound
    finally:
        sys.path.pop(0)
    return memory_bound, merge_bound


def not_mergeable(index):
    """The same with all-to-alls for all collectives: what they touch counts."""
    launches = {node: replace(facts, kind=Kind.ALL_TO_ALL) for node, facts in index.launches.items()}
    return replace(index, launches=launches)


def stalling(*, mirrored=False):
    """A collective of 10 ns, and two pairs of nodes that may run while it is waited for, 5 ns each: the first of a pair
    makes 30 bytes that are needed at the end, too, and between another node makes and frees 80 bytes.

    Mirrored the node of 80 bytes comes first and the collective last, and what may run while it is waited for reads 30
    bytes each that were made before.
    """
    make = IndexMaker()
    x = make.input(1)
    if mirrored:
        saved = [make.op(1, x, size=30) for _ in range(2)]
        large = make.op(4, make.op(1, *saved, size=1), size=80)
        small = make.op(2, large, size=1)
        side = [make.op(5, each, size=1) for each in saved]
        wait = make.wait(make.launch(10, "a", small, size=1))
        make.op(1, wait, *side, size=1)
    else:
        kept = [make.op(1, x, size=30) for _ in range(2)]
        side = [make.op(4, each) for each in kept]
        wait = make.wait(make.launch(10, "a", make.op(3, x, size=1), size=1))
        small = make.op(2, make.op(4, wait, size=80), size=1)
        make.op(1, small, *kept, *side, size=1)
    return not_mergeable(make.index()), make.costs()


@pytest.mark.parametrize("mirrored", [False, True])
def test_what_would_be_run_in_a_stall_needs_memory(bounds, mirrored):
    """There is room for none of the results beside the 80 bytes, for one, or for both."""
    memory_bound, _ = bounds
    index, costs = stalling(mirrored=mirrored)
    memory, simulator = MemoryModel(index), Simulator(index, costs)
    runs = [(memory.live(order).peak_bytes, simulator.run(order).step_ns) for order in all_orders(index)]
    least = min(runs)[0]
    steps = []
    for budget in (least, least + 30, least + 60):
        steps.append(min(step for peak, step in runs if peak <= budget))
        # Prices of a byte are rounded.
        assert steps[-1] - 1 <= memory_bound.memory_bound(index, costs, {}, budget) <= steps[-1]
    assert steps == [30, 25, 20]
    assert lower_bound(index, costs).ns == steps[-1]


def test_no_order_within_the_budget_ends_sooner(bounds):
    """Of all orders of small graphs; in some the bound is above the one that knows no budget."""
    memory_bound, _ = bounds
    checked = above = 0
    shape = Shape(nodes=9, unwaited=0.1, order_edges=0.1, depth=7, launches=0.25, durations=(0, 2, 5, 7))
    for seed in range(1000):
        make = random_maker(seed, shape)
        index, costs = not_mergeable(make.index()), make.costs(launch_ns=seed % 2)
        orders = list(all_orders(index, 601))
        if len(orders) > 600:
            continue
        memory, simulator = MemoryModel(index), Simulator(index, costs)
        runs = [(memory.live(order).peak_bytes, simulator.run(order).step_ns) for order in orders]
        peaks = sorted({peak for peak, _ in runs})
        free = lower_bound(index, costs).ns
        for budget in {peaks[0], peaks[len(peaks) // 2]}:
            found = memory_bound.memory_bound(index, costs, {}, budget)
            assert found <= min(step for peak, step in runs if peak <= budget)
            checked, above = checked + 1, above + (found > free)
    assert checked > 300
    assert above > 10


@pytest.mark.full
def test_the_optimum_within_the_budget_is_no_shorter(bounds):
    memory_bound, _ = bounds
    for seed in range(12):
        index, costs = training_graph(seed)
        own = live_bytes(index).peak_bytes
        best = solve(index, costs, own)
        assert memory_bound.memory_bound(index, costs, {}, own) <= best.bound_ns


RESULTS = [
    *(("tiny_llama_fsdp4_bw", "bucket"), ("tiny_moe_fsdp4_ep2_bw", "bucket{strategy=module}")),
    *(("tiny_deepseek_fsdp4_ep2", "bucket,reorder"), ("tiny_deepseek_ep2", "bucket{form=coalesced}")),
]


@pytest.mark.parametrize(("name", "pipeline"), RESULTS)
def test_no_result_within_its_own_peak_ends_sooner(bounds, name, pipeline):
    """Buffers that merging does away with are not counted: those of what is merged, and of what a result lacks."""
    memory_bound, merge_bound = bounds
    model = load_model("h100")
    result = run(load(next((ROOT / "sample_graphs").glob(f"{name}.fx.txt*"))), parse_pipeline(pipeline), model=model)
    index, after = result.first.index, result.last.index
    assert len(after.launches) < len(index.launches)
    costs, peak = model.price(after), live_bytes(after).peak_bytes
    step = Simulator(after, costs).run().step_ns
    bound = merge_bound.merge_bound(index, model.price(index), model, [(after, costs)], peak)
    assert 0 < bound.parts["compute stream in memory"] <= bound.ns <= step
    memory, other = MemoryModel(index), MemoryModel(after)
    counted_is_live(index, other, memory_bound.held_buffers(index, memory, [other]))
    counted_is_live(index, other, memory_bound.held_buffers(index, memory, []))


def counted_is_live(index, other, held):
    """At every node of the result what is counted, and inputs, are no more than is live there."""
    assert held.size
    after = other.index
    number = {name: node for node, name in enumerate(after.names)}
    whole = other.live(range(len(after)))
    for at in range(len(after)):
        known = whole.input_bytes
        for size, maker, users, kept in zip(held.size, held.maker, held.users, held.kept, strict=True):
            ends = [len(after) if kept else 0, *(number[index.names[user]] for user in users)]
            known += size if number[index.names[maker]] <= at <= max(ends) else 0
        assert known <= whole.live[at]


def test_a_result_with_other_buffers_counts_for_what_it_has(bounds):
    """In one the second node makes less, in another one the third does not read it."""
    memory_bound, _ = bounds

    def made(size=30, reads=True):
        make = IndexMaker()
        first = make.op(1, make.input(1), size=size)
        make.op(1, make.op(1, first, size=1), *([first] if reads else []), size=1)
        return make.index()

    index = made()
    for other, users in ((made(), ((2, 3), (3,))), (made(size=29), ((3,),)), (made(reads=False), ((2,), (3,)))):
        held = memory_bound.held_buffers(index, MemoryModel(index), [MemoryModel(other)])
        assert tuple(held.users) == users
