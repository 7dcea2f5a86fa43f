"""Who comes before and after whom, and by which path. All graphs here are lists of neighbours by node."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def closure(neighbours: Sequence[Sequence[int]], starts: Iterable[int]) -> frozenset[int]:
    """Everything that can be reached, the starts included."""
    stack = list(starts)
    seen = set(stack)
    while stack:
        for near in neighbours[stack.pop()]:
            if near not in seen:
                seen.add(near)
                stack.append(near)
    return frozenset(seen)


def shortest_path(neighbours: Sequence[Sequence[int]], starts: Iterable[int], goal: int) -> tuple[int, ...]:
    """A path with the fewest nodes from a start to the goal, both included; empty when there is none.

    Among equally short ones the first by the order of the neighbours, so that the answer never changes.
    """
    came: dict[int, int | None] = dict.fromkeys(starts)
    queue = deque(came)
    while queue and goal not in came:
        node = queue.popleft()
        for near in neighbours[node]:
            if near not in came:
                came[near] = node
                queue.append(near)
    path: list[int] = []
    at: int | None = goal if goal in came else None
    while at is not None:
        path.append(at)
        at = came[at]
    return tuple(reversed(path))


def inverted(neighbours: Sequence[Sequence[int]]) -> list[list[int]]:
    """The same edges the other way round."""
    result: list[list[int]] = [[] for _ in neighbours]
    for node, nears in enumerate(neighbours):
        for near in nears:
            result[near].append(node)
    return result
