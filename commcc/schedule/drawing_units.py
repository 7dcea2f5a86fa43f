"""Where the nodes of a graph stand once buckets are merged in it; kernels of :mod:`commcc.schedule.drawing`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from commcc.base.jit import compiled, kernel
from commcc.schedule.heaps import pop, push
from commcc.schedule.pieces import STAYS

if TYPE_CHECKING:
    from commcc.schedule.arrays import Graph, Ints, Records
    from commcc.schedule.heaps import Heaps

#: By unit: nodes of the graph before keep their numbers, units of buckets follow. key: what they are put in order by.
#: length: nodes in it. at: the number of its first one. For nodes of the graph before also: gives: the unit that stands
#: for it for what needs it; takes: the unit that needs what it needs; within: which of the former's nodes stands for
#: it; number: that of this node; hoisted: the position of the launch that it moves with, and bucket the number of that
#: bucket.
UNIT = ("key", "length", "at", "gives", "takes", "within", "number", "hoisted", "bucket")
#: By node of a bucket: its number.
FRESH = ("number",)


class Rows(NamedTuple):
    """The row of an owner begins at ``begins[owner]`` and ends where the next one's begins."""

    begins: Ints
    items: Ints


class Draft(NamedTuple):
    """What a merged graph is drawn from, and what is known of it so far.

    graph: the graph before. preds: what its nodes need, of the last one only what it returns. facts: of its nodes,
    whether each runs a kernel of its own. heads, words: of pieces; see :data:`HEAD`. buffers:
    the numbers of its buffers. launch_ns: what a launch takes on the compute stream.
    """

    graph: Graph
    preds: Rows
    facts: Records
    heads: Records
    words: Ints
    units: Records
    fresh: Records
    buffers: Ints
    launch_ns: int


class Ordering(NamedTuple):
    """by_rank: units by their keys. rank: of units. missing: how many a rank still needs. begins, users: the ranks that
    need each one. ends: where the row of each ends so far.
    """

    by_rank: Ints
    rank: Ints
    missing: Ints
    begins: Ints
    ends: Ints
    users: Ints


@kernel
def lay_out(draft: Draft) -> None:
    """All that units need but for ``at`` and ``number``."""
    units, heads, words, count = draft.units, draft.heads, draft.words, len(draft.graph.nodes)
    ranks = 2 * len(heads) + len(units) - count + 2
    for node in range(count):
        mine = units[node]
        mine.key, mine.length = ((node + 1) * 4 + STAYS) * ranks, 1
        mine.gives, mine.takes = node, node
    first = count
    for bucket in range(len(heads)):
        head, unit = heads[bucket], first
        for row in range(head.units, head.members, 4):
            mine = units[unit]
            mine.length, mine.key = words[row], words[row + 1] * ranks + words[row + 2] + words[row + 3] * bucket
            mine.gives, mine.takes = unit, unit
            unit += 1
        for row in range(head.members, head.hoist, 4):
            mine = units[words[row]]
            mine.gives, mine.takes, mine.within = first + words[row + 1], first + words[row + 2], words[row + 3]
        launch = words[head.units + 1]
        for row in range(head.hoist, head.nodes):
            mine = units[words[row]]
            # A cast may serve several launches: it goes along with the first one.
            if not mine.hoisted or launch < mine.hoisted:
                mine.hoisted, mine.bucket = launch, bucket
                mine.key = launch * ranks + 2 * bucket
        first = unit
    for node in range(count):
        if draft.graph.nodes[node].placeholder:
            units[node].key = STAYS * ranks + 2 * units[node].bucket
    units[count - 1].key = (count + 1) * 4 * ranks


@kernel
def in_order(draft: Draft, scratch: Ordering, free: Heaps) -> int:
    """Put units in the order in which :func:`commcc.apply.order.arrange` has them, and give their nodes numbers; how
    many there are, -1 where buckets wait for each other.
    """
    units, count = draft.units, len(draft.graph.nodes)
    rank, begins, alive = scratch.rank, scratch.begins, 0
    for unit in scratch.by_rank:
        if units[unit].takes == unit:
            rank[unit] = alive
            scratch.by_rank[alive] = unit
            alive += 1
    _edges(draft, scratch, 0)
    for place in range(alive):
        begins[place + 1] += begins[place]
        scratch.ends[place] = begins[place]
    _edges(draft, scratch, 1)
    for place in range(alive):
        if not scratch.missing[place]:
            push(free, 0, place, place)
    placed = number = 0
    while free.sizes[0]:
        place = pop(free, 0)[1]
        mine = units[scratch.by_rank[place]]
        mine.at, number = number, number + mine.length
        placed += 1
        for k in range(begins[place], begins[place + 1]):
            user = scratch.users[k]
            scratch.missing[user] -= 1
            if not scratch.missing[user]:
                push(free, 0, user, user)
    if placed < alive:
        return -1
    for node in range(count):
        units[node].number = units[units[node].gives].at + units[node].within
    _number(draft)
    return number


@compiled
def _edges(draft: Draft, scratch: Ordering, write: int) -> None:
    """Count, or write, which unit needs which."""
    units, preds, heads = draft.units, draft.preds, draft.heads
    for node in range(len(draft.graph.nodes)):
        then = units[node].takes
        for k in range(preds.begins[node], preds.begins[node + 1]):
            first = units[preds.items[k]].gives
            if first != then:
                _edge(scratch, first, then, write)
    unit = len(draft.graph.nodes)
    for head in heads:
        first = unit
        for _ in range(head.units, head.members, 4):
            # A wait comes after its launch, a result after the wait.
            if unit > first:
                _edge(scratch, min(unit - 1, first + 1), unit, write)
            unit += 1


@compiled
def _edge(scratch: Ordering, first: int, then: int, write: int) -> None:
    needed, user = scratch.rank[first], scratch.rank[then]
    if write:
        scratch.users[scratch.ends[needed]] = user
        scratch.ends[needed] += 1
    else:
        scratch.missing[user] += 1
        scratch.begins[needed + 1] += 1


@compiled
def _number(draft: Draft) -> None:
    """Give the nodes of buckets their numbers."""
    unit, node = len(draft.graph.nodes), 0
    for head in draft.heads:
        for row in range(head.nodes, head.edges, 3):
            draft.fresh[node].number = draft.units[unit + draft.words[row]].at + draft.words[row + 1]
            node += 1
        unit += (head.members - head.units) >> 2
