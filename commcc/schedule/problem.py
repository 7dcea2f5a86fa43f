"""What every schedule of one graph needs to know; built once. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from commcc.base.terms import Kind
from commcc.graph.memory import MemoryModel
from commcc.graph.ops.kernels import Work
from commcc.schedule.arrays import graph_of
from commcc.timing.simulate import Simulator, lower_bound
from commcc.timing.simulate.bound import Jobs, longest_paths, path_bound
from commcc.timing.simulate.simulator import in_flight_bytes

if TYPE_CHECKING:
    from commcc.graph.index import GraphIndex
    from commcc.timing.cost.types import Costs

#: A launch takes the nodes that only prepare its input along, if they are no more than this.
MAX_PREPARATION = 32
#: Limits above are none; kernels hold them in 64 bits.
_MOST = 2**62


Bounds = tuple[int, int, int]


@dataclass(frozen=True)
class Limits:
    """What a schedule has to respect; None for no limit.

    budget: live bytes. in_flight: bytes of collectives launched and not waited for. prefetch: compute
    nodes between a launch and its first wait. What the graph's own order has is allowed in any case.
    """

    budget: int | None = None
    in_flight: int | None = None
    prefetch: int | None = None


class Problem:
    """A graph under costs: dependences both ways, durations, and when each node has to start.

    preparation: for launches that depend on nothing but graph inputs through a few nodes without
    weight (casts and views of parameters), those nodes in graph order. feeding: for reduce-scatters the
    compute nodes whose results they send, and what lies between. quick: do with a lower bound that is
    made fast, where many graphs are compared.
    """

    def __init__(self, index: GraphIndex, costs: Costs, *, quick: bool = False) -> None:
        self.index = index
        self.costs = costs
        self.simulator = Simulator(index, costs)
        self.memory = MemoryModel(index)
        count = len(index)
        self.preds = [tuple(dict.fromkeys(index.preds(node))) for node in range(count)]
        for wait, launch in index.wait_of.items():
            if launch not in self.preds[wait]:
                self.preds[wait] = (*self.preds[wait], launch)
        if count:
            # The output ends the graph, whatever it returns.
            self.preds[-1] = _sinks(self.preds)
        self.users: list[list[int]] = [[] for _ in range(count)]
        for node, preds in enumerate(self.preds):
            for pred in preds:
                self.users[pred].append(node)
        jobs = Jobs.of(index, costs)
        self.stream_ns = jobs.compute
        reach = longest_paths(index, jobs)
        self.tail_ns = reach.tail
        self.bound = path_bound(index, costs, jobs, reach) if quick else lower_bound(index, costs).ns
        self.lane = {i: costs.lanes.get(launch.group, launch.group) for i, launch in index.launches.items()}
        self.bytes = {i: in_flight_bytes(index, i, launch) for i, launch in index.launches.items()}
        self.own_in_flight = self.simulator.run().in_flight_bytes
        self.own_prefetch = _prefetch(index)
        self.preparation = {i: found for i in index.launches if (found := self._preparation(i)) is not None}
        self.feeding = {i: found for i in index.launches if (found := self._feeding(i)) is not None}
        self.graph = graph_of(self, costs)

    def bounds(self, limits: Limits) -> Bounds:
        """Limits for kernels, -1 for none: budget, bytes in flight, prefetch."""
        in_flight = -1 if limits.in_flight is None else max(limits.in_flight, self.own_in_flight)
        budget, prefetch = (-1 if limit is None else limit for limit in (limits.budget, limits.prefetch))
        return min(budget, _MOST), min(in_flight, _MOST), min(prefetch, _MOST)

    def _preparation(self, launch: int) -> tuple[int, ...] | None:
        found: set[int] = set()
        stack = list(self.preds[launch])
        while stack:
            node = stack.pop()
            if node in found or self.index.ops[node] == "placeholder":
                continue
            if self._heavy(node) or len(found) >= MAX_PREPARATION:
                return None
            found.add(node)
            stack.extend(self.preds[node])
        return tuple(sorted(found))

    def _feeding(self, launch: int) -> tuple[int, ...] | None:
        """The compute nodes whose results a reduce-scatter sends, with what lies between them and it."""
        if self.index.launches[launch].kind is not Kind.REDUCE_SCATTER:
            return None
        found: set[int] = set()
        stack = list(self.preds[launch])
        while stack:
            node = stack.pop()
            if node in found or self.index.ops[node] == "placeholder":
                continue
            if node in self.index.wait_of or node in self.index.launches:
                continue
            if len(found) >= MAX_PREPARATION:
                return None
            found.add(node)
            if not self.index.compute[node]:
                stack.extend(self.preds[node])
        return tuple(sorted(found))

    def _heavy(self, node: int) -> bool:
        """Whether a node is too much to be moved only because a launch needs it."""
        index = self.index
        light = index.estimates.work[node] is not Work.KERNEL and not index.compute[node]
        return not light or node in index.wait_of or node in index.launches or node in index.writes


def _sinks(preds: list[tuple[int, ...]]) -> tuple[int, ...]:
    """What the last node has to wait for: all that it needs, and all that nobody else does."""
    needed = {p for node in range(len(preds) - 1) for p in preds[node]}
    return tuple(sorted({*preds[-1], *(node for node in range(len(preds) - 1) if node not in needed)}))


def _prefetch(index: GraphIndex) -> dict[int, int]:
    """For every launch the compute nodes between it and its first wait, in the graph's own order."""
    before = [0, *accumulate(map(int, index.compute))]
    return {i: before[min(facts.waits)] - before[i] for i, facts in index.launches.items() if facts.waits}
