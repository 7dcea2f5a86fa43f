"""What stands where in a graph with buckets merged: its nodes, buffers and tables; kernels of
:mod:`commcc.schedule.drawing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.jit import compiled, kernel
from commcc.schedule.judge import most_in_flight
from commcc.schedule.pieces import INNER, NEW, OLD
from commcc.schedule.problem import FEW, LIGHT, MAX_FEEDING, MAX_PREPARATION
from commcc.schedule.tables import Making, count_needed, pair, sorted_rows

if TYPE_CHECKING:
    from commcc.schedule.arrays import Graph, Ints
    from commcc.schedule.drawing_units import Draft


@kernel
def fill(draft: Draft, making: Making, order: Ints) -> tuple[int, int, int]:
    """All but table ``needed_by``. How many items there are, how many pairs that table is made of, and bytes in flight
    at most, in the order of the nodes.
    """
    _nodes(draft, making.graph)
    _fresh_nodes(draft, making.graph)
    _buffers(draft, making.graph)
    place = _preds(draft, making)
    place = _waits(making, place)
    place = _prepares(draft, making, place)
    place, needed = _feeds(making, place)
    before, rows = draft.graph.rows, making.graph.rows
    place = _by_buffer(draft, making, before.touched, rows.touched, 0, place)
    place = _by_buffer(draft, making, before.allocated, rows.allocated, 1, place)
    return _resized(draft, making.graph, place), needed, most_in_flight(making.graph, order, making.ends)


@compiled
def _nodes(draft: Draft, graph: Graph) -> None:
    """Those of the graph before."""
    units = draft.units
    for node in range(len(draft.graph.nodes)):
        if units[node].takes != node:
            continue
        mine, facts = graph.nodes[units[node].number], draft.graph.nodes[node]
        mine.compute_ns, mine.transfer, mine.bytes = facts.compute_ns, facts.transfer, facts.bytes
        mine.stream, mine.asynchronous, mine.compute = facts.stream, facts.asynchronous, facts.compute
        mine.placeholder, mine.prepared = facts.placeholder, facts.prepared
        mine.ends, mine.fixed, mine.writes, mine.waited = facts.ends, facts.fixed, facts.writes, -1
        if facts.waited >= 0:
            mine.waited = units[facts.waited].number


@compiled
def _fresh_nodes(draft: Draft, graph: Graph) -> None:
    """Those of buckets."""
    words, first = draft.words, 0
    for head in draft.heads:
        node = first
        for row in range(head.nodes, head.edges, 3):
            mine = graph.nodes[draft.fresh[node].number]
            mine.stream, mine.waited, mine.compute_ns = -1, -1, words[row + 2]
            node += 1
        number = draft.fresh[first + head.launch].number
        mine, facts = graph.nodes[number], draft.graph.nodes[head.first]
        mine.stream, mine.asynchronous, mine.ends = facts.stream, facts.asynchronous, facts.ends
        mine.compute_ns, mine.transfer, mine.bytes = draft.launch_ns, head.transfer, head.flight
        for row in range(head.waits, head.end):
            graph.nodes[draft.fresh[first + words[row]].number].waited = number
        first = node


@compiled
def _buffers(draft: Draft, graph: Graph) -> None:
    """Those of the graph before, one that each launch writes, and the others of pieces."""
    before, words = draft.graph.buffers, draft.words
    written, new = len(before), len(before) + len(draft.heads)
    for head in draft.heads:
        for row in range(head.views, head.sizes):  # members whose result is a view live in the merged one
            draft.buffers[words[row]] = written
        graph.buffers[written].bytes = head.received
        written += 1
        for row in range(head.sizes, head.waits):
            graph.buffers[new].bytes = words[row]
            new += 1
    for buffer in range(len(before)):
        mine, facts = graph.buffers[buffer], before[buffer]
        mine.bytes, mine.input = facts.bytes, facts.input
        mine.kept = max(mine.kept, facts.kept)
        if facts.kept:
            graph.buffers[draft.buffers[buffer]].kept = 1


@compiled
def _preds(draft: Draft, making: Making) -> int:
    """Tables ``preds`` and ``users``; the first items."""
    graph, units, words = making.graph, draft.units, draft.words
    pairs, first, count = 0, 0, len(graph.nodes)
    for node in range(len(draft.graph.nodes)):
        if units[node].takes == node:
            for k in range(draft.preds.begins[node], draft.preds.begins[node + 1]):
                pairs = pair(making, pairs, units[node].number, units[draft.preds.items[k]].number)
    for head in draft.heads:
        for row in range(head.edges, head.buffers, 3):
            needed = words[row + 2]
            number = draft.fresh[first + needed].number if words[row + 1] == INNER else units[needed].number
            pairs = pair(making, pairs, draft.fresh[first + words[row]].number, number)
        first += head.count
    for k in range(pairs):
        making.marks[making.things[k]] = 1
    for node in range(count - 1):
        if not making.marks[node]:  # the output ends the graph, whatever it returns
            pairs = pair(making, pairs, count - 1, node)
        making.marks[node] = 0
    making.marks[count - 1] = 0
    place = sorted_rows(making, pairs, count, graph.rows.preds, 0)
    pairs = 0
    for node in range(count):
        graph.nodes[node].missing = graph.rows[node + 1].preds - graph.rows[node].preds
        for k in range(graph.rows[node].preds, graph.rows[node + 1].preds):
            pairs = pair(making, pairs, graph.items[k], node)
    return sorted_rows(making, pairs, count, graph.rows.users, place)


@compiled
def _waits(making: Making, place: int) -> int:
    """Table ``waits``, and compute nodes between launches and first waits."""
    graph, pairs, count, before = making.graph, 0, len(making.graph.nodes), making.before
    for node in range(count):
        before[node + 1] = before[node] + graph.nodes[node].compute
        if graph.nodes[node].waited >= 0 and not graph.nodes[node].placeholder:
            pairs = pair(making, pairs, graph.nodes[node].waited, node)
    place = sorted_rows(making, pairs, count, graph.rows.waits, place)
    for launch in range(count):
        begin = graph.rows[launch].waits
        if graph.nodes[launch].stream >= 0 and begin < graph.rows[launch + 1].waits:
            graph.nodes[launch].between = before[graph.items[begin]] - before[launch]
    return place


@compiled
def _put(graph: Graph, making: Making, node: int, size: int) -> int:
    """Put what a node needs on the stack; how much is on it then."""
    for at in range(graph.rows[node].preds, graph.rows[node + 1].preds):
        making.stack[size] = graph.items[at]
        size += 1
    return size


@compiled
def _prepares(draft: Draft, making: Making, place: int) -> int:
    """Table ``prepares``. Of launches of buckets: those that depend on nothing but graph inputs through a few light
    nodes; ``prepared`` says so.
    """
    graph, units, flags, pairs, first = making.graph, draft.units, making.before, 0, 0
    for node in range(len(graph.nodes)):
        flags[node] = 0
    for node in range(len(draft.graph.nodes)):
        number = units[node].number
        flags[number] = flags[number] | 2 * draft.graph.nodes[node].writes
        if units[node].takes == node:
            flags[number] = flags[number] | draft.facts[node].kernel
            for k in range(draft.graph.rows[node].prepares, draft.graph.rows[node + 1].prepares):
                pairs = pair(making, pairs, number, units[draft.graph.items[k]].number)
    for head in draft.heads:
        launch, begun = draft.fresh[first + head.launch].number, pairs
        end = _prepared(making, launch, pairs)
        first += head.count
        weight, copied = 0, head.copied
        for k in range(begun, end):
            weight += graph.nodes[making.things[k]].compute_ns
            copied = max(copied, flags[making.things[k]] & 1)
        light = weight * LIGHT <= head.transfer if copied else end - begun <= FEW
        if end >= 0 and light:
            graph.nodes[launch].prepared = 1 + copied
            pairs = end
    return sorted_rows(making, pairs, len(graph.nodes), graph.rows.prepares, place)


@compiled
def _prepared(making: Making, launch: int, pairs: int) -> int:
    """Pairs of a launch and all it needs, directly or not, but for graph inputs; -1 where that is too much, or what is
    not to be moved. In ``before`` stands 2 or more for what writes.
    """
    graph, begun = making.graph, pairs
    size = _put(graph, making, launch, 0)
    while size:
        size -= 1
        node = making.stack[size]
        facts = graph.nodes[node]
        if making.marks[node] == launch + 1 or facts.placeholder:
            continue
        if facts.compute or facts.waited >= 0 or facts.stream >= 0 or making.before[node] > 1:
            return -1
        if pairs - begun >= MAX_PREPARATION:
            return -1
        making.marks[node] = launch + 1
        pairs = pair(making, pairs, launch, node)
        size = _put(graph, making, node, size)
    return pairs


@compiled
def _feeds(making: Making, place: int) -> tuple[int, int]:
    """Table ``feeds``; and how many pairs ``needed_by`` is made of."""
    graph, count, pairs, needed = making.graph, len(making.graph.nodes), 0, 0
    for node in range(count):
        making.marks[node] = 0
    for launch in range(count):
        if not graph.nodes[launch].ends:
            continue
        begun, timed, size = pairs, 0, _put(graph, making, launch, 0)
        making.before[launch] = 1
        while size:
            size -= 1
            node = making.stack[size]
            facts = graph.nodes[node]
            if making.marks[node] == launch + 1 or facts.placeholder or facts.waited >= 0 or facts.stream >= 0:
                continue
            timed += 1 if facts.compute_ns > 0 else 0
            if timed > FEW or pairs - begun >= MAX_FEEDING:
                making.before[launch] = 0
                pairs = begun
                break
            making.marks[node] = launch + 1
            pairs = pair(making, pairs, launch, node)
            if not facts.compute:
                size = _put(graph, making, node, size)
    place = sorted_rows(making, pairs, count, graph.rows.feeds, place)
    for launch in range(count):
        needed = count_needed(making, launch, needed, 0)
    return place, needed


@compiled
def _by_buffer(draft: Draft, making: Making, before: Ints, begins: Ints, least: int, place: int) -> int:
    """Tables ``touched`` and, with ``least`` 1, ``allocated``. before: where rows began in the graph before."""
    graph, pairs = draft.graph, 0
    for node in range(len(graph.nodes)):
        if draft.units[node].takes == node:
            for k in range(before[node], before[node + 1]):
                pairs = pair(making, pairs, draft.units[node].number, draft.buffers[graph.items[k]])
    pairs = _own_buffers(draft, making, pairs, least)
    return sorted_rows(making, pairs, len(making.graph.buffers), begins, place)


@compiled
def _own_buffers(draft: Draft, making: Making, pairs: int, least: int) -> int:
    """What the nodes of buckets touch, or with ``least`` 1 what they make."""
    words, first, written = draft.words, 0, len(draft.graph.buffers)
    new = written + len(draft.heads)
    for head in draft.heads:
        for row in range(head.buffers, head.views, 4):
            if words[row + 1] < least:
                continue
            kind, buffer = words[row + 2], written
            if kind == NEW:
                buffer = new + words[row + 3]
            elif kind == OLD:
                buffer = draft.buffers[words[row + 3]]
            pairs = pair(making, pairs, draft.fresh[first + words[row]].number, buffer)
        first += head.count
        new += head.waits - head.sizes
        written += 1
    return pairs


@compiled
def _resized(draft: Draft, graph: Graph, place: int) -> int:
    """Table ``resized``: buffers and their new sizes, in turn."""
    rows, begun = draft.graph.rows, place
    for node in range(len(draft.graph.nodes)):
        at = draft.units[node].number
        graph.rows[at + 1].resized += rows[node + 1].resized - rows[node].resized
    graph.rows[0].resized = place
    for node in range(len(graph.nodes)):
        graph.rows[node + 1].resized += graph.rows[node].resized
    for node in range(len(draft.graph.nodes)):
        begun = graph.rows[draft.units[node].number].resized
        for k in range(rows[node].resized, rows[node + 1].resized, 2):
            graph.items[begun] = draft.buffers[draft.graph.items[k]]
            graph.items[begun + 1] = draft.graph.items[k + 1]
            begun += 2
            place += 2
    return place
