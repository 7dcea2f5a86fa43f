"""What :mod:`commcc.schedule.in_order` moves: collectives that something waits for, and between which positions.

All positions are those of the graph's own order. What takes no time on the compute stream and is no collective, wait or
write only leads to what works: it goes along with what needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from commcc.base.jit import compiled, kernel
from commcc.schedule.heaps import pop, push
from commcc.schedule.live import SIZES

if TYPE_CHECKING:
    from commcc.schedule.arrays import Graph, Ints, Records
    from commcc.schedule.curve import Curve
    from commcc.schedule.heaps import Heaps

#: Later than anything.
NEVER = 1 << 62
#: Reductions may begin so many times their own duration after they could.
_DELAY = 4

#: By collective, in graph order. release: from here on its input is there, but for what ``items[behind:prepares]``, its
#: waits, bring. deadline: the first node that needs its result. takes: bytes that are live from its launch on. early:
#: launch it as late as possible. latest: ns at which it should begin. ready: the position from which on it can be
#: launched, -1 while unknown. ``items[prepares:holds]`` goes along with it. ``items[holds:gives]`` are the buffers that
#: have to be there until its waits, ``items[gives:end]`` those that are made from its result by what trails behind.
JOB = (
    *("launch", "first_wait", "last_wait", "stream", "ns", "bytes", "release", "deadline", "takes", "early"),
    *("latest", "ready", "placed", "behind", "prepares", "holds", "gives", "end"),
)
#: By node. start: ns before it; computed: compute nodes before it. works: see above. trails: it only leads to outputs,
#: and is no compute. own, seen: the last collective that was asked of it, counted from 1. waiting: a wait without a
#: place; waited: its place. key: what nodes are put in order by.
NODE = ("start", "computed", "works", "trails", "own", "seen", "waiting", "waited", "key", "missing")
#: maker: the first node whose result it is in. first, last: the positions from which on and to which it is there so
#: far. seen: as of nodes.
BUFFER = (*SIZES, "maker", "first", "last", "seen")
#: gather, gathers: where those to be launched as late as possible begin and end in ``queues[0]``; other, others: the
#: rest in ``queues[1]``. begin, end: of one of these while they are made. free: from which ns on it is idle.
STREAM = ("gather", "gathers", "other", "others", "begin", "end", "free")
#: Limits; spacing: of keys between two nodes; placed: launches that were moved.
STATE = ("budget", "in_flight", "prefetch", "spacing", "placed")


class Line(NamedTuple):
    """The graph's own order, with what is live and in flight along it, and where collectives go.

    nodes: has one record more than there are nodes. order: what comes of it.
    """

    jobs: Records
    nodes: Records
    buffers: Records
    streams: Records
    state: Records
    live: Curve
    flying: Curve
    items: Ints
    queues: Ints
    stack: Ints
    order: Ints
    free: Heaps


@kernel
def count_items(graph: Graph, line: Line) -> int:
    """How many items jobs have; what nodes are, by the way."""
    _know_nodes(graph, line)
    items = 0
    for job in range(len(line.jobs)):
        items = _around(graph, line, job, items, 0)
    for node in range(len(graph.nodes)):
        line.nodes[node].seen = line.nodes[node].own = 0
    for buffer in line.buffers:
        buffer.seen = 0
    return items


@compiled
def find_jobs(graph: Graph, line: Line) -> None:
    """All that is known of a collective before any has a place."""
    items = 0
    for job in range(len(line.jobs)):
        mine = line.jobs[job]
        rows, launch = graph.rows[mine.launch], mine.launch
        end = graph.rows[launch + 1].waits
        mine.first_wait = mine.last_wait = graph.items[rows.waits]
        for k in range(rows.waits, end):
            mine.first_wait, mine.last_wait = min(mine.first_wait, graph.items[k]), max(mine.last_wait, graph.items[k])
            line.nodes[graph.items[k]].waiting = 1
        facts = graph.nodes[launch]
        mine.stream, mine.ns, mine.bytes, mine.ready = facts.stream, facts.transfer, facts.bytes, -1
        items = _around(graph, line, job, items, 1)
    for job in range(len(line.jobs)):  # marks of nodes are those of inputs until here
        mine = line.jobs[job]
        mine.deadline = max(mine.first_wait, _needed(graph, line, job))
        mine.takes = _takes(graph, line, job)
        frees = mine.takes <= _frees(graph, line, job)
        if mine.release < mine.launch and (frees or mine.deadline < len(graph.nodes) - 1):
            mine.early = 1
        else:
            mine.release = mine.launch


@compiled
def _know_nodes(graph: Graph, line: Line) -> None:
    nodes, count = line.nodes, len(graph.nodes)
    for node in range(count):
        mine, facts = nodes[node], graph.nodes[node]
        nodes[node + 1].start, nodes[node + 1].computed = mine.start + facts.compute_ns, mine.computed + facts.compute
        mine.trails = 1
        if facts.compute_ns or facts.stream >= 0 or facts.writes or _is_wait(graph, node):
            mine.works = 1
        for k in range(graph.rows[node].touched, graph.rows[node + 1].touched):
            line.buffers[graph.items[k]].last = node
    for back in range(count):
        node = count - 1 - back
        for k in range(graph.rows[node].allocated, graph.rows[node + 1].allocated):
            line.buffers[graph.items[k]].maker = line.buffers[graph.items[k]].first = node
        if node < count - 1 and (graph.nodes[node].compute or graph.nodes[node].placeholder):
            nodes[node].trails = 0
        if not nodes[node].trails:
            for k in range(graph.rows[node].preds, graph.rows[node + 1].preds):
                nodes[graph.items[k]].trails = 0


@compiled
def _is_wait(graph: Graph, node: int) -> bool:
    """Whether it waits for a launch, not for what is in flight at the start."""
    waited = graph.nodes[node].waited
    return bool(waited >= 0 and graph.nodes[waited].stream >= 0)


@compiled
def _around(graph: Graph, line: Line, job: int, items: int, write: int) -> int:
    """Find all items of a job; how many there are so far."""
    items = _input(graph, line, job, items, write)
    items = _held(graph, line, job, items, write)
    items = _given(graph, line, job, items, write)
    line.jobs[job].end = items
    return items


@compiled
def _held(graph: Graph, line: Line, job: int, items: int, write: int) -> int:
    """Find the buffers that have to be there until the waits; the items so far."""
    rows, launch = graph.rows, line.jobs[job].launch
    for k in range(rows[launch].waits, rows[launch + 1].waits):
        wait = graph.items[k]
        for at in range(rows[wait].touched, rows[wait + 1].touched):
            buffer, facts = graph.items[at], graph.buffers[graph.items[at]]
            if line.buffers[buffer].seen == job + 1 or facts.kept or facts.input:
                continue
            line.buffers[buffer].seen = job + 1
            items = _item(line, buffer, items, write)
    line.jobs[job].gives = items
    return items


@compiled
def _given(graph: Graph, line: Line, job: int, items: int, write: int) -> int:
    """Find the buffers that are made by what comes later where the waits do; the items so far."""
    rows, stack, mark, top = graph.rows, line.stack, 2 * len(line.jobs) + job + 1, 0
    launch = line.jobs[job].launch
    for k in range(rows[launch].waits, rows[launch + 1].waits):
        stack[top] = graph.items[k]
        top += 1
    while top:
        top -= 1
        node = stack[top]
        for at in range(rows[node].allocated, rows[node + 1].allocated):
            buffer = graph.items[at]
            ahead = line.nodes[node].seen != mark  # a wait
            if not ahead and line.buffers[buffer].maker == node and not graph.buffers[buffer].input:
                items = _item(line, buffer, items, write)
        for k in range(rows[node].users, rows[node + 1].users):
            user, facts = graph.items[k], graph.nodes[graph.items[k]]
            if line.nodes[user].seen == mark or not line.nodes[user].trails or facts.stream >= 0 or facts.waited >= 0:
                continue
            line.nodes[user].seen = mark
            stack[top] = user
            top += 1
    return items


@compiled
def _item(line: Line, item: int, items: int, write: int) -> int:
    """Count an item, or write it."""
    if write:
        line.items[items] = item
    return items + 1


@compiled
def _input(graph: Graph, line: Line, job: int, items: int, write: int) -> int:
    """Find ``release``, the waits that bring the input, and what goes along with the launch; the items so far."""
    mine, rows, nodes, stack, mark = line.jobs[job], graph.rows, line.nodes, line.stack, job + 1
    launch, release, top, head = mine.launch, 0, 0, 0
    for k in range(rows[launch].prepares, rows[launch + 1].prepares):
        nodes[graph.items[k]].own = mark
    top = _push_preds(graph, line, launch, mark, top)
    while head < top:
        node = stack[head]
        head += 1
        if nodes[node].works and nodes[node].own != mark:
            release = max(release, node + 1)
        else:
            top = _push_preds(graph, line, node, mark, top)
    mine.release, mine.behind = min(release, launch), items
    for k in range(top):
        if _is_wait(graph, stack[k]):
            items = _item(line, stack[k], items, write)
    mine.prepares = items
    for k in range(top):
        if not nodes[stack[k]].works or nodes[stack[k]].own == mark:
            items = _item(line, stack[k], items, write)
    mine.holds = items
    return items


@compiled
def _push_preds(graph: Graph, line: Line, node: int, mark: int, top: int) -> int:
    """Put what a node needs on the stack, graph inputs left out and each once; its new end."""
    for k in range(graph.rows[node].preds, graph.rows[node + 1].preds):
        pred = graph.items[k]
        if line.nodes[pred].seen != mark and not graph.nodes[pred].placeholder:
            line.nodes[pred].seen = mark
            line.stack[top] = pred
            top += 1
    return top


@compiled
def _needed(graph: Graph, line: Line, job: int) -> int:
    """The first node that needs the result of a collective."""
    nodes, stack, mark, top, head = line.nodes, line.stack, len(line.jobs) + job + 1, 0, 0
    launch, first = line.jobs[job].launch, len(graph.nodes) - 1
    for k in range(graph.rows[launch].waits, graph.rows[launch + 1].waits):
        nodes[graph.items[k]].seen = mark
        stack[top] = graph.items[k]
        top += 1
    while head < top:
        node = stack[head]
        head += 1
        for k in range(graph.rows[node].users, graph.rows[node + 1].users):
            user = graph.items[k]
            if nodes[user].seen == mark or nodes[user].trails:
                continue
            nodes[user].seen = mark
            if nodes[user].works:
                first = min(first, user)
            else:
                stack[top] = user
                top += 1
    return int(first)


@compiled
def _takes(graph: Graph, line: Line, job: int) -> int:
    """Bytes that the launch makes, with what goes along, and that are still there behind it."""
    mine = line.jobs[job]
    whole = _allocated(graph, line, mine.launch, job)
    for k in range(mine.prepares, mine.holds):
        whole += _allocated(graph, line, line.items[k], job)
    return int(whole)


@compiled
def _allocated(graph: Graph, line: Line, node: int, job: int) -> int:
    whole = 0
    for k in range(graph.rows[node].allocated, graph.rows[node + 1].allocated):
        buffer, facts = line.buffers[graph.items[k]], graph.buffers[graph.items[k]]
        if buffer.maker == node and (facts.kept or buffer.last > line.jobs[job].launch):
            whole += facts.bytes
    return int(whole)


@compiled
def _frees(graph: Graph, line: Line, job: int) -> int:
    """Bytes that nothing touches behind the waits."""
    mine, whole = line.jobs[job], 0
    for k in range(mine.holds, mine.gives):
        if line.buffers[line.items[k]].last <= mine.last_wait:
            whole += graph.buffers[line.items[k]].bytes
    return int(whole)


@compiled
def more(graph: Graph, line: Line, job: int, begin: int, end: int) -> int:
    """Bytes more that would be there at most in a stretch behind the waits, if these came after it."""
    mine, whole = line.jobs[job], 0
    for k in range(mine.holds, mine.gives):
        if line.buffers[line.items[k]].last < end - 1:
            whole += graph.buffers[line.items[k]].bytes
    for k in range(mine.gives, mine.end):
        buffer, facts = line.buffers[line.items[k]], graph.buffers[line.items[k]]
        if buffer.first <= begin and (facts.kept or buffer.last >= end - 1):
            whole -= facts.bytes
    return int(whole)


@compiled
def put_in_line(line: Line) -> None:
    """When each should begin, and which come first on their streams."""
    nodes, last = line.nodes, len(line.nodes) - 2
    for stream in line.streams:
        stream.begin = NEVER
    for job in range(len(line.jobs)):
        mine = line.jobs[job]
        mine.latest = nodes[mine.deadline].start
        if not mine.early and mine.deadline == last:
            mine.latest = min(mine.latest, nodes[mine.release].start + (1 + _DELAY) * mine.ns)
        push(line.free, 0, -mine.latest, -job)
    while line.free.sizes[0]:
        _due, job = pop(line.free, 0)
        mine = line.jobs[-job]
        mine.latest = min(mine.latest, line.streams[mine.stream].begin) - mine.ns
        line.streams[mine.stream].begin = mine.latest
    _queue(line, 1)
    for stream in line.streams:
        stream.gather, stream.gathers = stream.begin, stream.end
    _queue(line, 0)
    for stream in line.streams:
        stream.other, stream.others = stream.begin, stream.end


@compiled
def _queue(line: Line, early: int) -> None:
    """Those to be launched as late as possible by when they should begin, or the rest by when they can, by streams."""
    for stream in line.streams:
        stream.end = 0
    for job in range(len(line.jobs)):
        mine = line.jobs[job]
        if mine.early == early:
            line.streams[mine.stream].end += 1
            push(line.free, 0, mine.latest if early else mine.release, job)
    place = 0
    for stream in line.streams:
        stream.begin = place
        place += stream.end
        stream.end = stream.begin
    while line.free.sizes[0]:
        _key, job = pop(line.free, 0)
        of = line.streams[line.jobs[job].stream]
        line.queues[1 - early, of.end] = job
        of.end += 1
