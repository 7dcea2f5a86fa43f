"""What the nodes of a region need from each other, also by way of nodes outside of it.

The closure of an exchange holds the body nodes that have to run before it is launched, of any chunk (writes to one
buffer follow each other through all chunks), and the launch. What is in no closure fills the time of exchanges.

Takes time linear in the stretch of the graph from the region's first node to its last.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commcc.ep.regions import Region
    from commcc.graph.index import GraphIndex


@dataclass(frozen=True)
class Local:
    """A region as numbers. chunk_of: of every body node. needs: body nodes that a body node depends on, directly or
    through nodes outside. closures: by chunk and number of the exchange. sources: by chunk what its copies of token
    counts depend on. communicates: body nodes that launch or wait for a collective.
    """

    index: GraphIndex
    region: Region
    chunk_of: dict[int, int]
    needs: dict[int, tuple[int, ...]]
    closures: dict[tuple[int, int], tuple[int, ...]]
    sources: tuple[tuple[int, ...], ...]
    communicates: frozenset[int]

    @staticmethod
    def of(index: GraphIndex, region: Region) -> Local:
        chunk_of = {node: chunk for chunk, body in enumerate(region.bodies) for node in body}
        needs = _needs(index, chunk_of)
        closures = {
            (chunk, number): _behind(needs, (launch,))
            for chunk, launches in enumerate(region.exchanges)
            for number, launch in enumerate(launches)
        }
        sources = tuple(tuple(n for n in _behind(needs, copies) if n not in copies) for copies in region.count_copies)
        communicates = frozenset(n for n in chunk_of if n in index.launches or n in index.wait_of)
        return Local(index, region, chunk_of, needs, closures, sources, communicates)


def needed(index: GraphIndex, node: int, chunk_of: dict[int, int]) -> tuple[int, ...]:
    """What has to come before ``node``; the order of host syncs inside one region is free."""
    launch = index.wait_of.get(node)
    free = [kept for kept in index.host_order.get(node, ()) if node in chunk_of and kept in chunk_of]
    preds = tuple(pred for pred in index.preds(node) if pred not in free) if free else index.preds(node)
    return preds if launch is None or launch in preds else (*preds, launch)


def _needs(index: GraphIndex, chunk_of: dict[int, int]) -> dict[int, tuple[int, ...]]:
    """For each body node the nearest ones that it depends on."""
    needs: dict[int, tuple[int, ...]] = {}
    carried: dict[int, frozenset[int]] = defaultdict(frozenset)
    first, last = min(chunk_of), max(chunk_of)
    for node in range(first, last + 1):
        behind: set[int] = set()
        for pred in needed(index, node, chunk_of):
            if pred in chunk_of:
                behind.add(pred)
            elif pred >= first:
                behind |= carried[pred]
        if node in chunk_of:
            needs[node] = tuple(sorted(behind))
        elif behind:
            carried[node] = frozenset(behind)
    return needs


def _behind(needs: dict[int, tuple[int, ...]], ends: Iterable[int]) -> tuple[int, ...]:
    """``ends`` and all body nodes that they depend on, in graph order."""
    nodes: set[int] = set()
    stack = list(ends)
    while stack:
        node = stack.pop()
        if node not in nodes:
            nodes.add(node)
            stack.extend(needs[node])
    return tuple(sorted(nodes))
