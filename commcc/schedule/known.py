"""What an order comes to at every place, brought up to date where a stretch of it changes; kernels.

    known = Known.of(graph, moves)
    settle(graph, moves, known, begin, end)         # moves.places[begin:end] have other nodes now

Outside of the stretch only what differs is worked out anew: sums in front of it and behind stay, clocks are followed up
to where they are as they were, and longest runs and paths from both ends until they are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commcc.base.jit import compiled, kernel
from commcc.schedule.arrays import records
from commcc.schedule.moves import BLOCK

if TYPE_CHECKING:
    from commcc.schedule.arrays import Graph, Ints, Records
    from commcc.schedule.moves import Moves

#: Of the order so far, in front of each place: the clock of compute, when streams end that are busy, and launches; the
#: clock by which stalls are counted; compute nodes so far; bytes in flight, and live; the length of the run, and the
#: longest one before and from there on; the longest path to the end of the step, in ns.
PLACE = ("now", "busy", "last", "plain", "computed", "flying", "before", "run", "run_before", "run_behind", "rest")
#: By node. end: of its transfer. computed: compute nodes up to its launch. first, final: places of its waits. rest: of
#: a wait, the longest path from behind it. differs: whether that is another one, and its launch comes yet. Of the order
#: that is tried: computed, how many waits are in the stretch, and how many of them were seen.
NODE = ("end", "computed", "first", "final", "rest", "differs", "new_computed", "within", "seen")
#: By buffer: the places where it is made and freed, -1 for none; freed and whether it is there in the order tried.
BUFFER = ("born", "freed", "new_freed", "there")
#: The place from which on clocks are as they were.
STATE = ("stop",)
#: When streams are free, and the longest path from then on, is known in front of every place that is a multiple of
#: this, a power of two.
GAP = 32


class Known(NamedTuple):
    """See :data:`PLACE`, which has a record more than there are places, :data:`NODE`, :data:`BUFFER` and :data:`STATE`.
    free, rests: by place, each :data:`GAP` of them, and stream.
    """

    places: Records
    nodes: Records
    buffers: Records
    state: Records
    free: Ints
    rests: Ints

    @classmethod
    def of(cls, graph: Graph, moves: Moves) -> Known:
        """What the order so far comes to."""
        count = len(moves.places)
        by_stream = np.zeros((count // GAP + 1) * max(1, graph.streams), np.int64)
        known = cls(
            records(count + 1, PLACE),
            records(count, NODE),
            records(len(graph.buffers), BUFFER),
            records(1, STATE),
            by_stream,
            by_stream.copy(),
        )
        _begin(graph, moves, known)
        return known


@kernel
def _begin(graph: Graph, moves: Moves, known: Known) -> None:
    first, count = known.places[0], len(moves.places)
    for buffer in range(len(graph.buffers)):
        facts, mine = graph.buffers[buffer], known.buffers[buffer]
        first.before += facts.bytes * facts.input
        mine.born = -1 if facts.input else 0
        mine.freed = -1 if facts.input or facts.kept else 0
    for node in range(count):
        if graph.nodes[node].placeholder and graph.rows[node + 1].waits > graph.rows[node].waits:
            first.flying += graph.nodes[node].bytes
    known.state[0].stop = count
    settle(graph, moves, known, 0, count)


@compiled
def inside(place: int, begin: int, end: int) -> bool:
    """Whether a place is in a stretch."""
    return begin <= place and place < end


@compiled
def after(graph: Graph, moves: Moves, node: int, now: int, busy: int, last: int) -> tuple[int, int, int]:
    """The clock of compute behind a node, when busy streams end, and launches; see :mod:`commcc.schedule.judge`."""
    facts, ends, free = graph.nodes[node], moves.scratch.end, moves.scratch.stream_free
    if facts.stream >= 0:
        now += facts.compute_ns
        ends[node] = max(now, free[facts.stream]) + facts.transfer
        free[facts.stream] = ends[node]
        busy = last = max(last, ends[node])
        if not facts.asynchronous:
            now = max(now, ends[node])
    elif facts.waited >= 0:
        now = max(now, ends[facts.waited])
    elif facts.placeholder:
        ends[node] = facts.transfer
        busy = max(busy, ends[node])
    else:
        ns, beside, permille = facts.compute_ns, busy - now, graph.slowdown_permille
        if permille > 1000 and beside > 0:
            done = beside * 1000 // permille
            ns = -(-ns * permille // 1000) if ns <= done else beside + ns - done
        now += ns
    return now, busy, last


@compiled
def settle(graph: Graph, moves: Moves, known: Known, begin: int, end: int) -> None:
    """The order that was tried is the one so far."""
    _settle_places(graph, moves, known, begin, end)
    _settle_sums(graph, moves, known, begin, end)
    _settle_rests(graph, moves, known, begin, end)
    _settle_clocks(graph, moves, known, begin)


@compiled
def _settle_places(graph: Graph, moves: Moves, known: Known, begin: int, end: int) -> None:
    """Where nodes stand, waits come first and last, and buffers are made and freed."""
    rows, items, nodes, buffers = graph.rows, graph.items, known.nodes, known.buffers
    for place in range(begin, end):
        node = moves.places[place].node
        moves.places[place].kept = node
        moves.nodes[node].place = place
        launch = graph.nodes[node].waited
        if launch >= 0 and inside(nodes[launch].final, begin, end):
            nodes[launch].final = place
        for k in range(rows[node].touched, rows[node + 1].touched):
            if inside(buffers[items[k]].freed, begin, end):
                buffers[items[k]].freed = place
    for back in range(end - begin):
        place = end - 1 - back
        node = moves.places[place].node
        launch = graph.nodes[node].waited
        if launch >= 0 and inside(nodes[launch].first, begin, end):
            nodes[launch].first = place
        for k in range(rows[node].allocated, rows[node + 1].allocated):
            if inside(buffers[items[k]].born, begin, end):
                buffers[items[k]].born = place


@compiled
def _settle_sums(graph: Graph, moves: Moves, known: Known, begin: int, end: int) -> None:
    """What is added up from place to place, and runs of compute."""
    places, nodes, count = known.places, known.nodes, len(moves.places)
    for place in range(begin, end):
        node = moves.places[place].node
        facts, mine, following = graph.nodes[node], places[place], places[place + 1]
        following.computed, flying = mine.computed + facts.compute, mine.flying
        if facts.stream >= 0 and graph.rows[node + 1].waits > graph.rows[node].waits:
            flying += facts.bytes
            nodes[node].computed = following.computed
        elif facts.waited >= 0 and nodes[facts.waited].final == place:
            flying -= graph.nodes[facts.waited].bytes
        following.flying = flying
        following.before = _behind(graph, known, node, place)
    place, run = begin, places[begin].run
    while place < count and (place < end or run != places[place].run):
        places[place].run = run
        facts = graph.nodes[moves.places[place].node]
        run = 0 if facts.ends else run + facts.compute
        place += 1
    places[place].run = run
    _settle_runs(known, begin, max(end, place))


@compiled
def _behind(graph: Graph, known: Known, node: int, place: int) -> int:
    """Live bytes behind a node."""
    rows, items, buffers = graph.rows, graph.items, known.buffers
    live = known.places[place].before
    for k in range(rows[node].allocated, rows[node + 1].allocated):
        buffers[items[k]].there = 0
    for k in range(rows[node].allocated, rows[node + 1].allocated):
        mine = buffers[items[k]]
        if mine.born == place and not mine.there:
            mine.there = 1
            live += graph.buffers[items[k]].bytes
    for k in range(rows[node].touched, rows[node + 1].touched):
        buffers[items[k]].new_freed = place
    for k in range(rows[node].touched, rows[node + 1].touched):
        mine = buffers[items[k]]
        if mine.freed == place and mine.new_freed == place:
            mine.new_freed = -1
            live -= graph.buffers[items[k]].bytes
    return int(live)


@compiled
def _settle_runs(known: Known, begin: int, end: int) -> None:
    """The longest run before each place and from it on. end: where runs are as before."""
    places, count = known.places, len(known.places) - 1
    run, place = places[begin].run_before, begin
    while place < count and (place < end or run != places[place].run_before):
        places[place].run_before = run
        run = max(run, places[place + 1].run)
        place += 1
    if place == count:
        places[place].run_before = run
    run, place = places[end].run_behind, end - 1
    while place >= 0:
        run = max(run, places[place + 1].run)
        if place < begin and run == places[place].run_behind:
            return
        places[place].run_behind = run
        place -= 1


@compiled
def _settle_rests(graph: Graph, moves: Moves, known: Known, begin: int, end: int) -> None:
    """The longest paths to the end of the step, up to where they are as they were."""
    places, nodes, streams, count = known.places, known.nodes, graph.streams, len(moves.places)
    free, place, others = moves.scratch.stream_free, min(count, (end + GAP - 1) // GAP * GAP), 0
    for stream in range(streams):
        free[stream] = 0 if place == count else known.rests[place // GAP * streams + stream]
    rest = places[place].rest
    while place > 0:
        place -= 1
        node = moves.places[place].node
        facts = graph.nodes[node]
        if facts.waited >= 0 and facts.stream < 0:
            if nodes[node].rest != rest and not graph.nodes[facts.waited].placeholder:
                nodes[node].differs = 1
                others += 1
            nodes[node].rest = rest
        elif facts.stream >= 0:
            behind = free[facts.stream] if facts.asynchronous else max(rest, free[facts.stream])
            for k in range(graph.rows[node].waits, graph.rows[node + 1].waits):
                wait = nodes[graph.items[k]]
                behind = max(behind, wait.rest)
                others -= wait.differs
                wait.differs = 0
            free[facts.stream] = facts.transfer + behind
            rest = facts.compute_ns + max(rest, free[facts.stream])
        else:
            rest += facts.compute_ns
        if not place & (GAP - 1):
            same = place < begin and not others and rest == places[place].rest
            for stream in range(streams):
                same = same and free[stream] == known.rests[place // GAP * streams + stream]
                known.rests[place // GAP * streams + stream] = free[stream]
            if same:
                return
        places[place].rest = rest


@compiled
def _settle_clocks(graph: Graph, moves: Moves, known: Known, begin: int) -> None:
    """Clocks as far as they differ, and where compute stalls."""
    state, places, free, stop = moves.state[0], known.places, moves.scratch.stream_free, known.state[0].stop
    count, streams, first = len(moves.places), graph.streams, begin // GAP * GAP
    now, busy, last = places[first].now, places[first].busy, places[first].last
    for stream in range(streams):
        free[stream] = known.free[first // GAP * streams + stream]
    for place in range(first, stop):
        places[place].now, places[place].busy, places[place].last = now, busy, last
        if not place & (GAP - 1):
            for stream in range(streams):
                known.free[place // GAP * streams + stream] = free[stream]
        node = moves.places[place].node
        now, busy, last = after(graph, moves, node, now, busy, last)
        known.nodes[node].end = moves.scratch.end[node]
    now, place = places[first].plain, first
    while place < count and (place < stop or now != places[place].plain):
        node = moves.places[place].node
        facts, stall = graph.nodes[node], 0
        places[place].plain = now
        if facts.waited >= 0 and facts.stream < 0:
            stall = max(0, moves.scratch.end[facts.waited] - now)
            now = max(now, moves.scratch.end[facts.waited])
        else:
            now += facts.compute_ns
        state.stalls += stall - moves.places[place].stall
        moves.stalls[place // BLOCK] += stall - moves.places[place].stall
        moves.places[place].stall = stall
        place += 1
