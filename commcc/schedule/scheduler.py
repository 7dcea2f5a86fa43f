"""The list scheduler: walks along a base order and runs other nodes first where that pays.

The clock is that of the simulator without slow-down. At every step it takes the first of

0. a reduce-scatter that is all but ready, with the compute that feeds it, when ``Policy.most_run`` compute
   nodes ran since the last one: gradients leave as they are made instead of piling up;
1. a launch whose time has come: within ``Policy.lead`` times its own duration (and of those queued
   behind it) of the point of the base order where it is needed. Preparation of its input goes along. Where
   ``Policy.queue`` says so, it does not queue up behind others for longer than so many times its duration;
2. a node whose latest end has come: ``Policy.target_ns`` minus the longest path behind it. The earliest
   goes first, as in Schrage's schedule of one machine with tails. ``Policy.own`` counts its own time in.
   ``Policy.launch`` puts it off by some of the compute that has to run before the next launch that it leads to: what
   soon launches a collective goes first, and the compute of other chains hides that;
3. the first node in base order that can run now, results of collectives that have arrived included,
   unless it would hold up what waits for the next collective for longer than a stall takes;
4. nothing can run: the compute stream stalls until the next awaited collective arrives.

Whatever is not the next in base order is a hoist and goes through the limits: memory over the whole
stretch (:mod:`commcc.schedule.live`), bytes in flight, compute nodes between launch and
wait. The next in base order always may run, so there is always a schedule; where it would pass a limit
on collectives in flight, the one that arrives first is waited for before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commcc.base.jit import compiled, kernel
from commcc.schedule.curve import number_at
from commcc.schedule.heaps import pop, put_back, refuse
from commcc.schedule.ready import add_position, next_position
from commcc.schedule.steps import begin, crowds, make_way, may, run, too_late
from commcc.schedule.urgency import add_urgent, most_urgent, next_urgent
from commcc.schedule.walk import AWAITED, CLOSED, DUE, ENDING, EXPIRING, REFUSED, Walk, walk_along

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.schedule.arrays import Graph, Ints
    from commcc.schedule.heaps import Heaps
    from commcc.schedule.problem import Limits, Schedulable

#: How many candidates that the limits refuse are looked at before the next rule is tried.
_LAUNCHES, _URGENT, _READY = 8, 16, 64
#: More bytes than any graph makes.
_MUCH = 1 << 62


@dataclass(frozen=True)
class Policy:
    """target_ns: step time aimed at; the shorter, the sooner nodes on long paths go first.
    lead_permille: see rule 1; 1000 launches at the last moment. own_permille: see rule 2; how much of a
    node's own time counts: with 0 the latest end decides, with 1000 the latest start. most_run: see
    rule 0; -1 for no limit. It is an aim: where no reduce-scatter is near, runs are longer. bring: what goes along with
    a launch in rule 1: all that prepares it, or with 1 no more than casts and views. spare_permille: how much of the
    memory budget rule 1 leaves to others. Where a stream is never idle, gathers ahead of their time would take all of
    it, and compute wait for reductions to free some, while the stream has nothing to do. queue_permille: how much of
    its own duration a launch of rule 1 may have to wait on its stream, -1 for any: where many gathers wait there, what
    becomes ready in the meantime has to wait for all, as a reduce-scatter whose result another stream reduces.
    launch_permille: see rule 2; how much of the compute up to the next launch counts. With 0, chains that do not need
    each other, as those of two micro-batches, run in step and wait for their collectives at the same time.
    """

    target_ns: int
    lead_permille: int
    own_permille: int = 0
    most_run: int = -1
    bring: int = 2
    spare_permille: int = 0
    queue_permille: int = -1
    launch_permille: int = 2000


def schedule(
    problem: Schedulable, base: Sequence[int] | Ints, policy: Policy, limits: Limits, until: int | None = None
) -> Ints:
    """A legal order made by walking along the legal order ``base``.

    until: once the step is sure to be longer than so many ns, what is left stays as it is in ``base``.
    """
    bounds = problem.bounds(limits)
    aims = {
        "target": policy.target_ns,
        "lead_permille": policy.lead_permille,
        "own_permille": policy.own_permille,
        "most_run": policy.most_run,
        "bring": policy.bring,
        "queue_permille": policy.queue_permille,
        "spare": max(0, bounds[0]) * policy.spare_permille // 1000,
        "launch_permille": policy.launch_permille,
        "until": -1 if until is None else until,
    }
    walk = walk_along(problem.graph, np.asarray(base, np.int64), bounds, aims)
    fill(problem.graph, walk)
    order: Ints = walk.places.order[: len(base)].copy()
    return order


@kernel
def fill(graph: Graph, walk: Walk) -> None:
    """Make the schedule."""
    clock, count = walk.clock[0], len(walk.nodes)
    begin(graph, walk)
    # Graph inputs are there before anything runs, whatever the rules say, and wherever the base order has them.
    for place in range(count):
        if graph.nodes[walk.places[place].node].placeholder:
            run(graph, walk, walk.places[place].node)
    while clock.front < count and not (clock.until >= 0 and too_late(walk)):
        _land(walk)
        _end_run(graph, walk)
        _launch_due(graph, walk)
        if clock.front < count:
            node = _urgent(graph, walk)
            if node < 0:
                node = _first(graph, walk)
            if node < 0:
                node = _stall(graph, walk)
            if graph.nodes[node].waited < 0:
                make_way(graph, walk, node)
            run(graph, walk, node)
    for place in range(clock.front, count):
        if not walk.places[place].done:
            walk.places[clock.placed].order = walk.places[place].node
            clock.placed += 1


@compiled
def _land(walk: Walk) -> None:
    """Results of collectives that have arrived can be used without a stall; launches whose prefetch
    window is open can be urgent.
    """
    clock = walk.clock[0]
    while walk.heaps.sizes[AWAITED] and walk.heaps.keys[AWAITED, 0] <= clock.now:
        place = pop(walk.heaps, AWAITED)[1]
        if not walk.places[place].done:
            add_urgent(walk.urgent, place)
            add_position(walk.ready, place)
    while walk.heaps.sizes[CLOSED] and walk.heaps.keys[CLOSED, 0] <= clock.front:
        mine = walk.nodes[pop(walk.heaps, CLOSED)[1]]
        if not mine.done:
            add_urgent(walk.urgent, mine.position)


@compiled
def _due(of: Heaps, heap: int, until: int, most: int) -> bool:
    """Whether there is another candidate with a key up to ``until``, and fewer than ``most`` were refused."""
    return bool(of.sizes[heap] and of.keys[heap, 0] <= until and of.sizes[REFUSED] < most)


@compiled
def _launch_due(graph: Graph, walk: Walk) -> None:
    """Rule 1."""
    clock, places = walk.clock[0], walk.places
    while _due(walk.heaps, DUE, places[clock.front].progress, _LAUNCHES):
        key, place = pop(walk.heaps, DUE)
        if places[place].done:
            continue
        launch = places[place].node
        if crowds(graph, walk, launch):
            # Put by until a wait makes way; the heap would hand it out again and again.
            places[clock.crowded].crowded = launch
            clock.crowded += 1
            continue
        if _queues(graph, walk, launch):
            refuse(walk.heaps, key, place)
            continue
        clock.budget -= clock.spare
        taken = _run_together(graph, walk, launch, graph.rows[launch].prepares, graph.rows[launch + 1].prepares)
        clock.budget += clock.spare
        if not taken:
            refuse(walk.heaps, key, place)
    put_back(walk.heaps, DUE)


@compiled
def _queues(graph: Graph, walk: Walk, launch: int) -> bool:
    """Whether a launch would have to wait for long on its stream."""
    clock, facts = walk.clock[0], graph.nodes[launch]
    waits = walk.stream_free[facts.stream] - clock.now
    return bool(clock.queue_permille >= 0 and waits > facts.transfer * clock.queue_permille // 1000)


@compiled
def _end_run(graph: Graph, walk: Walk) -> None:
    """Rule 0."""
    clock, ended = walk.clock[0], False
    if clock.most_run < 0 or clock.run + 1 < clock.most_run:
        return
    while not ended and _due(walk.heaps, ENDING, len(walk.nodes), _LAUNCHES):
        place, launch = pop(walk.heaps, ENDING)
        if walk.nodes[launch].done:
            continue
        first, last = graph.rows[launch].feeds, graph.rows[launch + 1].feeds
        ended = _fits(graph, walk, launch) and _run_together(graph, walk, launch, first, last)
        if not ended:
            refuse(walk.heaps, place, launch)
    put_back(walk.heaps, ENDING)


@compiled
def _fits(graph: Graph, walk: Walk, launch: int) -> bool:
    """Whether a reduce-scatter and its feeds can run without waiting for other collectives before."""
    if crowds(graph, walk, launch):
        return False
    if not walk.heaps.sizes[EXPIRING]:
        return True
    computed = walk.clock[0].computed
    for k in range(graph.rows[launch].feeds, graph.rows[launch + 1].feeds):
        computed += graph.nodes[graph.items[k]].compute * (1 - walk.nodes[graph.items[k]].done)
    return bool(computed <= walk.heaps.keys[EXPIRING, 0])


@compiled
def _run_together(graph: Graph, walk: Walk, launch: int, begin: int, end: int) -> bool:
    """Run a launch after what is left of a row of nodes that lead to it, if the limits let them."""
    places, before = walk.places, 0
    for k in range(begin, end):
        if not walk.nodes[graph.items[k]].done:
            places[before].group = graph.items[k]
            before += 1
    if not may(graph, walk, launch, before):
        return False
    for k in range(before):
        run(graph, walk, places[k].group)
    run(graph, walk, launch)
    return True


@compiled
def _urgent(graph: Graph, walk: Walk) -> int:
    """Rule 2: the node to run next; -1 for none."""
    rank, urgent, clock = most_urgent(walk.urgent), walk.urgent, walk.clock[0]
    for _ in range(_URGENT):
        if rank < 0 or urgent.latest[urgent.places[rank]] + clock.target > clock.now:
            break
        node = walk.places[urgent.places[rank]].node
        if may(graph, walk, node, 0):
            return int(node)
        rank = next_urgent(urgent, rank)
    return -1


@compiled
def _first(graph: Graph, walk: Walk) -> int:
    """Rule 3: the node to run next; -1 for none."""
    clock = walk.clock[0]
    front = walk.places[clock.front].node
    launch = graph.nodes[front].waited
    if launch < 0 or walk.nodes[launch].arrival <= clock.now:
        return int(front)
    # What makes more than this passes the budget at once; most candidates do where there is little memory.
    live = number_at(walk.live, clock.front) - walk.allocated[clock.front]
    most = clock.budget - live if clock.budget >= 0 else _MUCH
    place = next_position(walk.ready, clock.front)
    for _ in range(_READY):
        if place < 0:
            break
        node, allocated = walk.places[place].node, walk.allocated[place]
        if (allocated <= most or not allocated) and not _holds_up(graph, walk, node) and may(graph, walk, node, 0):
            return int(node)
        place = next_position(walk.ready, place + 1)
    return -1


@compiled
def _holds_up(graph: Graph, walk: Walk, node: int) -> bool:
    """Whether running ``node`` now costs the next awaited collective more than a stall until then."""
    length, now, awaited = graph.nodes[node].compute_ns, walk.clock[0].now, walk.heaps.places[AWAITED]
    while walk.heaps.sizes[AWAITED] and walk.places[awaited[0]].done:
        pop(walk.heaps, AWAITED)
    if not length or not walk.heaps.sizes[AWAITED]:
        return False
    arrival, latest = walk.heaps.keys[AWAITED, 0], walk.urgent.latest[awaited[0]] + walk.clock[0].target
    idle = arrival - now
    late = now + length - max(arrival, latest)
    return bool(idle < length and late > idle)


@compiled
def _stall(graph: Graph, walk: Walk) -> int:
    """Rule 4: the wait that ends first, if it may run ahead of its place, else the one at the front."""
    if walk.heaps.sizes[AWAITED]:
        place = walk.heaps.places[AWAITED, 0]
        if not walk.places[place].done and may(graph, walk, walk.places[place].node, 0):
            return int(walk.places[place].node)
    return int(walk.places[walk.clock[0].front].node)
