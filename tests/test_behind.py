"""Compute behind a collective, where this one is exposed: legal, what it hides, and that a search uses it."""

from __future__ import annotations

import importlib
from itertools import product

import numpy as np
import pytest

from commcc.base.terms import GIB, Kind
from commcc.graph.index import build_index
from commcc.schedule import Limits, Problem, search
from commcc.schedule.behind import last_launch, most_exposed, put_behind
from commcc.schedule.judge import judge
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
        for launch in problem.index.launches:
            found = put_behind(problem.graph, np.array(order, np.int64), launch, exposed)
            if found is not None:
                check_order(problem.index, found.tolist())
                moved += found.tolist() != order
    assert moved > 100


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
    graph, own = problem.graph, np.arange(len(problem.index))
    assert names[last_launch(graph, own)] == "last"
    order = put_behind(graph, own, last_launch(graph, own), exposed)
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
    order = put_behind(Problem(make.index(), make.costs()).graph, np.arange(len(make.ops)), last, 1000).tolist()
    assert order.index(shared) < order.index(last) < order.index(alone) < order.index(second)
    assert order.index(first) < order.index(last)


def test_what_stands_behind_it_anyway_may_need_what_goes_there():
    """As the norm of all gradients, which is computed at the end."""
    make = IndexMaker()
    x = make.input()
    gradient = make.op(50, x)
    reduced = make.launch(10, "dp", gradient)
    make.wait(reduced)
    last = make.launch(100, "dp", make.op(1, x))
    make.wait(last)
    norm = make.op(5, gradient)
    make.op(0, norm)
    order = put_behind(Problem(make.index(), make.costs()).graph, np.arange(len(make.ops)), last, 1000).tolist()
    assert order.index(last) < order.index(gradient) < order.index(reduced) < order.index(norm)


@pytest.mark.parametrize("empty", [True, False])
def test_no_launch_is_the_last_or_exposed(empty):
    make = IndexMaker()
    if not empty:
        made = make.launch(5, "dp", make.op(5, make.input()), synchronous=True)
        make.wait(made)
    graph, own = Problem(make.index(), make.costs()).graph, np.arange(len(make.ops))
    assert last_launch(graph, own) == -1
    assert most_exposed(graph, own, 100) == (-1, 0)


def test_what_compute_waits_for_longest():
    make = IndexMaker()
    x = make.op(7, make.input())
    launches = [make.launch(ns, group, x) for ns, group in ((10, "a"), (30, "b"), (100, "a"))]
    first = make.wait(launches[0])
    make.op(15, first)
    make.wait(launches[1])
    make.op(5, make.wait(launches[2]))
    make.launch(50, "b", x)  # nothing waits for it
    graph, own = Problem(make.index(), make.costs()).graph, np.arange(len(make.ops))
    # Arrivals at 17, 37 and 117; compute goes on at 17, 37 and 117.
    assert most_exposed(graph, own, 1000) == (launches[2], 80)
    assert most_exposed(graph, own, 80) == (launches[2], 80)
    assert most_exposed(graph, own, 79) == (launches[0], 10)
    assert most_exposed(graph, own, 9) == (launches[1], 5)


def test_what_stands_behind_a_launch_in_the_middle_stays_there():
    """An optimizer and its gather come behind the last reduction; gradients go between, and what updates stays behind
    all of them.
    """
    make = IndexMaker()
    chain = make.input()
    waits, launches, gradients = [], [], []
    for _ in range(3):
        gradients.append(make.op(13, chain))
        launches.append(make.launch(11, "dp", gradients[-1]))
        waits.append(make.wait(launches[-1]))
        chain = make.op(10, chain)
    last = make.launch(40, "dp", make.op(5, chain))
    update = make.op(20, *waits, make.wait(last))
    gather = make.launch(30, "dp", update)
    make.wait(gather)
    graph, own = Problem(make.index(), make.costs()).graph, np.arange(len(make.ops))
    assert last_launch(graph, own) == gather
    assert most_exposed(graph, own, 1000) == (last, 40)
    order = put_behind(graph, own, last, 3).tolist()
    check_order(Problem(make.index(), make.costs()).index, order)
    place = {node: at for at, node in enumerate(order)}
    assert place[gradients[0]] < place[last] < place[gradients[1]] < place[gradients[2]] < place[update]


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


@pytest.mark.parametrize("last", [True, False])
def test_a_search_hides_an_exposed_reduction(monkeypatch, last):
    """Where memory is tight at first, no setting of the scheduler leaves gradients for the end by itself. last: whether
    it is the last launch, and not only one that compute waits for.
    """
    index = build_index(load(SAMPLES / "llama3_8b_fsdp64_bw.fx.txt.gz"))
    problem, budget = Problem(index, load_model("h100").price(index)), 56 * GIB
    if not last:
        monkeypatch.setattr(module, "last_launch", lambda graph, _order: int(graph.launches[0]))
    found = search(problem, Limits(budget), 76)
    check_order(problem.index, found.order)
    assert found.step_ns * 1000 <= problem.bound * 1003
    assert found.peak_bytes <= budget
    if last:
        monkeypatch.setattr(module, "put_behind", lambda *_: None)
    else:
        monkeypatch.setattr(module, "most_exposed", lambda *_: (-1, 0))
    before = search(problem, Limits(budget), 76)
    assert before.step_ns * 1000 >= problem.bound * 1010


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
    whole, less, least = (asked[3] for asked in behind[:3])
    assert (less, least) == (2 * whole // 3, whole // 3), "two thirds where all is too much, then one"
