"""Cuts long runs of compute nodes by launching a reduce-scatter that was put off sooner, with what brings its input.

    cutter = Cutter(problem, limits, order)
    shorter, shortest = cutter.cut(8), cutter.cut(4)

A scheduler that has nothing to gain from a reduce-scatter leaves it behind all compute, as where a network that is busy
for longer than compute holds it back. At the place where a run becomes too long, the next reduce-scatters of the order
are looked at; one whose missing inputs take no compute and no other launch is moved there, waits among them included.
Whether the step bears the stalls is for the caller to judge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commcc.base.jit import compiled, kernel
from commcc.schedule.arrays import one_record, records

if TYPE_CHECKING:
    from commcc.schedule.arrays import Graph, Ints, Records
    from commcc.schedule.problem import Limits, Problem

#: So many reduce-scatters ahead are looked at, with at most so many nodes to bring along.
_AHEAD, _WITH = 4, 40
#: By node: its place; whether it runs ahead of that; what keeps a reduce-scatter from coming sooner until it has run,
#: -1 for nothing; whether it is among what is found. By place: compute nodes ahead of it; the new order. found: a list,
#: what one reduce-scatter takes.
ROW = ("place", "sooner", "blocked", "marked", "computed", "made", "found")
#: most: see :meth:`Cutter.cut`. prefetch: the limit, -1 for none. first: of ``later``, the first that has not run.
#: made: how long the new order is. found: how long the list is.
STATE = ("most", "prefetch", "first", "made", "found")


class Cutting(NamedTuple):
    """See :data:`ROW`, which has a record more than there are places, and :data:`STATE`, a single record. later:
    reduce-scatters in order.
    """

    rows: Records
    state: Records
    order: Ints
    later: Ints


class Cutter:
    """Cuts the runs of one order."""

    def __init__(self, problem: Problem, limits: Limits, order: Ints) -> None:
        self.graph, count = problem.graph, len(order)
        rows, prefetch = records(count + 1, ROW), problem.bounds(limits)[2]
        rows.place[order] = np.arange(count)
        rows.computed[1:] = np.cumsum(self.graph.nodes.compute[order])
        later = np.fromiter(problem.feeding, np.int64, len(problem.feeding))
        later = later[rows.place[later].argsort()]
        self.cutting = Cutting(rows, one_record(STATE, {"prefetch": prefetch}), order, later)

    def cut(self, most: int) -> Ints:
        """The order with runs of at most so many compute nodes, as far as that can be; any legal order stays legal."""
        self.cutting.state[0].most = most
        _cut(self.graph, self.cutting)
        made: Ints = self.cutting.rows.made[:-1].copy()
        return made


@kernel
def _cut(graph: Graph, cutting: Cutting) -> None:
    rows, state, run = cutting.rows, cutting.state[0], 0
    state.first = state.made = 0
    for node in cutting.order:
        rows[node].sooner, rows[node].blocked = 0, -1
    for at in range(len(cutting.order)):
        node = cutting.order[at]
        facts = graph.nodes[node]
        if rows[node].sooner:
            continue
        if facts.compute and run >= state.most and _launches_one(graph, cutting, at):
            run = 0
            for k in range(state.found):
                rows[rows[k].found].sooner = 1
                _append(cutting, rows[k].found)
        run = facts.compute + (0 if facts.ends else run)
        _append(cutting, node)


@compiled
def _append(cutting: Cutting, node: int) -> None:
    state = cutting.state[0]
    cutting.rows[state.made].made = node
    state.made += 1


@compiled
def _ran(cutting: Cutting, node: int, at: int) -> bool:
    return bool(cutting.rows[node].place < at or cutting.rows[node].sooner)


@compiled
def _launches_one(graph: Graph, cutting: Cutting, at: int) -> bool:
    """Whether one of the next reduce-scatters can come to a place; found is what has to run for it, itself last."""
    later, state, looked = cutting.later, cutting.state[0], 0
    while state.first < len(later) and _ran(cutting, later[state.first], at):
        state.first += 1
    number = state.first
    while number < len(later) and looked < _AHEAD:
        launch = later[number]
        number += 1
        if not _ran(cutting, launch, at):
            looked += 1
            if _found(graph, cutting, launch, at) and not _too_far(graph, cutting, launch, at):
                return True
    return False


@compiled
def _found(graph: Graph, cutting: Cutting, launch: int, at: int) -> bool:
    """Find the launch and all it needs that has not run, in order; whether that takes no compute and no launch."""
    rows, state = cutting.rows, cutting.state[0]
    if rows[launch].blocked >= 0 and not _ran(cutting, rows[launch].blocked, at):
        return False
    rows[0].found, state.found = launch, 1
    free = _gathered(graph, cutting, at)
    for k in range(state.found):
        node, place = rows[k].found, k
        rows[node].marked = 0
        # What was found before it is sorted by place.
        while place > 0 and rows[rows[place - 1].found].place > rows[node].place:
            rows[place].found = rows[place - 1].found
            place -= 1
        rows[place].found = node
    return free


@compiled
def _gathered(graph: Graph, cutting: Cutting, at: int) -> bool:
    """Add to what is found all that this needs, marked; whether that takes no compute, no launch, and few nodes."""
    rows, state, looked = cutting.rows, cutting.state[0], 0
    launch = rows[0].found
    while looked < state.found:
        node = rows[looked].found
        looked += 1
        for k in range(graph.rows[node].preds, graph.rows[node + 1].preds):
            needed = graph.items[k]
            if rows[needed].marked or _ran(cutting, needed, at):
                continue
            if graph.nodes[needed].compute or graph.nodes[needed].stream >= 0:
                rows[launch].blocked = needed
                return False
            if state.found >= _WITH:
                return False
            rows[needed].marked = 1
            rows[state.found].found = needed
            state.found += 1
    return True


@compiled
def _too_far(graph: Graph, cutting: Cutting, launch: int, at: int) -> bool:
    """Whether more compute than the limit allows would lie between the launch and its first wait."""
    rows, prefetch, first = cutting.rows, cutting.state[0].prefetch, len(cutting.order)
    begin, end = graph.rows[launch].waits, graph.rows[launch + 1].waits
    if prefetch < 0 or begin == end:
        return False
    for k in range(begin, end):
        first = min(first, rows[graph.items[k]].place)
    return bool(rows[first].computed - rows[at].computed > max(prefetch, graph.nodes[launch].between))
