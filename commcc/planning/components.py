"""Strongly connected parts of a graph: nodes that have to come before each other.

    components([[1], [0], [1]], [[1], [0, 2], []])      # needs, users: [{0, 1}]

Linear in nodes and edges, and quick where there is no cycle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Edges = list[list[int]]


def components(needs: Edges, users: Edges) -> list[set[int]]:
    """Parts in which there is a cycle, by their first node. needs, users: the edges of every node both ways."""
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


def shortest_cycle(first: int, then: int, users: Edges, part: set[int]) -> list[int]:
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
