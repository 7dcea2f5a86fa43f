"""Improves an order by moves that each change a stretch of it: what stays as it was is not worked out anew; kernels.

    known = Known.of(graph, moves)
    improve_stretches(graph, moves, known, trials, bound)

The moves are those of :mod:`commcc.schedule.moves`, in the same sequence, and what is kept is the same as there with a
margin of none: the order that comes out is the same, to the node. Most of them change short stretches, which gain as
much and are quicker to try. Of an order that is tried

1. bytes in flight, compute between launches and waits, and live bytes differ within the stretch alone;
2. the longest run of compute differs up to where a run has the same length again;
3. clocks differ up to where compute and all streams are as they were and nothing in flight ends at another time. From
   the end of the stretch on, compute that is still to come bounds the step, so that most orders are given up soon.

What the order so far comes to is known at every place, and is brought up to date where a trial is kept.

Limits: for orders within the limits, of graphs without storages that are resized.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commcc.base.jit import compiled, kernel
from commcc.schedule.arrays import records
from commcc.schedule.moves import BLOCK, SHORT, Moves, allowed, begin, change, improve, with_payers

if TYPE_CHECKING:
    from commcc.schedule.arrays import Graph, Ints, Records
    from commcc.schedule.problem import Limits, Problem

#: Of the order so far, in front of each place: the clock of compute, when streams end that are busy, and launches; the
#: clock by which stalls are counted; compute nodes so far; bytes in flight, and live; the length of the run; compute
#: that is still to come, in ns. live: at the place. Then the most before it and from it on.
PLACE = (
    *("now", "busy", "last", "plain", "computed", "flying", "before", "run", "work", "live"),
    *("peak_before", "peak_behind", "run_before", "run_behind"),
)
#: By node. end: of its transfer. computed: compute nodes up to its launch. first, final: places of its waits. Of the
#: order that is tried: computed, how many waits are in the stretch, and how many of them were seen.
NODE = ("end", "computed", "first", "final", "new_computed", "within", "seen")
#: By buffer: the places where it is made and freed, -1 for none; freed and whether it is there in the order tried.
BUFFER = ("born", "freed", "new_freed", "there")
#: The place from which on clocks are as they were.
STATE = ("stop",)
#: When streams are free is known in front of every place that is a multiple of this, a power of two.
GAP = 32
#: See :func:`improved_in_rounds`.
TRIALS, _ROUNDS, _FIRST, _GAIN = 500, 6, 3, 2000
#: As many rounds again for each _FAR permille between the bound and the step, at most _FARTHEST times.
_FAR, _FARTHEST = 40, 2


class Known(NamedTuple):
    """See :data:`PLACE`, which has a record more than there are places, :data:`NODE`, :data:`BUFFER` and :data:`STATE`.
    free: by place, each :data:`GAP` of them, and stream.
    """

    places: Records
    nodes: Records
    buffers: Records
    state: Records
    free: Ints

    @classmethod
    def of(cls, graph: Graph, moves: Moves) -> Known:
        """What the order so far comes to."""
        count = len(moves.places)
        known = cls(
            records(count + 1, PLACE),
            records(count, NODE),
            records(len(graph.buffers), BUFFER),
            records(1, STATE),
            np.zeros((count // GAP + 1) * max(1, graph.streams), np.int64),
        )
        _begin(graph, moves, known)
        return known


def improved_in_rounds(problem: Problem, limits: Limits, order: Ints, rounds: int, *, patient: bool = False) -> Ints:
    """The best order after rounds of :data:`TRIALS`. Unless ``patient`` they end where the last :data:`_ROUNDS`, more
    of them far from the bound, gained no more than one part in :data:`_GAIN` of the step and saved no memory above the
    budget, or where the first :data:`_FIRST` gained nothing.
    """
    moves, graph = Moves.of(problem, limits, order), with_payers(problem, order)
    state, count = moves.state[0], len(graph.nodes)
    state.near = 1
    begin(graph, moves)
    resized = graph.rows[count].resized > graph.rows[0].resized
    known = None if state.over or resized or not _allowed(graph, moves) else Known.of(graph, moves)
    # Where each trial costs a simulation of all nodes, one round without a gain is enough; far from the bound it takes
    # more rounds to leave what looks like an end.
    farther = min(_FARTHEST, max(0, int(state.step) - problem.bound) * 1000 // max(1, problem.bound * _FAR))
    back, reached = _ROUNDS * (1 + farther) if known is not None else 1, [(int(state.over), int(state.step))]
    for _ in range(rounds if count - state.first > 2 else 0):
        if known is None:
            improve(graph, moves, TRIALS, problem.bound)
        else:
            improve_stretches(graph, moves, known, TRIALS, problem.bound)
        reached.append((int(state.over), int(state.step)))
        if patient:
            continue
        if len(reached) == _FIRST + 1 and reached[0] == reached[-1]:
            break
        if len(reached) > back:
            (over, step), (still, now) = reached[-1 - back], reached[-1]
            if over == still and (step - now) * _GAIN * _ROUNDS <= step * back:
                break
    kept: Ints = moves.places.kept.copy()
    return kept


@kernel
def _allowed(graph: Graph, moves: Moves) -> bool:
    return allowed(graph, moves)


@kernel
def _begin(graph: Graph, moves: Moves, known: Known) -> None:
    first, count = known.places[0], len(moves.places)
    for buffer in range(len(graph.buffers)):
        facts, mine = graph.buffers[buffer], known.buffers[buffer]
        first.before += facts.bytes * facts.input
        mine.born = -1 if facts.input else 0
        mine.freed = -1 if facts.input or facts.kept else 0
    first.peak_before = first.before
    for node in range(count):
        if graph.nodes[node].placeholder and graph.rows[node + 1].waits > graph.rows[node].waits:
            first.flying += graph.nodes[node].bytes
    known.state[0].stop = count
    settle(graph, moves, known, 0, count)


@kernel
def improve_stretches(graph: Graph, moves: Moves, known: Known, trials: int, bound: int) -> None:
    """So many trials, or fewer where the step comes to the bound."""
    state, places = moves.state[0], moves.places
    state.most_run = max(state.run, SHORT)
    for _trial in range(trials):
        if state.step <= bound:
            break
        change(graph, moves, 1)
        begin, end = state.begin, state.end
        if begin >= end:
            continue
        if _no_worse(graph, moves, known, begin, end):
            settle(graph, moves, known, begin, end)
        else:
            for place in range(begin, end):
                places[place].node = places[place].kept


@compiled
def _no_worse(graph: Graph, moves: Moves, known: Known, begin: int, end: int) -> bool:
    """Whether the order that is tried is within the limits and no worse; notes its step and its run then."""
    state = moves.state[0]
    if not _flights_allowed(graph, moves, known, begin, end) or not _fits(graph, moves, known, begin, end):
        return False
    run = _longest_run(graph, moves, known, begin, end)
    if run > state.most_run:
        return False
    step = _step(graph, moves, known, begin, end)
    if step < 0 or (step == state.step and run > state.run):
        if step >= 0:
            _undo(graph, moves, known, begin // GAP * GAP, known.state[0].stop)
        return False
    state.step, state.run = step, run
    return True


@compiled
def _flights_allowed(graph: Graph, moves: Moves, known: Known, begin: int, end: int) -> bool:
    state, nodes = moves.state[0], known.nodes
    if state.in_flight < 0 and state.prefetch < 0:
        return True
    for place in range(begin, end):
        launch = graph.nodes[moves.places[place].node].waited
        if launch >= 0:
            nodes[launch].within += 1
    kept = True
    computed, flying = known.places[begin].computed, known.places[begin].flying
    for place in range(begin, end):
        node = moves.places[place].node
        facts, mine = graph.nodes[node], nodes[node]
        computed += facts.compute
        if facts.stream >= 0 and graph.rows[node + 1].waits > graph.rows[node].waits:
            flying += facts.bytes
            mine.new_computed = computed
            behind = mine.first >= end  # its first wait stands where it stood
            ahead = known.places[mine.first + 1].computed - computed if behind else 0
            kept = (
                kept and (state.in_flight < 0 or flying <= state.in_flight) and not _too_far(graph, moves, node, ahead)
            )
        elif facts.waited >= 0:
            launch, source = facts.waited, nodes[facts.waited]
            inside = _inside(moves.nodes[launch].place, begin, end)
            since = source.new_computed if inside else source.computed
            first = not source.seen and source.first >= begin
            kept = kept and not (first and _too_far(graph, moves, launch, computed - since))
            source.seen += 1
            if source.seen == source.within and source.final < end:
                flying -= graph.nodes[launch].bytes
    for place in range(begin, end):
        launch = graph.nodes[moves.places[place].node].waited
        if launch >= 0:
            nodes[launch].within = nodes[launch].seen = 0
    return kept


@compiled
def _inside(place: int, begin: int, end: int) -> bool:
    """Whether a place is in a stretch."""
    return begin <= place and place < end


@compiled
def _too_far(graph: Graph, moves: Moves, launch: int, between: int) -> bool:
    """Whether a launch is too many compute nodes ahead of its first wait."""
    prefetch, facts = moves.state[0].prefetch, graph.nodes[launch]
    return bool(prefetch >= 0 and facts.asynchronous and between > max(prefetch, facts.between))


@compiled
def _fits(graph: Graph, moves: Moves, known: Known, begin: int, end: int) -> bool:
    """Whether live bytes stay within the budget."""
    rows, items, buffers, budget = graph.rows, graph.items, known.buffers, moves.state[0].budget
    if budget < 0:
        return True
    for place in range(begin, end):
        node = moves.places[place].node
        for k in range(rows[node].allocated, rows[node + 1].allocated):
            buffers[items[k]].there = 0
        for k in range(rows[node].touched, rows[node + 1].touched):
            buffers[items[k]].new_freed = place
    live = known.places[begin].before
    for place in range(begin, end):
        node = moves.places[place].node
        for k in range(rows[node].allocated, rows[node + 1].allocated):
            mine = buffers[items[k]]
            if not mine.there and _inside(mine.born, begin, end):
                mine.there = 1
                live += graph.buffers[items[k]].bytes
        if live > budget:
            return False
        for k in range(rows[node].touched, rows[node + 1].touched):
            mine = buffers[items[k]]
            if mine.new_freed == place and _inside(mine.freed, begin, end):
                mine.new_freed = -1
                live -= graph.buffers[items[k]].bytes
    return True


@compiled
def _longest_run(graph: Graph, moves: Moves, known: Known, begin: int, end: int) -> int:
    """The longest run of compute of the order that is tried."""
    places, count = known.places, len(moves.places)
    run, longest, place = places[begin].run, places[begin].run_before, begin
    while place < count and (place < end or run != places[place].run):
        facts = graph.nodes[moves.places[place].node]
        run = 0 if facts.ends else run + facts.compute
        longest = max(longest, run)
        place += 1
    return int(max(longest, places[place].run_behind))


@compiled
def _step(graph: Graph, moves: Moves, known: Known, begin: int, end: int) -> int:
    """The step of the order that is tried, and the place from which on clocks are as they were; -1 where it is longer
    than that of the order so far.
    """
    state, places, ends, free = moves.state[0], known.places, moves.scratch.end, moves.scratch.stream_free
    count, streams, first = len(moves.places), graph.streams, begin // GAP * GAP
    now, busy, last, others = places[first].now, places[first].busy, places[first].last, 0
    for stream in range(streams):
        free[stream] = known.free[first // GAP * streams + stream]
    for place in range(first, count):
        if place >= end and not place & (GAP - 1):
            if now + places[place].work > state.step:
                _undo(graph, moves, known, first, place)
                return -1
            same = not others and now == places[place].now and busy == places[place].busy and last == places[place].last
            for stream in range(streams if same else 0):
                same = same and free[stream] == known.free[place // GAP * streams + stream]
            if same:
                known.state[0].stop = place
                return int(state.step)
        node = moves.places[place].node
        facts = graph.nodes[node]
        now, busy, last = _after(graph, moves, node, now, busy, last)
        if facts.stream >= 0:
            if ends[node] != known.nodes[node].end:
                others += graph.rows[node + 1].waits - graph.rows[node].waits
        elif facts.waited >= 0 and ends[facts.waited] != known.nodes[facts.waited].end:
            others -= 1
    known.state[0].stop = count
    step = max(now, last)
    if step > state.step:
        _undo(graph, moves, known, first, count)
        return -1
    return int(step)


@compiled
def _after(graph: Graph, moves: Moves, node: int, now: int, busy: int, last: int) -> tuple[int, int, int]:
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
def _undo(graph: Graph, moves: Moves, known: Known, begin: int, end: int) -> None:
    """Ends of launches as they were."""
    for place in range(begin, end):
        node = moves.places[place].node
        if graph.nodes[node].stream >= 0:
            moves.scratch.end[node] = known.nodes[node].end


@compiled
def settle(graph: Graph, moves: Moves, known: Known, begin: int, end: int) -> None:
    """The order that was tried is the one so far."""
    _settle_places(graph, moves, known, begin, end)
    _settle_sums(graph, moves, known, begin, end)
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
        if launch >= 0 and _inside(nodes[launch].final, begin, end):
            nodes[launch].final = place
        for k in range(rows[node].touched, rows[node + 1].touched):
            if _inside(buffers[items[k]].freed, begin, end):
                buffers[items[k]].freed = place
    for back in range(end - begin):
        place = end - 1 - back
        node = moves.places[place].node
        launch = graph.nodes[node].waited
        if launch >= 0 and _inside(nodes[launch].first, begin, end):
            nodes[launch].first = place
        for k in range(rows[node].allocated, rows[node + 1].allocated):
            if _inside(buffers[items[k]].born, begin, end):
                buffers[items[k]].born = place


@compiled
def _settle_sums(graph: Graph, moves: Moves, known: Known, begin: int, end: int) -> None:
    """What is added up from place to place, and the most before and behind."""
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
        live, behind = _live(graph, known, node, place)
        mine.live, following.before = live, behind
    for back in range(end - begin):
        place = end - 1 - back
        places[place].work = places[place + 1].work + graph.nodes[moves.places[place].node].compute_ns
    place, run = begin, places[begin].run
    while place < count and (place < end or run != places[place].run):
        places[place].run = run
        facts = graph.nodes[moves.places[place].node]
        run = 0 if facts.ends else run + facts.compute
        place += 1
    places[place].run = run
    _settle_most(known, begin, end, place)


@compiled
def _live(graph: Graph, known: Known, node: int, place: int) -> tuple[int, int]:
    """Live bytes while a node runs, and behind it."""
    rows, items, buffers = graph.rows, graph.items, known.buffers
    live = known.places[place].before
    for k in range(rows[node].allocated, rows[node + 1].allocated):
        mine = buffers[items[k]]
        mine.there = 0
    for k in range(rows[node].allocated, rows[node + 1].allocated):
        mine = buffers[items[k]]
        if mine.born == place and not mine.there:
            mine.there = 1
            live += graph.buffers[items[k]].bytes
    behind = live
    for k in range(rows[node].touched, rows[node + 1].touched):
        buffers[items[k]].new_freed = place
    for k in range(rows[node].touched, rows[node + 1].touched):
        mine = buffers[items[k]]
        if mine.freed == place and mine.new_freed == place:
            mine.new_freed = -1
            behind -= graph.buffers[items[k]].bytes
    return live, behind


@compiled
def _settle_most(known: Known, begin: int, end: int, runs_end: int) -> None:
    """The most live bytes and the longest run before each place and from it on. runs_end: where runs are as before."""
    places, count = known.places, len(known.places) - 1
    peak, run, place = places[begin].peak_before, places[begin].run_before, begin
    while place < count and (
        place < end or place < runs_end or peak != places[place].peak_before or run != places[place].run_before
    ):
        places[place].peak_before, places[place].run_before = peak, run
        peak, run = max(peak, places[place].live), max(run, places[place + 1].run)
        place += 1
    if place == count:
        places[place].peak_before, places[place].run_before = peak, run
    place = max(end, runs_end)
    peak, run, place = places[place].peak_behind, places[place].run_behind, place - 1
    while place >= 0:
        peak, run = max(peak, places[place].live), max(run, places[place + 1].run)
        if place < begin and peak == places[place].peak_behind and run == places[place].run_behind:
            return
        places[place].peak_behind, places[place].run_behind = peak, run
        place -= 1


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
        now, busy, last = _after(graph, moves, node, now, busy, last)
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
