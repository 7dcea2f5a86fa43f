"""An order of the whole graph that keeps given orders of some of its nodes.

Nodes of regions take the places that the region has in the graph, in their new order; all other nodes keep theirs,
earlier where a node that has moved forward needs them, later where they need one that has moved back. Regions may
interleave.
"""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import TYPE_CHECKING

from commcc.base.errors import InputError
from commcc.ep.schedule.local import needed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.index import GraphIndex


def arranged(index: GraphIndex, chains: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """All nodes, those of each chain in its order; :class:`InputError` where chains contradict each other."""
    preds = _preds(index, chains)
    order = sorted_by(preds, list(zip(_places(preds, chains), range(len(preds)), strict=True)))
    if len(order) < len(index):
        placed = set(order)
        stuck = next(node for chain in chains for node in chain if node not in placed)
        raise InputError(f"regions wait for each other at '{index.names[stuck]}'", hint="schedule one of them only")
    return tuple(order)


def sorted_by(preds: Sequence[set[int]], keys: Sequence[tuple[int, ...]]) -> list[int]:
    """All nodes behind their predecessors, of those that are ready the one with the smallest key first; a key ends with
    its node. Nodes on a cycle, and what is behind it, are left out.
    """
    users: list[list[int]] = [[] for _ in preds]
    for node, before in enumerate(preds):
        for pred in before:
            users[pred].append(node)
    missing = list(map(len, preds))
    heap = [keys[node] for node, count in enumerate(missing) if not count]
    heapq.heapify(heap)
    order: list[int] = []
    while heap:
        node = heapq.heappop(heap)[-1]
        order.append(node)
        for user in users[node]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(heap, keys[user])
    return order


def _preds(index: GraphIndex, chains: Sequence[Sequence[int]]) -> list[set[int]]:
    """Predecessors by need, and by place in a chain; the output comes after all."""
    owners: list[dict[int, int]] = [dict.fromkeys(chain, 0) for chain in chains]
    region = {node: owner for owner in owners for node in owner}
    nothing: dict[int, int] = {}
    preds = [set(needed(index, node, region.get(node, nothing))) for node in range(len(index))]
    for chain in chains:
        for before, node in pairwise(chain):
            preds[node].add(before)
    if preds:
        used = set().union(*preds)
        preds[-1] |= {node for node in range(len(preds) - 1) if node not in used}
    return preds


def _places(preds: Sequence[set[int]], chains: Sequence[Sequence[int]]) -> list[int]:
    """Where each node wants to stand, as places of the old order."""
    keys = list(range(len(preds)))
    for chain in chains:
        for place, node in zip(sorted(chain), chain, strict=True):
            keys[node] = place
    chained = {node for chain in chains for node in chain}
    # Against the old order: every user comes after what it needs, so its key is final by then.
    for node in range(len(preds) - 1, -1, -1):
        for pred in preds[node]:
            if pred not in chained and pred < node:
                keys[pred] = min(keys[pred], keys[node])
    return keys
