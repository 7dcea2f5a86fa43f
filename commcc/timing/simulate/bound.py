"""Lower bounds on the step time of every legal order of a graph.

    bound = lower_bound(index, costs)
    bound.ns, bound.name, bound.parts       # 41_250_000, 'compute stream, heads and tails', {...}

The compute stream and every stream of collectives are machines that do one thing at a time, whatever the order. Each
event has a **head** (nothing can start it earlier) and a **tail** (that much must still follow its
end), see :mod:`commcc.timing.simulate.heads`.

compute, busiest stream of collectives
    A machine's work has to fit into the step.
critical path
    The longest path of durations through data and order edges.
heads and tails
    Jackson's preemptive schedule: on one machine, with jobs released at their heads, always run the
    released job with the longest tail, and interrupt it for one with a longer tail. The largest of
    (completion + tail) is the least possible for one machine (Jackson 1955; Carlier 1982: equal to
    the maximum over all sets of jobs of least head + sum + least tail). It contains the simple
    bounds for that machine, and communication that must come before the first compute that needs it
    or after the last that feeds it.

Such heads also contain the bound by **serial collectives**. Take collectives Y, any two of which are
ordered by dependences or share a stream, and compute X that is ordered with each of them. No two of
these ever run at the same time, so their durations add up to at most the step. For x in X let D(x) be
those of Y before x. If y is in D(x) and not in D(x'), then x' is before y and y before x, so all of
D(x') is before x and in D(x). So the D(x) are nested, and cut Y and X into blocks Y1, X1, Y2, X2, ...
with all of one block before all of the next. Inside a Yi link any two that are not ordered: what
hangs together shares one stream, and of two such groups all of one is before all of the other, so a
block is a row of groups, each on one stream. Whatever comes after all of a group has it among its
ancestors on that stream, and a head of at least the group's least head and its sum; a collective that
comes after all of Xi has it among its ancestors on the compute stream, and likewise. So from block to
block heads grow by all durations, and the last block ends after the whole sum.

Nor does it help to match durations: the least that collectives Y cannot hide behind compute, where
each bit of compute can hide those it is not ordered with, is a transport problem, and by duality of
linear programs its value is the sum above for a part of Y and the compute ordered with that part.

compute beside one collective
    A collective and all compute, less what may run beside it for more than the collectives that this leads to take:
    see :mod:`commcc.timing.simulate.beside`.

Who comes first in a fused chain pays for it, so prices differ from order to order. Every node counts with the least
that it has in any; what is left of the least that the whole chain costs is a job of its own on the compute stream, with
the least head and tail of those that may pay it (:mod:`commcc.timing.cost.least`): bits of it run when these pay.

Slow-down of compute and sharing of links only make steps longer; launches count with what they take
of the compute stream. Limits: jobs may be interrupted here, which one long kernel cannot be; two
machines are only ever added up through heads and tails; valid for the graph as it stands, not for one
with merged collectives.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from commcc.timing.simulate.beside import beside
from commcc.timing.simulate.events import STREAM, Events, on_stream
from commcc.timing.simulate.heads import heads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.graph.index import GraphIndex
    from commcc.timing.cost.least import Rest
    from commcc.timing.cost.types import Costs


@dataclass(frozen=True)
class Bound:
    """The largest of several lower bounds, in ns; parts: each of them by name, the last one where it is the largest."""

    ns: int
    name: str
    parts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Jobs:
    """Durations on the two sides of every node, by node number.

    compute: on the compute stream; waits take none of it. transfer: on another, 0 but for launches.
    """

    compute: tuple[int, ...]
    transfer: tuple[int, ...]

    @staticmethod
    def of(index: GraphIndex, costs: Costs) -> Jobs:
        transfer = [0] * len(index)
        for launch in index.launches:
            transfer[launch] = costs.ns[launch]
        return Jobs(tuple(on_stream(index, costs)), tuple(transfer))


@dataclass(frozen=True)
class Reach:
    """Longest paths of durations, by node number.

    head: before the node. tail: after its part on the compute stream, its own transfer included.
    landed: after its transfer; 0 but for launches.
    """

    head: list[int]
    tail: list[int]
    landed: list[int]


def lower_bound(index: GraphIndex, costs: Costs, load: Mapping[int, int] | None = None) -> Bound:
    """No legal order of the graph has a shorter step under these costs, whoever pays for fused chains in it.

    load: for launches the ns that they keep their stream busy for, where that is less than they take: a
    collective that is merged takes no less time than alone, but shares what it costs its stream.
    """
    least, rests = _at_least(costs)
    ends = _Ends.of(index, least, load)
    stream, *streams = _machines(ends, rests)
    parts = {
        "compute": sum(ns for _, ns, _ in stream),
        "busiest stream": max((sum(ns for _, ns, _ in jobs) for jobs in streams), default=0),
        "critical path": critical_path(index, Jobs.of(index, least)),
        "compute stream, heads and tails": jackson(stream),
        "group streams, heads and tails": max(map(jackson, streams), default=0),
    }
    most = max(parts.values())
    if (more := ends.beside(most)) > most:
        parts["compute beside one collective"] = more
    name = max(parts, key=lambda key: parts[key])
    return Bound(parts[name], name, parts)


def least_step(index: GraphIndex, costs: Costs) -> int:
    """The ns of :func:`lower_bound` alone: heads and tails contain most of the other parts."""
    least, rests = _at_least(costs)
    ends = _Ends.of(index, least)
    return ends.beside(max(map(jackson, _machines(ends, rests))))


class _Ends(NamedTuple):
    """Events, and the same seen from the end; what comes at least before each of them, and behind it, in ns."""

    events: Events
    mirrored: Events
    before: list[int]
    after: list[int]

    @classmethod
    def of(cls, index: GraphIndex, least: Costs, load: Mapping[int, int] | None = None) -> _Ends:
        events = Events.of(index, least, load)
        mirrored = events.mirrored()
        return cls(events, mirrored, heads(events), heads(mirrored))

    def beside(self, least: int) -> int:
        """The bound by compute beside one collective; ``least`` where it is no more."""
        least = beside(self.events, self.before, self.after, least)
        return beside(self.mirrored, self.after, self.before, least)


def _machines(ends: _Ends, rests: Sequence[Rest]) -> list[list[tuple[int, int, int]]]:
    """(head, load, tail) of what runs on the compute stream, and on each stream of collectives."""
    events, before, after = ends.events, ends.before, ends.after
    jobs: list[list[tuple[int, int, int]]] = [[] for _ in range(events.machines)]
    for machine, job in zip(events.machine, zip(before, events.load, after, strict=True), strict=True):
        if job[1]:
            jobs[machine].append(job)
    for nodes, ns in rests:
        jobs[STREAM].append((min(before[node] for node in nodes), ns, min(after[node] for node in nodes)))
    return jobs


def _at_least(costs: Costs) -> tuple[Costs, tuple[Rest, ...]]:
    """The least that each node takes in any order, and what is left for some of several nodes to take."""
    if costs.payers is None:
        return costs, ()
    ns = list(costs.ns)
    for node, price in costs.payers.least.ns.items():
        ns[node] = price
    return replace(costs, ns=tuple(ns)), costs.payers.least.rests


def path_bound(index: GraphIndex, costs: Costs, jobs: Jobs, reach: Reach) -> int:
    """A lower bound from longest paths alone, in ns, of orders with the prices of this one; made in a fraction of the
    time that :func:`lower_bound` takes.
    """
    machines: dict[str | None, list[tuple[int, int, int]]] = {None: []}
    for node, ns in enumerate(jobs.compute):
        if ns:
            machines[None].append(
                (reach.head[node], ns, max(reach.tail[node], jobs.transfer[node] + reach.landed[node]))
            )
    for node, launch in index.launches.items():
        stream = costs.streams.get(launch.group, launch.group)
        ready = reach.head[node] + jobs.compute[node]
        machines.setdefault(stream, []).append((ready, jobs.transfer[node], reach.landed[node]))
    return max(map(jackson, machines.values()))


def critical_path(index: GraphIndex, jobs: Jobs) -> int:
    """The longest path of durations."""
    reach = longest_paths(index, jobs)
    return max((h + c + t for h, c, t in zip(reach.head, jobs.compute, reach.tail, strict=True)), default=0)


def longest_paths(index: GraphIndex, jobs: Jobs) -> Reach:
    """Heads and tails of all nodes.

    What waits for a collective follows its transfer; anything else that must come after a launch
    (by an order edge) follows the launch alone. A synchronous collective holds everything.
    """
    count = len(index)
    head, tail, landed, done = [0] * count, [0] * count, [0] * count, [0] * count
    transfer, compute = jobs.transfer, jobs.compute
    preds = list(index.all_preds)
    for wait, launch in index.wait_of.items():
        # The launch may be named only by a view of its result.
        if launch not in preds[wait]:  # a wait for a view of the result
            preds[wait] = (*preds[wait], launch)
    # Of each launch what follows its transfer: its waits, or all that comes after it.
    users: dict[int, Sequence[int]] = {i: facts.waits for i, facts in index.launches.items() if facts.asynchronous}
    held = {(launch, wait) for launch, waits in users.items() for wait in waits}
    held.update((p, node) for node in range(count) for p in preds[node] if p in index.launches and p not in users)
    after = {node for _, node in held}
    for node in range(count):
        begin = 0
        for p in preds[node]:
            if done[p] > begin:
                begin = done[p]
        if node in after:
            begin = max(begin, *(done[p] + transfer[p] for p in preds[node] if (p, node) in held), 0)
        head[node], done[node] = begin, begin + compute[node]
    for node in range(count - 1, -1, -1):
        tail[node] = max(tail[node], transfer[node] + landed[node])
        whole = compute[node] + tail[node]
        for p in preds[node]:
            side = landed if node in after and (p, node) in held else tail
            if side[p] < whole:
                side[p] = whole
    return Reach(head, tail, landed)


def jackson(jobs: Sequence[tuple[int, int, int]]) -> int:
    """Jackson's preemptive schedule of (head, duration, tail) jobs on one machine: its largest end with tail."""
    pending = sorted(jobs)
    waiting: list[tuple[int, int]] = []  # (-tail, what is left)
    now = worst = position = 0
    while position < len(pending) or waiting:
        if not waiting:
            head, duration, tail = pending[position]
            now = max(now, head)
            if position + 1 == len(pending) or pending[position + 1][0] >= now + duration:
                # It is done before the next one is released.
                now += duration
                worst = max(worst, now + tail)
                position += 1
                continue
        while position < len(pending) and pending[position][0] <= now:
            _, duration, tail = pending[position]
            heapq.heappush(waiting, (-tail, duration))
            position += 1
        tail, left = heapq.heappop(waiting)
        # The next release may bring a job with a longer tail, which interrupts this one.
        until = pending[position][0] if position < len(pending) else now + left
        run = min(left, until - now)
        now += run
        if run < left:
            heapq.heappush(waiting, (tail, left - run))
        else:
            worst = max(worst, now - tail)
    return worst
