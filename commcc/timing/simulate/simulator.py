"""The simulator: one pass over the order, integers only.

Everything that does not depend on the order is prepared once, so that a pass can try many orders::

    simulator = Simulator(index, costs)
    timelines = [simulator.run(order) for order in orders]

Slow-down: while any other stream is busy, compute makes 1000 ns of progress in ``slowdown_permille`` ns. A
stream that has a launch in it stays busy until its last one ends, so the stretch during which compute
is slow is known when it begins, and no events need to be merged.

A node whose sub-graphs communicate has the time of these by themselves; what they wait for is exposed.

A wait for an input that is in flight at the start stalls until the moment that the index has for it; without one it
has arrived.

Limits: launches of a group start in the order in which the compute stream reaches them, as on a
NCCL stream; host-side launch queues and the time to allocate memory are not modelled.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from commcc.timing.simulate.timeline import Span, Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.index import GraphIndex, Launch
    from commcc.timing.cost.types import Costs


class Simulator:
    """Simulates orders of one graph under one set of costs."""

    def __init__(self, index: GraphIndex, costs: Costs) -> None:
        self._ns = list(costs.ns)
        self._launch_ns = costs.launch_ns
        self._permille = costs.slowdown_permille
        self._stream = {i: costs.streams.get(launch.group, launch.group) for i, launch in index.launches.items()}
        self._asynchronous = {i: launch.asynchronous for i, launch in index.launches.items()}
        self._waits_for = dict(index.wait_of)
        self._within = costs.within
        self._begun = dict(index.begun_elsewhere)
        self._arrivals = dict(index.estimates.arrivals)
        self._bytes = {i: in_flight_bytes(index, i, launch) for i, launch in index.launches.items()}
        self._last_wait_count = {i: len(launch.waits) for i, launch in index.launches.items()}
        self._last_wait_count.update(Counter(index.begun_elsewhere.values()))
        self._at_start = {i: input_bytes(index, i) for i in index.begun_elsewhere.values()}

    def run(self, order: Sequence[int] | None = None) -> Timeline:
        """Simulate ``order`` (all node numbers, a legal order; graph order by default)."""
        return _Run(self, range(len(self._ns)) if order is None else order).timeline()


class _Run:
    """State of one simulation: the clock of the compute stream, and when each other stream is free."""

    def __init__(self, simulator: Simulator, order: Sequence[int]) -> None:
        self.simulator = simulator
        self.order = order
        self.now = 0
        self.busy_until = max(simulator._arrivals.values(), default=0)
        self.stream_free: dict[str, int] = {}
        self.stream_spans: dict[str, list[int]] = {}
        self.place: dict[int, int] = {}
        self.spans: dict[int, Span] = {}
        self.exposed: dict[int, int] = {}
        self.stalls: dict[int, int] = {}
        self.launch_ns = self.compute_ns = self.slowed_ns = 0

    def timeline(self) -> Timeline:
        s = self.simulator
        count = len(s._ns)
        start, end = [0] * count, [0] * count
        in_flight: list[int] = []
        flying = sum(s._at_start.values())
        unwaited = dict(s._last_wait_count)
        for node in self.order:
            start[node] = self.now
            if node in s._stream:
                flying += self._launch(node)
            elif node in s._waits_for:
                launch = s._waits_for[node]
                self._stall(node, launch)
                unwaited[launch] -= 1
                # Views of one result may be waited for one by one: its bytes are held until the last wait.
                flying -= 0 if unwaited[launch] else s._bytes[launch]
            elif node in s._begun:
                source = s._begun[node]
                self._arrive(node, source)
                unwaited[source] -= 1
                flying -= 0 if unwaited[source] else s._at_start[source]
            elif s._ns[node]:
                self._compute(s._ns[node])
                if node in s._within:
                    self._part(node)
            end[node] = self.now
            in_flight.append(flying)
        self._drain()
        return Timeline(
            order=tuple(self.order),
            start=tuple(start),
            end=tuple(end),
            spans=self.spans,
            exposed=self.exposed,
            stalls=self.stalls,
            step_ns=self.now,
            compute_ns=self.compute_ns,
            launch_ns=self.launch_ns,
            slowed_ns=self.slowed_ns,
            in_flight=tuple(in_flight),
            arrivals=s._arrivals,
            within_ns=sum(part.communication_ns for part in s._within.values()),
        )

    def _compute(self, ns: int) -> None:
        """Advance by ``ns`` of work, slower as long as another stream is busy."""
        self.compute_ns += ns
        added = ns
        permille = self.simulator._permille
        if permille > 1000 and self.busy_until > self.now:
            busy = self.busy_until - self.now
            done = busy * 1000 // permille  # work that fits while other streams are busy
            added = -(-ns * permille // 1000) if ns <= done else busy + ns - done
        self.slowed_ns += added - ns
        self.now += added

    def _part(self, node: int) -> None:
        """Of a node whose sub-graphs communicate: what it waits for there is no work."""
        exposed = self.simulator._within[node].exposed_ns
        self.compute_ns -= exposed
        self.exposed[node] = exposed

    def _launch(self, node: int) -> int:
        """Queue a collective; returns the bytes that are in flight until it is waited for."""
        s = self.simulator
        self.now += s._launch_ns
        self.launch_ns += s._launch_ns
        stream = s._stream[node]
        start = max(self.now, self.stream_free.get(stream, 0))
        finish = start + s._ns[node]
        self.stream_free[stream] = finish
        queue = self.stream_spans.setdefault(stream, [])
        self.place[node] = len(queue)
        queue.append(node)
        self.spans[node] = Span(stream, self.now, start, finish)
        self.busy_until = max(self.busy_until, finish)
        # The host waits here, so nothing of it is in flight afterwards.
        if not s._asynchronous[node]:
            self._stall(node, node)
            return 0
        return s._bytes[node]

    def _stall(self, node: int, launch: int) -> None:
        """Hold the compute stream until a collective ends, charged to those that run in its stream until then.

        That stream works without a pause from now on: what was queued ahead runs first.
        """
        span = self.spans.get(launch)
        if span is None or span.end <= self.now:
            return
        self.stalls[node] = span.end - self.now
        queue = self.stream_spans[span.stream]
        for position in range(self.place[launch], -1, -1):
            ran = self.spans[queue[position]]
            if ran.end <= self.now:
                break
            part = ran.end - max(ran.start, self.now)
            if part:
                self.exposed[queue[position]] = self.exposed.get(queue[position], 0) + part
        self.now = span.end

    def _arrive(self, node: int, source: int) -> None:
        """Hold the compute stream until what another graph launched has ended, charged to that input."""
        stall = self.simulator._arrivals.get(source, 0) - self.now
        if stall > 0:
            self.stalls[node] = stall
            self.exposed[source] = self.exposed.get(source, 0) + stall
            self.now += stall

    def _drain(self) -> None:
        """What still runs when the compute stream has finished makes the step longer.

        Every bit of that tail is charged to the collective that ends last among those running in it.
        A stream never pauses in the tail, so the stretches before each one's start are covered too.
        """
        running = sorted((span.end, node) for node, span in self.spans.items() if span.end > self.now)
        finish = running[-1][0] if running else self.now
        step = finish
        while finish > self.now:
            node = running.pop()[1]
            begin = max(self.now, self.spans[node].start)
            if begin < finish:
                self.exposed[node] = self.exposed.get(node, 0) + finish - begin
                finish = begin
        self.now = step


def input_bytes(index: GraphIndex, source: int) -> int:
    """Bytes of an input that is in flight at the start."""
    tensor = index.tensors[source]
    return 0 if tensor is None else tensor.bytes


def in_flight_bytes(index: GraphIndex, node: int, launch: Launch) -> int:
    """Bytes that a collective holds while it is in flight: the larger of its input and its result."""
    sent = sum(t.bytes for t in (index.tensors[i] for i in launch.inputs) if t is not None)
    result = index.tensors[node]
    parts = index.estimates.parts.get(node, ())
    got = result.bytes if result is not None else sum(t.bytes for t in parts if t is not None)
    return max(sent, got)
