"""The line of :mod:`commcc.schedule.in_order` once more, in plain Python over objects.

What the kernels make has to be the same, node by node. Slower by an order of magnitude, and easier to read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commcc.base.sequences import topological
from commcc.graph.index.build import users_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.schedule.arrays import Ints
    from commcc.schedule.problem import Limits, Problem

#: Gathers are launched so many times their own duration before the last moment.
_MARGIN = 2
#: Reductions may begin so many times their own duration after they could.
_DELAY = 4
#: So many reductions of a stream are looked at for one whose input is there.
_QUEUE = 24
_NEVER = 1 << 62


@dataclass
class _Job:
    """A launch and its waits. Positions are those of the graph's own order.

    release: from here on its input is there, but for what waits ``behind`` bring. deadline: the first node that needs
    its result. takes: bytes that are live from its launch on. holds: buffers that are there until its wait. gives:
    those that are made behind it by what trails. early: launch it as late as possible. latest: ns at which it should
    begin. ready: the position from which on it can be launched; None while something it waits for has no place yet.
    """

    launch: int
    waits: tuple[int, ...]
    stream: str
    ns: int
    bytes: int
    release: int
    deadline: int
    preparation: tuple[int, ...]
    behind: tuple[int, ...]
    takes: int
    holds: tuple[int, ...]
    gives: tuple[int, ...]
    early: bool
    latest: int = 0
    ready: int | None = None


@dataclass
class _Stream:
    """Collectives still to be launched on a stream, in turn, and the ns at which it is free."""

    gathers: list[_Job] = field(default_factory=list)
    others: list[_Job] = field(default_factory=list)
    free: int = 0


class _Turn(NamedTuple):
    """A collective that could be next on its stream: from which ns and which position on."""

    ns: int
    job: _Job
    position: int


def in_order(problem: Problem, limits: Limits) -> Ints:
    """A legal order of all nodes; deterministic. It may take more memory than estimated here: judge it."""
    return placed(problem, limits).order()


def placed(problem: Problem, limits: Limits) -> _Line:
    """The line once all collectives have their places."""
    line = _Line(problem, limits)
    while True:
        turns = [(turn, stream) for stream in line.streams if (turn := line.next(stream)) is not None]
        if not turns:
            return line
        line.place(*min(turns, key=lambda pair: (pair[0].ns, pair[0].job.launch)))


class _Line:
    """The graph's own order, with what is live and in flight along it, and where collectives go."""

    def __init__(self, problem: Problem, limits: Limits) -> None:
        self.problem = problem
        count = len(problem.index)
        self.starts = np.concatenate([[0], np.cumsum(np.asarray(problem.stream_ns, np.int64))])
        self.live = np.asarray(problem.memory.live(range(count)).live, np.int64)
        self.compute = np.concatenate([[0], np.cumsum(np.asarray(problem.index.compute, np.int64))])
        self.flying = np.zeros(count, np.int64)
        jobs = _jobs(problem)
        for job in jobs:
            self.flying[job.launch : job.waits[0]] += job.bytes
        budget, in_flight, self.prefetch = problem.bounds(limits)
        # What the graph's own order has is allowed.
        self.budget = budget if budget >= 0 else _NEVER
        self.in_flight = max(in_flight, int(self.flying.max())) if in_flight >= 0 else _NEVER
        self.streams = self._queues(jobs)
        self.waiting = {wait for job in jobs for wait in job.waits}
        self.waited: dict[int, int] = {}
        #: Between two nodes there is room for all launches, in their turn, and behind them for all waits.
        self.room = 4 * (len(jobs) + 1)
        self.keys = [node * self.room for node in range(count)]
        self.placed = 0
        #: The positions from which on and to which a buffer is there so far.
        self.first, self.last = _maker(problem), _last(problem)

    def _queues(self, jobs: Sequence[_Job]) -> list[_Stream]:
        streams: dict[str, list[_Job]] = {}
        for job in jobs:
            streams.setdefault(job.stream, []).append(job)
        end = len(self.problem.index) - 1
        for queue in streams.values():
            due = {}
            for job in queue:
                due[job.launch] = int(self.starts[job.deadline])
                if not job.early and job.deadline == end:
                    due[job.launch] = min(due[job.launch], int(self.starts[job.release]) + (1 + _DELAY) * job.ns)
            begin = _NEVER
            for job in sorted(queue, key=lambda job: (-due[job.launch], -job.launch)):
                begin = job.latest = min(due[job.launch], begin) - job.ns
        return [
            _Stream(
                sorted((job for job in queue if job.early), key=lambda job: (job.latest, job.launch), reverse=True),
                sorted((job for job in queue if not job.early), key=lambda job: (job.release, job.launch)),
            )
            for queue in streams.values()
        ]

    def _ready(self, job: _Job) -> int | None:
        """Its position ``ready``; what has a place keeps it, so it is looked for once."""
        if job.ready is None and not any(wait in self.waiting for wait in job.behind):
            job.ready = max([job.release, *(self.waited.get(wait, 0) for wait in job.behind)])
        return job.ready

    def next(self, stream: _Stream) -> _Turn | None:
        """Which collective of a stream comes next; None where none can."""
        ready = [(place, job.launch, job) for job in stream.others[:_QUEUE] if (place := self._ready(job)) is not None]
        other = min(ready, default=None)
        gather = stream.gathers[-1] if stream.gathers else None
        place = self._ready(gather) if gather is not None else None
        turns = []
        if gather is not None and place is not None:
            begin = max(gather.latest - _MARGIN * gather.ns, int(self.starts[place]))
            turns.append(_Turn(max(stream.free, begin), gather, place))
        if other is not None:
            turn = _Turn(max(stream.free, int(self.starts[other[0]])), other[2], other[0])
            fits = gather is None or turn.ns + turn.job.ns <= gather.latest or turn.job.latest <= gather.latest
            if not turns or turn.ns < turns[0].ns or (turn.ns == turns[0].ns and fits):
                return turn
        return turns[0] if turns else None

    def place(self, turn: _Turn, stream: _Stream) -> None:
        """Give a collective its place: the launch at the last node that begins before its turn, the wait behind it."""
        job, launch = turn.job, turn.job.launch
        at = max(min(self._before(turn.ns), job.deadline), turn.position)
        if job.early:
            stream.gathers.pop()
            at = self._not_before(job, min(at, launch))
            if at < launch:
                self.live[at:launch] += job.takes
                self.flying[at:launch] += job.bytes
        else:
            stream.others.remove(job)
            at = max(turn.position, self._not_after(job, at))
        if at != launch:
            self.placed += 1
            self.keys[launch] = at * self.room - self.room // 2 + self.placed
            for node in job.preparation:
                self.keys[node] = min(self.keys[node], self.keys[launch])
        done = max(turn.ns, int(self.starts[at])) + job.ns
        stream.free = done
        last = job.waits[-1]
        until = min(int(np.searchsorted(self.starts, done)), job.deadline)
        if self.prefetch >= 0:
            allowed = self.compute[at] + max(self.prefetch, self.problem.own_prefetch[launch])
            until = min(until, max(last, int(np.searchsorted(self.compute, allowed, "right")) - 1))
        until = self._not_after(job, max(until, min(at, job.deadline)))
        if until > last:
            for buffer in job.holds:
                self.live[max(self.last[buffer], last) + 1 : until] += self.problem.memory.size[buffer]
                self.last[buffer] = max(self.last[buffer], until - 1)
            for buffer in job.gives:
                end = until if buffer in self.problem.memory.kept else min(until, self.last[buffer] + 1)
                self.live[self.first[buffer] : max(self.first[buffer], end)] -= self.problem.memory.size[buffer]
                self.first[buffer] = max(self.first[buffer], until)
            self.flying[last + 1 : until] += job.bytes
        for wait in job.waits:
            self.waited[wait] = max(until, wait)
            self.waiting.discard(wait)
            if until > last:
                self.keys[wait] = until * self.room - self.room // 4

    def _before(self, ns: int) -> int:
        """The last position that begins by then."""
        return int(np.searchsorted(self.starts, max(ns, 0), "right")) - 1

    def _not_before(self, job: _Job, at: int) -> int:
        """The first position from ``at`` on from which to the launch's own it fits all limits."""
        if self.prefetch >= 0:
            allowed = self.compute[job.waits[0]] - max(self.prefetch, self.problem.own_prefetch[job.launch])
            at = max(at, min(int(np.searchsorted(self.compute, allowed)), job.launch))
        full = self._full(at, job.launch, job.takes, job.bytes)
        return int(full[-1]) + 1 if len(full) else at

    def _not_after(self, job: _Job, at: int) -> int:
        """The last position up to ``at`` until which, from its wait's own place, it fits all limits."""
        begin = job.waits[-1] + 1
        held = np.zeros(max(0, at - begin), np.int64)
        for buffer in job.holds:
            held[max(0, self.last[buffer] + 1 - begin) :] += self.problem.memory.size[buffer]
        for buffer in job.gives:
            end = at if buffer in self.problem.memory.kept else min(at, self.last[buffer] + 1)
            held[max(0, self.first[buffer] - begin) : max(0, end - begin)] -= self.problem.memory.size[buffer]
        full = self._full(begin, at, held, job.bytes)
        return int(full[0]) if len(full) else at

    def _full(self, begin: int, end: int, held: int | Ints, flying: int) -> Ints:
        """Positions from ``begin`` on, before ``end``, at which so many bytes more are too many."""
        end = max(begin, end)
        over = self.live[begin:end] > self.budget - held
        if self.in_flight < _NEVER:
            over |= self.flying[begin:end] > self.in_flight - flying
        return begin + np.flatnonzero(over)

    def order(self) -> Ints:
        """All nodes by their keys, as far as dependences allow."""
        by_rank = sorted(range(len(self.keys)), key=self.keys.__getitem__)
        return np.array(topological(by_rank, self.problem.preds), np.int64)


def _jobs(problem: Problem) -> list[_Job]:
    """All collectives that something waits for."""
    index, memory = problem.index, problem.memory
    count = len(index)
    last = _last(problem)
    maker = _maker(problem)
    works = [
        bool(ns) or node in index.launches or node in index.wait_of or node in index.writes
        for node, ns in enumerate(problem.stream_ns)
    ]
    # What only leads to outputs, and is no compute: it may come later, with all that is behind it.
    trails = [True] * count
    for node in range(count - 1, -1, -1):
        if node < count - 1 and (index.compute[node] or index.ops[node] == "placeholder"):
            trails[node] = False
        if not trails[node]:
            for pred in problem.preds[node]:
                trails[pred] = False
    jobs = []
    for launch, facts in index.launches.items():
        if not facts.asynchronous or not facts.waits:
            continue
        waits = tuple(sorted(facts.waits))
        preparation, behind, release = _input(problem, launch, works)
        made = {buffer for node in (*preparation, launch) for buffer in index.estimates.buffers[node]}
        there_until = {b for wait in waits for b in memory.touched[wait]}.difference(memory.kept, memory.inputs)
        own = (*preparation, launch)
        there = {b for b in made if maker[b] in own and (last[b] > launch or b in memory.kept)}
        takes = sum(memory.size[buffer] for buffer in there)
        frees = takes <= sum(memory.size[buffer] for buffer in there_until if last[buffer] <= waits[-1])
        deadline = max(waits[0], _needed(problem, waits, works, trails))
        early = release < launch and (frees or deadline < count - 1)
        jobs.append(
            _Job(
                launch=launch,
                waits=waits,
                stream=problem.stream[launch],
                ns=problem.costs.ns[launch],
                bytes=problem.bytes[launch],
                release=release if early else launch,
                deadline=deadline,
                preparation=preparation,
                behind=behind,
                takes=takes,
                holds=tuple(sorted(there_until)),
                gives=_given(problem, waits, trails),
                early=early,
            )
        )
    return jobs


def _maker(problem: Problem) -> dict[int, int]:
    """The first node whose result each buffer is in."""
    buffers = problem.index.estimates.buffers
    return {buffer: node for node in reversed(range(len(buffers))) for buffer in buffers[node]}


def _given(problem: Problem, waits: Sequence[int], trails: Sequence[bool]) -> tuple[int, ...]:
    """Buffers that are made by what comes later where the waits do."""
    index, seen, stack, maker = problem.index, set[int](), list(waits), _maker(problem)
    users, collective = users_of(problem.preds), {*index.launches, *index.wait_of, *index.begun_elsewhere}
    while stack:
        for user in users[stack.pop()]:
            if user not in seen and trails[user] and user not in collective:
                seen.add(user)
                stack.append(user)
    made = {buffer for node in seen for buffer in index.estimates.buffers[node] if maker[buffer] == node}
    return tuple(sorted(made.difference(problem.memory.inputs)))


def _last(problem: Problem) -> dict[int, int]:
    """The last node that touches each buffer, in the graph's own order."""
    return {buffer: node for node, touched in enumerate(problem.memory.touched) for buffer in touched}


def _input(problem: Problem, launch: int, works: Sequence[bool]) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """What moves with a launch, the waits that bring its input, and the position behind all else that it needs."""
    own = set(problem.preparation.get(launch, ()))
    preparation, seen, release = [], set[int](), 0
    stack = list(problem.preds[launch])
    while stack:
        node = stack.pop()
        if node in seen or problem.index.ops[node] == "placeholder":
            continue
        seen.add(node)
        if works[node] and node not in own:
            release = max(release, node + 1)
        else:
            preparation.append(node)
            stack.extend(problem.preds[node])
    behind = tuple(sorted(node for node in seen if node in problem.index.wait_of))
    return tuple(sorted(preparation)), behind, min(release, launch)


def _needed(problem: Problem, waits: Sequence[int], works: Sequence[bool], trails: Sequence[bool]) -> int:
    """The first node that needs the result of a collective."""
    first, seen, stack = len(problem.index) - 1, set(waits), list(waits)
    users = users_of(problem.preds)
    while stack:
        for user in users[stack.pop()]:
            if user in seen or trails[user]:
                continue
            seen.add(user)
            if works[user]:
                first = min(first, user)
            else:
                stack.append(user)
    return first
