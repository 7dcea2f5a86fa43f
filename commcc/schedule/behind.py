"""An order in which compute stands behind a collective, so that this one is hidden; see :func:`put_behind`.

The last reduction of a backward graph is exposed where its gradient is ready last, as that of an embedding is; where an
optimizer follows, or another micro-batch, it is not the last collective. Other gradients are ready long before and
could be computed while it is on its way. Each of them has a reduction of its own, which is then exposed in turn if it
takes longer than its compute: the rule of Johnson for two machines (1954) says that those that take less time on their
stream than on the compute stream come last, the longest transfer first. So

* what leads to one launch alone is its own, another launch too, as the reduce-scatter whose shards copies all-reduce
  (HSDP) is; what is behind its wait must lead to what stands behind the collective alone;
* launches whose own compute takes longer than they do on the stream of the collective are put behind it, with what is
  their own, and so is what leads to what stands behind it without any launch;
* the last ones ahead of it are taken, as few as hide what is exposed: what they read is held until then.

Limits: what moves is only compared to what is exposed; whether memory allows it and gathers come in time then is for
the scheduler to find out, which is to begin from this order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commcc.base.jit import kernel
from commcc.schedule.judge import Scratch, step_of

if TYPE_CHECKING:
    from commcc.schedule.arrays import Graph, Ints

#: What a node leads to, in place of a launch: more than one thing; only what stands behind the collective; it stands
#: there itself.
_MORE, _END, _BEHIND = -1, -2, -3


def last_launch(graph: Graph, order: Ints) -> int:
    """The last asynchronous launch; -1 for none."""
    places = np.flatnonzero(((graph.nodes.stream >= 0) & (graph.nodes.asynchronous > 0))[order])
    return int(order[places[-1]]) if len(places) else -1


def most_exposed(graph: Graph, order: Ints, most: int) -> tuple[int, int]:
    """The launch that compute waits for longest, of those that it waits for no longer than ``most`` ns, -1 for none;
    and for how many ns.
    """
    stalls = np.zeros(len(order), np.int64)
    _stalls(graph, order, Scratch.of(graph), stalls)
    stalls *= stalls <= most
    if not stalls.any():
        return -1, 0
    launch = int(stalls.argmax())
    return launch, int(stalls[launch])


def put_behind(graph: Graph, order: Ints, launch: int, exposed_ns: int) -> Ints | None:
    """The order with as much behind a launch as hides so many ns; None where nothing can go there."""
    last = int(np.flatnonzero(order == launch)[0])
    leads_to = np.full(len(order), _BEHIND)
    ahead, place = order[: last + 1], np.arange(last + 1)
    _lead(graph, ahead, leads_to)
    to = leads_to[ahead]
    gains = _gains(graph, ahead, to)
    if not gains.any():
        return None
    hidden = np.cumsum(gains[::-1])
    first = last - min(last, int(np.searchsorted(hidden, exposed_ns)))
    stands = np.zeros(len(order), np.int64)
    stands[ahead] = place
    launched = np.where(to >= 0, stands[to], -1)
    jobs = np.flatnonzero((launched >= first) & (gains[launched] > 0))
    jobs = jobs[np.lexsort((jobs, launched[jobs], -graph.nodes.transfer[to[jobs]]))]
    ends = np.flatnonzero((to == _END) & (place >= first))
    moved = np.concatenate([jobs, ends])
    return np.concatenate([np.delete(ahead, moved), ahead[moved], order[last + 1 :]])


def _gains(graph: Graph, ahead: Ints, to: Ints) -> Ints:
    """By place, the ns that it hides behind the last of these: its compute, if it leads to the end; of a launch, its
    own compute less what it takes on the stream of the last one, if that is more than nothing. to: what each leads to.
    """
    nodes = graph.nodes
    own, led = np.zeros(len(nodes), np.int64), to >= 0
    np.add.at(own, to[led], nodes.compute_ns[ahead[led]])
    gains = np.where(to == _END, nodes.compute_ns[ahead], 0)
    places = np.flatnonzero(to[:-1] == ahead[:-1])
    launches = ahead[places]
    same = nodes.stream[launches] == nodes.stream[ahead[-1:]]
    gains[places] = np.maximum(0, own[launches] - same * nodes.transfer[launches])
    return gains


@kernel
def _lead(graph: Graph, ahead: Ints, leads_to: Ints) -> None:
    """By node, the launch that it leads to; ahead: those up to the collective, the others stand behind it."""
    nodes, rows, count = graph.nodes, graph.rows, len(ahead)
    for back in range(count):
        node = ahead[count - 1 - back]
        to = _BEHIND
        for k in range(rows[node].users, rows[node + 1].users):
            theirs = leads_to[graph.items[k]]
            if to == _BEHIND:
                to = theirs
            elif theirs != _BEHIND and theirs != to:
                to = _MORE
        if to == _BEHIND:
            to = _END
        if nodes[node].stream >= 0 and to == _END:
            to = node
        if nodes[node].placeholder:
            to = _MORE
        leads_to[node] = to


@kernel
def _stalls(graph: Graph, order: Ints, scratch: Scratch, stalls: Ints) -> None:
    """By launch, for how long compute waits for it; without what collectives slow compute down by."""
    step_of(graph, order, scratch)
    now = 0
    for node in order:
        facts = graph.nodes[node]
        if facts.waited >= 0 and facts.stream < 0:
            if graph.nodes[facts.waited].asynchronous:
                stalls[facts.waited] += max(0, scratch.end[facts.waited] - now)
            now = max(now, scratch.end[facts.waited])
        else:
            now += facts.compute_ns
