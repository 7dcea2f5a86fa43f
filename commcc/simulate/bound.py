"""Lower bounds on the step time of every legal order of a graph.

    bound = lower_bound(index, costs)
    bound.ns, bound.name, bound.parts       # 41_250_000, 'compute stream, heads and tails', {...}

The compute stream and every lane are machines that do one thing at a time, whatever the order. Each
job has a **head** (nothing can start it earlier: the longest path of durations to it) and a **tail**
(that much must still follow: the longest path from it).

compute, busiest lane
    A machine's work has to fit into the step.
critical path
    The longest path of durations through data and order edges.
heads and tails
    Jackson's preemptive schedule: on one machine, with jobs released at their heads, always run the
    released job with the longest tail, and interrupt it for one with a longer tail. The largest of
    (completion + tail) is the least possible for one machine (Jackson 1955; Carlier 1982: equal to
    the maximum over all sets of jobs of least head + sum + least tail). It contains the three simple
    bounds for that machine, and communication that must come before the first compute that needs it
    or after the last that feeds it.
serial collectives
    Take collectives that pairwise come one after the other in every order (a chain of activation
    collectives), and all compute that comes before or after *each* of them in every order. No two of
    these ever run at the same time: compute shares one stream, the collectives are ordered, and each
    of that compute is ordered with each of the collectives. So their durations add up to at most the
    step. Any such set gives a bound; a good one is found by taking collectives with more time than
    independent compute, and dropping those that cost more compute than they bring.

Slow-down of compute and sharing of links only make steps longer; launches count with what they take
of the compute stream. Limits: valid for the graph as it stands, not for one with merged collectives.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commcc.simulate.chains import serial_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.cost.types import Costs
    from commcc.index import GraphIndex


@dataclass(frozen=True)
class Bound:
    """The largest of several lower bounds, in ns; parts: each of them by name."""

    ns: int
    name: str
    parts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Jobs:
    """Durations on the two sides of every node, by node number.

    compute: on the compute stream. transfer: on a lane, 0 but for launches.
    """

    compute: tuple[int, ...]
    transfer: tuple[int, ...]

    @staticmethod
    def of(index: GraphIndex, costs: Costs) -> Jobs:
        launches = index.launches
        compute = tuple(costs.launch_ns if i in launches else ns for i, ns in enumerate(costs.ns))
        return Jobs(compute, tuple(ns if i in launches else 0 for i, ns in enumerate(costs.ns)))


@dataclass(frozen=True)
class Reach:
    """Longest paths of durations, by node number.

    head: before the node. tail: after its part on the compute stream, its own transfer included.
    landed: after its transfer; 0 but for launches.
    """

    head: list[int]
    tail: list[int]
    landed: list[int]


def lower_bound(index: GraphIndex, costs: Costs) -> Bound:
    """No legal order of the graph has a shorter step under these costs."""
    jobs = Jobs.of(index, costs)
    reach = longest_paths(index, jobs)
    lanes: dict[str, list[int]] = {}
    for i, launch in index.launches.items():
        lanes.setdefault(costs.lanes.get(launch.group, launch.group), []).append(i)
    paths = (h + c + t for h, c, t in zip(reach.head, jobs.compute, reach.tail, strict=True))
    stream = [(reach.head[i], ns, reach.tail[i]) for i, ns in enumerate(jobs.compute) if ns]
    queues = [[(reach.head[i] + jobs.compute[i], jobs.transfer[i], reach.landed[i]) for i in q] for q in lanes.values()]
    parts = {
        "compute": sum(jobs.compute),
        "busiest lane": max((sum(jobs.transfer[i] for i in queue) for queue in lanes.values()), default=0),
        "critical path": max(paths, default=0),
        "compute stream, heads and tails": jackson(stream),
        "lanes, heads and tails": max(map(jackson, queues), default=0),
        "serial collectives": serial_bound(index, jobs.compute, jobs.transfer),
    }
    name = max(parts, key=lambda key: parts[key])
    return Bound(parts[name], name, parts)


def longest_paths(index: GraphIndex, jobs: Jobs) -> Reach:
    """Heads and tails of all nodes.

    What waits for a collective follows its transfer; anything else that must come after a launch
    (by an order edge) follows the launch alone. A synchronous collective holds everything.
    """
    count = len(index)
    head, tail, landed = [0] * count, [0] * count, [0] * count
    transfer = jobs.transfer
    preds = [index.preds(node) for node in range(count)]
    for wait, launch in index.wait_of.items():
        if launch not in preds[wait]:  # a wait for a view of the result
            preds[wait] = (*preds[wait], launch)
    holds = {i: frozenset(launch.waits) if launch.asynchronous else None for i, launch in index.launches.items()}
    for node in range(count):
        for p in preds[node]:
            ready = head[p] + jobs.compute[p]
            if p in holds and _held(holds[p], node):
                ready += transfer[p]
            head[node] = max(head[node], ready)
    for node in range(count - 1, -1, -1):
        tail[node] = max(tail[node], transfer[node] + landed[node])
        whole = jobs.compute[node] + tail[node]
        for p in preds[node]:
            side = landed if p in holds and _held(holds[p], node) else tail
            side[p] = max(side[p], whole)
    return Reach(head, tail, landed)


def _held(waits: frozenset[int] | None, node: int) -> bool:
    return waits is None or node in waits


def jackson(jobs: Sequence[tuple[int, int, int]]) -> int:
    """Jackson's preemptive schedule of (head, duration, tail) jobs on one machine: its largest end with tail."""
    pending = sorted(jobs)
    waiting: list[tuple[int, int]] = []  # (-tail, what is left)
    now = worst = position = 0
    while position < len(pending) or waiting:
        if not waiting:
            now = max(now, pending[position][0])
        while position < len(pending) and pending[position][0] <= now:
            _, duration, tail = pending[position]
            heapq.heappush(waiting, (-tail, duration))
            position += 1
        tail, left = heapq.heappop(waiting)
        until = pending[position][0] if position < len(pending) else now + left
        run = min(left, until - now)
        now += run
        if run < left:
            heapq.heappush(waiting, (tail, left - run))
        else:
            worst = max(worst, now - tail)
    return worst
