"""Improves an order by moves that each change a stretch of it: what stays as it was is not worked out anew; kernels.

    known = Known.of(graph, moves)
    improve_stretches(graph, moves, known, trials, bound)

The moves are those of :mod:`commcc.schedule.moves`, in the same sequence, and what is kept is the same as there with a
margin of none: the order that comes out is the same, to the node. Most of them change short stretches, which gain as
much and are quicker to try. Of an order that is tried

1. bytes in flight, compute between launches and waits, and live bytes differ within the stretch alone;
2. the longest run of compute differs up to where a run has the same length again;
3. clocks differ up to where compute and all streams are as they were and nothing in flight ends at another time. From
   the end of the stretch on, the longest path that is still to come, through compute, waits and transfers on their
   streams in this order, bounds the step, so that most orders are given up soon.

What the order so far comes to is known at every place, and is brought up to date where a trial is kept.

Limits: for orders within the limits, of graphs without storages that are resized.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.jit import compiled, kernel
from commcc.schedule.known import GAP, Known, after, inside, settle
from commcc.schedule.moves import SHORT, Moves, allowed, begin, change, improve, with_payers

if TYPE_CHECKING:
    from commcc.schedule.arrays import Graph, Ints
    from commcc.schedule.problem import Limits, Problem

#: See :func:`improved_in_rounds`.
TRIALS, _ROUNDS, _FIRST, _GAIN = 500, 6, 3, 2000
#: Permille of the bound that are one part of what is between it and a step; so many parts count: :func:`farther`.
_FAR, _FARTHEST = 40, 2


def improved_in_rounds(
    problem: Problem, limits: Limits, order: Ints, rounds: int, *, patience: int = 1, every: bool = False
) -> Ints:
    """The best order after rounds of :data:`TRIALS`. Unless ``every`` one is made they end where the last of them
    gained no more than one part in :data:`_GAIN` of the step for each :data:`_ROUNDS`, and saved no memory above the
    budget: the last _ROUNDS, and ``patience`` times as many for each part that the step is :func:`farther`. They end as
    well where the first :data:`_FIRST` gained nothing.
    """
    moves, graph = Moves.of(problem, limits, order), with_payers(problem, order)
    state, count = moves.state[0], len(graph.nodes)
    state.near = 1
    begin(graph, moves)
    resized = graph.rows[count].resized > graph.rows[0].resized
    known = None if state.over or resized or not _allowed(graph, moves) else Known.of(graph, moves)
    # Where each trial costs a simulation of all nodes, one round without a gain is enough; far from the bound it takes
    # more rounds to leave what looks like an end.
    back = 1 if known is None else _ROUNDS * (1 + patience * farther(problem, int(state.step)))
    reached = [(int(state.over), int(state.step))]
    for _ in range(rounds if count - state.first > 2 else 0):
        if known is None:
            improve(graph, moves, TRIALS, problem.bound)
        else:
            improve_stretches(graph, moves, known, TRIALS, problem.bound)
        reached.append((int(state.over), int(state.step)))
        if every:
            continue
        if len(reached) == _FIRST + 1 and reached[0] == reached[-1]:
            break
        if len(reached) > back:
            (over, step), (still, now) = reached[-1 - back], reached[-1]
            if over == still and (step - now) * _GAIN * _ROUNDS <= step * back:
                break
    kept: Ints = moves.places.kept.copy()
    return kept


def farther(problem: Problem, step: int) -> int:
    """In parts, how far a step is from the bound."""
    return min(_FARTHEST, max(0, step - problem.bound) * 1000 // max(1, problem.bound * _FAR))


@kernel
def _allowed(graph: Graph, moves: Moves) -> bool:
    return allowed(graph, moves)


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
        # What stands where it stood at either end has not changed; many moves change nothing at all.
        while begin < end and places[begin].node == places[begin].kept:
            begin += 1
        while begin < end and places[end - 1].node == places[end - 1].kept:
            end -= 1
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
            here = inside(moves.nodes[launch].place, begin, end)
            since = source.new_computed if here else source.computed
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
            if not mine.there and inside(mine.born, begin, end):
                mine.there = 1
                live += graph.buffers[items[k]].bytes
        if live > budget:
            return False
        for k in range(rows[node].touched, rows[node + 1].touched):
            mine = buffers[items[k]]
            if mine.new_freed == place and inside(mine.freed, begin, end):
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
        if place >= end and now + places[place].rest > state.step:
            _undo(graph, moves, known, first, place)
            return -1
        if place >= end and not place & (GAP - 1):
            same = not others and now == places[place].now and busy == places[place].busy and last == places[place].last
            for stream in range(streams if same else 0):
                same = same and free[stream] == known.free[place // GAP * streams + stream]
            if same:
                known.state[0].stop = place
                return int(state.step)
        node = moves.places[place].node
        facts = graph.nodes[node]
        now, busy, last = after(graph, moves, node, now, busy, last)
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
def _undo(graph: Graph, moves: Moves, known: Known, begin: int, end: int) -> None:
    """Ends of launches as they were."""
    for place in range(begin, end):
        node = moves.places[place].node
        if graph.nodes[node].stream >= 0:
            moves.scratch.end[node] = known.nodes[node].end
