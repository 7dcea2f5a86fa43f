"""Improves a legal order by moving nodes together with what they need, or with what needs them; kernels.

    better = improved(problem, limits, order, trials=2000)

The list scheduler runs what fits first, and never takes that back. Under a tight budget a better order often is several
moves away, each of which alone is no gain: a gradient, its reduction and the wait come sooner together, and what
stands at the front waits. A trial is one to three such moves in a row:

* a node is moved ahead, with all of what it needs that stands between;
* a node is put off, with all of what needs it that stands between.

Half of the first moves are made where the compute stream stalls, the rest anywhere; how far is drawn from all powers of
two. Where a trial costs as much as the stretch that it changes (:mod:`commcc.schedule.stretches`), short distances are
drawn more often, three of four first moves are made at stalls, more of them of the launch, and further ones where the
one before changed the order. What makes the order better, or leaves it as good, is kept; so is, at first, what makes
the step longer than that of the best order by no more than a margin, which shrinks to none (as in simulated annealing).
It is smaller where there are few trials for many nodes, and none where peaks are to be lowered. The best order comes
out. Legal orders stay legal, and nodes that pay for a fused chain stay ahead of the rest of it, so that prices hold.
The numbers drawn are the same on every machine.

Limits: a trial costs a simulation of all nodes, so on large graphs few can be made.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commcc.base.jit import compiled, kernel
from commcc.schedule.arrays import by_key, records
from commcc.schedule.judge import Scratch, judged, step_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commcc.schedule.arrays import Graph, Ints, Records
    from commcc.schedule.problem import Limits, Problem

#: No move makes a run of compute between reduce-scatters longer than this, or than the longest there was.
SHORT = 4
#: By place: the node; that of the order so far; of that one, for how long compute stalls there; a list for moves; the
#: node of the best order.
PLACE = ("node", "kept", "stall", "other", "best")
#: By node: its place; the compute nodes before its launch; when its transfer ends; waits still to come; a mark.
NODE = ("place", "computed", "end", "unwaited", "mark")
#: random: the last number drawn. over, step, run, peak, excess: of the order so far; the next five of the one that is
#: tried. excess: bytes above the budget, added up over all places, where ``lower`` asks for that.
#: The next four of the best one. first: the place behind graph inputs. Then limits, -1 for none, the sum of stalls, and
#: how much longer than the best one an order may be at first, in permille. near: whether moves are to change
#: short stretches. begin, end: of the stretch that changed.
STATE = (
    *("random", "over", "step", "run", "peak", "excess"),
    *("new_over", "new_step", "new_run", "new_peak", "new_excess"),
    *("best_over", "best_step", "best_run", "best_excess"),
    *("first", "budget", "in_flight", "prefetch", "stalls", "most_run", "lower", "margin", "near", "begin", "end"),
)
#: A stall is looked for in sums of so many places first.
BLOCK = 64
#: The margin at first: at most this, and no more than so much for each trial that a node has, in permille.
_MARGIN, _MARGIN_PER_TRIAL = 200, 2


class Moves(NamedTuple):
    """See :data:`PLACE`, :data:`NODE`, :data:`STATE`; state is a single record. stalls: those of the order so far, the
    sum of each :data:`BLOCK` places.
    """

    places: Records
    nodes: Records
    state: Records
    stalls: Ints
    order: Ints
    scratch: Scratch

    @classmethod
    def of(cls, problem: Problem, limits: Limits, order: Ints) -> Moves:
        """Those of an order; nothing is measured yet."""
        graph, count = problem.graph, len(order)
        known = records(count, PLACE), records(count, NODE), records(1, STATE), np.zeros(count // BLOCK + 1, np.int64)
        moves = cls(*known, order.copy(), Scratch.of(graph))
        moves.places.node[:] = moves.places.kept[:] = moves.places.best[:] = order
        state = moves.state[0]
        state.random, (state.budget, state.in_flight, state.prefetch) = 1, problem.bounds(limits)
        inputs = np.flatnonzero(graph.nodes.placeholder[order])
        state.first = int(inputs[-1]) + 1 if len(inputs) else 0
        return moves


def improved(problem: Problem, limits: Limits, order: Iterable[int], trials: int, *, lower: bool = False) -> Ints:
    """The best order that so many trials lead to: within the limits if this one is, and with the prices it has.

    lower: above the budget, what all places together have above it counts before the step.
    """
    begun = np.fromiter(order, np.int64)
    moves = Moves.of(problem, limits, begun)
    moves.state[0].lower = lower
    moves.state[0].margin = 0 if lower else min(_MARGIN, _MARGIN_PER_TRIAL * trials // max(1, len(begun)))
    if len(begun) - moves.state[0].first > 2:
        improve(with_payers(problem, begun), moves, trials, problem.bound)
    best: Ints = moves.places.best.copy()
    return best


def with_payers(problem: Problem, order: Ints) -> Graph:
    """The graph under the prices of an order, with edges from nodes that pay for fused chains to others of these."""
    graph, payers = problem.graph_in(order), problem.costs.payers
    if payers is None:
        return graph
    paying, begins, count = payers.after(order), graph.rows.preds, len(order)
    most = np.fromiter(map(len, paying.values()), np.int64, len(paying))
    more = np.repeat(np.fromiter(paying, np.int64, len(paying)), most)
    nodes = np.concatenate([np.repeat(np.arange(count), np.diff(begins)), more])
    paid = np.fromiter(chain.from_iterable(paying.values()), np.int64, len(more))
    preds = np.concatenate([graph.items[begins[0] : begins[-1]], paid])
    preds, begins = by_key(nodes, preds, count)
    users, begins_of_users = by_key(preds, np.repeat(np.arange(count), np.diff(begins)), count)
    rows, end = graph.rows.copy(), len(graph.items)
    rows.preds, rows.users = begins + end, begins_of_users + end + len(preds)
    return graph._replace(rows=rows, items=np.concatenate([graph.items, preds, users]))


@kernel
def begin(graph: Graph, moves: Moves) -> None:
    """Measure the order to begin with."""
    measure(graph, moves)
    keep(graph, moves)


@kernel
def improve(graph: Graph, moves: Moves, trials: int, bound: int) -> None:
    state, places, count = moves.state[0], moves.places, len(moves.places)
    measure(graph, moves)
    keep(graph, moves)
    state.best_over = state.over + 1  # than which the first order is better
    _best_so_far(moves)
    state.most_run = max(state.run, SHORT)
    for trial in range(trials):
        if not state.best_over and state.best_step <= bound:
            break
        left = 1000 - 1000 * trial // trials
        room = state.best_step * state.margin * left // 1000000 * left // 1000
        change(graph, moves, 0)
        if allowed(graph, moves):
            measure(graph, moves)
            if state.new_run <= state.most_run and _no_worse(
                state, state.over, state.excess, state.step, state.run, state.best_step + room
            ):
                keep(graph, moves)
                _best_so_far(moves)
                continue
        for place in range(count):
            places[place].node = places[place].kept


@compiled
def drawn(moves: Moves, below: int) -> int:
    """A number from 0 on."""
    state = moves.state[0]
    state.random = (state.random * 1103515245 + 12345) & 0x7FFFFFFF
    return int((state.random >> 8) * below >> 23)


@compiled
def _best_so_far(moves: Moves) -> None:
    """Take the order that was kept for the best one, if it is no worse."""
    state = moves.state[0]
    if not _no_worse(state, state.best_over, state.best_excess, state.best_step, state.best_run, -1):
        return
    state.best_over, state.best_step, state.best_run = state.over, state.step, state.run
    state.best_excess = state.excess
    for place in range(len(moves.places)):
        moves.places[place].best = moves.places[place].kept


@compiled
def _no_worse(state: Records, over: int, excess: int, step: int, run: int, most: int) -> bool:
    """Whether the order that is tried is as good as one of these; a step of up to ``most`` ns is good enough."""
    if state.new_over != over:
        return bool(state.new_over < over)
    # Several places may be above the budget, and a peak falls with the last of them only.
    if over and state.new_excess != excess:
        return bool(state.new_excess < excess)
    if state.new_step != step:
        return bool(state.new_step < step or state.new_step <= most)
    return bool(state.new_run <= run)


@compiled
def change(graph: Graph, moves: Moves, placed: int) -> None:
    """One to three moves. placed: whether ``moves.nodes`` have their places."""
    state, count = moves.state[0], len(moves.places)
    state.begin, state.end = count, 0
    _first_move(graph, moves, placed)
    for _more in range(drawn(moves, 4) - 1):
        begin, end, most = state.first, count - 1, count
        if state.near:
            begin, end, most = state.begin, state.end, 2 * (state.end - state.begin)
        if begin < end and not drawn(moves, 2):
            _move(graph, moves, begin + drawn(moves, end - begin), drawn(moves, 2), most)


@compiled
def _first_move(graph: Graph, moves: Moves, placed: int) -> None:
    """Where compute stalls: the launch sooner, the wait later, or what comes behind it sooner; else anything."""
    state, places, count = moves.state[0], moves.places, len(moves.places)
    place = state.first + drawn(moves, count - 1 - state.first)
    if not state.stalls or drawn(moves, 4) >= 2 + state.near:
        _move(graph, moves, place, drawn(moves, 2), count)
        return
    left, block = drawn(moves, 1 << 20) * state.stalls >> 20, 0
    while block < len(moves.stalls) - 1 and left >= moves.stalls[block]:
        left -= moves.stalls[block]
        block += 1
    place = min(count - 2, max(state.first, block * BLOCK))
    while place < count - 2 and left >= places[place].stall:
        left -= places[place].stall
        place += 1
    which = drawn(moves, 4 + state.near) - state.near
    launch = graph.nodes[places[place].node].waited
    if which <= 0 and launch >= 0 and not graph.nodes[launch].placeholder:
        for at in range(0 if placed else count):
            moves.nodes[places[at].node].place = at
        _move(graph, moves, moves.nodes[launch].place, 0, count)
    elif which == 1:
        _move(graph, moves, place, 1, count)
    else:  # what stands behind the stall, to the stall or ahead of it
        sooner(graph, moves, min(count - 2, place + 1 + _far(moves, count)), place - (which - 2) * _far(moves, count))


@compiled
def _far(moves: Moves, count: int) -> int:
    """A distance up to ``count``, short ones as often as long ones, or more often."""
    bits = 0
    while count >> bits:
        bits += 1
    drawn_bits = drawn(moves, bits)
    if moves.state[0].near:
        drawn_bits = min(drawn_bits, drawn(moves, bits))
    return drawn(moves, 1 << drawn_bits)


@compiled
def _move(graph: Graph, moves: Moves, place: int, put_off: int, most: int) -> None:
    """What stands at a place by at most so many places, later or sooner."""
    distance = 1 + _far(moves, most)
    if put_off:
        later(graph, moves, place, place + distance)
    else:
        sooner(graph, moves, place, place - distance)


@compiled
def _mark_neighbours(graph: Graph, moves: Moves, node: int, forward: int, mark: int) -> None:
    """Of what needs a node (``forward``), or of what it needs."""
    rows = graph.rows
    begin, end = rows[node].preds, rows[node + 1].preds
    if forward:
        begin, end = rows[node].users, rows[node + 1].users
    for k in range(begin, end):
        moves.nodes[graph.items[k]].mark = mark


@compiled
def sooner(graph: Graph, moves: Moves, place: int, to: int) -> None:
    """Move what stands at a place ahead, with what it needs."""
    places, nodes = moves.places, moves.nodes
    to = max(to, moves.state[0].first)
    if to >= place or place >= len(places) - 1:
        return
    nodes[places[place].node].mark = 1
    for back in range(place - to + 1):
        node = places[place - back].node
        if nodes[node].mark:
            _mark_neighbours(graph, moves, node, 0, 1)
    _parted(moves, to, place + 1, 1)
    _unmarked(graph, moves, to, place + 1, 0)


@compiled
def later(graph: Graph, moves: Moves, place: int, to: int) -> None:
    """Put off what stands at a place, with what needs it."""
    places, nodes = moves.places, moves.nodes
    to = min(to, len(places) - 2)
    if to <= place:
        return
    nodes[places[place].node].mark = 1
    for at in range(place, to + 1):
        node = places[at].node
        if nodes[node].mark:
            _mark_neighbours(graph, moves, node, 1, 1)
    _parted(moves, place, to + 1, 0)
    _unmarked(graph, moves, place, to + 1, 1)


@compiled
def _parted(moves: Moves, begin: int, end: int, mark: int) -> None:
    """First those with this mark, then the others, each in their order."""
    places, nodes, at, state = moves.places, moves.nodes, begin, moves.state[0]
    state.begin, state.end = min(state.begin, begin), max(state.end, end)
    for place in range(begin, end):
        node = places[place].node
        if nodes[node].mark == mark:
            places[at].other = node
            at += 1
    for place in range(begin, end):
        node = places[place].node
        if nodes[node].mark != mark:
            places[at].other = node
            at += 1
    for place in range(begin, end):
        places[place].node = places[place].other


@compiled
def _unmarked(graph: Graph, moves: Moves, begin: int, end: int, forward: int) -> None:
    """Take marks away, those of neighbours outside of the stretch too."""
    places, nodes = moves.places, moves.nodes
    for place in range(begin, end):
        node = places[place].node
        if not nodes[node].mark:
            continue
        nodes[node].mark = 0
        _mark_neighbours(graph, moves, node, forward, 0)


@compiled
def allowed(graph: Graph, moves: Moves) -> bool:
    """Whether the order keeps the limits on collectives in flight."""
    state, nodes = moves.state[0], moves.nodes
    if state.in_flight < 0 and state.prefetch < 0:
        return True
    computed = flying = 0
    for node in range(len(nodes)):
        nodes[node].unwaited = graph.rows[node + 1].waits - graph.rows[node].waits
        if graph.nodes[node].placeholder and nodes[node].unwaited:
            flying += graph.nodes[node].bytes
    for place in range(len(nodes)):
        node = moves.places[place].node
        facts = graph.nodes[node]
        computed += facts.compute
        if facts.stream >= 0 and nodes[node].unwaited:
            flying += facts.bytes
            nodes[node].computed = computed
            if state.in_flight >= 0 and flying > state.in_flight:
                return False
        elif facts.waited >= 0:
            launch, source = nodes[facts.waited], graph.nodes[facts.waited]
            first = launch.unwaited == graph.rows[facts.waited + 1].waits - graph.rows[facts.waited].waits
            launch.unwaited -= 1
            if not launch.unwaited:
                flying -= source.bytes
            far = computed - launch.computed > max(state.prefetch, source.between)
            if first and far and source.asynchronous and state.prefetch >= 0:
                return False
    return True


@compiled
def tried_step(graph: Graph, moves: Moves) -> int:
    """The step of the order that is tried; quicker than all that :func:`measure` finds."""
    _put_down(moves)
    return step_of(graph, moves.order, moves.scratch)


@compiled
def _put_down(moves: Moves) -> None:
    for place in range(len(moves.places)):
        moves.order[place] = moves.places[place].node


@compiled
def measure(graph: Graph, moves: Moves) -> None:
    """What the order that is tried comes to."""
    state = moves.state[0]
    _put_down(moves)
    step, peak, run = judged(graph, moves.order, moves.scratch)
    state.new_step, state.new_peak, state.new_run = step, peak, run
    state.new_over = max(0, peak - state.budget) if state.budget >= 0 else 0
    state.new_excess = 0
    if state.new_over and state.lower:
        for place in range(len(moves.order)):
            state.new_excess += max(0, moves.scratch.live[place] - state.budget)


@compiled
def keep(graph: Graph, moves: Moves) -> None:
    """The order that was tried is the one so far; where it stalls."""
    state, places = moves.state[0], moves.places
    state.over, state.step, state.run, state.peak = state.new_over, state.new_step, state.new_run, state.new_peak
    state.excess = state.new_excess
    now = state.stalls = 0
    end = moves.scratch.end
    for block in range(len(moves.stalls)):
        moves.stalls[block] = 0
    for place in range(len(places)):
        node = places[place].node
        facts = graph.nodes[node]
        places[place].kept, places[place].stall = node, 0
        if facts.waited >= 0 and facts.stream < 0:
            places[place].stall = max(0, end[facts.waited] - now)
            now = max(now, end[facts.waited])
        else:
            now += facts.compute_ns
        moves.stalls[place // BLOCK] += places[place].stall
        state.stalls += places[place].stall
