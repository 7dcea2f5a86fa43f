"""A lower bound on the step under a budget of live bytes, for any order and with any collectives merged.

    bound = memory_bound(index, costs, load, budget, results)

While a collective is waited for, other compute may run, if there is any and memory has room for its results until they
are used: what recomputes activations for the backward may run in the stalls of the forward, and then takes what
recomputing was to save. For any node x:

1. P be the nodes that run before x, and x. P is closed: what is needed by one of P is in P. All ancestors of x are in
   it, no descendant is. x begins at head(x) at the earliest, and then x runs, and all compute that is not in P: the
   step is at least head(x) + load(x) + load(all) - load(P). Seen from the end of the step, it is at least
   load(P) + tail(x).
2. While x runs, a buffer is live that a node of P makes and that some node outside P touches, or that is kept to the
   end, or that x touches. All of these, and graph inputs, are within the budget: live(P) <= budget.
3. So the most that load(P) can be, over closed sets P within the budget, makes a bound, and the least that it can be
   another one. For any price of a byte, max load(P) <= max (load(P) - price live(P)) + price budget. The right side is
   a minimum cut (Picard 1976: maximum closure), and so is the least of load(P) + price live(P). Each price makes a
   bound; the best is found by bisection, as the bound is concave in it.

Merging changes buffers. Counted are those that a node makes which merging leaves alone, and for as long as other such
nodes touch them: not mergeable collectives, their waits, and what they send; and only as far as ``results`` have
buffers of these sizes, made and touched by the same nodes. Prices are those of :mod:`merge_bound`, whose steps 3 to 5
turn a run of a merged graph into one of ``index``, in which the nodes counted here have the same order.

Limits: 0 for graphs that resize storages, and where OR-tools is not installed. x is one of a few nodes where the
graph's own order has most bytes live.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from commcc.base.sequences import closure
from commcc.base.terms import Kind
from commcc.graph.memory import MemoryModel
from commcc.timing.simulate.events import STREAM, Events
from commcc.timing.simulate.heads import heads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from commcc.graph.index import GraphIndex
    from commcc.timing.cost import Costs

MERGEABLE = frozenset({Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE})
#: So many nodes are looked at, each in another one of so many parts of the graph; so many prices of a byte for each.
_LOOKED_AT, _PARTS, _PRICES = 8, 64, 14
#: Prices are in ns for so many bytes; capacities in parts of a ns, so that prices are fine enough.
_UNIT, _FINE = 1 << 20, 1 << 10
_HIGHEST = 1 << 24
_ALWAYS = 1 << 60


@dataclass(frozen=True)
class Held:
    """Buffers that are counted. size: in bytes. maker: the first node that touches it. users: others that merging
    leaves alone. kept: whether it lives to the end.
    """

    size: list[int]
    maker: list[int]
    users: list[tuple[int, ...]]
    kept: list[bool]


def memory_bound(
    index: GraphIndex, costs: Costs, load: Mapping[int, int], budget: int, results: Iterable[GraphIndex] = ()
) -> int:
    """No order within the budget has a shorter step; see the module docstring.

    costs, load: the least that nodes, and transfers on their streams, take in any result. results: what merging made.
    """
    if index.estimates.resizes or find_spec("ortools") is None:
        return 0
    memory = MemoryModel(index)
    own = memory.live(range(len(index)))
    events = Events.of(index, costs, load)
    before, after = heads(events), heads(events.mirrored())
    graph = _Graph(index, events, held_buffers(index, memory, [MemoryModel(other) for other in results]))
    worst = 0
    for node in _looked_at(index, events, own.live, before, after):
        around = graph.around(node)
        room = budget - own.input_bytes - around.always_live
        own_ns, held_ns = events.ns[node], graph.load[node]
        last = before[node] + held_ns + around.best(room, latest=True)
        worst = max(worst, last, around.best(room, latest=False) - held_ns + own_ns + after[node])
    return worst


def _looked_at(
    index: GraphIndex, events: Events, live: Sequence[int], before: Sequence[int], after: Sequence[int]
) -> list[int]:
    """Nodes of different parts of the graph's own order with most bytes live, on the longest paths."""
    nodes = [node for node, op in enumerate(index.ops) if op != "placeholder"]
    parts = [nodes[len(nodes) * part // _PARTS : len(nodes) * (part + 1) // _PARTS] for part in range(_PARTS)]
    peaks = [max(part, key=lambda n: (live[n], before[n] + events.ns[n] + after[n])) for part in filter(None, parts)]
    return sorted(peaks, key=lambda node: -live[node])[:_LOOKED_AT]


def held_buffers(index: GraphIndex, memory: MemoryModel, results: Sequence[MemoryModel]) -> Held:
    """The buffers that live at least as long as these nodes say, whatever is merged, and in these results."""
    out: set[int] = set()
    for launch, facts in index.launches.items():
        if facts.kind in MERGEABLE:
            out.update((launch, *facts.waits, *facts.inputs, *facts.splits))
    touching: dict[int, list[int]] = {}
    for node, buffers in enumerate(memory.touched):
        for buffer in buffers:
            touching.setdefault(buffer, []).append(node)
    number = [{name: node for node, name in enumerate(each.index.names)} for each in results]
    held = Held([], [], [], [])
    for buffer, nodes in touching.items():
        maker, size = nodes[0], memory.size[buffer]
        if buffer in memory.inputs or maker in out or not size:
            continue
        users, kept = [node for node in nodes[1:] if node not in out], buffer in memory.kept
        for other, at in zip(results, number, strict=True):
            there = at.get(index.names[maker])
            same = [b for b in ([] if there is None else other.index.estimates.buffers[there]) if b not in other.inputs]
            same = [b for b in same if other.size[b] >= size]
            users = [u for u in users if (to := at.get(index.names[u])) and not set(same).isdisjoint(other.touched[to])]
            kept = kept and not other.kept.isdisjoint(same)
        if users or kept:
            held.size.append(size)
            held.maker.append(maker)
            held.users.append(tuple(users))
            held.kept.append(kept)
    return held


class _Graph:
    """load: by node, ns that it takes of the compute stream, of a synchronous collective its transfer too.

    preds, users: of nodes, waits after their launches.
    """

    def __init__(self, index: GraphIndex, events: Events, held: Held) -> None:
        count = len(index)
        self.held = held
        self.preds: list[tuple[int, ...]] = [
            (*index.preds(node), index.wait_of[node]) if node in index.wait_of else tuple(index.preds(node))
            for node in range(count)
        ]
        self.users: list[list[int]] = [[] for _ in range(count)]
        for node, preds in enumerate(self.preds):
            for pred in preds:
                self.users[pred].append(node)
        self.first = [node for node, op in enumerate(index.ops) if op == "placeholder"]
        self.load = list(events.load[:count])
        for event in range(count, len(events.ns)):  # a collective that holds the compute stream
            if events.machine[event] == STREAM:
                self.load[events.before[event][0]] += events.load[event]

    def around(self, node: int) -> _Around:
        """What is before this node in any order, what is after it, and what may be either."""
        return _Around(self, node, closure(self.preds, [node, *self.first]), closure(self.users, [node]) - {node})


class _Around:
    """The sets of nodes that may run up to a node: flows from what always does to what never does.

    always_live: bytes that are live whatever the set is.
    """

    def __init__(self, graph: _Graph, node: int, before: frozenset[int], after: frozenset[int]) -> None:
        self.load, held = graph.load, graph.held
        self.either = [each for each in range(len(graph.preds)) if each not in before and each not in after]
        number = {each: place for place, each in enumerate(self.either, 2)}  # 0: in the set, 1: not in it
        place = [0 if each in before else number.get(each, 1) for each in range(len(graph.preds))]
        self.before = sum(self.load[each] for each in before)
        self.after = sum(self.load[each] for each in after)
        self.closed = [(place[each], place[p]) for each in self.either for p in graph.preds[each] if place[p]]
        # By buffer: what makes it, and a vertex of its own from where to go on to all that touches it.
        self.paid: list[tuple[int, int, int]] = []
        self.vertices = len(number) + 2
        self.always_live = 0
        for size, maker, users, kept in zip(held.size, held.maker, held.users, held.kept, strict=True):
            ends = {1} if kept else {place[user] for user in users}
            if place[maker] == 0 and (1 in ends or node == maker or node in users):
                self.always_live += size
            elif place[maker] != 1 and ends - {0}:
                self.paid.append((place[maker], self.vertices, size))
                self.closed += [(self.vertices, end) for end in ends - {0}]
                self.vertices += 1

    def best(self, room: int, *, latest: bool) -> int:
        """A bound on what runs on the compute stream: after the node where as much as can be runs before it (latest),
        up to it where as little as can be does.
        """
        if room < 0:
            return 0
        sure = self.after if latest else self.before
        best, price, low, high = 0, 0, 1, _HIGHEST
        for _ in range(_PRICES):
            least, live = self._cut(price, latest=latest)
            paid = -(-price * room * _FINE // _UNIT)
            best = max(best, sure + (least - paid) // _FINE)
            if live <= room and not price:
                break
            low, high = (max(1, price), high) if live > room else (low, price)
            price = math.isqrt(low * high)
        return best

    def _cut(self, price: int, *, latest: bool) -> tuple[int, int]:
        """The least of what runs on one side and what bytes cost, in parts of a ns, and the live bytes there.

        price: of _UNIT bytes, in ns.
        """
        from ortools.graph.python.max_flow import SimpleMaxFlow

        flow = SimpleMaxFlow()
        loads = [self.load[each] * _FINE for each in self.either]
        costs = [price * size * _FINE // _UNIT for _, _, size in self.paid]
        here = np.arange(2, len(loads) + 2)
        begin, end = (np.zeros_like(here), here) if latest else (here, np.ones_like(here))
        closed = np.array(self.closed, np.int64).reshape(-1, 2)
        paid = np.array([pair[:2] for pair in self.paid], np.int64).reshape(-1, 2)
        flow.add_arcs_with_capacity(
            np.concatenate([begin, closed[:, 0], paid[:, 0]]),
            np.concatenate([end, closed[:, 1], paid[:, 1]]),
            np.concatenate([np.array(loads, np.int64), np.full(len(closed), _ALWAYS), np.array(costs, np.int64)]),
        )
        if flow.solve(0, 1) != flow.OPTIMAL:
            raise AssertionError("no minimum cut")
        inside = set(flow.get_source_side_min_cut())
        live = sum(size for maker, own, size in self.paid if maker in inside and own not in inside)
        return flow.optimal_flow(), live
