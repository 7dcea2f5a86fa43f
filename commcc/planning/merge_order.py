"""May these launches merge: the graph in which every bucket is one launch and one wait must have no cycle.

Merging makes one launch and one wait of several, so a dependence of any member becomes one of all. Two buckets can
then wait for each other although no member needs another one of its own bucket. Asked one pair after another::

    order = MergeOrder(index, [(launch, compute), (compute, wait)])
    if order.may_merge(a, b):
        order.merge(a, b)

or of a whole choice of buckets, which may have been made in any order::

    for cycle in cycles(index, [(12, 40), (13, 41)], before=[]):
        cycle.groups        # (0, 1): these two wait for each other

:class:`MergeOrder` keeps a topological order of the merged graph (as Pearce and Kelly do for added edges, 2006): a
path from one node to another only passes nodes that stand between them, so a question looks at no more than the
stretch between the two, and a merge renumbers no more than that. :func:`cycles` is linear in nodes and edges.

Both are exact. The greedy walk, which forms buckets in graph order, has a test of its own that is linear for the
whole walk and errs on the safe side: see :class:`commcc.planning.greedy.Quotient`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from commcc.base.errors import OptionError
from commcc.base.gc_pause import no_collection
from commcc.base.sequences import topological

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from commcc.graph.collectives import Collective
    from commcc.graph.index import GraphIndex
    from commcc.plan import Before

Edges = list[list[int]]

#: Cycles that an error names, and names in each of them.
_NAMED, _LONG = 20, 8


class MergeOrder:
    """Nodes of an index with its dependences and some more edges.

    Raises :class:`commcc.base.errors.OptionError` when the further edges contradict the graph or each other,
    naming a cycle for each of these edges that is on one. where: where the edges come from. merged: sets of
    collectives that are merged from the beginning, which may be done together; quicker than :meth:`merge_all` of each.
    """

    def __init__(
        self,
        index: GraphIndex,
        edges: Iterable[tuple[int, int]],
        where: str = "pass 'bucket'",
        merged: Iterable[Sequence[Collective]] = (),
    ) -> None:
        count = len(index)
        users: Edges = [[] for _ in range(count)]
        own = self._stands_for = list(range(count))
        for members in merged:
            for several in ([c.launch for c in members], [c.waits[0] for c in members if c.waits]):
                for node in several:
                    own[node] = several[-1]
        needs: Edges = [[] for _ in range(count)]
        all_preds = list(index.all_preds)
        for wait, launch in index.wait_of.items():
            if launch not in all_preds[wait]:
                # The wait for a part of a coalesced result does not name the launch.
                all_preds[wait] = (*all_preds[wait], launch)
        for preds, stands_for in zip(all_preds, own, strict=True):
            needed = [own[pred] for pred in (set(preds) if len(preds) > 1 else preds)]
            for need in needed:
                users[need].append(stands_for)
            needs[stands_for] += needed
        edges = tuple(edges)
        for first, then in edges:
            users[own[first]].append(own[then])
            needs[own[then]].append(own[first])
        self._users = users
        order = topological(range(count), needs)
        if len(order) < count:
            raise OptionError(_contradiction(index, users, edges), where=where)
        self._node_at = [node for node in order if own[node] == node]
        self._at = [0] * count
        for at, node in enumerate(self._node_at):
            self._at[node] = at

    def may_merge(self, a: int, b: int) -> bool:
        """Whether neither has to come before the other."""
        first, last = self._pair(a, b)  # the order that is kept tells which way a path can go
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
        """Whether the launches of two collectives may be merged, and the first waits of two that are waited for."""
        waited = a.waits and b.waits
        return self.may_merge(a.launch, b.launch) and (not waited or self.may_merge(a.waits[0], b.waits[0]))

    def merge_all(self, members: Sequence[Collective]) -> None:
        """Merge the launches, and the first waits, of collectives that may be merged."""
        for a, b in pairwise(members):
            self.merge(a.launch, b.launch)
            self.merge(a.waits[0], b.waits[0])

    def keep(self, first: int, then: int) -> bool:
        """Put ``first`` ahead of ``then`` for good; False where it has to come after."""
        first, then = self._find(first), self._find(then)
        begin, end = self._at[then], self._at[first]
        if begin < end:  # against the order: what follows ``then`` goes behind ``first``
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
        users, at, stands_for = self._users, self._at, self._stands_for  # most of the time is spent here
        reached: set[int] = set()
        stack = [start]
        while stack:
            for user in users[stack.pop()]:
                node = user if stands_for[user] == user else self._find(user)
                if at[node] <= end and node not in reached:
                    reached.add(node)
                    stack.append(node)
        return reached


def _contradiction(index: GraphIndex, users: Edges, edges: Iterable[tuple[int, int]]) -> str:
    """Cycles such that every one of ``edges`` that is on any is on one of these, in words.

    Each is a shortest one through an edge, beginning with its first node; of many, only so many are named.
    """
    needs: Edges = [[] for _ in users]
    for node, following in enumerate(users):
        for user in following:
            needs[user].append(node)
    part_of = {node: part for part in components(needs, users) for node in part}
    texts: list[str] = []
    covered: set[tuple[int, int]] = set()
    more = 0
    for first, then in dict.fromkeys(edges):
        if (first, then) in covered or first not in part_of or then not in part_of[first]:
            continue
        if len(texts) == _NAMED:
            more += 1
            continue
        cycle = _shortest_cycle(first, then, users, part_of[first])
        covered.update(pairwise([*cycle, cycle[0]]))
        names = [f"'{index.names[node]}'" for node in (*cycle, cycle[0])]
        if len(names) > _LONG:
            names = [*names[: _LONG - 4], "...", *names[-3:]]
        texts.append(" before ".join(names))
    rest = f"; and {more} more before each other" if more else ""
    return f"what is to hide what contradicts the graph: {'; '.join(texts)}{rest}"


def _shortest_cycle(first: int, then: int, users: Edges, part: set[int]) -> list[int]:
    """Nodes of a shortest cycle through the edge ``first`` to ``then``, both in ``part``, beginning with its first."""
    came_from = {then: then}
    queue = [then]
    for node in queue:
        if node == first:
            break
        fresh = [user for user in dict.fromkeys(users[node]) if user in part and user not in came_from]
        came_from.update((user, node) for user in fresh)
        queue += fresh
    cycle = [first]
    while cycle[-1] != then:
        cycle.append(came_from[cycle[-1]])
    cycle.reverse()
    at = cycle.index(min(cycle))
    return cycle[at:] + cycle[:at]


@dataclass(frozen=True)
class Cycle:
    """What one cycle goes through. groups, before: numbers of groups of launches and of constraints."""

    groups: tuple[int, ...]
    before: tuple[int, ...]


@no_collection()
def cycles(index: GraphIndex, groups: Sequence[Sequence[int]], before: Sequence[Before]) -> list[Cycle]:
    """All cycles that merging each group of launches, and keeping ``before``, would make."""
    stands_for = list(range(len(index)))
    merged: list[set[int]] = []  # of each group, what its launches and its waits become
    for group in groups:
        waits = [wait for launch in group for wait in index.launches[launch].waits]
        # A launch by itself may have several waits, and these stay where they are.
        for several in (group, waits) if len(group) > 1 else ():
            for node in several:
                stands_for[node] = several[0]
        merged.append({stands_for[node] for node in (*group, *waits)})
    needs: Edges = [[] for _ in stands_for]
    for own, preds in zip(stands_for, index.all_preds, strict=True):
        needs[own] += [stands_for[p] for p in preds]
    constraints = [(stands_for[constraint.first], stands_for[constraint.then]) for constraint in before]
    for first, then in constraints:
        needs[then].append(first)
    if len(topological(range(len(needs)), needs)) == len(needs):
        return []
    users: Edges = [[] for _ in needs]
    for node, needed in enumerate(needs):
        for need in needed:
            users[need].append(node)
    result: list[Cycle] = []
    for part in components(needs, users):
        through = tuple(g for g, nodes in enumerate(merged) if not part.isdisjoint(nodes))
        kept = tuple(n for n, (first, then) in enumerate(constraints) if first in part and then in part)
        result.append(Cycle(through, kept))
    return result


def components(needs: Edges, users: Edges) -> list[set[int]]:
    """Strongly connected parts of a graph in which there is a cycle, by their first node.

    needs, users: the edges of every node both ways, ``[[1], [0], [1]]`` and ``[[1], [0, 2], []]``: ``[{0, 1}]``.
    Kosaraju's algorithm on what is left when nodes that no cycle can pass are taken away; quick where there is none.
    """
    left = _peel(range(len(needs)), needs, users)
    nodes = _peel(sorted(left), users, needs) if left else left
    finished: list[int] = []
    seen: set[int] = set()
    for start in sorted(nodes):
        if start not in seen:
            _visit(start, users, nodes, seen, finished)
    parts: list[set[int]] = []
    seen = set()
    for start in reversed(finished):
        if start in seen:
            continue
        part: list[int] = []
        _visit(start, needs, nodes, seen, part)
        if len(part) > 1 or start in needs[start]:
            parts.append(set(part))
    return sorted(parts, key=min)


def _peel(nodes: Sequence[int], needs: Edges, users: Edges) -> set[int]:
    """What is left of ``nodes`` when those that need nothing are taken away again and again."""
    left = set(nodes)
    missing = {node: sum(n in left for n in needs[node]) for node in nodes}
    free = [node for node, count in missing.items() if not count]
    while free:
        node = free.pop()
        left.discard(node)
        for user in users[node]:
            missing[user] = missing.get(user, 0) - 1
            if not missing[user]:
                free.append(user)
    return left


def _visit(start: int, edges: Edges, among: set[int], seen: set[int], finished: list[int]) -> None:
    """Depth first from ``start``; appends nodes to ``finished`` once all they lead to are done."""
    seen.add(start)
    stack = [(start, iter(edges[start]))]
    while stack:
        node, rest = stack[-1]
        fresh = next((n for n in rest if n in among and n not in seen), None)
        if fresh is None:
            stack.pop()
            finished.append(node)
        else:
            seen.add(fresh)
            stack.append((fresh, iter(edges[fresh])))
