"""What can run, by how soon it has to; kernels.

When a node has to run at the latest is known before the first one runs, so places are sorted by it once, for all steps
that are aimed at, and what can run is a set of ranks: a heap would take and give back what the limits refuse, step
after step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commcc.base.jit import compiled, kernel
from commcc.schedule.ready import add_position, drop_position, next_position, no_positions

if TYPE_CHECKING:
    from commcc.schedule.arrays import Graph, Ints

#: Bits that are sorted by at a time.
_DIGIT = 12
#: Longer than any compute: what leads to no launch.
_NO_LAUNCH = 1 << 50


class Urgency(NamedTuple):
    """latest, places, ranks: as in :class:`Ranked`. waiting: the ranks of what can run; none of them is before
    ``first[0]``.
    """

    latest: Ints
    places: Ints
    ranks: Ints
    waiting: Ints
    first: Ints


class Ranked(NamedTuple):
    """latest: by place, when it has to run, less the step that is aimed at. places: by rank. ranks: by place."""

    latest: Ints
    places: Ints
    ranks: Ints


class _Sorting(NamedTuple):
    """See :class:`Ranked`. other, counts: to sort by."""

    latest: Ints
    places: Ints
    ranks: Ints
    other: Ints
    counts: Ints


def ranked(graph: Graph, base: Ints, own_permille: int, launch_permille: int) -> Ranked:
    """What has to run first, of an order; what has to run at the same time in its own order. own_permille,
    launch_permille: see :class:`commcc.schedule.scheduler.Policy`.
    """
    latest, places, ranks, other = np.empty((4, len(base)), np.int64)
    sorting = _Sorting(latest, places, ranks, other, np.empty((1 << _DIGIT) + 1, np.int64))
    _rank(graph, base, own_permille, launch_permille, sorting)
    return Ranked(latest, places, ranks)


def urgency(known: Ranked) -> Urgency:
    """Of places of which none can run yet."""
    return Urgency(*known, no_positions(len(known.places)), np.zeros(1, np.int64))


@kernel
def _rank(graph: Graph, base: Ints, own_permille: int, launch_permille: int, of: _Sorting) -> None:
    count, least, most = len(base), 0, 0
    _to_launches(graph, base, of.other)
    for place in range(count):
        facts = graph.nodes[base[place]]
        put_off = min(of.other[base[place]], facts.tail) * launch_permille // 1000
        of.latest[place] = put_off - facts.tail - facts.compute_ns * own_permille // 1000
        of.places[place] = place
        least = min(least, of.latest[place])
        most = max(most, of.latest[place])
    shift = 0
    while (most - least) >> shift:
        _sort_by_digit(of, least, shift)
        shift += _DIGIT
    for rank in range(count):
        of.ranks[of.places[rank]] = rank


@compiled
def _to_launches(graph: Graph, base: Ints, to_launch: Ints) -> None:
    """By node, what compute takes up to the next launch that it leads to, itself included, in ns."""
    rows, count = graph.rows, len(base)
    for node in range(count):
        to_launch[node] = _NO_LAUNCH
    for back in range(count):
        node, least = base[count - 1 - back], _NO_LAUNCH
        if graph.nodes[node].stream >= 0 and rows[node].waits < rows[node + 1].waits:
            least = 0
        else:
            for k in range(rows[node].users, rows[node + 1].users):
                least = min(least, to_launch[graph.items[k]])
            least = min(least + graph.nodes[node].compute_ns, _NO_LAUNCH)
        to_launch[node] = least


@compiled
def _sort_by_digit(of: _Sorting, least: int, shift: int) -> None:
    """One round of a radix sort; what has the same digit stays as it stands."""
    counts, count, last = of.counts, len(of.latest), (1 << _DIGIT) - 1
    for digit in range(len(counts)):
        counts[digit] = 0
    for place in range(count):
        counts[(((of.latest[place] - least) >> shift) & last) + 1] += 1
    for digit in range(last):
        counts[digit + 1] += counts[digit]
    for rank in range(count):
        place = of.places[rank]
        digit = ((of.latest[place] - least) >> shift) & last
        of.other[counts[digit]] = place
        counts[digit] += 1
    for rank in range(count):
        of.places[rank] = of.other[rank]


@compiled
def add_urgent(of: Urgency, place: int) -> None:
    """It can run now."""
    rank = of.ranks[place]
    of.first[0] = min(of.first[0], rank)
    add_position(of.waiting, rank)


@compiled
def drop_urgent(of: Urgency, place: int) -> None:
    """It has run."""
    drop_position(of.waiting, of.ranks[place])


@compiled
def most_urgent(of: Urgency) -> int:
    """The first rank of all that can run; -1 where nothing can."""
    rank = next_position(of.waiting, of.first[0])
    of.first[0] = rank if rank >= 0 else len(of.places)
    return rank


@compiled
def next_urgent(of: Urgency, rank: int) -> int:
    """The first rank after this one; -1 for none."""
    return next_position(of.waiting, rank + 1)
