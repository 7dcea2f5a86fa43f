"""Live bytes of a schedule while it is made; kernels.

A schedule is made by walking along a base order that is legal, and now and then running a node of
later in that order first (a *hoist*). At any time the plan is: what has run, then the rest in base
order. ``walk.live`` (:mod:`commcc.schedule.curve`) holds the live bytes of that plan at every position of the base
order that is still to come, exactly as :mod:`commcc.graph.memory` defines them, so that a hoist is checked over the
whole stretch that it changes, not only where it lands.

Hoisting node ``e`` to the front ``f`` makes its results live from ``f`` on instead of from ``e`` on;
what it is the last to touch is freed after the last one of those that still touch it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commcc.base.jit import compiled, kernel
from commcc.schedule.arrays import Graph, Ints, Records, records
from commcc.schedule.curve import add, last_above, most_between, number_at

if TYPE_CHECKING:
    from commcc.schedule.walk import Walk

#: Of a buffer: its bytes, whether it is there, and the position at which it is freed, -1 for none.
SIZES = ("bytes_now", "known", "freed_at")
#: By buffer: the positions that touch it are ``touches[first:end]``, less those at the end that ran; born: the
#: first one, -1 for none.
BUFFER = ("first", "end", "born", *SIZES)


class Along(NamedTuple):
    """Memory along a base order of which nothing has run; see :data:`BUFFER`. allocated: bytes made at each position;
    live: live bytes there.
    """

    base: Ints
    buffers: Records
    touches: Ints
    allocated: Ints
    live: Ints


def memory_along(graph: Graph, base: Ints) -> Along:
    """For :class:`commcc.schedule.walk.Walk`."""
    count = len(base)
    touches = np.empty(graph.rows[count].touched - graph.rows[0].touched, np.int64)
    allocated, live = np.zeros((2, count), np.int64)
    along = Along(base, records(len(graph.buffers), BUFFER), touches, allocated, live)
    _follow(graph, along)
    return along


@compiled
def live_bytes(graph: Graph, order: Ints, live: Ints, buffers: Records) -> int:
    """Live bytes at each position of an order, as :class:`commcc.graph.memory.MemoryModel` has them; the peak.

    buffers: records with the fields of :data:`SIZES`, which are overwritten.
    """
    rows, items = graph.rows, graph.items
    now = _begin_sizes(graph, order, buffers)
    peak = now
    for position in range(len(order)):
        node = order[position]
        for k in range(rows[node].allocated, rows[node + 1].allocated):
            mine = buffers[items[k]]
            if not mine.known:
                mine.known = 1
                now += mine.bytes_now
        freed = 0
        for k in range(rows[node].resized, rows[node + 1].resized, 2):
            mine = buffers[items[k]]
            grown = items[k + 1] - mine.bytes_now
            now += max(0, grown)
            freed += max(0, -grown)
            mine.bytes_now = items[k + 1]
        live[position] = now
        peak = max(peak, now)
        for k in range(rows[node].touched, rows[node + 1].touched):
            mine = buffers[items[k]]
            if mine.freed_at == position:
                mine.freed_at = -1
                freed += mine.bytes_now
        now -= freed
    return peak


@compiled
def _begin_sizes(graph: Graph, order: Ints, buffers: Records) -> int:
    """For every buffer its first size, whether it is there from the start, and the position that frees it or -1; the
    bytes of inputs.
    """
    now = 0
    for buffer in range(len(graph.buffers)):
        mine, facts = buffers[buffer], graph.buffers[buffer]
        mine.bytes_now, mine.known, mine.freed_at = facts.bytes, facts.input, -1
        now += facts.bytes * facts.input
    for position in range(len(order)):
        node = order[position]
        for k in range(graph.rows[node].touched, graph.rows[node + 1].touched):
            buffer = graph.items[k]
            if not graph.buffers[buffer].kept and not graph.buffers[buffer].input:
                buffers[buffer].freed_at = position
    return now


@kernel
def _follow(graph: Graph, along: Along) -> None:
    rows, items, buffers, base = graph.rows, graph.items, along.buffers, along.base
    count = len(base)
    for k in range(rows[0].touched, rows[count].touched):
        buffers[items[k]].end += 1
    begun = 0
    for buffer in buffers:
        buffer.first, begun = begun, begun + buffer.end
        buffer.end, buffer.born = buffer.first, -1
    for place in range(count):
        node = base[place]
        for k in range(rows[node].touched, rows[node + 1].touched):
            mine, facts = buffers[items[k]], graph.buffers[items[k]]
            if mine.end == mine.first:
                mine.born = place
                along.allocated[place] += facts.bytes * (1 - facts.input)
            along.touches[mine.end] = place
            mine.end += 1
    live_bytes(graph, base, along.live, buffers)


@compiled
def hoist(graph: Graph, walk: Walk, count: int) -> bool:
    """Whether the first ``count`` nodes of ``walk.places.group``, in this order, may run before what stands at
    the front; notes it if so. The caller has to call :func:`ran` for each of them next.
    """
    places, front, budget = walk.places, walk.clock[0].front, walk.clock[0].budget
    allocated = 0
    for k in range(count):
        if graph.nodes[places[k].group].fixed:
            return False
        allocated += walk.allocated[walk.nodes[places[k].group].position]
    # While they run, what they read is still there.
    if budget >= 0 and allocated and number_at(walk.live, front) - walk.allocated[front] + allocated > budget:
        return False
    _together(walk, count, 1)
    allowed = not _still_too_much(graph, walk, count)
    if allowed:
        grows = _end_of_growth(walk, count)
        allowed = _change(graph, walk, count, grows, 1) <= budget or budget < 0
        if not allowed:
            walk.nodes[places[count - 1].group].refused_at = last_above(walk.live, front, grows, budget)
            _change(graph, walk, count, grows, -1)
    _together(walk, count, 0)
    return allowed


@compiled
def _still_too_much(graph: Graph, walk: Walk, count: int) -> bool:
    """Whether a hoist would pass the budget where it did when it was last refused: most are refused many times, and
    this needs no look at the whole stretch.
    """
    at, front, budget = walk.nodes[walk.places[count - 1].group].refused_at, walk.clock[0].front, walk.clock[0].budget
    if budget < 0 or at < front:
        return False
    now, grows = number_at(walk.live, at), front
    for member in range(count):
        node = walk.places[member].group
        place = walk.nodes[node].position
        for k in range(graph.rows[node].touched, graph.rows[node + 1].touched):
            buffer = graph.items[k]
            if graph.buffers[buffer].input:
                continue
            born = walk.buffers[buffer].born == place
            grows = max(grows, place * born)
            if born and at < place:
                now += graph.buffers[buffer].bytes
            if at <= place and not graph.buffers[buffer].kept and at >= _freed_from(walk, buffer, place):
                now -= graph.buffers[buffer].bytes
    return bool(at < grows and now > budget)


@compiled
def _together(walk: Walk, count: int, mark: int) -> None:
    for k in range(count):
        walk.places[walk.nodes[walk.places[k].group].position].together = mark


@compiled
def _end_of_growth(walk: Walk, count: int) -> int:
    """The end of the stretch in which what the nodes make is there sooner."""
    end = walk.clock[0].front
    for member in range(count):
        place = walk.nodes[walk.places[member].group].position
        end = max(end, place * (walk.allocated[place] > 0))
    return int(end)


@compiled
def _change(graph: Graph, walk: Walk, count: int, grows: int, sign: int) -> int:
    """Change the curve, or with sign -1 change it back; the most in the stretch in which it grows, which ends there."""
    front = walk.clock[0].front
    for member in range(count):
        node = walk.places[member].group
        place = walk.nodes[node].position
        if place != grows:
            add(walk.live, front, place * (walk.allocated[place] > 0), walk.allocated[place] * sign)
        for k in range(graph.rows[node].touched, graph.rows[node + 1].touched):
            buffer, facts = graph.items[k], graph.buffers[graph.items[k]]
            if facts.bytes and not facts.input and not facts.kept:
                add(walk.live, _freed_from(walk, buffer, place), place + 1, -facts.bytes * sign)
    if grows > front:
        add(walk.live, front, grows, walk.allocated[grows] * sign)
    return most_between(walk.live, front, grows)


@compiled
def _freed_from(walk: Walk, buffer: int, place: int) -> int:
    """From where on a buffer is no longer there, if ``place`` is the last that touches it; else what follows it."""
    first, at, front = walk.buffers[buffer].first, walk.buffers[buffer].end - 1, walk.clock[0].front
    places, touches = walk.places, walk.touches
    while places[touches[at]].done:
        at -= 1
    if touches[at] != place:
        return place + 1
    while at >= first and (places[touches[at]].done or places[touches[at]].together):
        at -= 1
    return int(max(touches[at] + 1, front) if at >= first else front)


@compiled
def ran(graph: Graph, walk: Walk, node: int) -> None:
    """Note that a node has run, at the front or hoisted."""
    walk.places[walk.nodes[node].position].done = 1
    for k in range(graph.rows[node].touched, graph.rows[node + 1].touched):
        mine = walk.buffers[graph.items[k]]
        while mine.end > mine.first and walk.places[walk.touches[mine.end - 1]].done:
            mine.end -= 1
