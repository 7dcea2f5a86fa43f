"""Tries settings of the list scheduler and keeps the best order that meets the limits.

Schedules are made one after another, in a sequence that does not depend on how many there will be, so
more effort is never worse. In turn

* from the graph's own order, the next of a list of settings (targets and leads);
* from the best order so far, the setting that did best of those not yet used on it. An order that is
  better becomes the next base.

An order that needs less memory above the budget wins, then the shorter simulated step, then the lower
peak, then the one found first. Memory is that of :mod:`commcc.memory`, other code than the
scheduler's. The search ends before its effort is used up where an order within the budget is at most 0.1 %
above the lower bound, or where three schedules in a row made the step no shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.schedule.scheduler import Policy, schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.schedule.problem import Limits, Problem

Setting = tuple[int, int]

#: Target in permille of the lower bound, lead in permille of a launch's duration; best first on most graphs.
_GRID: tuple[Setting, ...] = (
    *((1000, 8000), (500, 1000), (900, 4000), (1000, 1500), (700, 4000), (950, 1000)),
    *((1000, 20000), (800, 8000), (500, 4000), (950, 4000), (700, 2000), (900, 1500)),
)
#: So many schedules begin from the graph's own order before the best one is improved for the first time.
_FIRST = 2
#: So many schedules in a row without a gain end the search.
_PATIENCE = 3
#: No search for what is at most this much above the lower bound, in permille.
_CLOSE = 1


@dataclass(frozen=True)
class Found:
    """The best order, its simulated step and peak memory. tried: schedules made. settings: how it was
    found, (target, lead) in permille for each round; empty when the graph's own order is best.
    """

    order: tuple[int, ...]
    step_ns: int
    peak_bytes: int
    tried: int
    settings: tuple[Setting, ...]


def search(problem: Problem, limits: Limits, effort: int) -> Found:
    """The best order found in ``effort`` schedules; never worse than the graph's own."""
    best = start = _judge(problem, range(len(problem.index)), 0, ())
    results: dict[Setting, tuple[int, int, int]] = {}
    unused: list[Setting] = []
    tried = idle = 0
    while tried < effort and idle < _PATIENCE and not _close(problem, best, limits):
        if not unused and len(results) == len(_GRID):
            break
        explore = len(results) < len(_GRID) and (tried < _FIRST or tried % 2 == 0 or not unused)
        setting = _GRID[len(results)] if explore else unused.pop(0)
        tried, idle = tried + 1, idle + 1
        found = _try(problem, start if explore else best, setting, limits, tried)
        if explore:
            results[setting] = _rank(found, limits)
        if _rank(found, limits) < _rank(best, limits):
            idle = 0 if _rank(found, limits)[:2] < _rank(best, limits)[:2] else idle
            best = found
            unused = sorted(results, key=lambda each: results[each])
        elif explore and best is not start:
            unused.append(setting)
    return Found(best.order, best.step_ns, best.peak_bytes, tried, best.settings)


def _try(problem: Problem, base: Found, setting: Setting, limits: Limits, tried: int) -> Found:
    target, lead = setting
    order = schedule(problem, base.order, Policy(problem.bound * target // 1000, lead), limits)
    return _judge(problem, order, tried, (*base.settings, setting))


def _judge(problem: Problem, order: Sequence[int], tried: int, settings: tuple[Setting, ...]) -> Found:
    timeline = problem.simulator.run(order)
    peak = problem.memory.live(order).peak_bytes
    return Found(tuple(order), timeline.step_ns, peak, tried, settings)


def _close(problem: Problem, found: Found, limits: Limits) -> bool:
    """Whether there is next to nothing left to gain."""
    near = found.step_ns * 1000 <= problem.bound * (1000 + _CLOSE)
    return near and (limits.budget is None or found.peak_bytes <= limits.budget)


def _rank(found: Found, limits: Limits) -> tuple[int, int, int]:
    """Smaller is better: bytes over the budget, step time, peak."""
    over = max(0, found.peak_bytes - limits.budget) if limits.budget is not None else 0
    return over, found.step_ns, found.peak_bytes
