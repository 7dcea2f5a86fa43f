"""The graph that buckets really give, and what ``reorder`` makes of it.

    after = written(context, Merging(buckets))              # its index
    best = never_worse(context, search, none, best)         # the bucketing, or no merging

Bucketings are chosen on estimates of the merged graph (:mod:`commcc.schedule.merged`), and schedules of small graphs
differ by several percent with small differences of the graph. Where making the graph costs little, the one that was
chosen is made and scheduled once, so that it is never worse than no merging.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.graph.index import build_index
from commcc.passes.reorder import Reorder
from commcc.plan import Merging, Plan

if TYPE_CHECKING:
    from commcc.graph.index import GraphIndex
    from commcc.passes.base import PlanContext
    from commcc.passes.strategies.auto import Search, Tried

#: Nodes of a graph that is small enough.
_SMALL = 3000


def written(context: PlanContext, merging: Merging) -> GraphIndex:
    """The index of the graph with these buckets."""
    from commcc.apply import apply_plan  # not at the top: the package makes torch nodes

    index = context.index
    return build_index(apply_plan(context.program, index, Plan("", index.fingerprint, merging)), index.estimates.given)


def never_worse(context: PlanContext, search: Search, none: Tried, best: Tried) -> Tried:
    """The best bucketing; on a small graph no merging, where that is better once both are scheduled in full."""
    from commcc import schedule

    if not best.buckets or len(context.index) >= _SMALL:
        return best
    after = written(context, Merging(best.buckets))
    problem = schedule.Problem(after, search.model.price(after))
    # What was searched last stays known: without merging, it is what ``reorder`` asks for next.
    real = search.result(best, schedule.search(problem, search.limits, Reorder().effort))
    return best if (real.over, real.step_ns) <= (none.over, none.step_ns) else none
