"""The state of one schedule while it is made: arrays of records, made in Python and filled by kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commcc.schedule.arrays import Graph, Ints, Records, records
from commcc.schedule.curve import Curve, curve
from commcc.schedule.heaps import Heaps, heaps
from commcc.schedule.live import SIZES
from commcc.schedule.ready import no_positions

if TYPE_CHECKING:
    from commcc.schedule.problem import Bounds

#: By node. latest: when it has to run. need, opens, due: of launches, see :mod:`commcc.schedule.steps`. missing:
#: nodes that it still needs. unwaited: waits of a launch still to come; air: whether it is in flight. lacking: nodes
#: that what feeds a reduce-scatter still needs. refused_at: where its hoist passed the budget when it was last refused.
NODE = (
    "position",
    "latest",
    "need",
    "opens",
    "due",
    "missing",
    "unwaited",
    "arrival",
    "done",
    "air",
    "lacking",
    "refused_at",
)
#: By position in the base order: the node; node that ran as the so-many-th; time on the compute stream before;
#: compute nodes before; bytes made there; whether it ran. group and
#: crowded are lists: nodes that are to run together, launches that wait for others to land.
PLACE = ("node", "order", "progress", "computed", "allocated", "done", "together", "group", "crowded")
#: By buffer: the positions that touch it are ``touches[first:end]``, less those at the end that ran; born: the
#: first one, -1 for none.
BUFFER = ("first", "end", "born", *SIZES)
#: front: position in the base order of its first node that has not run. crowded: length of that list. run: compute
#: nodes since the last reduce-scatter. left: ns on the compute stream of what has not run. Then what the schedule aims
#: at and its limits, -1 for none.
CLOCK = (
    *("front", "now", "flying", "computed", "placed", "crowded", "run", "left"),
    *("most_run", "target", "lead_permille", "own_permille", "bring", "budget", "spare", "in_flight", "prefetch"),
    *("queue_permille", "until"),
)

#: Heaps: launches by (due, position), all that can run by latest end, waits by arrival,
#: launches whose prefetch window is not open yet by its first position, launches on their way by the
#: number of compute nodes before which they are waited for, reduce-scatters whose feeds can run by position,
#: candidates that were refused.
DUE, LATEST, AWAITED, CLOSED, EXPIRING, ENDING, REFUSED = range(7)


class Walk(NamedTuple):
    """See :data:`NODE`, :data:`PLACE`, :data:`BUFFER`, :data:`CLOCK`; clock is a single record. live: by place, the
    live bytes of the plan. stream_left: ns of transfers
    that have not begun. ready: positions of what can run.
    """

    base: Ints
    nodes: Records
    places: Records
    buffers: Records
    touches: Ints
    live: Curve
    clock: Records
    stream_free: Ints
    stream_left: Ints
    heaps: Heaps
    ready: Ints


def walk_along(graph: Graph, base: Ints, bounds: Bounds) -> Walk:
    """A schedule of which nothing has run, and nothing is known but its base order."""
    count = len(base)
    places, clock = records(count + 1, PLACE), records(1, CLOCK)
    places.node[:count] = base
    clock.budget, clock.in_flight, clock.prefetch = bounds
    clock.until = clock.queue_permille = -1
    return Walk(
        base=base,
        nodes=records(count, NODE),
        places=places,
        buffers=records(len(graph.buffers), BUFFER),
        touches=np.empty(graph.rows[count].touched - graph.rows[0].touched, np.int64),
        live=curve(count),
        clock=clock,
        stream_free=np.zeros(graph.streams, np.int64),
        stream_left=np.zeros(graph.streams, np.int64),
        heaps=heaps(7, count + 64),
        ready=no_positions(count),
    )
