"""Schedules that are given up early: the best of a glance is what it is when all are made to their end."""

from __future__ import annotations

import sys

import pytest

from commcc.graph.memory import live_bytes
from commcc.schedule import Limits, Problem
from commcc.schedule.search import SearchResult, glance
from tests.schedule_graphs import scheduled_graph

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
