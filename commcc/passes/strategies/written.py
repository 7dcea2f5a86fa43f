"""What ``reorder`` makes of the graph that buckets really give.

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
    from commcc.passes.base import PlanContext
    from commcc.passes.strategies.auto import Search, Tried

#: Nodes of a graph that is small enough.
_SMALL = 3000


def never_worse(context: PlanContext, search: Search, none: Tried, best: Tried) -> Tried:
    """The better of the two, both scheduled with the full effort of ``reorder``."""
    from commcc.apply import apply_plan  # not at the top: the package makes torch nodes
    from commcc.schedule import Problem, search_once

    index = context.index
    if not best.buckets or len(index) >= _SMALL:
        return best
    given = {hint.symbol: hint.value for hint in index.estimates.hints if hint.source == "given"}
    made = apply_plan(context.program, index, Plan("", index.fingerprint, Merging(best.buckets)))
    after = build_index(made, given)
    problem = Problem(after, search.model.price(after))
    real = search.result(best, search_once(problem, search.limits, Reorder().effort))
    return best if (real.over, real.step_ns) <= (none.over, none.step_ns) else none
