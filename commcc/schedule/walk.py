"""The state of one schedule while it is made: arrays of records, made in Python and filled by kernels."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commcc.schedule.arrays import Graph, Ints, Records, copy_of, one_record, records
from commcc.schedule.curve import Curve, curve
from commcc.schedule.heaps import Heaps, heaps
from commcc.schedule.live import Along, memory_along
from commcc.schedule.ready import no_positions
from commcc.schedule.urgency import Ranked, Urgency, ranked, urgency

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.schedule.problem import Bounds

#: By node. need, opens, due: of launches, see :mod:`commcc.schedule.steps`. missing: nodes that it still needs.
#: unwaited: waits of a launch still to come; air: where it is in the list of what is in flight, from 1, or 0. lacking:
#: nodes that what feeds a reduce-scatter still needs. refused_at: where its hoist passed the budget when it was last
#: refused.
NODE = ("position", "need", "opens", "due", "missing", "unwaited", "arrival", "done", "air", "lacking", "refused_at")
#: By position in the base order: the node; node that ran as the so-many-th; time on the compute stream before;
#: compute nodes before; whether it ran. group, crowded and air are lists: nodes that are to run together, launches that
#: wait for others to land, launches in flight.
PLACE = ("node", "order", "progress", "computed", "done", "together", "group", "crowded", "air")
#: front: position in the base order of its first node that has not run. crowded, air: lengths of these lists. run:
#: compute nodes since the last reduce-scatter. left: ns on the compute stream of what has not run. Then what the
#: schedule aims at and its limits, -1 for none.
CLOCK = (
    *("front", "now", "flying", "computed", "placed", "crowded", "air", "run", "left"),
    *("most_run", "target", "lead_permille", "bring", "budget", "spare", "in_flight", "prefetch"),
    *("queue_permille", "until"),
)

#: Where nothing is said of these.
NO_AIMS: Mapping[str, int] = MappingProxyType({"until": -1, "queue_permille": -1})

#: Heaps: launches by (due, position), waits by arrival, launches whose prefetch window is not open yet by its first
#: position, launches on their way by the number of compute nodes before which they are waited for, reduce-scatters
#: whose feeds can run by position, candidates that were refused.
DUE, AWAITED, CLOSED, EXPIRING, ENDING, REFUSED = range(6)


class Walk(NamedTuple):
    """See :data:`NODE`, :data:`PLACE`, :data:`commcc.schedule.live.BUFFER`, :data:`CLOCK`; clock is a single record.
    allocated: by place, bytes made there. live: by place, the live bytes of the plan. stream_left: ns of transfers that
    have not begun. ready: positions of what can run, but for launches; urgent: all that can run, by latest end.
    """

    base: Ints
    nodes: Records
    places: Records
    buffers: Records
    touches: Ints
    allocated: Ints
    live: Curve
    clock: Records
    stream_free: Ints
    stream_left: Ints
    heaps: Heaps
    ready: Ints
    urgent: Urgency


class _Base(NamedTuple):
    """What is known of a base order, whatever the aim. ranks: of what has to run first, by ``own_permille`` and
    ``launch_permille``.
    """

    graph: Graph
    memory: Along
    ranks: dict[tuple[int, int], Ranked]


#: Those of the last orders that schedules began from, the latest first: a search goes back to few of them.
_KEPT = 4
_known: tuple[_Base, ...] = ()


def _base(graph: Graph, base: Ints) -> _Base:
    """What was worked out before, or else is now."""
    global _known
    known = _known
    for at, of in enumerate(known):
        if of.graph is graph and np.array_equal(of.memory.base, base):
            _known = (of, *known[:at], *known[at + 1 :])
            return of
    made = _Base(graph, memory_along(graph, base.copy()), {})
    _known = (made, *known[: _KEPT - 1])
    return made


def _ranks(of: _Base, own_permille: int, launch_permille: int) -> Ranked:
    """By when each node has to run; that is later for all where a longer step is aimed at."""
    asked = own_permille, launch_permille
    if asked not in of.ranks:
        of.ranks[asked] = ranked(of.graph, of.memory.base, *asked)
    return of.ranks[asked]


def walk_along(graph: Graph, base: Ints, bounds: Bounds, aims: Mapping[str, int] = NO_AIMS) -> Walk:
    """A schedule of which nothing has run, and nothing is known but its base order. aims: by field of its clock."""
    count, of = len(base), _base(graph, base)
    memory = of.memory
    budget, in_flight, prefetch = bounds
    known = {**NO_AIMS, **aims, "budget": budget, "in_flight": in_flight, "prefetch": prefetch}
    return Walk(
        base=base,
        nodes=records(count, NODE),
        places=records(count + 1, PLACE),
        buffers=copy_of(memory.buffers),
        touches=memory.touches,
        allocated=memory.allocated,
        live=curve(count)._replace(numbers=memory.live.copy()),
        clock=one_record(CLOCK, known),
        stream_free=np.zeros(graph.streams, np.int64),
        stream_left=np.zeros(graph.streams, np.int64),
        heaps=heaps(6, count + 64),
        ready=no_positions(count),
        urgent=urgency(_ranks(of, aims.get("own_permille", 0), aims.get("launch_permille", 0))),
    )
