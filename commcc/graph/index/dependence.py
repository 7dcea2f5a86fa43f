"""Order edges: everything besides data that must keep its place.

alias and mutation
    A write comes after the earlier reads and writes of its storage, a read after the last write.
    A launch reads its input, and writes its buffers, until it is waited for: its waits count as
    accesses too. Who reads the launch itself, not what its wait gives, comes after the wait all the same.
random numbers
    Ops that draw keep their order, since the values depend on it.
copies between host and device that do not block
    What reads the memory that one fills, or writes what it sends, stays behind the node where the host waited for it.
effects
    Asserts, prints, effect tokens, ops of unknown libraries, host syncs and copies to the CPU keep theirs; what an op
    does of which nothing is known may also be to draw random numbers. Edges that are there only because of a host
    sync or such a copy are told apart; :mod:`commcc.graph.index.host` says what holds of these.
barriers
    An op that communicates in an unknown way, or orders streams, stays behind all before it and ahead of all after it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from commcc.graph.index.host import same_device
from commcc.graph.index.storage import united

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from commcc.graph.index.graph import Launch
    from commcc.graph.index.traits import Traits

Edges = dict[int, set[int]]


def order_edges(
    data_preds: tuple[tuple[int, ...], ...],
    storages: tuple[tuple[int, ...], ...],
    traits: Sequence[Traits],
    launches: dict[int, Launch],
    writes: dict[int, tuple[int, ...]],
    sends: dict[int, tuple[int, ...]],
) -> tuple[tuple[tuple[int, ...], ...], dict[int, tuple[int, ...]]]:
    """For every node, the nodes that must precede it for a reason other than data, sorted; and by node those
    among them that are there only to keep host syncs in their order, and reads behind them. sends: operands that the
    host copies to a device without waiting, by node.
    """
    edges: Edges = defaultdict(set)
    # What an op of which nothing is known is given may be in one storage afterwards, as after ``set_``.
    unknown = (i for i, t in enumerate(traits) if t.shares and t.effect and t.writes)
    joined = [tuple(s for pred in data_preds[i] for s in storages[pred]) for i in unknown]
    _mutation_edges(edges, data_preds, united(storages, joined) if joined else storages, launches, writes)
    _landing_edges(edges, data_preds, storages, traits, launches)
    arrived = _arrivals(edges, data_preds, storages, traits, writes, sends)
    _chain(edges, (i for i, t in enumerate(traits) if t.random))
    _chain(edges, (i for i, t in enumerate(traits) if t.effect and not t.host_sync))
    _barrier_edges(edges, data_preds, [i for i, t in enumerate(traits) if t.barrier])
    loose: dict[int, tuple[int, ...]] = {}
    synced = [(node, before) for before, node in pairwise(i for i, t in enumerate(traits) if t.effect)]
    for node, before in (*synced, *arrived):
        if before not in edges[node] and before not in data_preds[node]:
            loose[node] = (*loose.get(node, ()), before)
            edges[node].add(before)
    result = tuple(tuple(sorted(edges[i] - set(preds))) if i in edges else () for i, preds in enumerate(data_preds))
    return result, loose


def _chain(edges: Edges, nodes: Iterable[int]) -> None:
    previous: int | None = None
    for node in nodes:
        if previous is not None:
            edges[node].add(previous)
        previous = node


@dataclass
class _Accesses:
    """Of one storage, since the last write to it."""

    last_write: int | None = None
    reads: list[int] = field(default_factory=list)

    def write(self, edges: Edges, node: int) -> None:
        earlier = [*self.reads] + ([self.last_write] if self.last_write is not None else [])
        edges[node].update(e for e in earlier if e != node)
        self.reads, self.last_write = [], node

    def read(self, edges: Edges, node: int) -> None:
        if self.last_write is not None:
            edges[node].add(self.last_write)
        self.reads.append(node)


def _mutation_edges(
    edges: Edges,
    data_preds: tuple[tuple[int, ...], ...],
    storages: tuple[tuple[int, ...], ...],
    launches: dict[int, Launch],
    writes: dict[int, tuple[int, ...]],
) -> None:
    written = {s for targets in writes.values() for t in targets for s in storages[t]}
    if not written:
        return
    late_reads = {w: launch.inputs for launch in launches.values() for w in launch.waits}
    late_writes = {w: launch.writes_to for launch in launches.values() for w in launch.waits}
    state: dict[int, _Accesses] = {s: _Accesses() for s in sorted(written)}
    for i, preds in enumerate(data_preds):
        wrote = _touched((*writes.get(i, ()), *late_writes.get(i, ())), storages, written)
        read = _touched((*preds, *late_reads.get(i, ())), storages, written) - wrote
        for storage in sorted(wrote):
            state[storage].write(edges, i)
        for storage in sorted(read):
            state[storage].read(edges, i)


def _landing_edges(
    edges: Edges,
    data_preds: tuple[tuple[int, ...], ...],
    storages: tuple[tuple[int, ...], ...],
    traits: Sequence[Traits],
    launches: dict[int, Launch],
) -> None:
    """Edges from a wait to what reads the memory that it waits for by another name: the launch, or a view of it.

    Of a launch of several tensors, each is waited for by itself.
    """
    names: dict[int, Launch] = {}  # nodes that are what a launch fills, none of them behind its wait
    for i, preds in enumerate(data_preds):
        for pred in preds:
            launch = names.get(pred)
            if launch is None or i in launch.waits:
                continue
            here = set(storages[pred])
            if traits[i].element:
                here.intersection_update(storages[i])
            edges[i].update(wait for wait in launch.waits if wait < i and not here.isdisjoint(storages[wait]))
            if not here.isdisjoint(storages[i]):
                names[i] = launch
        if i in launches and launches[i].waits:
            names[i] = launches[i]


def _arrivals(
    edges: Edges,
    data_preds: tuple[tuple[int, ...], ...],
    storages: tuple[tuple[int, ...], ...],
    traits: Sequence[Traits],
    writes: dict[int, tuple[int, ...]],
    sends: dict[int, tuple[int, ...]],
) -> list[tuple[int, int]]:
    """What reads memory that a copy fills which does not block, with where the host has waited for that copy; edges
    from there to what writes the memory that one sends.
    """
    reads: list[tuple[int, int]] = []
    if not sends and not any(trait.unblocked for trait in traits):
        return reads
    filling: dict[int, str] = {}
    sending: dict[int, str] = {}
    filled: dict[int, int] = {}
    sent: dict[int, int] = {}
    for i, (preds, trait) in enumerate(zip(data_preds, traits, strict=True)):
        near = {s for p in preds for s in storages[p]} if filled else set()
        if i in writes or not storages[i] or not near.issuperset(storages[i]):  # a view reads nothing
            reads += sorted({(i, filled[s]) for s in near if s in filled})
        edges[i].update(sent[s] for p in writes.get(i, ()) for s in storages[p] if s in sent)
        for coming, arrived in ((filling, filled), (sending, sent)) if trait.awaits else ():
            there = [s for s, device in coming.items() if any(same_device(name, device) for name in trait.awaits)]
            for storage in there:
                del coming[storage]
            arrived.update(dict.fromkeys(there, i))
        if trait.unblocked:
            filling.update({s: trait.device for at in (i, *writes.get(i, ())) for s in storages[at]})
        sending.update({s: trait.device for at in sends.get(i, ()) for s in storages[at]})
    return reads


def _touched(nodes: Iterable[int], storages: tuple[tuple[int, ...], ...], written: set[int]) -> set[int]:
    return {s for node in nodes for s in storages[node] if s in written}


def _barrier_edges(edges: Edges, data_preds: tuple[tuple[int, ...], ...], barriers: list[int]) -> None:
    """Edges from the ends of the stretch before a barrier, and to the beginnings of the one after."""
    starts = [0, *(b + 1 for b in barriers)]
    ends = [*barriers, len(data_preds)]
    for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
        fed = {p for i in range(start, end) for p in data_preds[i]}
        for i in range(start, end) if barriers else ():
            if k < len(barriers) and i not in fed:
                edges[barriers[k]].add(i)
            if k > 0 and not any(p >= start for p in data_preds[i]):
                edges[i].add(barriers[k - 1])
    _chain(edges, barriers)
