"""Live bytes of a schedule while it is made, and when its launches are due, in plain Python.

See :mod:`commcc.schedule.live` and :mod:`commcc.schedule.steps`.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.graph.memory import MemoryModel
    from commcc.schedule.problem import Problem

Change = tuple[int, int, int]  # first position, position after the last, bytes


class LiveCurve:
    """Live bytes of the rest of the plan; positions are those of the base order."""

    def __init__(self, memory: MemoryModel, base: Sequence[int], budget: int | None) -> None:
        self.budget = budget
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
        if self.budget is not None:
            # While they run, what they read is still there.
            before = int(self._live[front]) - self._made[front]
            made = sum(self._made[place] for place in together)
            if made and before + made > self.budget:
                return False
        changes = [change for node in nodes for change in self._changes(node, front, together)]
        for first, end, size in changes:
            self._live[first:end] += size
        grows = max((end for _, end, size in changes if size > 0), default=front)
        if self.budget is None or grows == front or int(self._live[front:grows].max()) <= self.budget:
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


def windows(problem: Problem, base: Sequence[int], position: Sequence[int], prefetch: int | None) -> dict[int, int]:
    """For every launch with a wait the first position from which the limit on prefetch lets it go.

    position: of each node in ``base``. No limit gives no entries.
    """
    opens: dict[int, int] = {}
    if prefetch is None:
        return opens
    before = [0, *accumulate(int(problem.index.compute[node]) for node in base)]
    for launch, facts in problem.index.launches.items():
        if facts.waits and facts.asynchronous:
            need = min(position[wait] for wait in facts.waits)
            allowed = max(prefetch, problem.own_prefetch[launch])
            opens[launch] = min(bisect_left(before, before[need] - allowed, 0, need), position[launch])
    return opens


def due(
    problem: Problem,
    position: Sequence[int],
    progress: Sequence[int],
    opens: Mapping[int, int],
    lead_permille: int,
) -> dict[int, int]:
    """For every launch with a wait the progress along the base order, in ns, at which it is to go.

    Launches of a lane are taken in the order in which they are needed; each must be over when the next
    one has to begin, a launch taking ``lead_permille`` of its time. None is due before its window opens.
    progress: time on the compute stream before each position.
    """
    lanes: dict[str, list[tuple[int, int]]] = {}
    for launch, facts in problem.index.launches.items():
        if facts.waits:
            need = min(position[wait] for wait in facts.waits)
            lanes.setdefault(problem.stream[launch], []).append((need, launch))
    found: dict[int, int] = {}
    for queue in lanes.values():
        before = progress[-1]
        for need, launch in sorted(queue, reverse=True):
            before = min(before, progress[need]) - problem.costs.ns[launch] * lead_permille // 1000
            found[launch] = max(before, progress[opens.get(launch, 0)])
    return found
