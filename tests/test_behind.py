"""Compute behind the last collective, where this one is exposed: legal, what it hides, and that a search uses it."""

from __future__ import annotations

import importlib
from itertools import product

import numpy as np
import pytest

from commcc.base.terms import GIB, Kind
from commcc.graph.index import build_index
from commcc.schedule import Limits, Problem, search
from commcc.schedule.judge import judge
from commcc.schedule.tail import put_behind
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.cost.types import Costs
from tests.index_maker import IndexMaker
from tests.random_graphs import GraphBuilder, aten
from tests.schedule_graphs import check_order, scheduled_graph
from tests.test_schedule import SAMPLES, shuffled

module = importlib.import_module("commcc.schedule.search")


@pytest.mark.parametrize("sort", range(4))
def test_any_order_stays_legal(sort):
    moved = 0
    for seed, other, exposed in product(range(sort, 48, 4), range(3), (1, 60, 1 << 40)):
        problem = Problem(*scheduled_graph(seed))
        order = shuffled(problem, seed + other) if other else list(range(len(problem.index)))
        found = put_behind(problem.graph, np.array(order, np.int64), exposed)
        if found is not None:
            check_order(problem.index, found.tolist())
            moved += found.tolist() != order
    assert moved > 10


def gradients(jobs, last, after=()):
    """A chain of one node of 10 ns for each gradient, (ns, ns of its reduction, its group); then one of ``last`` ns on
    the wire at the end. after: ns of compute that leads to the end alone, ahead of it. Names by node.
    """
    make, names, waits = IndexMaker(), {}, []
    chain = make.input()
    for number, (ns, wire, group) in enumerate(jobs):
        gradient = make.op(ns, chain)
        launch = make.launch(wire, group, gradient)
        waits.append(make.wait(launch))
        names |= {gradient: f"g{number}", launch: f"r{number}", waits[-1]: f"w{number}"}
        chain = make.op(10, chain)
    rest = [make.op(ns, chain) for ns in after]
    names |= {node: f"e{number}" for number, node in enumerate(rest)}
    launch = make.launch(last, "dp", make.op(10, chain))
    waits.append(make.wait(launch))
    names |= {launch: "last", waits[-1]: "end"}
    return Problem(make.index(), make.costs()), names


def behind(problem, names, exposed):
    """What stands behind the last launch, by name; before it, what stood there."""
    order = put_behind(problem.graph, np.arange(len(problem.index)), exposed)
    if order is None:
        return None
    check_order(problem.index, order.tolist())
    said = [names.get(node, "") for node in order.tolist()]
    return said[said.index("last") + 1 :]


def test_as_few_as_hide_it_the_last_ones_of_the_order():
    problem, names = gradients([(13, 11, "dp")] * 8, 6)
    assert behind(problem, names, 2) == ["g7", "r7", "w7", "end"]
    assert behind(problem, names, 3) == ["g6", "r6", "g7", "r7", "w6", "w7", "end"]
    assert behind(problem, names, 1000) == [
        *(f"{kind}{number}" for number in range(8) for kind in "gr"),
        *(f"w{number}" for number in range(8)),
        "end",
    ]


def test_what_would_be_exposed_for_longer_stays():
    jobs = [(13, 11, "dp"), (11, 13, "dp"), (12, 12, "dp"), (11, 13, "tp"), (30, 20, "dp")]
    problem, names = gradients(jobs, 50)
    # Only on the same stream does a reduction wait for the last one. The longest transfers go first.
    assert behind(problem, names, 1000) == [
        *("g4", "r4", "g3", "r3", "g0", "r0"),
        *("w0", "w1", "w2", "w3", "w4", "end"),
    ]
    assert behind(problem, names, 10) == ["g4", "r4", "w4", "end"]
    assert behind(problem, names, 11) == ["g4", "r4", "g3", "r3", "w3", "w4", "end"]
    assert behind(*gradients([(11, 13, "dp")] * 4, 50), 10) is None


def test_what_leads_to_the_end_without_a_launch_goes_behind_too():
    problem, names = gradients([(13, 11, "dp")] * 2, 50, after=(20, 30))
    assert behind(problem, names, 40) == ["e0", "e1", "end"]
    assert behind(problem, names, 51) == ["g1", "r1", "w1", "e0", "e1", "end"]


def test_launches_that_lead_to_another_one_go_with_it():
    make, names = IndexMaker(), {}
    x = make.input()
    for ns, wire in ((30, 20), (30, 40)):
        gradient = make.op(ns, x)
        scatter = make.launch(25, "shards", gradient)
        wait = make.wait(scatter)
        reduce = make.launch(wire, "copies", wait)
        names |= {gradient: f"g{wire}", scatter: f"s{wire}", wait: f"w{wire}", reduce: f"r{wire}"}
        names[make.wait(reduce)] = f"e{wire}"
    last = make.launch(100, "copies", make.wait(make.launch(50, "shards", make.op(5, x))))
    names |= {last: "last", make.wait(last): "end"}
    found = behind(Problem(make.index(), make.costs()), names, 1000)
    assert found == ["g20", "s20", "w20", "r20", "e20", "e40", "end"]


def test_what_others_need_stays():
    make = IndexMaker()
    x = make.input()
    shared = make.op(50, x)
    first = make.wait(make.launch(10, "dp", shared))
    alone = make.op(50, x)
    second = make.launch(10, "dp", alone)
    make.wait(second)
    last = make.launch(100, "dp", make.op(1, shared, first))
    make.wait(last)
    order = put_behind(Problem(make.index(), make.costs()).graph, np.arange(len(make.ops)), 1000).tolist()
    assert order.index(shared) < order.index(last) < order.index(alone) < order.index(second)
    assert order.index(first) < order.index(last)


@pytest.mark.parametrize("empty", [True, False])
def test_nothing_is_behind_no_launch(empty):
    make = IndexMaker()
    if not empty:
        make.op(5, make.input())
    assert put_behind(Problem(make.index(), make.costs()).graph, np.arange(len(make.ops)), 10) is None


def backward(layers, gather=4, compute=20, scatter=17, last=150):
    """A backward pass of a sharded model, whose embedding's gradient is ready last and largest."""
    build = GraphBuilder()
    x = build.placeholder("x", (8, 8))
    outputs = []
    for shard in [build.placeholder(f"p{layer}", (4, 8)) for layer in range(layers)]:
        whole = build.gather(shard, 2, "shards")
        outputs.append(build.scatter(build.call(aten.mm.default, x, x), 2, "shards"))
        x = build.call(aten.mm.default, x, whole)
    outputs.append(build.scatter(build.call(aten.mm.default, x, x), 2, "shards"))
    index = build_index(build.program(outputs, {"shards": 2}))
    ns = [compute if op == "aten.mm" else 0 for op in index.ops]
    for launch, facts in index.launches.items():
        ns[launch] = gather if facts.kind is Kind.ALL_GATHER else scatter
    ns[max(index.launches)] = last
    costs = Costs("made", "0", (), tuple(ns), (-1,) * len(ns), {}, {}, 1, 1000, {})
    return Problem(index, costs)


def test_a_search_hides_the_last_reduction(monkeypatch):
    """Where memory is tight at first, no setting of the scheduler leaves gradients for the end by itself."""
    index = build_index(load(SAMPLES / "llama3_8b_fsdp64_bw.fx.txt.gz"))
    problem, budget = Problem(index, load_model("h100").price(index)), 56 * GIB
    found = search(problem, Limits(budget), 76)
    check_order(index, found.order)
    monkeypatch.setattr(module, "put_behind", lambda *_: None)
    before = search(problem, Limits(budget), 76)
    assert found.step_ns * 1000 <= problem.bound * 1003
    assert before.step_ns * 1000 >= problem.bound * 1010
    assert found.peak_bytes <= budget


def test_a_budget_is_kept(monkeypatch):
    """Gradients that wait hold memory; less of them wait then."""
    problem = backward(120)
    monkeypatch.setattr(module, "_MOVED_NODES", 0)
    own = judge(problem.graph, np.arange(len(problem.index))).peak_bytes
    behind = []
    monkeypatch.setattr(module, "put_behind", lambda *asked: behind.append(asked) or put_behind(*asked))
    for more in (0, 512, 4096):
        found = search(problem, Limits(budget=own + more), 76)
        assert found.peak_bytes <= own + more
    assert behind
