"""Runs of compute between reduce-scatters evened out: legal, as fast, within the limits, never longer."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest

from commcc.schedule import Limits, Problem, search
from commcc.schedule.evened import evened
from commcc.schedule.judge import judge
from tests.index_maker import IndexMaker
from tests.schedule_graphs import check_order, scheduled_graph
from tests.test_moves import NAMES, check_prefetch, sample
from tests.test_runs import problem_of
from tests.test_schedule import flown, limits_of, shuffled

module = importlib.import_module("commcc.schedule.evened")


@pytest.mark.parametrize("seed", range(32))
def test_as_fast_within_the_limits_and_no_longer(seed, monkeypatch):
    problem = Problem(*scheduled_graph(seed))
    monkeypatch.setattr(module, "SHORT", seed % 3)
    own = range(len(problem.index))
    for more, flights, prefetch in ((0, None, None), (30, 1, 3), (None, None, 1)):
        limits = limits_of(problem, more, flights, prefetch)
        found = evened(problem, limits, own)
        check_order(problem.index, found.tolist())
        before, after = judge(problem.graph, np.array(own)), judge(problem.graph, found)
        assert after.step_ns <= before.step_ns * 1.00001
        assert after.longest_run <= before.longest_run
        assert limits.budget is None or after.peak_bytes <= max(limits.budget, before.peak_bytes)
        if flights is not None:
            assert flown(problem.index, found.tolist(), problem.bytes) <= max(limits.in_flight, problem.own_in_flight)
        if prefetch is not None:
            check_prefetch(problem, found.tolist(), prefetch)


@pytest.mark.parametrize("name", NAMES[::3])
def test_orders_in_which_others_pay_for_a_chain(name, monkeypatch):
    """They stay legal, and those who pay ahead of the rest stay there."""
    problem = sample(name)[-1]
    monkeypatch.setattr(module, "SHORT", 0)
    monkeypatch.setattr(module, "_NODES", 1_000_000)
    changed = 0
    for seed in range(8):
        base = shuffled(problem, seed)
        found = evened(problem, Limits(), base).tolist()
        check_order(problem.index, found)
        costs = problem.costs.in_order(np.array(base))
        assert costs != problem.costs
        assert problem.costs.in_order(np.array(found)) == costs
        changed += found != base
    assert changed


def lumped(own, free):
    """Steps of compute, each with a reduce-scatter of what it makes; behind the second one gradients that stay."""
    make = IndexMaker()
    node, works, launches = make.input(), [], []
    for number in range(own):
        node = make.op(10, node)
        works.append(node)
        if number == 1:
            works += [make.op(4, node) for _ in range(free)]
        launches.append(make.launch(5, "g", node))
    for launch in launches:
        make.wait(launch)
    return problem_of(make, works, launches)


def test_compute_goes_where_there_is_room():
    problem = lumped(4, 9)
    order = np.arange(len(problem.index))
    before, after = judge(problem.graph, order), judge(problem.graph, evened(problem, Limits(), order))
    assert (before.longest_run, after.longest_run) == (10, 4)
    assert after.step_ns == before.step_ns


def test_it_ends_where_so_many_tries_left_one_of_the_longest_runs_as_it_is(monkeypatch):
    problem, looked, first_taken = lumped(4, 9), [], module._first_taken
    own = range(len(problem.index))

    def noted(graph, moves, pairs, most):
        looked.append(len(pairs))
        return first_taken(graph, moves, pairs, most)

    monkeypatch.setattr(module, "_first_taken", noted)
    evened(problem, Limits(), own)
    assert max(looked) > 3
    monkeypatch.setattr(module, "_IN_VAIN", 3 * len(own))
    looked.clear()
    evened(problem, Limits(), own)
    assert max(looked) == 3


def test_no_step_becomes_longer_for_it():
    """What hides the gather has room behind the reduce-scatter only where that one is long."""
    for sent, shortest in ((5, 10), (500, 5)):
        make = IndexMaker()
        first = make.op(10, make.input())
        gather = make.launch(100, "h", first)
        free = [make.op(10, first) for _ in range(8)]
        last = make.op(10, make.wait(gather))
        launch = make.launch(sent, "g", last)
        make.wait(launch)
        problem = problem_of(make, [first, *free, last], [launch])
        order = evened(problem, Limits(), range(len(problem.index)))
        before, after = (judge(problem.graph, np.array(each)) for each in (range(len(order)), order))
        assert before.step_ns == after.step_ns
        assert (before.longest_run, after.longest_run) == (10, shortest)


def test_kernels_and_plain_python_make_the_same(monkeypatch):
    problem = lumped(5, 11)
    compiled = evened(problem, Limits(), range(len(problem.index))).tolist()
    for name in ("begin", "_first_taken"):
        monkeypatch.setattr(module, name, getattr(module, name).python)
    assert evened(problem, Limits(), range(len(problem.index))).tolist() == compiled


def test_the_search_does_it(monkeypatch):
    problem = lumped(4, 9)
    even = search(problem, Limits(), 1)
    monkeypatch.setattr(module, "_NODES", 0)
    monkeypatch.setattr(sys.modules["commcc.schedule.search"], "_MOVED_NODES", 0)
    lump = search(problem, Limits(), 1)
    assert even.step_ns == lump.step_ns
    assert even.longest_run <= 4
    assert even.longest_run <= lump.longest_run
