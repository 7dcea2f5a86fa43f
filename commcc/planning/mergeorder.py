"""A graph whose nodes can be merged one pair after another, without ever making a cycle.

    order = MergeOrder(index, [(launch, compute), (compute, wait)])
    if order.may_merge(a, b):
        order.merge(a, b)

Keeps a topological order of the merged graph (as Pearce and Kelly do for added edges, 2006): a path
from one node to another only passes nodes that stand between them, so a question looks at no more than
the stretch between the two, and a merge renumbers no more than that.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from commcc.base.errors import OptionError
from commcc.planning.components import components, shortest_cycle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commcc.graph.collectives import Collective
    from commcc.graph.index import GraphIndex

#: Cycles that an error names, and names in each of them.
_NAMED, _LONG = 20, 8


class MergeOrder:
    """Nodes of an index with its dependences and some more edges.

    Raises :class:`commcc.base.errors.OptionError` when the further edges contradict the graph or each other,
    naming a cycle for each of these edges that is on one. where: where the edges come from.
    """

    def __init__(self, index: GraphIndex, edges: Iterable[tuple[int, int]], where: str = "pass 'bucket'") -> None:
        count = len(index)
        self._users: list[list[int]] = [[] for _ in range(count)]
        missing = [0] * count
        for node in range(count):
            launch = index.wait_of.get(node)
            for pred in {*index.preds(node), *(() if launch is None else (launch,))}:
                self._users[pred].append(node)
                missing[node] += 1
        edges = tuple(edges)
        for first, then in edges:
            self._users[first].append(then)
            missing[then] += 1
        self._stands_for = list(range(count))
        positions = _positions(self._users, missing)
        if positions is None:
            raise OptionError(_contradiction(index, *_cycles(self._users, edges)), where=where)
        self._at = positions
        self._node_at = [0] * count
        for node, at in enumerate(self._at):
            self._node_at[at] = node

    def may_merge(self, a: int, b: int) -> bool:
        """Whether neither has to come before the other."""
        first, last = self._pair(a, b)
        return first != last and last not in self._reached(first, self._at[last])

    def merge(self, a: int, b: int) -> None:
        """Make one node of two that :meth:`may_merge`; the later one's name stands for both."""
        first, last = self._pair(a, b)
        begin, end = self._at[first], self._at[last]
        after = self._reached(first, end)
        window = [self._node_at[at] for at in range(begin + 1, end)]
        early = [node for node in window if node >= 0 and node not in after]
        late = [node for node in window if node >= 0 and node in after]
        self._users[last] += self._users[first]
        self._users[first] = []
        self._stands_for[first] = last
        self._renumber(begin, end, [*early, last, *late])

    def may_merge_both(self, a: Collective, b: Collective) -> bool:
        """Whether the launches, and the first waits, of two collectives may be merged."""
        return self.may_merge(a.launch, b.launch) and self.may_merge(a.waits[0], b.waits[0])

    def merge_both(self, a: Collective, b: Collective) -> None:
        """Merge the launches, and the first waits, of two collectives."""
        self.merge(a.launch, b.launch)
        self.merge(a.waits[0], b.waits[0])

    def keep(self, first: int, then: int) -> bool:
        """Put ``first`` ahead of ``then`` for good; False where it has to come after."""
        first, then = self._find(first), self._find(then)
        begin, end = self._at[then], self._at[first]
        if begin < end:
            after = self._reached(then, end)
            if first in after:
                return False
            window = [node for at in range(begin, end + 1) if (node := self._node_at[at]) >= 0]
            early = [node for node in window if node != then and node not in after]
            late = [node for node in window if node == then or node in after]
            self._renumber(begin, end, [*early, *late])
        if first != then:
            self._users[first].append(then)
        return first != then

    def _renumber(self, begin: int, end: int, nodes: list[int]) -> None:
        """Give the positions from ``begin`` to ``end`` to ``nodes``; what is left over stays empty."""
        self._node_at[begin : end + 1] = [*nodes, *[-1] * (end + 1 - begin - len(nodes))]
        for at, node in enumerate(nodes, begin):
            self._at[node] = at

    def _pair(self, a: int, b: int) -> tuple[int, int]:
        a, b = self._find(a), self._find(b)
        return (a, b) if self._at[a] <= self._at[b] else (b, a)

    def _find(self, node: int) -> int:
        while self._stands_for[node] != node:
            self._stands_for[node] = self._stands_for[self._stands_for[node]]
            node = self._stands_for[node]
        return node

    def _reached(self, start: int, end: int) -> set[int]:
        """Nodes up to position ``end`` that have to come after ``start``."""
        found: set[int] = set()
        stack = [start]
        while stack:
            for user in self._users[stack.pop()]:
                node = self._find(user)
                if node not in found and self._at[node] <= end:
                    found.add(node)
                    stack.append(node)
        return found


def _positions(users: list[list[int]], missing: list[int]) -> list[int] | None:
    """Positions of a topological order that is as near to the graph's own as the edges allow; None if there is none."""
    import heapq

    free = [node for node, count in enumerate(missing) if not count]
    at = [-1] * len(missing)
    number = 0
    while free:
        node = heapq.heappop(free)
        at[node] = number
        number += 1
        for user in users[node]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(free, user)
    return at if number == len(missing) else None


def _cycles(users: list[list[int]], edges: Iterable[tuple[int, int]]) -> tuple[list[list[int]], int]:
    """Cycles such that every one of ``edges`` that is on any is on one of these; and how many edges were not looked at.

    Each is a shortest one through an edge, beginning with its first node.
    """
    needs: list[list[int]] = [[] for _ in users]
    for node, following in enumerate(users):
        for user in following:
            needs[user].append(node)
    part_of = {node: part for part in components(needs, users) for node in part}
    found: list[list[int]] = []
    covered: set[tuple[int, int]] = set()
    more = 0
    for first, then in dict.fromkeys(edges):
        if (first, then) in covered or first not in part_of or then not in part_of[first]:
            continue
        if len(found) == _NAMED:
            more += 1
            continue
        cycle = shortest_cycle(first, then, users, part_of[first])
        covered.update(pairwise([*cycle, cycle[0]]))
        found.append(cycle)
    return found, more


def _contradiction(index: GraphIndex, cycles: list[list[int]], more: int) -> str:
    texts: list[str] = []
    for cycle in cycles:
        names = [f"'{index.names[node]}'" for node in (*cycle, cycle[0])]
        if len(names) > _LONG:
            names = [*names[: _LONG - 4], "...", *names[-3:]]
        texts.append(" before ".join(names))
    rest = f"; and {more} more before each other" if more else ""
    return f"what is to hide what contradicts the graph: {'; '.join(texts)}{rest}"
