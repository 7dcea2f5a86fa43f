"""Makes the longest runs of compute between reduce-scatters shorter where the step does not become longer.

    order = evened(problem, limits, order)

:mod:`commcc.schedule.runs` launches reduce-scatters sooner. Where each of them needs compute of its own, as under
tensor parallelism, a long run is one that holds more compute than others which nothing nearby needs: gradients of
weights. So of one of the longest runs, in turn

1. a compute node goes behind one of the next reduce-scatters, with what needs it;
2. a compute node goes ahead of one of the last reduce-scatters, with what it needs;
3. one of the next reduce-scatters goes to a place within the run, with what it needs.

Taken is the first move by which the longest runs become fewer or shorter, as the sum of fourth powers says, within the
limits and with the same step. It ends where one of the longest runs stays, or when so many nodes were looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commcc.base.jit import compiled, kernel
from commcc.schedule.moves import SHORT, Moves, allowed, begin, keep, later, measure, sooner, tried_step, with_payers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from commcc.schedule.arrays import Graph, Ints
    from commcc.schedule.problem import Limits, Problem

    Flags = NDArray[np.bool_]

#: A step is the same where it is longer by no more than one of so many parts.
_SAME = 100_000
#: So many reduce-scatters ahead and behind are looked at.
_NEAR = 8
#: Nodes looked at in all, so many for each try, and until one of the longest runs stays.
_NODES, _IN_VAIN = 8_000_000, 2_000_000


def evened(problem: Problem, limits: Limits, order: Sequence[int] | Ints) -> Ints:
    """The order with shorter runs, as far as they are found; the same step, and no more memory beyond the budget."""
    best = np.array(order, np.int64)
    moves = Moves.of(problem, limits, best)
    graph, places, state = with_payers(problem, best), moves.places, moves.state[0]
    begin(graph, moves)
    ends, computes = graph.nodes.ends > 0, graph.nodes.compute > 0
    most, tries, moved = int(state.step) + int(state.step) // _SAME, _NODES // len(places), True
    in_vain = _IN_VAIN // len(places)
    while moved and state.run > SHORT and tries > 1:
        pairs = _candidates(ends[best], computes[best], int(state.run))[: min(in_vain, tries - 1)]
        tried = _first_taken(graph, moves, pairs, most)
        moved = tried > 0
        tries -= tried if moved else len(pairs)
        best = places.kept.copy() if moved else best
    return best


def _candidates(is_end: Flags, is_compute: Flags, longest: int) -> Ints:
    """What to move of one of the longest runs, and where to: pairs of places. is_end, is_compute: by place."""
    ends, computed = np.flatnonzero(is_end), np.flatnonzero(is_compute)
    before = np.searchsorted(computed, [*ends.tolist(), len(is_end)])
    runs = np.diff(before, prepend=0)
    number = int(np.argmax(runs == longest))
    own = computed[before[number] - longest : before[number]]
    ahead, behind = ends[number : number + _NEAR], ends[max(0, number - _NEAR) : number][::-1]
    places = np.concatenate([np.tile(own[::-1], len(ahead)), np.tile(own, len(behind)), np.repeat(ahead, longest - 1)])
    to = np.concatenate([np.repeat(ahead, longest), np.repeat(behind, longest), np.tile(own[1:], len(ahead))])
    return np.stack([places, to], 1)


@kernel
def _first_taken(graph: Graph, moves: Moves, pairs: Ints, most: int) -> int:
    """Take the first move that helps; how many were looked at then, 0 where none does. pairs: two places each."""
    for number in range(len(pairs)):
        if _taken(graph, moves, pairs[number, 0], pairs[number, 1], most):
            return number + 1
    return 0


@compiled
def _taken(graph: Graph, moves: Moves, place: int, to: int, most: int) -> bool:
    """Whether a move makes long runs fewer within the limits; if not, it is taken back."""
    state, places = moves.state[0], moves.places
    # Nothing changes but what stands between; runs that reach into that end where reduce-scatters stand around it.
    begin, end = min(place, to), max(place, to) + 1
    first, last = begin, end
    while first > 0 and not graph.nodes[places[first - 1].node].ends:
        first -= 1
    while last < len(places) and not graph.nodes[places[last].node].ends:
        last += 1
    before = _weight(graph, moves, first, last)
    if to > place:
        later(graph, moves, place, to)
    else:
        sooner(graph, moves, place, to)
    # Most moves make the step longer, and the memory of an order takes as long as its step.
    shorter = _weight(graph, moves, first, last) < before
    if shorter and tried_step(graph, moves) <= most and allowed(graph, moves):
        measure(graph, moves)
        if state.new_over <= state.over and state.new_run <= state.run:
            keep(graph, moves)
            return True
    for at in range(begin, end):
        places[at].node = places[at].kept
    return False


@compiled
def _weight(graph: Graph, moves: Moves, first: int, last: int) -> int:
    """The sum of the fourth powers of the runs of compute of a stretch."""
    whole = run = 0
    for place in range(first, last):
        facts = graph.nodes[moves.places[place].node]
        if facts.ends:
            whole += run * run * run * run
            run = 0
        elif facts.compute:
            run += 1
    return whole + run * run * run * run
