"""The list scheduler: walks along a base order and runs other nodes first where that pays.

The clock is that of the simulator without slow-down. At every step it takes the first of

1. a launch whose time has come: within ``Policy.lead`` times its own duration (and of those queued
   behind it) of the point of the base order where it is needed. Preparation of its input goes along;
2. a node whose latest start has come: ``Policy.target_ns`` minus the longest path that begins with it;
3. the first node in base order that can run now, results of collectives that have arrived included;
4. nothing can run: the compute stream stands still until the next awaited collective arrives.

Whatever is not the next in base order is a hoist and goes through the limits: memory over the whole
stretch (:class:`commcc.schedule.live.LiveCurve`), bytes in flight, compute nodes between launch and
wait. The next in base order always may run, so there is always a schedule.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from commcc.schedule.live import LiveCurve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.schedule.problem import Limits, Problem

#: How many candidates that the limits refuse are looked at before the next rule is tried.
_LAUNCHES, _URGENT, _READY = 8, 16, 64


@dataclass(frozen=True)
class Policy:
    """target_ns: step time aimed at; the shorter, the sooner nodes on long paths go first.
    lead_permille: see rule 1; 1000 launches at the last moment.
    """

    target_ns: int
    lead_permille: int


def schedule(problem: Problem, base: Sequence[int], policy: Policy, limits: Limits) -> list[int]:
    """A legal order made by walking along the legal order ``base``."""
    return _Walk(problem, base, policy, limits).run()


class _Walk:
    """State of one schedule. ``front``: position in the base order of its first node that has not run."""

    def __init__(self, problem: Problem, base: Sequence[int], policy: Policy, limits: Limits) -> None:
        self.problem, self.base, self.limits = problem, base, limits
        count = len(base)
        self.position = [0] * count
        for position, node in enumerate(base):
            self.position[node] = position
        self.curve = LiveCurve(problem.memory, base, limits.budget)
        self.latest = [policy.target_ns - t - d for t, d in zip(problem.tail_ns, problem.stream_ns, strict=True)]
        self.progress = [0, *accumulate(problem.stream_ns[node] for node in base)]
        self.compute_before = [0, *accumulate(int(problem.index.compute[node]) for node in base)]
        self.opens = self._windows()
        self.due = self._due(policy.lead_permille)
        self.missing = [len(set(preds)) for preds in problem.preds]
        self.done = bytearray(count)
        self.order: list[int] = []
        self.front = self.now = self.flying = 0
        self.lane_free: dict[str, int] = {}
        self.arrival: dict[int, int] = {}
        self.unwaited = {i: len(launch.waits) for i, launch in problem.index.launches.items()}
        # Heaps: launches by (due, position), all that can run by latest start and by position, waits by
        # arrival, launches whose prefetch window is not open yet by its first position.
        self.launches: list[tuple[int, int, int]] = []
        self.by_latest: list[tuple[int, int, int]] = []
        self.by_position: list[tuple[int, int]] = []
        self.awaited: list[tuple[int, int, int]] = []
        self.closed: list[tuple[int, int]] = []
        # Launches that the limit on bytes in flight keeps back until something is waited for.
        self.crowded: list[tuple[int, int, int]] = []

    def _windows(self) -> dict[int, int]:
        """For every launch with a wait the first front at which the prefetch limit lets it go."""
        limit = self.limits.prefetch
        opens: dict[int, int] = {}
        for launch, facts in self.problem.index.launches.items():
            if facts.waits and facts.asynchronous and limit is not None:
                need = min(self.position[wait] for wait in facts.waits)
                first = bisect_left(self.compute_before, self.compute_before[need] - limit, 0, need)
                opens[launch] = min(first, self.position[launch])
        return opens

    def _due(self, lead_permille: int) -> dict[int, int]:
        """For every launch the progress along the base order at which rule 1 wants it.

        Launches of a lane are taken in the order in which they are needed; each must be over when the
        next one has to begin.
        """
        lanes: dict[str, list[tuple[int, int]]] = {}
        for launch, facts in self.problem.index.launches.items():
            if facts.waits:
                need = min(self.position[wait] for wait in facts.waits)
                lanes.setdefault(self.problem.lane[launch], []).append((need, launch))
        due: dict[int, int] = {}
        for queue in lanes.values():
            before = self.progress[-1]
            for need, launch in sorted(queue, reverse=True):
                before = min(before, self.progress[need])
                before -= self.problem.costs.ns[launch] * lead_permille // 1000
                # Before its window opens there is no use in looking at it.
                due[launch] = max(before, self.progress[self.opens.get(launch, 0)])
        return due

    def run(self) -> list[int]:
        for node in self.base:
            if not self.missing[node]:
                self._offer(node)
        for launch in self.problem.preparation:
            if launch in self.due:
                heapq.heappush(self.launches, (self.due[launch], self.position[launch], launch))
        while self.front < len(self.base) and self.problem.index.ops[self.base[self.front]] == "placeholder":
            self._run(self.base[self.front])
        while self.front < len(self.base):
            self._land()
            self._open()
            self._launch_due()
            if self.front < len(self.base):
                self._take(self._urgent() or self._first() or self._stand_still())
        return self.order

    def _offer(self, node: int) -> None:
        """A node that has all it needs."""
        index, place = self.problem.index, self.position[node]
        if node in index.wait_of:
            heapq.heappush(self.awaited, (self.arrival[index.wait_of[node]], place, node))
            return
        if node in self.due and node not in self.problem.preparation:
            heapq.heappush(self.launches, (self.due[node], place, node))
        if node in self.unwaited:
            heapq.heappush(self.closed, (self.opens.get(node, 0), node))
        else:
            # A launch ahead of its place is the business of rules 1 and 2, all else of 2 and 3.
            heapq.heappush(self.by_latest, (self.latest[node], place, node))
            heapq.heappush(self.by_position, (place, node))

    def _land(self) -> None:
        """Results of collectives that have arrived can be used without standing still."""
        while self.awaited and self.awaited[0][0] <= self.now:
            _, place, node = heapq.heappop(self.awaited)
            if not self.done[node]:
                heapq.heappush(self.by_latest, (self.latest[node], place, node))
                heapq.heappush(self.by_position, (place, node))

    def _open(self) -> None:
        """Launches whose prefetch window is open can be urgent."""
        while self.closed and self.closed[0][0] <= self.front:
            _, node = heapq.heappop(self.closed)
            if not self.done[node]:
                heapq.heappush(self.by_latest, (self.latest[node], self.position[node], node))

    def _launch_due(self) -> None:
        if not self.launches or self.launches[0][0] > self.progress[self.front]:
            return
        refused: list[tuple[int, int, int]] = []
        while self.launches and self.launches[0][0] <= self.progress[self.front] and len(refused) < _LAUNCHES:
            entry = heapq.heappop(self.launches)
            launch = entry[2]
            if self.done[launch]:
                continue
            if self._crowds(launch):
                self.crowded.append(entry)
                continue
            nodes = [n for n in self.problem.preparation.get(launch, ()) if not self.done[n]]
            if self._may(nodes, launch):
                for node in (*nodes, launch):
                    self._run(node)
            else:
                refused.append(entry)
        for entry in refused:
            heapq.heappush(self.launches, entry)

    def _may(self, preparation: Sequence[int], node: int) -> bool:
        """Whether the limits let ``node``, and what prepares it, run now."""
        if self.position[node] == self.front:
            return True
        if not preparation and self.missing[node]:
            return False
        if node in self.unwaited and (self.opens.get(node, 0) > self.front or self._crowds(node)):
            return False
        return self.curve.hoist((*preparation, node), self.front)

    def _crowds(self, launch: int) -> bool:
        """Whether too much would be in flight with this launch, ahead of its place."""
        limit = self.limits.in_flight
        if limit is None or self.position[launch] == self.front or not self.unwaited[launch]:
            return False
        return self.flying + self.problem.bytes[launch] > limit

    def _urgent(self) -> list[int]:
        refused: list[tuple[int, int, int]] = []
        chosen: list[int] = []
        while self.by_latest and len(refused) < _URGENT and not chosen and self.by_latest[0][0] <= self.now:
            entry = heapq.heappop(self.by_latest)
            if self.done[entry[2]]:
                continue
            if self._may((), entry[2]):
                chosen.append(entry[2])
            else:
                refused.append(entry)
        for entry in refused:
            heapq.heappush(self.by_latest, entry)
        return chosen

    def _first(self) -> list[int]:
        front = self.base[self.front]
        launch = self.problem.index.wait_of.get(front)
        if launch is None or self.arrival[launch] <= self.now:
            return [front]
        refused: list[tuple[int, int]] = []
        chosen: list[int] = []
        while self.by_position and len(refused) < _READY and not chosen:
            entry = heapq.heappop(self.by_position)
            node = entry[1]
            if self.done[node]:
                continue
            if self._may((), node):
                chosen.append(node)
            else:
                refused.append(entry)
        for entry in refused:
            heapq.heappush(self.by_position, entry)
        return chosen

    def _stand_still(self) -> list[int]:
        """The wait that ends first, if it may run ahead of its place, else the one at the front."""
        if self.awaited:
            node = self.awaited[0][2]
            if not self.done[node] and self._may((), node):
                return [node]
        return [self.base[self.front]]

    def _take(self, nodes: list[int]) -> None:
        for node in nodes:
            launch = self.problem.index.wait_of.get(node)
            if launch is not None:
                self.now = max(self.now, self.arrival[launch])
            self._run(node)

    def _run(self, node: int) -> None:
        problem = self.problem
        self.order.append(node)
        self.done[node] = 1
        self.curve.ran(node)
        self.now += problem.stream_ns[node]
        lane = problem.lane.get(node)
        if lane is not None:
            begin = max(self.now, self.lane_free.get(lane, 0))
            self.lane_free[lane] = self.arrival[node] = begin + problem.costs.ns[node]
            self.flying += problem.bytes[node] if self.unwaited[node] else 0
        launch = problem.index.wait_of.get(node)
        if launch is not None:
            self.unwaited[launch] -= 1
            if not self.unwaited[launch]:
                self.flying -= problem.bytes[launch]
                for entry in self.crowded:
                    heapq.heappush(self.launches, entry)
                self.crowded.clear()
        for user in dict.fromkeys(problem.users[node]):
            self.missing[user] -= 1
            if not self.missing[user]:
                self._offer(user)
        while self.front < len(self.base) and self.done[self.base[self.front]]:
            self.front += 1
