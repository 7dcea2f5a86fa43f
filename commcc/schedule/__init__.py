"""Finds an order of a graph's nodes whose simulated step is short and whose memory stays in a budget.

    problem = Problem(index, costs)
    result = search(problem, Limits(budget=40 << 30), effort=12)
    result.order, result.step_ns, result.peak_bytes

A list scheduler (:mod:`commcc.schedule.scheduler`) walks along an order that is legal already and moves
nodes ahead of it where that pays and memory allows; :mod:`commcc.schedule.search` runs it with several
settings and on its own results, judged by the simulator. Effort is counted in schedules made, never in
seconds, so that every rank and machine arrives at the same order.
"""

from __future__ import annotations

from commcc.schedule.problem import Limits, Problem
from commcc.schedule.result import SearchResult
from commcc.schedule.search import search, search_once

__all__ = ["SearchResult", "Limits", "Problem", "search", "search_once"]
