"""Moves that work out anew only the stretch they change: the same orders, to the node, as those that work out all."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.passes.base import PlanContext
from commcc.passes.reorder import Reorder
from commcc.schedule import Limits, Problem, known, search
from commcc.schedule.judge import judge
from commcc.schedule.moves import Moves, begin, improve, with_payers
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.simulate import Simulator
from tests.schedule_graphs import check_order, scheduled_graph
from tests.test_schedule import limits_of, shuffled

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
LIMITS = ((None, None, None), (0, None, None), (30, 2, 3), (None, 1, None), (None, None, 1), (10, 1, 2))
stretches = importlib.import_module("commcc.schedule.stretches")
searching = importlib.import_module("commcc.schedule.search")


def all_anew(problem, limits, order, trials, near=0):
    """What is kept, and its step, where each trial works out all of the order."""
    moves = Moves.of(problem, limits, order)
    moves.state[0].near = near
    improve(with_payers(problem, order), moves, trials, problem.bound)
    return moves.places.kept.tolist(), int(moves.state[0].step)


def by_stretches(problem, limits, order, trials, near=0):
    """The same by stretches; None for orders and graphs that these are not for."""
    moves, graph = Moves.of(problem, limits, order), with_payers(problem, order)
    moves.state[0].near = near
    begin(graph, moves)
    resized = graph.rows[len(order)].resized > graph.rows[0].resized
    if moves.state[0].over or resized or not stretches._allowed(graph, moves):
        return None
    facts = known.Known.of(graph, moves)
    stretches.improve_stretches(graph, moves, facts, trials, problem.bound)
    assert moves.places.kept.tolist() == moves.places.node.tolist()
    assert facts_of(facts) == facts_of(known.Known.of(graph, moves))
    in_flight = graph.nodes.placeholder & (np.diff(graph.rows.waits) > 0)
    if graph.slowdown_permille <= 1000 and not in_flight.any():
        assert facts.places[0].rest == moves.state[0].step, "the longest path through all is the step"
    return moves.places.kept.tolist(), int(moves.state[0].step)


def facts_of(of):
    """What an order comes to, by field; not what is only written while one is tried."""
    tried = {"differs", "new_computed", "within", "seen", "new_freed", "there"}
    tables = (of.places, of.nodes, of.buffers)
    by_field = {(k, name): table[name].tolist() for k, table in enumerate(tables) for name in table.dtype.names}
    assert not any(of.nodes.differs)
    streams = (of.free.tolist(), of.rests.tolist())
    return {field: row for field, row in by_field.items() if field[1] not in tried}, streams


@pytest.mark.parametrize("seed", range(24))
def test_random_graphs(seed):
    problem = Problem(*scheduled_graph(seed))
    compared = 0
    for more, flights, prefetch in LIMITS:
        limits = limits_of(problem, more, flights, prefetch)
        for base in (np.arange(len(problem.index)), np.array(shuffled(problem, seed))):
            for near in (0, 1):
                found = by_stretches(problem, limits, base, 300, near)
                compared += found is not None
                assert found in (None, all_anew(problem, limits, base, 300, near))
    rows = problem.graph.rows
    assert compared >= 12 or rows[len(problem.index)].resized > rows[0].resized


@pytest.mark.parametrize("name", ["tiny_llama_fsdp4_bw", "tiny_moe_ep2_bw", "tiny_deepseek_fsdp4_ep2"])
@pytest.mark.parametrize("cost", ["h100", "a100,slowdown=1.4,share_link=all"])
def test_samples(name, cost):
    index, model = build_index(load(SAMPLES / f"{name}.fx.txt.gz")), load_model(cost)
    problem = Problem(index, model.price(index))
    for budget in (None, live_bytes(index).peak_bytes):
        limits = Limits(budget, None, 40)
        order = np.arange(len(index))
        for near in (0, 1):
            assert by_stretches(problem, limits, order, 800, near) == all_anew(problem, limits, order, 800, near)


def test_kernels_and_plain_python_make_the_same(monkeypatch):
    problem = Problem(*scheduled_graph(5))
    limits, order = limits_of(problem, 10, 2, 4), np.arange(len(problem.index))
    compiled = by_stretches(problem, limits, order, 60, 1)
    for module, name in ((stretches, "improve_stretches"), (known, "_begin")):
        monkeypatch.setattr(module, name, getattr(module, name).python)
    assert by_stretches(problem, limits, order, 60, 1) == compiled


def test_a_large_graph_is_improved_within_its_limits(monkeypatch):
    program, model = load(SAMPLES / "llama3_8b_fsdp64_bw.fx.txt.gz"), load_model("h100,fused=no,slowdown=1.3")
    context = PlanContext.of(program, model)
    problem = Problem(context.index, context.costs)
    limits = Reorder().limits(live_bytes(context.index).peak_bytes)
    better = search(problem, limits, 1)
    monkeypatch.setattr(searching, "improved_in_rounds", lambda _problem, _limits, order, *_, **__: order)
    order = search(problem, limits, 1)
    check_order(context.index, better.order)
    assert better.step_ns == Simulator(context.index, problem.costs).run(better.order).step_ns < order.step_ns
    assert better.peak_bytes <= max(limits.budget, order.peak_bytes)
    assert better.longest_run == judge(problem.graph, better.nodes).longest_run <= max(4, order.longest_run)


def test_rounds_end_where_several_gain_next_to_nothing_unless_they_are_patient(monkeypatch):
    index, costs = scheduled_graph(5)
    problem = Problem(index, costs)
    made, own, gains = [], np.arange(len(index)), {2}

    def improve(_graph, moves, *_):
        made.append(1)
        moves.state[0].step -= len(made) in gains

    monkeypatch.setattr(stretches, "improve_stretches", improve)
    monkeypatch.setattr(stretches, "_FARTHEST", 0)
    for gained, rounds in (((2,), 2 + 6), ((3, 5), 5 + 6), ((), 3), ((4,), 3)):
        gains = set(gained)
        stretches.improved_in_rounds(problem, Limits(), own, 20)
        assert len(made) == rounds, "nothing in the last six rounds, or in the first three"
        made.clear()
    stretches.improved_in_rounds(problem, Limits(), own, 20, every=True)
    assert len(made) == 20
    made.clear()
    gains = {2}
    monkeypatch.setattr(stretches, "_FARTHEST", 2)
    monkeypatch.setattr(stretches, "_FAR", 1)
    stretches.improved_in_rounds(problem, Limits(), own, 40)
    assert len(made) == 2 + 18, "three times as many where the step is far from the bound"
    made.clear()
    stretches.improved_in_rounds(problem, Limits(), own, 60, patience=3)
    assert len(made) == 42, "seven times as many with three times the patience, among which one ns counts for nothing"


def test_large_graphs_are_improved_where_they_are_not_close_to_the_bound(monkeypatch):
    index, costs = scheduled_graph(5)
    problem, rounds = Problem(index, costs), []
    monkeypatch.setattr(searching, "_MOVED_NODES", 0)
    monkeypatch.setattr(
        searching, "improved_in_rounds", lambda _problem, _limits, order, *_, **__: rounds.append(1) or order
    )
    found = search(problem, Limits(), 1)
    assert found.step_ns * 1000 > problem.bound * 1001 and rounds == [1]
    monkeypatch.setattr(searching, "CLOSE", 1 << 40)
    search(problem, Limits(), 1)
    assert rounds == [1]


@pytest.mark.parametrize("parts", [0, 2])
def test_large_graphs_get_more_rounds_far_from_the_bound(monkeypatch, parts):
    """Of 500 trials, for 400 in each schedule of the effort; all are made with more effort than the usual one."""
    index, costs = scheduled_graph(5)
    problem, asked = Problem(index, costs), []
    monkeypatch.setattr(searching, "_MOVED_NODES", 0)
    monkeypatch.setattr(stretches, "_FARTHEST", parts)
    monkeypatch.setattr(stretches, "_FAR", 1)
    monkeypatch.setattr(
        searching,
        "improved_in_rounds",
        lambda _problem, _limits, order, rounds, **how: asked.append((rounds, how)) or order,
    )
    for effort in (10, 76, 77):
        search(problem, Limits(), effort)
    counts = [rounds for rounds, _ in asked]
    assert counts == [8 * (1 + parts), 61 * (1 + parts), 62 * (1 + parts)]
    assert [how for _, how in asked] == [{"patience": 3, "every": every} for every in (False, False, True)]
