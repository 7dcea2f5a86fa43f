"""When launches may go ahead of their place, and when they have to: read off a base order; kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commcc.base.jit import compiled

if TYPE_CHECKING:
    from commcc.schedule.arrays import Graph
    from commcc.schedule.walk import Walk

#: What other nodes than launches with a wait are due.
NEVER = -(1 << 62)


@compiled
def needs(graph: Graph, walk: Walk) -> None:
    """For every launch with a wait the position of its first one; -1 for other nodes."""
    for node in walk.nodes:
        node.need, node.due = -1, NEVER
    for launch in graph.launches:
        for k in range(graph.rows[launch].waits, graph.rows[launch + 1].waits):
            place = walk.nodes[graph.items[k]].position
            if walk.nodes[launch].need < 0 or place < walk.nodes[launch].need:
                walk.nodes[launch].need = place


@compiled
def windows(graph: Graph, walk: Walk) -> None:
    """For every launch the first position from which the limit on prefetch lets it go; 0 where there is none."""
    prefetch = walk.clock[0].prefetch
    if prefetch < 0:
        return
    computed = walk.places.computed
    for launch in graph.launches:
        mine, facts = walk.nodes[launch], graph.nodes[launch]
        if mine.need >= 0 and facts.asynchronous:
            least = computed[mine.need] - max(prefetch, facts.between)
            mine.opens = min(np.searchsorted(computed[: mine.need], least), mine.position)


@compiled
def due(graph: Graph, walk: Walk) -> None:
    """For every launch with a wait the progress along the base order, in ns, at which it is to go.

    Launches of a lane are taken in the order in which they are needed; each must be over when the next
    one has to begin, a launch taking ``lead_permille`` of its time. None is due before its window opens.
    """
    before = np.full(graph.lanes, walk.places[len(walk.places) - 1].progress, np.int64)
    needed = np.empty(len(graph.launches), np.int64)
    for k in range(len(needed)):
        needed[k] = -walk.nodes[graph.launches[k]].need
    for k in np.argsort(needed):
        launch = graph.launches[k]
        mine, facts = walk.nodes[launch], graph.nodes[launch]
        if mine.need < 0:
            continue
        latest = min(before[facts.lane], walk.places[mine.need].progress)
        before[facts.lane] = latest - facts.transfer * walk.clock[0].lead_permille // 1000
        mine.due = max(before[facts.lane], walk.places[mine.opens].progress)
