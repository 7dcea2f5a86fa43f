"""What running a node changes, when launches are due, and whether the limits let a node run; kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.jit import compiled
from commcc.schedule.arrays import first_from
from commcc.schedule.curve import begin_curve
from commcc.schedule.heaps import pop, push
from commcc.schedule.live import hoist, ran
from commcc.schedule.ready import add_position, drop_position
from commcc.schedule.urgency import add_urgent, drop_urgent
from commcc.schedule.walk import AWAITED, CLOSED, DUE, ENDING, EXPIRING, Walk

if TYPE_CHECKING:
    from commcc.schedule.arrays import Graph


@compiled
def begin(graph: Graph, walk: Walk) -> None:
    """All that follows from the base order and the aim, and the nodes that need nothing."""
    places, clock, count = walk.places, walk.clock[0], len(walk.nodes)
    for place in range(count):
        places[place].node = node = walk.base[place]
        mine, facts = walk.nodes[node], graph.nodes[node]
        mine.position, mine.missing = place, facts.missing
        mine.unwaited = graph.rows[node + 1].waits - graph.rows[node].waits
        if facts.placeholder and mine.unwaited:  # in flight at the start
            mine.arrival = facts.transfer
            clock.flying += facts.bytes
        clock.left += facts.compute_ns
        if facts.stream >= 0:
            walk.stream_left[facts.stream] += facts.transfer
        places[place + 1].progress = places[place].progress + facts.compute_ns
        places[place + 1].computed = places[place].computed + facts.compute
    needs(graph, walk)
    windows(graph, walk)
    due(graph, walk)
    begin_curve(walk.live)
    for place in range(count):
        node = places[place].node
        if not walk.nodes[node].missing and not graph.nodes[node].placeholder:  # graph inputs come first in any case
            _offer(graph, walk, node)
    for node in range(count):
        for k in range(graph.rows[node].needed_by, graph.rows[node + 1].needed_by):
            walk.nodes[graph.items[k]].lacking += 1
    for launch in graph.launches:
        if _brings(graph, walk, launch) and walk.nodes[launch].due != NEVER:
            push(walk.heaps, DUE, walk.nodes[launch].due, walk.nodes[launch].position)


@compiled
def _brings(graph: Graph, walk: Walk, launch: int) -> bool:
    """Whether what prepares a launch goes along with it."""
    prepared = graph.nodes[launch].prepared
    return bool(prepared > 0 and prepared <= walk.clock[0].bring)


@compiled
def _offer(graph: Graph, walk: Walk, node: int) -> None:
    """A node that has all it needs."""
    facts, mine = graph.nodes[node], walk.nodes[node]
    if facts.waited >= 0:
        push(walk.heaps, AWAITED, walk.nodes[facts.waited].arrival, mine.position)
        return
    if mine.due != NEVER and not _brings(graph, walk, node):
        push(walk.heaps, DUE, mine.due, mine.position)
    if facts.stream >= 0:
        push(walk.heaps, CLOSED, mine.opens, node)
    else:
        # A launch ahead of its place is the business of rules 1 and 2, all else of 2 and 3.
        add_urgent(walk.urgent, mine.position)
        add_position(walk.ready, mine.position)


@compiled
def run(graph: Graph, walk: Walk, node: int) -> None:
    """Run a node now; a wait holds the compute stream until its collective has arrived."""
    clock, facts = walk.clock[0], graph.nodes[node]
    if facts.waited >= 0:
        clock.now = max(clock.now, walk.nodes[facts.waited].arrival)
    walk.places[clock.placed].order = node
    clock.placed += 1
    walk.nodes[node].done = 1
    drop_position(walk.ready, walk.nodes[node].position)
    drop_urgent(walk.urgent, walk.nodes[node].position)
    clock.computed += facts.compute
    ran(graph, walk, node)
    clock.now += facts.compute_ns
    clock.left -= facts.compute_ns
    clock.run = 0 if facts.ends else clock.run + facts.compute
    for k in range(graph.rows[node].needed_by, graph.rows[node + 1].needed_by):
        fed = graph.items[k]
        walk.nodes[fed].lacking -= 1
        if not walk.nodes[fed].lacking:
            push(walk.heaps, ENDING, walk.nodes[fed].position, fed)
    if facts.stream >= 0:
        mine = walk.nodes[node]
        mine.arrival = max(clock.now, walk.stream_free[facts.stream]) + facts.transfer
        walk.stream_free[facts.stream] = mine.arrival
        walk.stream_left[facts.stream] -= facts.transfer
        if mine.unwaited:
            clock.flying += facts.bytes
            walk.places[clock.air].air = node
            clock.air += 1
            mine.air = clock.air
            if clock.prefetch >= 0:
                push(walk.heaps, EXPIRING, clock.computed + max(clock.prefetch, facts.between), node)
    if facts.waited >= 0:
        _waited(graph, walk, facts.waited)
    for k in range(graph.rows[node].users, graph.rows[node + 1].users):
        user = graph.items[k]
        walk.nodes[user].missing -= 1
        if not walk.nodes[user].missing:
            _offer(graph, walk, user)
    while clock.front < len(walk.nodes) and walk.places[clock.front].done:
        clock.front += 1


@compiled
def too_late(walk: Walk) -> bool:
    """Whether a stream has more left to do than the step is to take."""
    clock = walk.clock[0]
    late = clock.now + clock.left > clock.until
    for stream in range(len(walk.stream_left)):
        free = max(clock.now, walk.stream_free[stream])
        late = late or (walk.stream_left[stream] > 0 and free + walk.stream_left[stream] > clock.until)
    return bool(late)


@compiled
def _waited(graph: Graph, walk: Walk, launch: int) -> None:
    clock, mine = walk.clock[0], walk.nodes[launch]
    mine.unwaited -= 1
    if mine.unwaited:
        return
    clock.flying -= graph.nodes[launch].bytes
    _land(walk, launch)
    still = 0
    for k in range(clock.crowded):
        other = walk.places[k].crowded
        if crowds(graph, walk, other):
            walk.places[still].crowded = other
            still += 1
        else:
            push(walk.heaps, DUE, walk.nodes[other].due, walk.nodes[other].position)
    clock.crowded = still


@compiled
def _land(walk: Walk, launch: int) -> None:
    """Take it from the list of what is in flight, where it is there; the last one takes its place."""
    clock, at = walk.clock[0], walk.nodes[launch].air - 1
    if at < 0:
        return
    clock.air -= 1
    last = walk.places[clock.air].air
    walk.places[at].air = last
    walk.nodes[last].air = at + 1
    walk.nodes[launch].air = 0


@compiled
def may(graph: Graph, walk: Walk, node: int, prepared: int) -> bool:
    """Whether the limits let a node run now, after the first ``prepared`` nodes of the group that prepare it."""
    front, mine = walk.clock[0].front, walk.nodes[node]
    if mine.position == front:
        return True
    if not prepared and mine.missing:
        return False
    if graph.nodes[node].stream >= 0 and (mine.opens > front or crowds(graph, walk, node)):
        return False
    walk.places[prepared].group = node
    return hoist(graph, walk, prepared + 1)


@compiled
def crowds(graph: Graph, walk: Walk, launch: int) -> bool:
    """Whether too much would be in flight with this launch."""
    clock = walk.clock[0]
    if clock.in_flight < 0 or not walk.nodes[launch].unwaited:
        return False
    return bool(clock.flying + graph.nodes[launch].bytes > clock.in_flight)


@compiled
def make_way(graph: Graph, walk: Walk, node: int) -> None:
    """Wait for collectives that the limits do not let be in flight with what ``node`` is."""
    if graph.nodes[node].stream >= 0:
        while crowds(graph, walk, node) and _wait_for_one(graph, walk):
            pass
    if not graph.nodes[node].compute:
        return
    while walk.heaps.sizes[EXPIRING] and walk.heaps.keys[EXPIRING, 0] <= walk.clock[0].computed:
        _wait_for(graph, walk, pop(walk.heaps, EXPIRING)[1])


@compiled
def _wait_for_one(graph: Graph, walk: Walk) -> bool:
    """Wait for what arrives first; whether there was anything that could be waited for."""
    last, before = -1, -1
    while True:
        # The next one to arrive; few are asked for.
        launch, arrival = -1, 1 << 62
        for k in range(walk.clock[0].air):
            other = walk.places[k].air
            lands = walk.nodes[other].arrival
            later = lands > last or (lands == last and other > before)
            if later and (lands < arrival or (lands == arrival and other < launch)):
                launch, arrival = other, lands
        if launch < 0:
            return False
        if _wait_for(graph, walk, launch):
            return True
        last, before = arrival, launch


@compiled
def _wait_for(graph: Graph, walk: Walk, launch: int) -> bool:
    """Run the waits of a launch ahead of their places, as far as that can be."""
    waited = False
    for k in range(graph.rows[launch].waits, graph.rows[launch + 1].waits):
        node = graph.items[k]
        if not walk.nodes[node].done and not walk.nodes[node].missing and may(graph, walk, node, 0):
            run(graph, walk, node)
            waited = True
    return waited


#: What other nodes than launches with a wait are due.
NEVER = -(1 << 62)


@compiled
def needs(graph: Graph, walk: Walk) -> None:
    """For every launch with a wait the position of its first one; -1 for other nodes."""
    for node in walk.nodes:
        node.need, node.due = -1, NEVER
    for launch in graph.launches:
        for k in range(graph.rows[launch].waits, graph.rows[launch + 1].waits):
            place = walk.nodes[graph.items[k]].position
            if walk.nodes[launch].need < 0 or place < walk.nodes[launch].need:
                walk.nodes[launch].need = place


@compiled
def windows(graph: Graph, walk: Walk) -> None:
    """For every launch the first position from which the limit on prefetch lets it go; 0 where there is none."""
    prefetch = walk.clock[0].prefetch
    if prefetch < 0:
        return
    computed = walk.places.computed
    for launch in graph.launches:
        mine, facts = walk.nodes[launch], graph.nodes[launch]
        if mine.need >= 0 and facts.asynchronous:
            least = computed[mine.need] - max(prefetch, facts.between)
            mine.opens = min(first_from(computed, least), mine.need, mine.position)


@compiled
def due(graph: Graph, walk: Walk) -> None:
    """For every launch with a wait the progress along the base order, in ns, at which it is to go.

    Launches of a stream are taken in the order in which they are needed; each must be over when the next
    one has to begin, a launch taking ``lead_permille`` of its time. None is due before its window opens.
    """
    places, before = walk.places, walk.stream_free
    count = len(walk.nodes)
    for stream in range(graph.streams):
        before[stream] = places[count].progress
    for launch in graph.launches:
        if walk.nodes[launch].need >= 0:
            places[walk.nodes[launch].need].order = launch + 1
    for back in range(count):
        place = count - 1 - back
        if not places[place].order:
            continue
        launch = places[place].order - 1
        places[place].order = 0
        mine, facts = walk.nodes[launch], graph.nodes[launch]
        latest = min(before[facts.stream], places[place].progress)
        before[facts.stream] = latest - facts.transfer * walk.clock[0].lead_permille // 1000
        mine.due = max(before[facts.stream], places[mine.opens].progress)
    for stream in range(graph.streams):
        before[stream] = 0
