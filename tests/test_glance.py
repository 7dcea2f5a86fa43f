"""Schedules that are given up early: the best of a glance is what it is when all are made to their end."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.schedule import Limits, Problem
from commcc.schedule.in_order import in_order
from commcc.schedule.search import Begin, SearchResult, glance
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
        found = glance(problem, limits, range(6))
        given_up += sum((scheduled(*args[:4]) != order).any() for args, order in made)
        with monkeypatch.context() as patched:
            patched.setattr(SearchResult, "beaten_by", lambda *_: None)
            assert glance(problem, limits, range(6)) == found
    assert given_up > 10 or slack == TIGHT


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


def test_orders_in_which_only_collectives_moved_are_tried_under_tight_memory(monkeypatch):
    problem, limits = production()
    own = glance(problem, limits, range(3))
    assert not own.lined
    begun, line = counted(monkeypatch), in_order(problem, limits).tolist()
    for lined, place in ((None, 3), (True, 0)):
        begun.clear()
        found = glance(problem, limits, range(3), begin=Begin(lined=lined))
        assert found.lined
        assert found.step_ns < own.step_ns
        assert found.peak_bytes <= limits.budget
        assert begun.index(line) == place


def test_they_are_not_tried_where_memory_is_not_limited(monkeypatch):
    problem, _limits = production()
    begun = counted(monkeypatch)
    assert not glance(problem, Limits(), range(3), begin=Begin(lined=None)).lined
    assert all(base == list(range(len(problem.index))) for base in begun)


@pytest.mark.parametrize(("lined", "enough"), [(False, 1), (None, 2), (True, 4)])
def test_what_is_hopeless_gets_schedules_of_each_kind(monkeypatch, lined, enough):
    problem, limits = production()
    begun = counted(monkeypatch)
    setting = (950, 1000, 0, 4)
    glance(problem, limits, range(3), hopeless=problem.bound // 2, give_up=True, begin=Begin(setting, lined))
    own = list(range(len(problem.index)))
    assert len(begun) == enough
    assert [base == own for base in begun[:2]] == {False: [True], None: [True, False], True: [False, True]}[lined]
