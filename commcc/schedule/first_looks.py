"""A few schedules of a graph, for planners who compare many graphs; and what they begin from.

seen = glance(problem, limits, GLANCED[:4])
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commcc.schedule.in_order import in_order
from commcc.schedule.result import BEST, LINE, OWN, SearchResult, Start, priced, result_of
from commcc.schedule.scheduler import Policy, schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.schedule.arrays import Graph
    from commcc.schedule.problem import Limits, Schedulable

#: What :func:`glance` makes, in turn: on graphs with buckets the first few are rarely far from the best of many.
GLANCED: tuple[Start, ...] = (
    *((LINE, (700, 4000, 0, -1)), (OWN, (1000, 16000, 0, 4)), (OWN, (0, 8000, 0, 2, 1))),
    *((LINE, (500, 1000, 0, 2, 1, 0, -1, 20_000)), (LINE, (0, 4000, 1000, 2, 1)), (OWN, (700, 16000, 0, -1))),
    *((BEST, (0, 1500, 0, -1)), (LINE, (0, 1500, 0, 2))),
)
#: At least this many of these are made, even where they are hopeless.
ENOUGH = 2
#: Schedules that :func:`preferred` makes at most.
WEIGHED = 2 * ENOUGH
#: How often an order in which only collectives moved is made again where it takes too much memory.
_AGAIN = 5
#: Of the last graphs and limits, the orders in which only collectives moved: most are asked for several times.
_KEPT = 4
_lines: tuple[tuple[Graph, Limits, SearchResult], ...] = ()


def glance(
    problem: Schedulable,
    limits: Limits,
    starts: Sequence[Start] = GLANCED,
    *,
    hopeless: int | None = None,
    give_up: bool = False,
    begun: SearchResult | None = None,
) -> SearchResult:
    """The best of these schedules, for planners who compare many graphs.

    hopeless: no more are made once the best of the first two is longer than this. give_up: nor is any made to its end
    that becomes longer, or longer than the best so far. None is made to its end that cannot rank before the best so
    far. begun: the best of others, made before.
    """
    start = result_of(problem, np.arange(len(problem.graph.nodes)), 0, ())
    best = begun or start
    for tried, (base, setting) in enumerate(starts, 1):
        over = hopeless is not None and best.step_ns > hopeless
        if best.close(problem, limits) or (tried > ENOUGH and over):
            break
        target, *rest = setting
        until = best.beaten_by(problem, limits)
        if give_up and hopeless is not None:
            until = hopeless if tried == 1 else min(best.step_ns, hopeless)
        own = lined(problem, limits, start.peak_bytes) if base == LINE else best if base == BEST else start
        aim = problem.bound * target // 1000 if target else min(best.step_ns, hopeless or best.step_ns)
        order = schedule(problem, own.nodes, Policy(aim, *rest), limits, until)
        result = replace(result_of(problem, order, tried, own.settings or (setting,)), lined=own.lined)
        if result.rank(problem, start, limits) < best.rank(problem, start, limits):
            best = min(best, priced(problem, result), key=lambda candidate: candidate.rank(problem, start, limits))
    return best


class Preferred(NamedTuple):
    """Limits, and the best of the first :data:`ENOUGH` schedules of :func:`glance` under these where they were made."""

    limits: Limits
    seen: SearchResult | None


def preferred(problem: Schedulable, limits: Limits) -> Preferred:
    """These limits; closer ones where memory is scarce and the first schedules under those are better."""
    if limits.closer == limits:
        return Preferred(limits, None)
    seen = glance(problem, limits, GLANCED[:ENOUGH])
    if not seen.at_the_edge(limits):
        return Preferred(limits, seen)
    start = result_of(problem, np.arange(len(problem.graph.nodes)), 0, ())
    closer = glance(problem, limits.closer, GLANCED[:ENOUGH])
    better = closer.rank(problem, start, limits) < seen.rank(problem, start, limits)
    return Preferred(limits.closer, closer) if better else Preferred(limits, seen)


def lined(problem: Schedulable, limits: Limits, own_peak: int) -> SearchResult:
    """No result by itself: it keeps the limits by estimates, the scheduler keeps them node by node.

    The scheduler cannot save memory that its base takes, so where that passes the budget, and what the graph's own
    order takes, it is made again with less.
    own_peak: of the graph's own order, which is allowed at first, since nothing can move where that passes the budget.
    """
    global _lines
    for graph, known, line in _lines:
        if graph is problem.graph and known == limits:
            return line
    line = _lined(problem, limits, own_peak)
    _lines = ((problem.graph, limits, line), *_lines[: _KEPT - 1])
    return line


def _lined(problem: Schedulable, limits: Limits, own_peak: int) -> SearchResult:
    allowed = limits if limits.budget is None else replace(limits, budget=max(limits.budget, own_peak))
    result = best = result_of(problem, in_order(problem, allowed), 0, ())
    less = 0
    for _ in range(_AGAIN):
        if limits.budget is None or result.peak_bytes <= max(limits.budget, own_peak):
            break
        less = 2 * less + result.peak_bytes - limits.budget
        result = result_of(problem, in_order(problem, replace(limits, budget=limits.budget - less)), 0, ())
        best = min(best, result, key=lambda candidate: candidate.peak_bytes)
    return replace(best, lined=True)
