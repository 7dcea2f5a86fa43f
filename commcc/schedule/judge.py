"""Step time, peak memory and longest run of compute of an order, many times over; kernels.

    judge(graph, order)                 # what orders are compared by
    figures(graph, order)               # what is told of one: its step, how long compute waits, bytes in flight

The same figures as :class:`commcc.timing.simulate.Simulator`, :class:`commcc.graph.memory.MemoryModel` and
:func:`commcc.graph.metrics.longest_run` give, and tested against these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commcc.base.jit import compiled, kernel
from commcc.schedule.arrays import records
from commcc.schedule.heaps import Heaps, heaps, pop, push
from commcc.schedule.live import SIZES, live_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.schedule.arrays import Graph, Ints, Records


class Judged(NamedTuple):
    """step_ns, peak_bytes; longest_run: most compute nodes in a row without a reduce-scatter launched between."""

    step_ns: int
    peak_bytes: int
    longest_run: int


class Figures(NamedTuple):
    """step_ns; idle_ns: for how long of it the compute stream waits, at the end too; in_flight_bytes: at most."""

    step_ns: int
    idle_ns: int
    in_flight_bytes: int


class Scratch(NamedTuple):
    """Arrays to write to. live: by position; for bytes in flight by node, waits still to come. end: of a launch, by
    node. stream_free: by stream. buffers: by buffer.
    """

    live: Ints
    end: Ints
    stream_free: Ints
    buffers: Records

    @classmethod
    def of(cls, graph: Graph) -> Scratch:
        count = len(graph.nodes)
        return cls(
            np.empty(count, np.int64),
            np.zeros(count, np.int64),
            np.zeros(graph.streams, np.int64),
            records(len(graph.buffers), SIZES),
        )


def judge(graph: Graph, order: Ints) -> Judged:
    """What the simulator, the memory model and the metric say of an order."""
    return _judge(graph, order, Scratch.of(graph))


@kernel
def _judge(graph: Graph, order: Ints, scratch: Scratch) -> Judged:
    return judged(graph, order, scratch)


def figures(graph: Graph, order: Ints) -> Figures:
    """What the simulator says of an order."""
    return _figures(graph, order, Scratch.of(graph))


@kernel
def _figures(graph: Graph, order: Ints, scratch: Scratch) -> Figures:
    step, idle = _step_and_idle(graph, order, scratch)
    return Figures(step, idle, most_in_flight(graph, order, scratch.live))


@compiled
def most_in_flight(graph: Graph, order: Ints, unwaited: Ints) -> int:
    """The most bytes launched and not yet waited for. unwaited: space for a number of each node."""
    flying = most = 0
    for node in range(len(order)):
        unwaited[node] = graph.rows[node + 1].waits - graph.rows[node].waits
        if graph.nodes[node].placeholder and unwaited[node]:
            flying += graph.nodes[node].bytes
    for node in order:
        facts = graph.nodes[node]
        if facts.stream >= 0:
            if facts.asynchronous:
                flying += facts.bytes
        elif facts.waited >= 0:
            unwaited[facts.waited] -= 1
            if not unwaited[facts.waited]:
                flying -= graph.nodes[facts.waited].bytes
        most = max(most, flying)
    return most


def step_alone(graph: Graph, order: Ints, prices: Mapping[int, int]) -> int:
    """The step alone, where some nodes have other prices than the graph says."""
    nodes, ns = (np.fromiter(each, np.int64, len(prices)) for each in (prices, prices.values()))
    return int(_step_alone(graph, order, nodes, ns, Scratch.of(graph)))


@kernel
def _step_alone(graph: Graph, order: Ints, nodes: Ints, ns: Ints, scratch: Scratch) -> int:
    _exchange(graph, nodes, ns)
    step = step_of(graph, order, scratch)
    _exchange(graph, nodes, ns)
    return step


@compiled
def _exchange(graph: Graph, nodes: Ints, ns: Ints) -> None:
    """The graph's prices and these change places; a copy of the graph would take longer than a simulation."""
    for k in range(len(nodes)):
        own = graph.nodes[nodes[k]].compute_ns
        graph.nodes[nodes[k]].compute_ns = ns[k]
        ns[k] = own


@compiled
def judged(graph: Graph, order: Ints, scratch: Scratch) -> Judged:
    """The same, for kernels."""
    peak = live_bytes(graph, order, scratch.live, scratch.buffers)
    longest = run = 0
    for node in order:
        if graph.nodes[node].ends:
            run = 0
        elif graph.nodes[node].compute:
            run += 1
            longest = max(longest, run)
    return Judged(step_of(graph, order, scratch), peak, longest)


@compiled
def step_of(graph: Graph, order: Ints, scratch: Scratch) -> int:
    """Its step alone, for kernels."""
    step, _idle = _step_and_idle(graph, order, scratch)
    return step


@compiled
def _step_and_idle(graph: Graph, order: Ints, scratch: Scratch) -> tuple[int, int]:
    now = busy_until = last = idle = 0
    stream_free, end = scratch.stream_free, scratch.end
    for stream in range(graph.streams):
        stream_free[stream] = 0
    for node in order:
        facts = graph.nodes[node]
        if facts.stream >= 0:
            now += facts.compute_ns
            end[node] = max(now, stream_free[facts.stream]) + facts.transfer
            stream_free[facts.stream] = end[node]
            busy_until = last = max(last, end[node])
            if not facts.asynchronous and end[node] > now:
                idle += end[node] - now
                now = end[node]
        elif facts.waited >= 0:
            if end[facts.waited] > now:
                idle += end[facts.waited] - now
                now = end[facts.waited]
        elif facts.placeholder:  # in flight at the start, or nothing
            end[node] = facts.transfer
            busy_until = max(busy_until, end[node])
        else:
            ns, busy, permille = facts.compute_ns, busy_until - now, graph.slowdown_permille
            if permille > 1000 and busy > 0:
                done = busy * 1000 // permille  # work that fits while streams of collectives are busy
                ns = -(-ns * permille // 1000) if ns <= done else busy + ns - done
            now += ns
    return max(now, last), idle + max(0, last - now)


def late(graph: Graph) -> Ints:
    """A legal order in which what little depends on comes late: by the longest path behind, from the end.

    Graph inputs stand first, in their own order.
    """
    order = np.empty(len(graph.nodes), np.int64)
    inputs = np.flatnonzero(graph.nodes.placeholder)
    order[: len(inputs)] = inputs
    _late(graph, order, np.empty(len(order), np.int64), heaps(1, len(order) + 1))
    return order


@kernel
def _late(graph: Graph, order: Ints, missing: Ints, free: Heaps) -> None:
    rows, count = graph.rows, len(order)
    for node in range(count):
        missing[node] = rows[node + 1].users - rows[node].users
        if not missing[node]:
            push(free, 0, graph.nodes[node].tail, -node)
    place = count - 1
    while free.sizes[0]:
        _key, node = pop(free, 0)
        node = -node
        if not graph.nodes[node].placeholder:
            order[place] = node
            place -= 1
        for k in range(rows[node].preds, rows[node + 1].preds):
            pred = graph.items[k]
            missing[pred] -= 1
            if not missing[pred]:
                push(free, 0, graph.nodes[pred].tail, -pred)
