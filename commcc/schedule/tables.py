"""Tables of a graph as arrays (:mod:`commcc.schedule.arrays`), each made from pairs of an owner and what stands in its
row; kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from commcc.base.jit import compiled, kernel

if TYPE_CHECKING:
    from commcc.schedule.arrays import Graph, Ints


class Making(NamedTuple):
    """graph: what is filled. owners, things, starts, by_thing, ends: pairs, and what they are sorted with. marks: of
    nodes, by which search each was found last. stack: nodes to look at. before: by node, what a table is made with.
    """

    graph: Graph
    owners: Ints
    things: Ints
    starts: Ints
    by_thing: Ints
    ends: Ints
    marks: Ints
    stack: Ints
    before: Ints


@compiled
def sorted_rows(making: Making, pairs: int, most: int, begins: Ints, place: int) -> int:
    """Write rows from ``place`` on, each in order and every item once, and where they begin; where they end.

    By item, then by owner, each time in the order of before. most: items are less.
    """
    owners, things, starts, ends = making.owners, making.things, making.starts, making.ends
    items, count = making.graph.items, len(making.graph.nodes)
    for thing in range(most + 1):
        starts[thing] = 0
    for owner in range(count + 1):
        begins[owner] = 0
    for k in range(pairs):
        starts[things[k] + 1] += 1
        begins[owners[k] + 1] += 1
    for thing in range(most):
        starts[thing + 1] += starts[thing]
    begins[0] = place
    for owner in range(count):
        ends[owner] = begins[owner]
        begins[owner + 1] += begins[owner]
    for k in range(pairs):
        making.by_thing[starts[things[k]]] = k
        starts[things[k]] += 1
    for at in range(pairs):
        owner, thing = owners[making.by_thing[at]], things[making.by_thing[at]]
        if ends[owner] == begins[owner] or items[ends[owner] - 1] != thing:
            items[ends[owner]] = thing
            ends[owner] += 1
    for owner in range(count):
        begin = begins[owner]
        begins[owner] = place
        for k in range(begin, ends[owner]):
            items[place] = items[k]
            place += 1
    begins[count] = place
    return place


@compiled
def pair(making: Making, pairs: int, owner: int, thing: int) -> int:
    making.owners[pairs], making.things[pairs] = owner, thing
    return pairs + 1


@compiled
def count_needed(making: Making, launch: int, pairs: int, write: int) -> int:
    """Count, or write, pairs of what a reduce-scatter and what feeds it need, but for the latter, and the launch."""
    graph = making.graph
    if not graph.nodes[launch].ends or not making.before[launch]:
        return pairs
    begin, end = graph.rows[launch].feeds, graph.rows[launch + 1].feeds
    for k in range(begin, end + 1):
        node = graph.items[k] if k < end else launch
        for at in range(graph.rows[node].preds, graph.rows[node + 1].preds):
            inside = 0
            for other in range(begin, end):
                inside = max(inside, 1 if graph.items[other] == graph.items[at] else 0)
            if inside:
                continue
            if write:
                making.owners[pairs], making.things[pairs] = graph.items[at], launch
            pairs += 1
    return pairs


@kernel
def feed(making: Making, place: int) -> int:
    """Table ``needed_by``, behind so many items; how many there are then. owners and so on: as long as the one who
    made the others said.
    """
    count, pairs = len(making.graph.nodes), 0
    for launch in range(count):
        pairs = count_needed(making, launch, pairs, 1)
    return sorted_rows(making, pairs, count, making.graph.rows.needed_by, place)
