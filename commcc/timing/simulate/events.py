"""A graph and its costs as events: what takes time, on which machine, after which other events.

    events = Events.of(index, costs)
    events.ns[event], events.machine[event], events.before[event]
    events.mirrored()                       # the same seen from the end of the step

Every node is an event on the compute stream (machine 0): its work, or for a launch the launching. The
transfer of a collective is an event of its own on its own stream. A wait takes no time; it stands for the
moment at which it ends, after its collective's transfer. A synchronous collective also holds the
compute stream while it transfers: a third event, on the compute stream, at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.graph.index import GraphIndex
    from commcc.timing.cost.types import Costs

#: The machine that is the compute stream; the others are numbered from 1.
STREAM = 0


class Table(NamedTuple):
    """Events in arrays, as in :class:`Events`; the row of ``before`` of an event begins at ``begins[event]``."""

    begins: Any
    before: Any
    order: Any
    ns: Any
    load: Any
    machine: Any
    nodes: int


@dataclass(frozen=True)
class Events:
    """The first ``nodes`` events are the graph's nodes, by number. order: all events, each after those
    in its ``before``. machines: how many there are. transfers: the event of each launch's transfer. load: what
    an event keeps its machine busy for, where that may be less than it takes (``ns``): see :meth:`of`.
    """

    nodes: int
    ns: list[int]
    load: list[int]
    machine: list[int]
    before: list[list[int]]
    order: list[int]
    machines: int
    transfers: dict[int, int]

    @staticmethod
    def of(index: GraphIndex, costs: Costs, load: Mapping[int, int] | None = None) -> Events:
        """Events of all nodes, transfers and holds.

        load: for launches the ns that they keep their stream busy for, if that is less than they take.
        """
        count = len(index)
        launches = index.launches
        transfers = {launch: count + k for k, launch in enumerate(launches)}
        held = [launch for launch, facts in launches.items() if not facts.asynchronous]
        holds = {launch: count + len(transfers) + k for k, launch in enumerate(held)}
        streams: dict[str, int] = {}
        for facts in launches.values():
            streams.setdefault(costs.streams.get(facts.group, facts.group), len(streams) + 1)
        ns = on_stream(index, costs)
        ns += [costs.ns[launch] for launch in (*transfers, *holds)]
        loads = list(ns)
        for launch, least in (load or {}).items():
            loads[transfers[launch]] = min(least, costs.ns[launch])
        machine = [STREAM] * count
        machine += [streams[costs.streams.get(f.group, f.group)] for f in launches.values()] + [STREAM] * len(holds)
        before = _before(index, transfers, holds)
        before += [[launch] for launch in (*transfers, *holds)]
        order: list[int] = []
        for node in range(count):
            order.append(node)
            order += [table[node] for table in (transfers, holds) if node in table]
        return Events(count, ns, loads, machine, before, order, len(streams) + 1, transfers)

    @cached_property
    def table(self) -> Table:
        """The same in arrays, for kernels."""
        import numpy as np

        begins = np.append(0, np.cumsum(np.fromiter(map(len, self.before), np.int64, len(self.before))))
        before = np.fromiter(chain.from_iterable(self.before), np.int64, int(begins[-1]))
        order, ns, load, machine = (np.array(n, np.int64) for n in (self.order, self.ns, self.load, self.machine))
        return Table(begins, before, order, ns, load, machine, self.nodes)

    def mirrored(self) -> Events:
        """The same events with time running backwards: a head of the mirror is a tail."""
        before: list[list[int]] = [[] for _ in self.before]
        for event, sources in enumerate(self.before):
            for source in sources:
                before[source].append(event)
        return Events(
            self.nodes, self.ns, self.load, self.machine, before, self.order[::-1], self.machines, self.transfers
        )


def on_stream(index: GraphIndex, costs: Costs) -> list[int]:
    """What each node takes of the compute stream, in ns: waits nothing, launches what launching takes."""
    ns = list(costs.ns)
    for wait in index.wait_of:
        ns[wait] = 0
    for launch in index.launches:
        ns[launch] = costs.launch_ns
    return ns


def _before(index: GraphIndex, transfers: dict[int, int], holds: dict[int, int]) -> list[list[int]]:
    """For every node the events that end before it begins, those of waits with their transfer."""
    before: list[list[int]] = []
    for preds in index.all_preds:
        # What needs a synchronous launch needs its transfer, and the compute stream after it.
        held = [table[p] for p in preds if p in holds for table in (transfers, holds)] if holds else []
        before.append([*preds, *held])
    for wait, launch in index.wait_of.items():
        before[wait].append(transfers[launch])
    return before
