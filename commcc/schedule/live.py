"""Live bytes of a schedule while it is made.

A schedule is made by walking along a base order that is legal, and now and then running a node of
later in that order first (a *hoist*). At any time the plan is: what has run, then the rest in base
order. :class:`LiveCurve` holds the live bytes of that plan at every position of the base order that
is still to come, exactly as :mod:`commcc.memory` defines them, so that a hoist is checked over the
whole stretch that it changes, not only where it lands.

Hoisting node ``e`` to the front ``f`` makes its results live from ``f`` on instead of from ``e`` on;
what it is the last to touch is freed after the last one of those that still touch it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.memory import MemoryModel

Change = tuple[int, int, int]  # first position, position after the last, bytes


class LiveCurve:
    """Live bytes of the rest of the plan; positions are those of the base order."""

    def __init__(self, memory: MemoryModel, base: Sequence[int], budget: int | None) -> None:
        self._budget = budget
        self._position = [0] * len(base)
        for position, node in enumerate(base):
            self._position[node] = position
        self._live = np.array(memory.live(base).live, dtype=np.int64)
        self._size = memory.size
        self._touched = [tuple(b for b in near if b not in memory.inputs) for near in memory.touched]
        self._fixed = frozenset(memory.index.estimates.resizes)
        self._forever = memory.kept
        self._touches: list[list[int]] = [[] for _ in self._size]
        for node in base:
            for buffer in self._touched[node]:
                self._touches[buffer].append(self._position[node])
        self._born = [touches[0] if touches else -1 for touches in self._touches]
        self._done = bytearray(len(base))
        self._made = [0] * len(base)
        for buffer, place in enumerate(self._born):
            if place >= 0:
                self._made[place] += self._size[buffer]

    def hoist(self, nodes: Sequence[int], front: int) -> bool:
        """Whether ``nodes``, in this order, may run before what stands at ``front``; notes it if so.

        The caller has to call :meth:`ran` for each of them next.
        """
        if not self._fixed.isdisjoint(nodes):
            return False
        together = {self._position[node] for node in nodes}
        if self._budget is not None:
            # While they run, what they read is still there.
            before = int(self._live[front]) - self._made[front]
            made = sum(self._made[place] for place in together)
            if made and before + made > self._budget:
                return False
        changes = [change for node in nodes for change in self._changes(node, front, together)]
        for first, end, size in changes:
            self._live[first:end] += size
        grows = max((end for _, end, size in changes if size > 0), default=front)
        if self._budget is None or grows == front or int(self._live[front:grows].max()) <= self._budget:
            return True
        for first, end, size in changes:
            self._live[first:end] -= size
        return False

    def _changes(self, node: int, front: int, together: set[int]) -> list[Change]:
        place = self._position[node]
        found: list[Change] = []
        for buffer in self._touched[node]:
            size = self._size[buffer]
            if not size:
                continue
            touches = self._touches[buffer]
            if self._born[buffer] == place:
                found.append((front, place, size))
            last = next(t for t in reversed(touches) if not self._done[t])
            if last != place or buffer in self._forever:
                continue
            rest = next((t for t in reversed(touches) if not self._done[t] and t not in together), front - 1)
            found.append((max(rest, front - 1) + 1, place + 1, -size))
        return found

    def ran(self, node: int) -> None:
        """Note that a node has run, at the front or hoisted."""
        self._done[self._position[node]] = 1
        for buffer in self._touched[node]:
            touches = self._touches[buffer]
            while touches and self._done[touches[-1]]:
                touches.pop()
