"""A second simulator, nanosecond by nanosecond, that shares nothing with :mod:`commcc.timing.simulate`.

The compute stream and the lanes are little machines that are asked at every nanosecond what they do.
Progress of compute is counted in parts of a nanosecond: with a slow-down of s permille a nanosecond
beside a busy lane is worth 1000 / s of one; a node is done at the first whole nanosecond at which its
work is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass
class Lane:
    """A queue of collectives, one at a time."""

    queue: deque[int] = field(default_factory=deque)
    running: int | None = None
    left: int = 0


class SlowSimulator:
    """One run. After ``run``: step, exposed, stalls, spans (queued, start, end), in_flight, slowed."""

    def __init__(self, index, costs, order):
        self.index, self.costs = index, costs
        self.program = deque(order)
        self.lanes: dict[str, Lane] = {}
        self.now = 0
        self.spans: dict[int, list[int | None]] = {}
        self.landed: set[int] = set()
        self.exposed: dict[int, int] = {}
        self.stalls: dict[int, int] = {}
        self.begin: dict[int, int] = {}
        self.end: dict[int, int] = {}
        self.tail: list[list[int]] = []
        self.current: int | None = None
        self.progress = 0
        self.launching = 0
        self.stands: int | None = None

    def run(self):
        self.settle()
        while self.current is not None or self.program or self.running():
            self.tick()
            self.settle()
        self.charge_tail()
        self.step = self.now
        return self

    def running(self):
        return [lane for lane in self.lanes.values() if lane.running is not None]

    def settle(self):
        """All that happens at this instant: lanes begin and end, the stream takes up its next node."""
        moved = True
        while moved:
            turned = list(map(self.turn, self.lanes.values()))
            moved = any(turned) | self.advance()

    def turn(self, lane):
        """Whether the lane began or ended something."""
        if lane.running is not None and lane.left == 0:
            self.spans[lane.running][2] = self.now
            self.landed.add(lane.running)
            lane.running = None
            return True
        if lane.running is None and lane.queue:
            lane.running = lane.queue.popleft()
            lane.left = self.costs.ns[lane.running]
            self.spans[lane.running][1] = self.now
            return True
        return False

    def advance(self):
        """Whether the compute stream took up or finished a node."""
        if self.current is None:
            if not self.program:
                return False
            self.current = self.program.popleft()
            self.begin[self.current] = self.now
            self.progress = 0
            self.stands = None
            self.launching = self.costs.launch_ns if self.current in self.index.launches else 0
            return True
        node = self.current
        queued = node in self.index.launches and not self.launching and self.enqueue(node)
        if node in self.index.launches:
            done = not self.launching and self.launched(node)
        elif node in self.index.wait_of:
            done = self.index.wait_of[node] in self.landed
            self.stands = None if done else self.index.wait_of[node]
        else:
            done = self.progress >= self.costs.ns[node] * self.costs.slowdown_permille
        if done:
            self.end[node] = self.now
            self.current = None
        return done or queued

    def enqueue(self, node):
        """Whether the collective was not in its lane's queue before."""
        if node in self.spans:
            return False
        self.spans[node] = [self.now, None, None]
        group = self.index.launches[node].group
        self.lanes.setdefault(self.costs.streams.get(group, group), Lane()).queue.append(node)
        return True

    def launched(self, node):
        if self.index.launches[node].asynchronous:
            return True
        self.stands = None if node in self.landed else node
        return node in self.landed

    def tick(self):
        busy = self.running()
        if self.stands is not None:
            self.stalls[self.current] = self.stalls.get(self.current, 0) + 1
            group = self.index.launches[self.stands].group
            ran = self.lanes[self.costs.streams.get(group, group)].running
            self.exposed[ran] = self.exposed.get(ran, 0) + 1
        elif self.current is None:
            self.tail.append([lane.running for lane in busy])
        elif self.launching:
            self.launching -= 1
        else:
            self.progress += 1000 if busy else self.costs.slowdown_permille
        for lane in busy:
            lane.left -= 1
        self.now += 1

    def charge_tail(self):
        """A nanosecond after the last node is charged to whichever of those running then ends last."""
        for running in self.tail:
            last = max(running, key=lambda node: (self.spans[node][2], node))
            self.exposed[last] = self.exposed.get(last, 0) + 1

    def in_flight(self, bytes_of, order):
        """Bytes launched and not waited for by every wait, after each position."""
        found = []
        for position in range(len(order)):
            seen = set(order[: position + 1])
            flying = [
                node
                for node, facts in self.index.launches.items()
                if node in seen and facts.asynchronous and not (facts.waits and set(facts.waits) <= seen)
            ]
            found.append(sum(map(bytes_of, flying)))
        return tuple(found)
