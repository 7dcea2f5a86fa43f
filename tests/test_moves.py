"""Orders improved by moves: legal, within the limits, never worse; shorter where one move alone is no gain."""

from __future__ import annotations

import importlib
import random
from functools import cache
from pathlib import Path
from statistics import mean

import numpy as np
import pytest

from commcc.apply import apply_plan
from commcc.base.jit import kernel
from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.plan import Plan, Reordering
from commcc.schedule import Limits, Problem, search
from commcc.schedule.judge import judge, late
from commcc.schedule.moves import improved, later, sooner
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.cost.payers import Payers
from commcc.timing.simulate import Simulator
from tests.oracle_graphs import training_graph
from tests.schedule_graphs import check_order, scheduled_graph
from tests.test_schedule import flown, limits_of, shuffled

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
NAMES = ("tiny_llama_fsdp4_bw", "tiny_moe_fsdp4_ep2_fw", "tiny_moe_ep2_bw", "tiny_llama_joint")
moves = importlib.import_module("commcc.schedule.moves")
searching = importlib.import_module("commcc.schedule.search")


@pytest.mark.parametrize("seed", range(24))
def test_any_legal_order_stays_legal_and_gets_no_worse(seed):
    problem = Problem(*scheduled_graph(seed))
    index = problem.index
    for more, flights, prefetch in ((0, None, None), (30, 2, 3), (None, 1, None), (None, None, 1)):
        limits = limits_of(problem, more, flights, prefetch)
        base = list(range(len(index))) if seed % 2 else shuffled(problem, seed)
        found = improved(problem, limits, base, 300).tolist()
        check_order(index, found)
        before, after = (judge(problem.graph, np.array(order)) for order in (base, found))
        assert after.step_ns == Simulator(index, problem.costs).run(found).step_ns
        over = [
            max(0, live_bytes(index, order).peak_bytes - limits.budget) if more is not None else 0
            for order in (base, found)
        ]
        assert (over[1], after.step_ns) <= (over[0], before.step_ns)
        assert after.longest_run <= max(4, before.longest_run)


@pytest.mark.parametrize("seed", range(24))
def test_what_keeps_limits_in_flight_still_does(seed):
    """The graph's own order is allowed, whatever the limits say."""
    problem = Problem(*scheduled_graph(seed))
    index, own = problem.index, range(len(problem.index))
    for flights, prefetch in ((0, None), (1, 2), (None, 0)):
        limits = limits_of(problem, None, flights, prefetch)
        found = improved(problem, limits, own, 400).tolist()
        if flights is not None:
            most = max(limits.in_flight, problem.own_in_flight)
            assert flown(index, found, problem.bytes) <= most
        if prefetch is not None:
            check_prefetch(problem, found, prefetch)


def check_prefetch(problem, order, most):
    """No more compute between a launch and its first wait, but for what the graph had there."""
    index, place = problem.index, {node: at for at, node in enumerate(order)}
    for launch, facts in index.launches.items():
        if facts.asynchronous and facts.waits:
            between = order[place[launch] : min(place[wait] for wait in facts.waits)]
            assert sum(index.compute[node] for node in between) <= max(most, problem.own_prefetch[launch])


@pytest.mark.parametrize("seed", range(8))
def test_kernels_and_plain_python_make_the_same(seed, monkeypatch):
    problem = Problem(*scheduled_graph(seed))
    limits = limits_of(problem, 10, 2, 4)
    own = range(len(problem.index))
    compiled = improved(problem, limits, own, 120).tolist()
    monkeypatch.setattr(moves, "improve", moves.improve.python)
    assert improved(problem, limits, own, 120).tolist() == compiled


@cache
def sample(name):
    """Program, model and problem under the costs of an H100."""
    program, model = load(SAMPLES / f"{name}.fx.txt.gz"), load_model("h100")
    index = build_index(program)
    return program, model, Problem(index, model.price(index))


def priced_anew(name, order):
    """Price by name, and the step, of the graph in another order, as a pass that comes next sees them."""
    program, model, problem = sample(name)
    index = build_index(apply_plan(program, problem.index, Plan("t", problem.index.fingerprint, Reordering(order))))
    costs = model.price(index)
    return dict(zip(index.names, costs.ns, strict=True)), Simulator(index, costs).run().step_ns


@pytest.mark.parametrize("name", NAMES)
def test_prices_of_another_order_are_those_of_the_graph_written_so(name):
    """In any order others pay for fused chains; whoever stays behind those that pay there keeps its price."""
    problem = sample(name)[-1]
    names, payers = problem.index.names, problem.costs.payers
    for seed in range(4):
        order = np.array(shuffled(problem, seed))
        costs = problem.costs.in_order(order)
        prices, step = priced_anew(name, tuple(order.tolist()))
        assert costs != problem.costs
        assert dict(zip(names, costs.ns, strict=True)) == prices
        assert problem.own_step(order, 0) == problem.figures(order).step_ns == step
        assert judge(problem.graph_in(order), order).step_ns == step
        # Another walk along the same edges and those from who pays.
        other = np.array(shuffled_behind(problem, payers.after(order), seed + 10))
        assert other.tolist() != order.tolist()
        assert priced_anew(name, tuple(other.tolist()))[0] == prices
    own = np.arange(len(names))
    assert problem.costs.in_order(own) is problem.costs
    assert problem.graph_in(own) is problem.graph


def test_chains_of_repeated_layers_are_priced_once(monkeypatch):
    """Those whose members run the same operations, read as much of as many tensors and stand in the same order."""
    problem, priced, whole = sample("llama3_8b_fsdp64_bw")[-1], [], Payers._priced
    payers, order = problem.costs.payers, late(problem.graph)
    monkeypatch.setattr(Payers, "_priced", lambda self, nodes, order: priced.append(nodes) or whole(self, nodes, order))
    place = np.argsort(order)
    changed, prices, after = payers._changed(place), payers.prices(order), payers.after(order)
    assert 0 < 4 * len(priced) < len(changed)
    for chain in changed:  # each by itself
        nodes = payers._members[chain].tolist()
        alone = whole(payers, nodes, sorted(nodes, key=place.__getitem__))
        assert {nodes[k]: ns for k, ns in alone.ns.items()} == {node: prices[node] for node in nodes if node in prices}
        paying = {nodes[k]: tuple(nodes[p] for p in others) for k, others in alone.after.items()}
        assert paying == {node: after[node] for node in nodes if node in after}


def shuffled_behind(problem, after, seed):
    """A random legal order in which payers stay ahead."""
    rng, count = random.Random(seed), len(problem.index)
    missing = [{*problem.preds[node], *after.get(node, ())} for node in range(count)]
    order = [node for node in range(count) if problem.index.ops[node] == "placeholder"]
    left = set(range(count)).difference(order)
    for node in left:
        missing[node].difference_update(order)
    while left:
        ready = sorted(node for node in left if not missing[node])
        order.append(rng.choice(ready))
        left.remove(order[-1])
        for node in left:
            missing[node].discard(order[-1])
    return order


@kernel
def moved(graph, made, place, to):
    if to > place:
        later(graph, made, place, to)
    else:
        sooner(graph, made, place, to)
    return 0


@pytest.mark.parametrize("name", NAMES[:2])
def test_every_move_is_legal(name):
    """Also of orders in which others pay for chains; whoever pays there stays ahead."""
    problem = sample(name)[-1]
    rng = random.Random(1)
    for seed in range(3):
        base = np.array(shuffled(problem, seed))
        costs = problem.costs.in_order(base)
        assert costs != problem.costs
        for _trial in range(60):
            made = moves.Moves.of(problem, Limits(), base)
            ends = int(made.state[0].first), len(base) - 1
            moved(moves.with_payers(problem, base), made, rng.randrange(*ends), rng.randrange(*ends))
            check_order(problem.index, made.places.node.tolist())
            assert problem.costs.in_order(made.places.node) == costs


@pytest.mark.parametrize("name", NAMES)
def test_the_step_is_that_of_the_graph_that_comes_out(name):
    """To the ns, though a fused chain is paid for by whoever comes first."""
    problem = sample(name)[-1]
    own = tuple(range(len(problem.index)))
    budget = live_bytes(problem.index).peak_bytes
    for base in (own, search(problem, Limits(budget=budget), 2).order):
        found = improved(problem, Limits(budget=budget), base, 4000)
        assert base is not own or found.tolist() != list(base)
        assert problem.figures(found).step_ns == priced_anew(name, tuple(found.tolist()))[1]


def test_moves_pay_under_a_tight_budget(monkeypatch):
    """Training steps of 15 to 40 nodes that may take no more memory than they do: mean step against no moves."""
    steps = {}
    for trials, rounds in ((0, 0), (searching._TRIALS, searching._STRETCHES)):
        monkeypatch.setattr(searching, "_TRIALS", trials)
        monkeypatch.setattr(searching, "_STRETCHES", rounds)
        steps[trials] = []
        for seed in range(40):
            index, costs = training_graph(seed)
            problem = Problem(index, costs)
            found = search(problem, Limits(budget=live_bytes(index).peak_bytes), 40)
            assert found.peak_bytes <= live_bytes(index).peak_bytes
            steps[trials].append(found.step_ns)
    shorter = [after / before for before, after in zip(*steps.values(), strict=True)]
    assert max(shorter) <= 1
    assert mean(shorter) < 0.985


@pytest.mark.parametrize("effort", [4, 40])
def test_a_smaller_budget_that_nothing_meets_leads_no_less_far_down(effort):
    """The order that comes nearest is what is asked for; it was what the search for a larger budget had left."""
    lowest = {}
    problems = {seed: Problem(*training_graph(seed)) for seed in range(8, 16)}
    for name, problem in {**problems, "tiny_moe_ep2_bw": sample("tiny_moe_ep2_bw")[-1]}.items():
        own = live_bytes(problem.index)
        peaks = []
        for permille in (700, 400, 100, 0):
            budget = own.input_bytes + (own.peak_bytes - own.input_bytes) * permille // 1000
            found = search(problem, Limits(budget), effort)
            check_order(problem.index, list(found.order))
            assert found.peak_bytes == live_bytes(problem.index, found.order).peak_bytes <= own.peak_bytes
            peaks += [found.peak_bytes] * (found.peak_bytes > budget)
        assert peaks == sorted(peaks, reverse=True)
        lowest[name] = peaks[-1]
    assert lowest[13] == 72  # 75 with moves that do not look at all places above the budget
    assert lowest["tiny_moe_ep2_bw"] <= 245_400  # 255_640


@pytest.mark.parametrize(("name", "lowest"), [("tiny_moe_ep2_bw", 248_000), ("tiny_llama_hsdp_bw", 223_000)])
def test_on_large_graphs_too_peaks_become_lower(name, lowest, monkeypatch):
    """Where schedules alone do not meet the budget: they take 251_544 and 226_344."""
    monkeypatch.setattr(searching, "_MOVED_NODES", 0)
    problem = sample(name)[-1]
    found = search(problem, Limits(live_bytes(problem.index).peak_bytes * 97 // 100), 40)
    check_order(problem.index, list(found.order))
    assert found.peak_bytes == live_bytes(problem.index, found.order).peak_bytes <= lowest


def test_nothing_to_move():
    index, costs = training_graph(3)
    problem = Problem(index, costs)
    assert improved(problem, Limits(), range(len(index)), 0).tolist() == list(range(len(index)))
