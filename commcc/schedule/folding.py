"""Takes nodes together that no schedule has to tell apart: what takes no time goes along with a neighbour.

    small = fold(graph)                             # small.graph: a node for each unit
    order = unfold(graph, small, schedule of small.graph)

More than half of a training graph are views, casts of parameters and parts of fused chains, which take no time on
the compute stream. Two kinds can stand next to a neighbour without any loss, so a schedule is made of units:

1. what has a single operand, and touches no memory that this does not touch (a view), goes with its operand;
2. what has a single user, and touches no memory that this does not touch, graph inputs left out (a cast of a parameter
   for its launch), goes with its user. It makes its result there, which takes no more memory than sooner.

Writes, collectives, waits, graph inputs, the output and what counts as compute are units of their own. Step, peak
memory and longest run of compute of an order of units are those of the order that :func:`unfold` makes of it. There
nodes of kind 2 stand ahead of their user. Those of kind 1 stand where the graph has them, or sooner where something
needs them; where that would keep memory, behind their operand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commcc.base.jit import compiled, kernel
from commcc.schedule.arrays import TABLES, Graph, by_key, records
from commcc.schedule.tables import Making, count_needed, feed, pair, sorted_rows

if TYPE_CHECKING:
    from collections.abc import Collection

    from commcc.schedule.arrays import Ints, Records

#: By node. into: the node that it goes with by rule 1, or itself. root: of its unit. only: the only unit that uses it
#: or what goes with it by rule 1, by its root; -1 for none, -2 for several. unit: by number. pinned: it goes with none,
#: and nothing that it needs goes with it.
FOLD = ("into", "root", "only", "unit", "pinned")
_NONE, _SEVERAL = -1, -2


class Folded(NamedTuple):
    """graph: a node for each unit, in the order of their roots. folds: see :data:`FOLD`. members: nodes by unit, each
    unit's in order; begins: where a unit's begin and end.
    """

    graph: Graph
    folds: Records
    members: Ints
    begins: Ints


def fold(graph: Graph, pinned: Collection[int] = ()) -> Folded:
    """The graph in units; a legal order of the graph becomes a legal order of units.

    pinned: nodes that what goes with its user does not go with, and that go with nothing themselves.
    """
    count = len(graph.nodes)
    folds = records(count, FOLD)
    folds.pinned[list(pinned)] = 1
    _find_roots(graph, folds)
    is_root = folds.root == np.arange(count)
    folds.unit = (np.cumsum(is_root) - 1)[folds.root]
    nodes = graph.nodes[is_root]
    waits = nodes.waited >= 0
    nodes.waited[waits] = folds.unit[nodes.waited[waits]]
    units, most = len(nodes), len(graph.items) + 1
    small = Graph(
        nodes=nodes,
        buffers=graph.buffers,
        rows=records(units + 1, TABLES),
        items=np.empty(most, np.int64),
        launches=folds.unit[graph.launches],
        streams=graph.streams,
        slowdown_permille=graph.slowdown_permille,
    )
    owners, things, starts, by_thing = np.empty((4, max(most, len(graph.buffers) + 1)), np.int64)
    ends, marks, sums = np.zeros((3, units + 1), np.int64)
    making = Making(small, owners, things, starts, by_thing, ends, marks, np.empty(0, np.int64), sums)
    place, needed = _fill(graph, folds, making)
    pairs = np.empty((3, needed), np.int64)
    small = small._replace(items=np.append(small.items[:place], np.empty(needed, np.int64)))
    making = making._replace(graph=small, owners=pairs[0], things=pairs[1], by_thing=pairs[2])
    small = small._replace(items=small.items[: feed(making, place)])
    return Folded(small, folds, *by_key(folds.unit, np.arange(count), units))


def unfold(graph: Graph, folded: Folded, order: Ints) -> Ints:
    """The order of all nodes that an order of units stands for."""
    count = len(graph.nodes)
    laid = Laid(np.empty(count, np.int64), np.zeros(count, np.int64), np.empty(count, np.int64), np.zeros(2, np.int64))
    _lay_out(graph, folded.folds, folded.members, folded.begins, order, laid)
    return laid.order


@kernel
def _find_roots(graph: Graph, folds: Records) -> None:
    count = len(folds)
    for node in range(count):
        folds[node].into, folds[node].root, folds[node].only = node, node, _NONE
        one = graph.rows[node + 1].preds - graph.rows[node].preds == 1
        if one and not folds[node].pinned and _idle(graph, node):
            into = folds[graph.items[graph.rows[node].preds]].into
            if not graph.nodes[into].placeholder and _within(graph, node, into):
                folds[node].into = into
    # Users come first: what goes with a user goes where that went.
    for back in range(count):
        node = count - 1 - back
        mine = folds[folds[node].into]
        for k in range(graph.rows[node].users, graph.rows[node + 1].users):
            user = folds[folds[graph.items[k]].into].root
            if user != folds[node].into and mine.only != user:
                mine.only = user if mine.only == _NONE else _SEVERAL
        if folds[node].into != node or mine.pinned or mine.only < 0 or mine.only == count - 1:
            continue
        if not folds[mine.only].pinned and _idle(graph, node) and _within(graph, node, mine.only):
            mine.root = mine.only
    for node in range(count):
        folds[node].root = folds[folds[node].into].root


@compiled
def _idle(graph: Graph, node: int) -> bool:
    """Whether a node takes no time, and nothing but what it reads and makes follows from where it stands."""
    facts = graph.nodes[node]
    if facts.compute_ns or facts.stream >= 0 or facts.waited >= 0 or facts.placeholder or facts.compute:
        return False
    if facts.writes or facts.fixed or facts.ends or node == len(graph.nodes) - 1:
        return False
    return bool(graph.rows[node].waits == graph.rows[node + 1].waits)


@compiled
def _within(graph: Graph, node: int, other: int) -> bool:
    """Whether all memory that a node touches is touched by another one as well, or is there from the start."""
    begin, end = graph.rows[other].touched, graph.rows[other + 1].touched
    at = begin
    for k in range(graph.rows[node].touched, graph.rows[node + 1].touched):
        buffer, left = graph.items[k], end - begin
        if graph.buffers[buffer].input or not graph.buffers[buffer].bytes:
            continue
        # Rows of many, as all parts of a call have, are in the same order: the next one stands behind the last one.
        while left and graph.items[at] != buffer:
            left -= 1
            at += 1
            if at == end:
                at = begin
        if not left:
            return False
    return True


@kernel
def _fill(graph: Graph, folds: Records, making: Making) -> tuple[int, int]:
    """All tables of the graph of units but ``needed_by``; how many items they have, and how many pairs that one."""
    small, units, buffers = making.graph, len(making.graph.nodes), len(graph.buffers)
    rows = graph.rows
    pairs = _unit_pairs(graph, folds, making, rows.preds)
    place = sorted_rows(making, pairs, units, small.rows.preds, 0)
    pairs = 0
    for unit in range(units):
        small.nodes[unit].missing = small.rows[unit + 1].preds - small.rows[unit].preds
        for k in range(small.rows[unit].preds, small.rows[unit + 1].preds):
            pairs = pair(making, pairs, small.items[k], unit)
    place = sorted_rows(making, pairs, units, small.rows.users, place)
    pairs = _unit_pairs(graph, folds, making, rows.waits)
    place = sorted_rows(making, pairs, units, small.rows.waits, place)
    pairs = _unit_pairs(graph, folds, making, rows.prepares)
    place = sorted_rows(making, pairs, units, small.rows.prepares, place)
    place = _feeds(graph, folds, making, place)
    pairs = _buffer_pairs(graph, folds, making, rows.touched)
    place = sorted_rows(making, pairs, buffers, small.rows.touched, place)
    pairs = _buffer_pairs(graph, folds, making, rows.allocated)
    place = sorted_rows(making, pairs, buffers, small.rows.allocated, place)
    for node in range(len(graph.nodes)):
        if folds[node].root == node:
            small.rows[folds[node].unit].resized = place
            for k in range(rows[node].resized, rows[node + 1].resized):
                small.items[place] = graph.items[k]
                place += 1
    small.rows[units].resized = place
    return place, _count_needed(graph, folds, making)


@compiled
def _unit_pairs(graph: Graph, folds: Records, making: Making, begins: Ints) -> int:
    """Pairs of units from a table of nodes, a unit's own nodes left out; how many."""
    pairs = 0
    for node in range(len(graph.nodes)):
        for k in range(begins[node], begins[node + 1]):
            if folds[graph.items[k]].unit != folds[node].unit:
                pairs = pair(making, pairs, folds[node].unit, folds[graph.items[k]].unit)
    return pairs


@compiled
def _buffer_pairs(graph: Graph, folds: Records, making: Making, begins: Ints) -> int:
    """Pairs of units and buffers from a table of buffers; how many."""
    pairs = 0
    for node in range(len(graph.nodes)):
        for k in range(begins[node], begins[node + 1]):
            pairs = pair(making, pairs, folds[node].unit, graph.items[k])
    return pairs


@compiled
def _feeds(graph: Graph, folds: Records, making: Making, place: int) -> int:
    """Table ``feeds``. What goes with a node that is not in the row, such as a view of a result that is waited for, is
    there with that.
    """
    small, rows, pairs, units = making.graph, graph.rows, 0, len(making.graph.nodes)
    for node in range(len(graph.nodes)):
        begin, end = rows[node].feeds, rows[node + 1].feeds
        for k in range(begin, end):
            root, inside = folds[graph.items[k]].root, 0
            for at in range(begin, end):
                inside = max(inside, 1 if graph.items[at] == root else 0)
            if inside:
                pairs = pair(making, pairs, folds[node].unit, folds[root].unit)
    return sorted_rows(making, pairs, units, small.rows.feeds, place)


@compiled
def _count_needed(graph: Graph, folds: Records, making: Making) -> int:
    """How many pairs table ``needed_by`` is made of, for reduce-scatters that have such rows."""
    needed = 0
    for node in range(len(graph.nodes)):
        for k in range(graph.rows[node].needed_by, graph.rows[node + 1].needed_by):
            making.before[folds[graph.items[k]].unit] = 1
    for unit in range(len(making.graph.nodes)):
        needed = count_needed(making, unit, needed, 0)
    return needed


class Laid(NamedTuple):
    """order: of the nodes so far; done: by node, whether it is in it; stack: for nodes to come; counts: how many are in
    it, and the first node of the graph that is not.
    """

    order: Ints
    done: Ints
    stack: Ints
    counts: Ints


@kernel
def _lay_out(graph: Graph, folds: Records, members: Ints, begins: Ints, units: Ints, laid: Laid) -> None:
    for unit in units:
        root = folds[members[begins[unit]]].root
        for k in range(begins[unit], begins[unit + 1]):
            if folds[members[k]].into == members[k] and members[k] != root:
                _put(graph, folds, laid, members[k])
        _put(graph, folds, laid, root)
        for k in range(begins[unit], begins[unit + 1]):
            if not laid.done[members[k]] and not _can_wait(graph, members[k]):
                _put(graph, folds, laid, members[k])


@compiled
def _can_wait(graph: Graph, node: int) -> bool:
    """Whether the memory that a node touches is there for a user of it anyway, so that it may come as late as that."""
    covered = 0
    for k in range(graph.rows[node].users, graph.rows[node + 1].users):
        covered = max(covered, 1 if _within(graph, node, graph.items[k]) else 0)
    return bool(covered)


@compiled
def _put(graph: Graph, folds: Records, laid: Laid, node: int) -> None:
    """Put a node at the end, after views that it needs; then views that stand next in the graph."""
    done, counts = laid.done, laid.counts
    for k in range(graph.rows[node].preds, graph.rows[node + 1].preds):
        _append(graph, laid, graph.items[k])
    _append(graph, laid, node)
    front = counts[1]
    while front < len(done):
        if not done[front]:
            if folds[front].into == front:
                break
            _append(graph, laid, front)
        front += 1
    counts[1] = front


@compiled
def _append(graph: Graph, laid: Laid, node: int) -> None:
    """A node that is not there yet, after a row of views of which each needs the one before."""
    size, at = 0, node
    while not laid.done[at]:
        laid.done[at] = 1
        laid.stack[size] = at
        size += 1
        if graph.rows[at].preds < graph.rows[at + 1].preds:
            at = graph.items[graph.rows[at].preds]
    while size:
        size -= 1
        laid.order[laid.counts[0]] = laid.stack[size]
        laid.counts[0] += 1
