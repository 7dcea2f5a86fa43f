"""Schedules that are given up early: the best of a glance is what it is when all are made to their end."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.passes.reorder import Reorder
from commcc.schedule import Limits, Problem
from commcc.schedule.first_looks import ENOUGH, GLANCED, glance, lined, preferred
from commcc.schedule.in_order import in_order
from commcc.schedule.judge import judge
from commcc.schedule.result import LINE, SearchResult
from commcc.serialization import load
from commcc.timing.cost import load_model
from tests.schedule_graphs import scheduled_graph

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
SEEDS = range(150)
TIGHT = -20  # what even the graph's own order passes


@pytest.mark.parametrize("slack", [TIGHT, 0, 10, None])
def test_what_is_given_up_would_not_have_been_the_best(monkeypatch, slack):
    made = []
    search = sys.modules[glance.__module__]  # the package has a function of that name
    scheduled = search.schedule

    def counted(*args):
        order = scheduled(*args)
        made.append((args, order))
        return order

    monkeypatch.setattr(search, "schedule", counted)
    given_up = 0
    for seed in SEEDS:
        index, costs = scheduled_graph(seed)
        problem = Problem(index, costs)
        budget = None if slack is None else live_bytes(index).peak_bytes * (100 + slack) // 100
        limits = Limits(budget=budget, prefetch=20)
        made.clear()
        found = glance(problem, limits, GLANCED[:6])
        given_up += sum((scheduled(*args[:4]) != order).any() for args, order in made)
        with monkeypatch.context() as patched:
            patched.setattr(SearchResult, "beaten_by", lambda *_: None)
            assert glance(problem, limits, GLANCED[:6]) == found
    assert given_up > 10 or slack == TIGHT


def test_a_search_gives_up_only_what_is_longer_than_the_best_of_its_round(monkeypatch):
    search = sys.modules["commcc.schedule.search"]
    scheduled, given_up = search.schedule, []

    def checked(problem, base, policy, limits, until=None):
        order = scheduled(problem, base, policy, limits, until)
        whole = scheduled(problem, base, policy, limits)
        if (order != whole).any():
            assert judge(problem.graph, whole).step_ns > until
            given_up.append(until)
        return order

    monkeypatch.setattr(search, "schedule", checked)
    for seed in SEEDS:
        index, costs = scheduled_graph(seed)
        search.search(Problem(index, costs), Limits(budget=live_bytes(index).peak_bytes, prefetch=20), 20)
    assert len(given_up) > 100


def test_a_search_keeps_what_a_glance_expects(monkeypatch):
    """Of units and of nodes, as far as it is above the lower bound by more than 0.5 %."""
    search = sys.modules["commcc.schedule.search"]
    monkeypatch.setattr(search, "_TRIALS", 0)  # moves would hide it on small graphs,
    monkeypatch.setattr(search, "_STRETCHES", 0)
    monkeypatch.setattr("commcc.schedule.rounds._PATIENT_NODES", 0)  # and what effort a first round has there
    missed = 0
    for seed in SEEDS:
        index, costs = scheduled_graph(seed)
        problem = Problem(index, costs)
        limits = Limits(budget=live_bytes(index).peak_bytes, prefetch=20)
        start = glance(problem, limits, ())
        both = [glance(each, limits, GLANCED[:8]) for each in (problem, problem.units)]
        expected = min(result.rank(problem, start, limits)[:3] for result in both)
        near = 0, False, problem.bound * 1005 // 1000 // max(1, problem.bound // 1000)
        expected = max(near, expected)
        assert search.search(problem, limits, Reorder().effort).rank(problem, start, limits)[:3] <= expected
        with monkeypatch.context() as patched:
            patched.setattr(search._Search, "glance", lambda *_, **__: None)
            missed += search.search(problem, limits, Reorder().effort).rank(problem, start, limits)[:3] > expected
    assert missed > 3


def test_an_order_in_which_only_collectives_moved_is_made_again_where_it_takes_too_much():
    """It keeps the budget by estimates; the scheduler saves nothing of what its base takes."""
    search = sys.modules[glance.__module__]
    again = kept = 0
    for seed in range(3 * len(SEEDS)):
        index, costs = scheduled_graph(seed)
        problem = Problem(index, costs)
        limits = Limits(budget=live_bytes(index).peak_bytes, prefetch=20)
        first = judge(problem.graph, in_order(problem, limits))
        made = search.lined(problem, limits, limits.budget)
        if first.peak_bytes <= limits.budget:
            assert made.step_ns == first.step_ns
            continue
        again += 1
        kept += made.peak_bytes <= limits.budget
        assert made.peak_bytes <= first.peak_bytes
    assert again > 5
    assert kept * 2 > again


@cache
def production():
    index = build_index(load(SAMPLES / "llama3_8b_fsdp64_bw.fx.txt.gz"))
    problem = Problem(index, load_model("h100").price(index))
    return problem, Limits(budget=live_bytes(index).peak_bytes)


def counted(monkeypatch):
    """What schedules begin from, as they are made."""
    search, begun = sys.modules[glance.__module__], []
    scheduled = search.schedule

    def schedule(problem, base, *more):
        begun.append(base.tolist())
        return scheduled(problem, base, *more)

    monkeypatch.setattr(search, "schedule", schedule)
    return begun


def test_one_begins_from_an_order_in_which_only_collectives_moved(monkeypatch):
    problem, limits = production()
    begun, line = counted(monkeypatch), in_order(problem, limits).tolist()
    found = glance(problem, limits, GLANCED[:4])
    assert begun[0] == line
    assert found.peak_bytes <= limits.budget
    others = [start for start in GLANCED if start[0] != LINE]
    assert found.step_ns < glance(problem, limits, others[:4]).step_ns


@pytest.mark.parametrize("made", [1, 2, 5, 8])
def test_what_was_made_before_is_not_made_again(monkeypatch, made):
    problem, limits = production()
    limits = replace(limits, budget=limits.budget * 97 // 100)
    whole, some = glance(problem, limits), glance(problem, limits, GLANCED[:made])
    begun = counted(monkeypatch)
    found = glance(problem, limits, GLANCED[made:], begun=some)
    assert len(begun) == len(GLANCED) - made
    assert (found.order, found.step_ns, found.start) == (whole.order, whole.step_ns, whole.start)


def test_limits_come_with_the_schedules_that_they_were_chosen_by():
    problem, limits = production()
    chosen, seen = preferred(problem, limits)
    assert seen == glance(problem, chosen, GLANCED[:ENOUGH])
    assert preferred(problem, limits.closer) == (limits.closer, None)


def test_orders_in_which_only_collectives_move_are_made_once_for_each_limits(monkeypatch):
    problem, limits = production()
    peak, made, search = limits.budget, list[object](), sys.modules[glance.__module__]
    limits = replace(limits, budget=peak + 1)  # which no other test asks for
    real = search._lined
    monkeypatch.setattr(search, "_lined", lambda *args: made.append(args) or real(*args))
    lines = [lined(problem, each, peak) for each in (limits, limits.closer, limits, limits.closer)]
    assert len(made) == 2
    assert lines == [real(problem, each, peak) for each in (limits, limits.closer)] * 2
    assert len(lined(problem.units, limits, peak).order) < len(lines[0].order)


def test_a_result_tells_what_it_began_from():
    problem, limits = production()
    found = glance(problem, limits, GLANCED[:8])
    again = glance(problem, limits, [found.start])
    assert again.start == found.start and again.tried == 1
    assert glance(problem, limits, ()).start is None


def test_what_is_hopeless_gets_a_schedule_of_each_kind(monkeypatch):
    problem, limits = production()
    begun = counted(monkeypatch)
    glance(problem, limits, GLANCED[:8], hopeless=problem.bound // 2, give_up=True)
    assert len(begun) == 2
    own = list(range(len(problem.index)))
    assert [base == own for base in begun] == [False, True]


def test_on_large_graphs_less_is_tried_where_other_orders_have_the_same_step(monkeypatch):
    search = sys.modules["commcc.schedule.search"]
    monkeypatch.setattr(search, "_TRIALS", 0)
    monkeypatch.setattr("commcc.schedule.rounds._PATIENT_NODES", 0)
    fewer = longer = 0
    for seed in SEEDS:
        index, costs = scheduled_graph(seed)
        problem = Problem(index, costs)
        limits = Limits(budget=live_bytes(index).peak_bytes, prefetch=20)
        small = search.search(problem, limits, Reorder().effort)
        with monkeypatch.context() as patched:
            patched.setattr(search, "_MOVED_NODES", 0)
            large = search.search(problem, limits, Reorder().effort)
        fewer += large.tried < small.tried
        longer += large.step_ns > small.step_ns
    assert fewer > len(SEEDS) // 4
    assert longer < len(SEEDS) // 4
