"""Longest paths of a graph as arrays, and the lower bound that follows from them; kernels.

The same figures as :func:`commcc.timing.simulate.bound.path_bound` gives, and tested against it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commcc.base.jit import compiled, kernel
from commcc.schedule.heaps import Heaps, heaps, pop, push

if TYPE_CHECKING:
    from commcc.schedule.arrays import Graph, Ints


def longest_tails(graph: Graph) -> tuple[Ints, Ints]:
    """Longest paths behind all nodes into ``tail``; those before them, and those behind transfers."""
    count = len(graph.nodes)
    head, landed = np.zeros(count, np.int64), np.zeros(count, np.int64)
    _paths(graph, head, landed)
    return head, landed


def path_bound(graph: Graph) -> int:
    """Longest paths into ``tail`` of all nodes, and the lower bound that follows from them."""
    head, landed = longest_tails(graph)
    nodes = graph.nodes
    busy = np.flatnonzero(nodes.compute_ns)
    tails = np.maximum(nodes.tail, nodes.transfer + landed)
    machines = [(head[busy], nodes.compute_ns[busy], tails[busy])]
    for stream in range(graph.streams):
        own = graph.launches[nodes.stream[graph.launches] == stream]
        machines.append((head[own] + nodes.compute_ns[own], nodes.transfer[own], landed[own]))
    return max(map(_one_machine, machines))


def _one_machine(jobs: tuple[Ints, Ints, Ints]) -> int:
    order = np.argsort(jobs[0], kind="stable")  # among equal heads any order gives the same
    heads, ns, tails = (np.ascontiguousarray(column[order]) for column in jobs)
    return _jackson(heads, ns, tails, heaps(1, len(order) + 1))


@kernel
def _paths(graph: Graph, head: Ints, landed: Ints) -> None:
    """As :func:`commcc.timing.simulate.bound.longest_paths`."""
    nodes, rows, items = graph.nodes, graph.rows, graph.items
    for node in range(len(head)):
        begin = 0
        for k in range(rows[node].preds, rows[node + 1].preds):
            pred = items[k]
            ready = head[pred] + nodes[pred].compute_ns
            if _lands(graph, pred, node):
                ready += nodes[pred].transfer
            begin = max(begin, ready)
        head[node] = begin
        nodes[node].tail = 0
    for back in range(len(head)):
        node = len(head) - 1 - back
        mine = nodes[node]
        if mine.stream >= 0:
            mine.tail = max(mine.tail, mine.transfer + landed[node])
        whole = mine.compute_ns + mine.tail
        for k in range(rows[node].preds, rows[node + 1].preds):
            pred = items[k]
            if _lands(graph, pred, node):
                landed[pred] = max(landed[pred], whole)
            else:
                nodes[pred].tail = max(nodes[pred].tail, whole)


@compiled
def _lands(graph: Graph, pred: int, node: int) -> bool:
    """Whether a node has to wait for the transfer of a launch that it needs."""
    if graph.nodes[pred].stream < 0:
        return False
    return bool(not graph.nodes[pred].asynchronous or graph.nodes[node].waited == pred)


@kernel
def _jackson(heads: Ints, left: Ints, tails: Ints, waiting: Heaps) -> int:
    """As :func:`commcc.timing.simulate.bound.jackson`, of jobs in order of their heads; ``left`` is used up."""
    now = worst = position = 0
    count = len(heads)
    while position < count or waiting.sizes[0]:
        if not waiting.sizes[0]:
            now = max(now, heads[position])
        while position < count and heads[position] <= now:
            push(waiting, 0, -tails[position], position)
            position += 1
        key, job = pop(waiting, 0)
        run = left[job]
        if position < count:
            run = min(run, heads[position] - now)
        now += run
        left[job] -= run
        if left[job]:
            push(waiting, 0, key, job)
        else:
            worst = max(worst, now - key)
    return worst
