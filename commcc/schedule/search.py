"""Tries settings of the list scheduler and keeps the best order that meets the limits.

1. From the graph's own order, a grid of targets (multiples of the lower bound) and leads.
2. From the best order so far, again with the settings that did best; an order that is better becomes
   the next base. Rounds without a gain end the search.

An order counts only if the memory that other code computes for it is within the budget (or, where no
order is, if it needs less than the others), and the shorter simulated step wins; of equals the lower
peak, then the one found first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.schedule.scheduler import Policy, schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.schedule.problem import Limits, Problem

#: Target in permille of the lower bound, lead in permille of a launch's duration; best first on most graphs.
_GRID = (
    *((1000, 8000), (900, 4000), (500, 1000), (950, 1000), (950, 4000), (800, 8000)),
    *((1000, 1500), (700, 2000), (1000, 20000), (900, 1500), (800, 2000), (500, 4000)),
)


@dataclass(frozen=True)
class Found:
    """The best order, its simulated step and peak memory. tried: schedules made. settings: how it was
    found, (target, lead) in permille for each round; empty when the graph's own order is best.
    """

    order: tuple[int, ...]
    step_ns: int
    peak_bytes: int
    tried: int
    settings: tuple[tuple[int, int], ...]


def search(problem: Problem, limits: Limits, effort: int) -> Found:
    """The best order found in ``effort`` schedules; never worse than the graph's own."""
    best = start = _judge(problem, range(len(problem.index)), 0, ())
    first = _GRID[: max(1, effort * 2 // 3)]
    results: list[tuple[tuple[int, int, int], Found]] = []
    tried = 0
    for setting in first[:effort]:
        tried += 1
        found = _try(problem, start, setting, limits, tried)
        results.append((_rank(found, limits), found))
        best = min(best, found, key=lambda f: _rank(f, limits))
    ranked = [found.settings[-1] for _, found in sorted(results, key=lambda r: r[0])]
    position = 0
    while tried < effort and position < len(ranked):
        tried += 1
        found = _try(problem, best, ranked[position], limits, tried)
        position += 1
        if _rank(found, limits)[:2] < _rank(best, limits)[:2]:
            best, position = found, 0
    return Found(best.order, best.step_ns, best.peak_bytes, tried, best.settings)


def _try(problem: Problem, base: Found, setting: tuple[int, int], limits: Limits, tried: int) -> Found:
    target, lead = setting
    order = schedule(problem, base.order, Policy(problem.bound * target // 1000, lead), limits)
    return _judge(problem, order, tried, (*base.settings, setting))


def _judge(problem: Problem, order: Sequence[int], tried: int, settings: tuple[tuple[int, int], ...]) -> Found:
    timeline = problem.simulator.run(order)
    peak = problem.memory.live(order).peak_bytes
    return Found(tuple(order), timeline.step_ns, peak, tried, settings)


def _rank(found: Found, limits: Limits) -> tuple[int, int, int]:
    """Smaller is better: bytes over the budget, step time, peak."""
    over = max(0, found.peak_bytes - limits.budget) if limits.budget is not None else 0
    return over, found.step_ns, found.peak_bytes
