"""The list scheduler of :mod:`commcc.schedule.scheduler` once more, in plain Python over objects.

What the kernels make has to be the same, node by node. Slower by an order of magnitude, and easier to read.
"""

from __future__ import annotations

import heapq
from itertools import accumulate
from typing import TYPE_CHECKING

from commcc.base.terms import Kind
from commcc.graph.index.build import users_of
from tests.plain_live import LiveCurve, due, windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.schedule.problem import Limits, Problem
    from commcc.schedule.scheduler import Policy

#: How many candidates that the limits refuse are looked at before the next rule is tried.
_LAUNCHES, _URGENT, _READY = 8, 16, 64


def schedule(problem: Problem, base: Sequence[int], policy: Policy, limits: Limits) -> list[int]:
    """A legal order made by walking along the legal order ``base``."""
    return _Walk(problem, base, policy, limits).run()


def longest_tails(problem: Problem) -> list[int]:
    """What must follow each node on the longest path, its own transfer included."""
    launches, waits = problem.index.launches, problem.index.wait_of
    tails, landed = [0] * len(problem.preds), [0] * len(problem.preds)
    for node in reversed(range(len(tails))):
        if node in launches:
            tails[node] = max(tails[node], problem.costs.ns[node] + landed[node])
        for pred in problem.preds[node]:
            held = pred in launches and (not launches[pred].asynchronous or waits.get(node) == pred)
            side = landed if held else tails
            side[pred] = max(side[pred], problem.stream_ns[node] + tails[node])
    return tails


def compute_to_launches(problem: Problem, base: Sequence[int]) -> list[int]:
    """What compute takes up to the next launch that each node leads to, itself included; without end where none is."""
    launches, users = problem.index.launches, users_of(problem.preds)
    ahead = [1 << 50] * len(base)
    for node in reversed(base):
        launched = node in launches and launches[node].waits
        least = min((ahead[user] for user in users[node]), default=1 << 50)
        ahead[node] = 0 if launched else problem.stream_ns[node] + least
    return ahead


class _Walk:
    """State of one schedule. ``front``: position in the base order of its first node that has not run."""

    def __init__(self, problem: Problem, base: Sequence[int], policy: Policy, limits: Limits) -> None:
        self.problem, self.base, self.limits = problem, base, limits
        count = len(base)
        self.position = [0] * count
        for position, node in enumerate(base):
            self.position[node] = position
        self.curve = LiveCurve(problem.memory, base, limits.budget)
        self.policy = policy
        own, put_off = policy.own_permille, policy.launch_permille
        facts = zip(longest_tails(problem), compute_to_launches(problem, base), problem.stream_ns, strict=True)
        self.latest = [
            policy.target_ns - tail - ns * own // 1000 + min(ahead, tail) * put_off // 1000 for tail, ahead, ns in facts
        ]
        self.progress = [0, *accumulate(problem.stream_ns[node] for node in base)]
        self.opens = windows(problem, base, self.position, limits.prefetch)
        self.due = due(problem, self.position, self.progress, self.opens, policy.lead_permille)
        self.users = users_of(problem.preds)
        self.missing = [len(set(preds)) for preds in problem.preds]
        self.done = bytearray(count)
        self.order: list[int] = []
        self.front = self.now = self.flying = 0
        self.lane_free: dict[str, int] = {}
        self.arrival: dict[int, int] = {}
        self.unwaited = {i: len(launch.waits) for i, launch in problem.index.launches.items()}
        # Heaps: launches by (due, position), all that can run by latest end and by position, waits by
        # arrival, launches whose prefetch window is not open yet by its first position.
        self.launches: list[tuple[int, int, int]] = []
        self.by_latest: list[tuple[int, int, int]] = []
        self.by_position: list[tuple[int, int]] = []
        self.awaited: list[tuple[int, int, int]] = []
        self.closed: list[tuple[int, int]] = []
        # Launches on their way by the number of compute nodes before which they have to be waited for.
        self.expiring: list[tuple[int, int]] = []
        self.computed = 0
        self.in_air: set[int] = set()
        self.in_flight = None if limits.in_flight is None else max(limits.in_flight, problem.own_in_flight)
        # Launches that the limit on bytes in flight keeps back until something is waited for.
        self.crowded: list[tuple[int, int, int]] = []
        # Reduce-scatters whose feeds can run, and what the feeds of the others still need.
        self.most_run = policy.most_run
        self.ran_since = 0
        self.ending: list[tuple[int, int]] = []
        self.lacking = {
            launch: {p for each in (launch, *feeds) for p in problem.preds[each]} - set(feeds)
            for launch, feeds in problem.feeding.items()
        }

    def run(self) -> list[int]:
        for node in self.base:
            if not self.missing[node]:
                self._offer(node)
        for launch in self.problem.preparation:
            if launch in self.due and self._brings(launch):
                heapq.heappush(self.launches, (self.due[launch], self.position[launch], launch))
        for node in self.base:
            if self.problem.index.ops[node] == "placeholder":
                self._run(node)
        while self.front < len(self.base):
            self._land()
            self._open()
            self._end_run()
            self._launch_due()
            if self.front < len(self.base):
                self._take(self._urgent() or self._first() or self._stand_still())
        return self.order

    def _brings(self, launch: int) -> bool:
        """Whether what prepares a launch goes along with it."""
        nodes = self.problem.preparation.get(launch)
        return nodes is not None and 1 + self.problem.has_kernel(nodes) <= self.policy.bring

    def _offer(self, node: int) -> None:
        """A node that has all it needs."""
        index, place = self.problem.index, self.position[node]
        if node in index.wait_of:
            heapq.heappush(self.awaited, (self.arrival[index.wait_of[node]], place, node))
            return
        if node in self.due and not self._brings(node):
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
            waits = self.lane_free.get(self.problem.stream[launch], 0) - self.now
            queue = self.policy.queue_permille
            if queue >= 0 and waits > self.problem.costs.ns[launch] * queue // 1000:
                refused.append(entry)
                continue
            nodes = [n for n in self.problem.preparation.get(launch, ()) if not self.done[n]]
            if self.limits.budget is not None:
                self.curve.budget = self.limits.budget - self.limits.budget * self.policy.spare_permille // 1000
            allowed = self._may(nodes, launch)
            self.curve.budget = self.limits.budget
            if allowed:
                for node in (*nodes, launch):
                    self._run(node)
            else:
                refused.append(entry)
        for entry in refused:
            heapq.heappush(self.launches, entry)

    def _end_run(self) -> None:
        if self.most_run < 0 or self.ran_since + 1 < self.most_run:
            return
        refused: list[tuple[int, int]] = []
        while self.ending and len(refused) < _LAUNCHES:
            entry = heapq.heappop(self.ending)
            if self.done[entry[1]]:
                continue
            nodes = [n for n in self.problem.feeding[entry[1]] if not self.done[n]]
            last = self.computed + sum(self.problem.index.compute[n] for n in nodes)
            fits = not self._crowds(entry[1]) and (not self.expiring or last <= self.expiring[0][0])
            if fits and self._may(nodes, entry[1]):
                for node in (*nodes, entry[1]):
                    self._run(node)
                break
            refused.append(entry)
        for entry in refused:
            heapq.heappush(self.ending, entry)

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
        """Whether too much would be in flight with this launch."""
        if self.in_flight is None or not self.unwaited[launch]:
            return False
        return self.flying + self.problem.bytes[launch] > self.in_flight

    def _make_room(self, node: int) -> None:
        """Wait for collectives that the limits do not let be in flight beside what ``node`` is."""
        while node in self.unwaited and self._crowds(node) and self._wait_for_one():
            pass
        if not self.problem.index.compute[node]:
            return
        while self.expiring and self.expiring[0][0] <= self.computed:
            self._wait_for(heapq.heappop(self.expiring)[1])

    def _wait_for_one(self) -> bool:
        """Wait for what arrives first; whether there was anything that could be waited for."""
        return any(self._wait_for(launch) for launch in sorted(self.in_air, key=lambda i: (self.arrival[i], i)))

    def _wait_for(self, launch: int) -> bool:
        """Run the waits of a launch ahead of their places, as far as that can be."""
        waited = False
        for wait in self.problem.index.launches[launch].waits:
            if not self.done[wait] and not self.missing[wait] and self._may((), wait):
                self._wait(wait)
                waited = True
        return waited

    def _wait(self, wait: int) -> None:
        self.now = max(self.now, self.arrival[self.problem.index.wait_of[wait]])
        self._run(wait)

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
            if not self._holds_up(node) and self._may((), node):
                chosen.append(node)
            else:
                refused.append(entry)
        for entry in refused:
            heapq.heappush(self.by_position, entry)
        return chosen

    def _holds_up(self, node: int) -> bool:
        """Whether running ``node`` now costs the next awaited collective more than standing still for it."""
        length = self.problem.stream_ns[node]
        while self.awaited and self.done[self.awaited[0][2]]:
            heapq.heappop(self.awaited)
        if not length or not self.awaited:
            return False
        arrival, _, wait = self.awaited[0]
        idle = arrival - self.now
        late = self.now + length - max(arrival, self.latest[wait])
        return idle < length and late > idle

    def _stand_still(self) -> list[int]:
        """The wait that ends first, if it may run ahead of its place, else the one at the front."""
        if self.awaited:
            node = self.awaited[0][2]
            if not self.done[node] and self._may((), node):
                return [node]
        return [self.base[self.front]]

    def _take(self, nodes: list[int]) -> None:
        for node in nodes:
            if node in self.problem.index.wait_of:
                self._wait(node)
                continue
            self._make_room(node)
            self._run(node)

    def _run(self, node: int) -> None:
        problem = self.problem
        self.order.append(node)
        self.done[node] = 1
        self.computed += problem.index.compute[node]
        self.curve.ran(node)
        self._note_feeds(node)
        self.now += problem.stream_ns[node]
        lane = problem.stream.get(node)
        if lane is not None:
            begin = max(self.now, self.lane_free.get(lane, 0))
            self.lane_free[lane] = self.arrival[node] = begin + problem.costs.ns[node]
            if self.unwaited[node]:
                self.flying += problem.bytes[node]
                self.in_air.add(node)
                if self.limits.prefetch is not None:
                    last = self.computed + max(self.limits.prefetch, problem.own_prefetch[node])
                    heapq.heappush(self.expiring, (last, node))
        launch = problem.index.wait_of.get(node)
        if launch is not None:
            self.unwaited[launch] -= 1
            if not self.unwaited[launch]:
                self.flying -= problem.bytes[launch]
                self.in_air.discard(launch)
                for entry in self.crowded:
                    heapq.heappush(self.launches, entry)
                self.crowded.clear()
        for user in dict.fromkeys(self.users[node]):
            self.missing[user] -= 1
            if not self.missing[user]:
                self._offer(user)
        while self.front < len(self.base) and self.done[self.base[self.front]]:
            self.front += 1

    def _note_feeds(self, node: int) -> None:
        index = self.problem.index
        ends = node in index.launches and index.launches[node].kind is Kind.REDUCE_SCATTER
        self.ran_since = 0 if ends else self.ran_since + index.compute[node]
        for launch, needs in self.lacking.items():
            if node in needs:
                needs.discard(node)
                if not needs:
                    heapq.heappush(self.ending, (self.position[launch], launch))
