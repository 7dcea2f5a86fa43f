"""Which merges wait for each other: cycles of the graph in which every bucket is one node.

Merging makes one launch and one wait of several, so a dependence of any member becomes one of all.
Planners that form buckets in no particular order ask here, and take apart what cannot be::

    for cycle in cycles(index, [(12, 40), (13, 41)], before=[]):
        cycle.groups        # (0, 1): these two wait for each other

Linear in nodes and edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.gc_pause import no_collection
from commcc.planning.components import components

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.index import GraphIndex
    from commcc.plan import Before


@dataclass(frozen=True)
class Cycle:
    """What one cycle goes through. groups, before: numbers of groups of launches and of wishes."""

    groups: tuple[int, ...]
    before: tuple[int, ...]


@no_collection()
def cycles(index: GraphIndex, groups: Sequence[Sequence[int]], before: Sequence[Before]) -> list[Cycle]:
    """All cycles that merging each group of launches, and keeping ``before``, would make."""
    graph = _Contracted(index, groups, before)
    found: list[Cycle] = []
    for part in components(graph.needs, graph.users):
        launches = tuple(g for g in range(len(groups)) if graph.launch(g) in part or graph.wait(g) in part)
        wishes = tuple(n for n, (first, then) in enumerate(graph.wishes) if first in part and then in part)
        found.append(Cycle(launches, wishes))
    return found


class _Contracted:
    """Nodes of the index, then for each group its launch and its wait; a member's wait is its own result."""

    def __init__(self, index: GraphIndex, groups: Sequence[Sequence[int]], before: Sequence[Before]) -> None:
        self.size = len(index)
        self.stands_for = list(range(self.size))
        merged_wait: dict[int, int] = {}
        for number, group in enumerate(groups):
            for member in group:
                self.stands_for[member] = self.launch(number)
                merged_wait.update((wait, self.wait(number)) for wait in index.launches[member].waits)
        self.needs: list[list[int]] = [[] for _ in range(self.size + 2 * len(groups))]
        for node in range(self.size):
            wait = merged_wait.get(node)
            own = self.stands_for[node] if wait is None else wait
            self.needs[own] += [self.stands_for[p] for p in index.preds(node)]
            if wait is not None:
                self.needs[node].append(wait)
        ends = [(merged_wait.get(b.first, b.first), merged_wait.get(b.then, b.then)) for b in before]
        self.wishes = [tuple(self.stands_for[e] if e < self.size else e for e in pair) for pair in ends]
        for first, then in self.wishes:
            self.needs[then].append(first)
        self.users: list[list[int]] = [[] for _ in self.needs]
        for node, needs in enumerate(self.needs):
            for need in needs:
                self.users[need].append(node)

    def launch(self, group: int) -> int:
        return self.size + 2 * group

    def wait(self, group: int) -> int:
        return self.size + 2 * group + 1
