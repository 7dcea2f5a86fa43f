"""An order in which compute stays where it is, and only collectives move; see :func:`in_order`.

The graph's own order of compute is a good one for memory. Along it, every collective has a position from which on its
input is there, and one at which its result is needed. On each stream they then take turns, in the time that compute
would take without any stall:

* what takes more memory the earlier it is launched, as a gather does, is launched as late as the collectives behind
  it on the stream allow, with a margin;
* what frees memory when it is done, as a reduction does, is launched as soon as it can be, unless one of the others
  would come late; it may be late itself by a few times its own duration;
* a wait goes where the collective is done by then, or where its result is needed.

Nothing moves to where the memory budget or another limit would be passed; then a collective stalls. What is live is
known at each compute node: a wait that comes later keeps what it reads, up to the last of several waits that read it,
and what is made from its result comes later too. Between compute nodes, where buckets are put together, there may be
more.

What moves, and from where to where, is found in :mod:`commcc.schedule.line_jobs`.

Limits: stalls do not shift what comes after, so on graphs that wait for communication most of the time the list
scheduler (:mod:`commcc.schedule.scheduler`) does better. It is used on top of this order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commcc.base.jit import compiled, kernel
from commcc.schedule.arrays import first_from, records
from commcc.schedule.curve import add, begin_curve, curve, last_above, most_between
from commcc.schedule.heaps import heaps, pop, push
from commcc.schedule.line_jobs import (
    BUFFER,
    JOB,
    NEVER,
    NODE,
    STATE,
    STREAM,
    Line,
    count_items,
    find_jobs,
    more,
    put_in_line,
)
from commcc.schedule.live import live_bytes

if TYPE_CHECKING:
    from commcc.schedule.arrays import Graph, Ints
    from commcc.schedule.problem import Limits, Schedulable

#: Gathers are launched so many times their own duration before the last moment.
_MARGIN = 2
#: So many reductions of a stream are looked at for one whose input is there.
_QUEUE = 24
#: Places of waits are looked for in steps of so many nodes, then one by one.
_STRETCH = 64


def in_order(problem: Schedulable, limits: Limits) -> Ints:
    """A legal order of all nodes; deterministic. It may take more memory than estimated here: judge it."""
    graph = problem.graph
    launches = np.sort(graph.launches)
    moving = (graph.nodes.asynchronous[launches] > 0) & (graph.rows.waits[launches + 1] > graph.rows.waits[launches])
    count, jobs = len(graph.nodes), records(int(moving.sum()), JOB)
    jobs.launch = launches[moving]
    state = records(1, STATE)
    state.budget, state.in_flight, state.prefetch = problem.bounds(limits)
    # Between two nodes there is space for all launches, in their turn, and behind them for all waits.
    state.spacing = 4 * (len(jobs) + 1)
    line = Line(
        jobs=jobs,
        nodes=records(count + 1, NODE),
        buffers=records(len(graph.buffers), BUFFER),
        streams=records(graph.streams, STREAM),
        state=state,
        live=curve(count),
        flying=curve(count),
        items=np.empty(0, np.int64),
        queues=np.empty((2, len(jobs) + 1), np.int64),
        stack=np.empty(len(graph.items) + 1, np.int64),
        order=np.empty(count, np.int64),
        free=heaps(1, max(count, len(jobs)) + 1),
    )
    line = line._replace(items=np.empty(count_items(graph, line), np.int64))
    _make(graph, line)
    return line.order


@kernel
def _make(graph: Graph, line: Line) -> None:
    find_jobs(graph, line)
    _begin(graph, line)
    put_in_line(line)
    while True:
        best_ns, best, best_at = NEVER, -1, 0
        for stream in range(graph.streams):
            ns, job, at = _next(line, stream)
            if job >= 0 and (ns < best_ns or (ns == best_ns and job < best)):
                best_ns, best, best_at = ns, job, at
        if best < 0:
            break
        _place(graph, line, best_ns, best, best_at)
    _in_order(graph, line)


@compiled
def _begin(graph: Graph, line: Line) -> None:
    """What is live and in flight along the graph's own order; as much in flight is allowed."""
    state = line.state[0]
    for node in range(len(graph.nodes)):
        line.order[node] = node
        line.nodes[node].key = node * state.spacing
    live_bytes(graph, line.order, line.live.numbers, line.buffers)
    begin_curve(line.live)
    state.budget = state.budget if state.budget >= 0 else NEVER
    for job in line.jobs:
        add(line.flying, job.launch, job.first_wait, job.bytes)
    most = most_between(line.flying, 0, len(graph.nodes))
    state.in_flight = max(state.in_flight, most) if state.in_flight >= 0 else NEVER


@compiled
def _ready(line: Line, job: int) -> int:
    """The position from which on it can be launched, -1 while something it waits for has no place yet; what has a place
    keeps it, so it is looked for once.
    """
    mine = line.jobs[job]
    if mine.ready < 0:
        place = mine.release
        for k in range(mine.behind, mine.prepares):
            if line.nodes[line.items[k]].waiting:
                return -1
            place = max(place, line.nodes[line.items[k]].waited)
        mine.ready = place
    return int(mine.ready)


@compiled
def _next(line: Line, stream: int) -> tuple[int, int, int]:
    """Which collective of a stream comes next, from which ns and position on; job -1 where none can."""
    mine = line.streams[stream]
    while mine.other < mine.others and line.jobs[line.queues[1, mine.other]].placed:
        mine.other += 1
    other, other_at, looked = -1, 0, 0
    for k in range(mine.other, mine.others):
        job = line.queues[1, k]
        if line.jobs[job].placed:
            continue
        if looked == _QUEUE:
            break
        looked += 1
        place = _ready(line, job)
        if place >= 0 and (other < 0 or place < other_at or (place == other_at and job < other)):
            other, other_at = job, place
    gather = line.queues[0, mine.gather] if mine.gather < mine.gathers else -1
    at = _ready(line, gather) if gather >= 0 else -1
    ns = 0
    if at >= 0:
        begin = line.jobs[gather].latest - _MARGIN * line.jobs[gather].ns
        ns = max(mine.free, begin, line.nodes[at].start)
    if other >= 0:
        other_ns = max(mine.free, line.nodes[other_at].start)
        fits = gather < 0 or other_ns + line.jobs[other].ns <= line.jobs[gather].latest
        fits = fits or line.jobs[other].latest <= line.jobs[gather].latest
        if at < 0 or other_ns < ns or (other_ns == ns and fits):
            return other_ns, other, other_at
    if at < 0:
        gather = -1
    return ns, gather, at


@compiled
def _place(graph: Graph, line: Line, ns: int, job: int, position: int) -> None:
    """Give a collective its place: the launch at the last node that begins before its turn, the wait behind it."""
    mine, state, nodes = line.jobs[job], line.state[0], line.nodes
    launch, last = mine.launch, mine.last_wait
    at = max(min(first_from(nodes.start, max(ns, 0) + 1) - 1, mine.deadline), position)
    mine.placed = 1
    if mine.early:
        line.streams[mine.stream].gather += 1
        at = _not_before(graph, line, job, min(at, launch))
        add(line.live, at, launch, mine.takes)
        add(line.flying, at, launch, mine.bytes)
    else:
        at = max(position, _not_after(graph, line, job, at))
    if at != launch:
        state.placed += 1
        nodes[launch].key = at * state.spacing - (state.spacing >> 1) + state.placed
        for k in range(mine.prepares, mine.holds):
            nodes[line.items[k]].key = min(nodes[line.items[k]].key, nodes[launch].key)
    done = max(ns, nodes[at].start) + mine.ns
    line.streams[mine.stream].free = done
    until = min(first_from(nodes.start, done), mine.deadline)
    if state.prefetch >= 0:
        allowed = nodes[at].computed + max(state.prefetch, graph.nodes[launch].between)
        until = min(until, max(last, first_from(nodes.computed, allowed + 1) - 1))
    until = _not_after(graph, line, job, max(until, min(at, mine.deadline)))
    add(line.flying, last + 1, until, mine.bytes)
    if until > last:
        _put_off(graph, line, job, until)
    for k in range(graph.rows[launch].waits, graph.rows[launch + 1].waits):
        wait = graph.items[k]
        nodes[wait].waited, nodes[wait].waiting = max(until, wait), 0
        if until > last:
            nodes[wait].key = until * state.spacing - (state.spacing >> 2)


@compiled
def _put_off(graph: Graph, line: Line, job: int, until: int) -> None:
    """What has to be there until the waits is, and what is made from the result is not, up to where the waits stand."""
    mine = line.jobs[job]
    for k in range(mine.holds, mine.gives):
        buffer = line.buffers[line.items[k]]
        add(line.live, max(buffer.last, mine.last_wait) + 1, until, graph.buffers[line.items[k]].bytes)
        buffer.last = max(buffer.last, until - 1)
    for k in range(mine.gives, mine.end):
        buffer, facts = line.buffers[line.items[k]], graph.buffers[line.items[k]]
        end = until
        if not facts.kept:
            end = min(until, buffer.last + 1)
        add(line.live, buffer.first, end, -facts.bytes)
        buffer.first = max(buffer.first, until)


@compiled
def _not_before(graph: Graph, line: Line, job: int, at: int) -> int:
    """The first position from ``at`` on from which to the launch's own it fits all limits."""
    mine, state, launch = line.jobs[job], line.state[0], line.jobs[job].launch
    if state.prefetch >= 0:
        allowed = line.nodes[mine.first_wait].computed - max(state.prefetch, graph.nodes[launch].between)
        at = max(at, min(first_from(line.nodes.computed, allowed), launch))
    full = last_above(line.live, at, launch, state.budget - mine.takes)
    return int(max(full, last_above(line.flying, at, launch, state.in_flight - mine.bytes)) + 1)


@compiled
def _not_after(graph: Graph, line: Line, job: int, at: int) -> int:
    """The last position up to ``at`` until which, from its wait's own place, it fits all limits."""
    mine = line.jobs[job]
    place = mine.last_wait + 1
    while place + _STRETCH <= at and _fits(graph, line, job, place, place + _STRETCH):
        place += _STRETCH
    while place < at and _fits(graph, line, job, place, place + 1):
        place += 1
    return int(min(place, at))


@compiled
def _fits(graph: Graph, line: Line, job: int, begin: int, end: int) -> bool:
    """Whether the waits may come behind a stretch."""
    state, held = line.state[0], more(graph, line, job, begin, end)
    if most_between(line.live, begin, end) > state.budget - held:
        return False
    return bool(most_between(line.flying, begin, end) <= state.in_flight - line.jobs[job].bytes)


@compiled
def _in_order(graph: Graph, line: Line) -> None:
    """All nodes by their keys, as far as dependences allow."""
    rows, count, placed = graph.rows, len(graph.nodes), 0
    for node in range(count):
        line.nodes[node].missing = rows[node + 1].preds - rows[node].preds
        if not line.nodes[node].missing:
            push(line.free, 0, line.nodes[node].key, node)
    while line.free.sizes[0]:
        _key, node = pop(line.free, 0)
        line.order[placed] = node
        placed += 1
        for k in range(rows[node].users, rows[node + 1].users):
            user = graph.items[k]
            line.nodes[user].missing -= 1
            if not line.nodes[user].missing:
                push(line.free, 0, line.nodes[user].key, user)
