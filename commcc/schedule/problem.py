"""What every schedule of one graph needs to know; built once. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Protocol

import numpy as np

from commcc.base.terms import GIB, Kind
from commcc.graph.memory import MemoryModel, resized
from commcc.graph.ops.kernels import Work
from commcc.schedule.arrays import BUFFER, NODE, Graph, Ints, Records, fill_in, records, rows_of
from commcc.schedule.folding import Folded, fold, unfold
from commcc.schedule.judge import Figures, figures, step_alone
from commcc.schedule.paths import longest_tails
from commcc.timing.simulate import Simulator
from commcc.timing.simulate.bound import Jobs, least_step, longest_paths, path_bound
from commcc.timing.simulate.simulator import in_flight_bytes, input_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commcc.graph.index import GraphIndex
    from commcc.timing.cost.types import Costs
    from commcc.timing.predict import Prediction
    from commcc.timing.simulate import Timeline

#: A launch takes the nodes that only prepare its input along, if they are no more than this,
FEW = 32
#: or no more than this where copies in kernels of their own are among them, as in a bucket of many members.
MAX_PREPARATION = 256
#: A reduce-scatter has a row of what feeds it where no more than :data:`FEW` of that take time; with views, whose
#: number is not to matter, no more than this.
MAX_FEEDING = 256
#: Such copies, and what else prepares the launch, take no more than one of so many parts of its transfer.
LIGHT = 4
#: Limits above are none; kernels hold them in 64 bits.
_MOST = 2**62


Bounds = tuple[int, int, int]
#: Narrower limits: the prefetch is divided by _NARROWER; where it has no limit, _WINDOW compute nodes stand for one,
#: and at most _HELD bytes are in flight.
_NARROWER, _WINDOW, _HELD = 4, 200, 5 * GIB


@dataclass(frozen=True)
class Limits:
    """What a schedule has to respect; None for no limit.

    budget: live bytes. in_flight: bytes of collectives launched and not waited for. prefetch: compute
    nodes between a launch and its first wait. What the graph's own order has is allowed in any case.
    """

    budget: int | None = None
    in_flight: int | None = None
    prefetch: int | None = None

    @property
    def narrower(self) -> Limits:
        """Limits under which launches stand much closer to their waits, for where memory is tight or runs of compute
        are long: what comes early holds memory that others need.
        """
        prefetch = self.closer.prefetch or 0
        return replace(self.closer, prefetch=prefetch // _NARROWER)

    @property
    def closer(self) -> Limits:
        """Limits of the prefetch and of bytes in flight, where there are none."""
        if self.prefetch is not None:
            return self
        return replace(self, in_flight=_HELD if self.in_flight is None else self.in_flight, prefetch=_WINDOW)


class Schedulable(Protocol):
    """What the scheduler and the judge ask of a graph: :class:`Problem`, or a sketch of one."""

    @property
    def graph(self) -> Graph: ...
    @property
    def bound(self) -> int: ...
    @property
    def feeding(self) -> object: ...
    def own_step(self, order: Ints, step: int) -> int: ...
    def bounds(self, limits: Limits) -> Bounds: ...


def kernel_bounds(limits: Limits, own_in_flight: int) -> Bounds:
    """Limits for kernels, -1 for none: budget, bytes in flight, prefetch. own_in_flight: of the graph's own order."""
    in_flight = -1 if limits.in_flight is None else max(limits.in_flight, own_in_flight)
    budget, prefetch = (-1 if limit is None else limit for limit in (limits.budget, limits.prefetch))
    return min(budget, _MOST), min(in_flight, _MOST), min(prefetch, _MOST)


@dataclass(frozen=True)
class Units:
    """A problem whose nodes are units of another one's: :mod:`commcc.schedule.folding`."""

    problem: Problem
    folded: Folded

    @property
    def graph(self) -> Graph:
        """What a schedule needs of the units, for kernels."""
        return self.folded.graph

    @property
    def bound(self) -> int:
        """The lower bound."""
        return self.problem.bound

    @property
    def feeding(self) -> object:
        """True where there are reduce-scatters."""
        return self.problem.feeding

    def bounds(self, limits: Limits) -> Bounds:
        """Limits for kernels, -1 for none."""
        return self.problem.bounds(limits)

    def own_step(self, order: Ints, step: int) -> int:
        """The step of the graph that comes out; ``step`` is that under the prices of the graph's own order."""
        return self.problem.own_step(self.unfolded(order), step) if self.problem.costs.payers is not None else step

    def unfolded(self, order: Ints) -> Ints:
        """The order of all nodes that an order of units stands for."""
        return unfold(self.problem.graph, self.folded, order)


class Problem:
    """A graph under costs: dependences, durations, and a lower bound.

    preparation: for launches that depend on nothing but graph inputs through a few nodes without
    much weight compared to the transfer (casts and views of parameters, copies that put a bucket together), those nodes
    in graph order. feeding: for reduce-scatters the
    compute nodes whose results they send, and what lies between. quick: do with a lower bound that is
    made fast, where many graphs are compared. known: what these costs predict for the graph, where that is known.
    graph: the same for kernels. stream: of each launch.
    """

    def __init__(
        self, index: GraphIndex, costs: Costs, *, quick: bool = False, known: Prediction | None = None
    ) -> None:
        self.index = index
        self.costs = costs
        self._known = known
        count = len(index)
        self.preds = [tuple(dict.fromkeys(preds)) if len(preds) > 1 else preds for preds in index.all_preds]
        for wait, launch in index.wait_of.items():
            if launch not in self.preds[wait]:
                self.preds[wait] = (*self.preds[wait], launch)
        if count:
            # The output ends the graph, whatever it returns: it also waits for all that nobody else needs.
            needed = set(chain.from_iterable(self.preds[:-1]))
            self.preds[-1] = tuple(sorted({*self.preds[-1], *(n for n in range(count - 1) if n not in needed)}))
        jobs = Jobs.of(index, costs)
        self.stream_ns = jobs.compute
        if known is not None:
            self.bound = known.bound.ns
        elif quick:
            self.bound = path_bound(index, costs, jobs, longest_paths(index, jobs))
        else:
            self.bound = least_step(index, costs)
        self.stream = {i: costs.streams.get(launch.group, launch.group) for i, launch in index.launches.items()}
        self.bytes = {i: in_flight_bytes(index, i, launch) for i, launch in index.launches.items()}
        before = [0, *accumulate(map(int, index.compute))]
        self.own_prefetch = {i: before[min(f.waits)] - before[i] for i, f in index.launches.items() if f.waits}

    # What follows is not needed where the lower bound already says that this graph is no better than another one.

    @cached_property
    def memory(self) -> MemoryModel:
        return MemoryModel(self.index)

    @cached_property
    def before(self) -> Timeline:
        """The graph's own order."""
        return self._known.timeline if self._known is not None else Simulator(self.index, self.costs).run()

    @cached_property
    def own_in_flight(self) -> int:
        return self.before.in_flight_bytes

    @cached_property
    def preparation(self) -> dict[int, tuple[int, ...]]:
        return {i: nodes for i in self.index.launches if (nodes := self._preparation(i)) is not None}

    @cached_property
    def feeding(self) -> dict[int, tuple[int, ...]]:
        return {i: nodes for i in self.index.launches if (nodes := self._feeding(i)) is not None}

    def bounds(self, limits: Limits) -> Bounds:
        """Limits for kernels, -1 for none: budget, bytes in flight, prefetch."""
        return kernel_bounds(limits, 0 if limits.in_flight is None else self.own_in_flight)

    def own_step(self, order: Ints, step: int) -> int:
        """The step of the graph that comes out; ``step`` is that under the prices of the graph's own order."""
        changed = {} if self.costs.payers is None else self.costs.payers.prices(order)
        return step_alone(self.graph, order, changed) if changed else step

    def graph_in(self, order: Ints) -> Graph:
        """For kernels, under the prices of the graph that this order makes: others pay for fused chains there."""
        changed = {} if self.costs.payers is None else self.costs.payers.prices(order)
        if not changed:
            return self.graph
        nodes = self.graph.nodes.copy()
        fill_in(nodes.compute_ns, changed)
        return self.graph._replace(nodes=nodes)

    def figures(self, order: Ints) -> Figures:
        """What the simulator says of the graph that this order makes; idle_ns counts what sub-graphs wait for too."""
        costs = self.costs
        found = figures(self.graph_in(order), order)
        inside = sum(within.exposed_ns for node, within in costs.within.items() if costs.ns[node])
        return found._replace(idle_ns=found.idle_ns + inside)

    def has_kernel(self, nodes: Iterable[int]) -> bool:
        """Whether any of the nodes copies in a kernel of its own, as what puts the members of a bucket together."""
        return any(self.index.estimates.work[node] is Work.KERNEL for node in nodes)

    def _preparation(self, launch: int) -> tuple[int, ...] | None:
        """What only prepares the input of a launch; None where part of that is too much to be moved for a launch."""
        index = self.index
        nodes: set[int] = set()
        weight, stack = 0, list(self.preds[launch])
        while stack:
            node = stack.pop()
            if node in nodes or index.ops[node] == "placeholder":
                continue
            if index.compute[node] or len(nodes) >= MAX_PREPARATION:
                return None
            weight += self.stream_ns[node]
            if node in index.wait_of or node in index.launches or node in index.writes:
                return None
            nodes.add(node)
            stack.extend(self.preds[node])
        light = weight * LIGHT <= self.costs.ns[launch] if self.has_kernel(nodes) else len(nodes) <= FEW
        return tuple(sorted(nodes)) if light else None

    def _feeding(self, launch: int) -> tuple[int, ...] | None:
        """The compute nodes whose results a reduce-scatter sends, with what lies between them and it."""
        if self.index.launches[launch].kind is not Kind.REDUCE_SCATTER:
            return None
        nodes: set[int] = set()
        timed, stack = 0, list(self.preds[launch])
        while stack:
            node = stack.pop()
            if node in nodes or self.index.ops[node] == "placeholder":
                continue
            if node in self.index.wait_of or node in self.index.launches:
                continue
            timed += self.stream_ns[node] > 0
            if timed > FEW or len(nodes) >= MAX_FEEDING:
                return None
            nodes.add(node)
            if not self.index.compute[node]:
                stack.extend(self.preds[node])
        return tuple(sorted(nodes))

    @cached_property
    def graph(self) -> Graph:
        """All that a schedule needs, for kernels."""
        index, memory = self.index, self.memory
        launches, resizes = index.launches, index.estimates.resizes
        needed_by: dict[int, list[int]] = {}
        begun: dict[int, list[int]] = {}
        for wait, source in index.begun_elsewhere.items():
            begun.setdefault(source, []).append(wait)
        for launch, feeds in self.feeding.items():
            for node in {p for fed in (launch, *feeds) for p in self.preds[fed]}.difference(feeds):
                needed_by.setdefault(node, []).append(launch)
        rows, items = rows_of(
            self.preds,
            {**begun, **{i: launch.waits for i, launch in launches.items()}},
            self.preparation,
            self.feeding,
            needed_by,
            memory.touched,
            index.estimates.buffers,
            {i: tuple(chain.from_iterable(resized(index, i))) for i in resizes},
        )
        buffers = records(len(memory.size), BUFFER)
        buffers.bytes = memory.size
        fill_in(buffers.kept, dict.fromkeys(memory.kept, 1))
        fill_in(buffers.input, dict.fromkeys(memory.inputs, 1))
        graph = Graph(
            nodes=self._nodes(),
            buffers=buffers,
            rows=rows,
            items=items,
            launches=np.array(list(launches), np.int64),
            streams=len(set(self.stream.values())),
            slowdown_permille=self.costs.slowdown_permille,
        )
        longest_tails(graph)
        return graph

    @cached_property
    def units(self) -> Units:
        """The same problem with fewer nodes, for those who make many schedules."""
        return Units(self, fold(self.graph))

    def _nodes(self) -> Records:
        index = self.index
        nodes = records(len(index), NODE)
        nodes.stream = nodes.waited = -1
        nodes.compute_ns = self.stream_ns
        nodes.compute = index.compute
        nodes.missing = [len(preds) for preds in self.preds]
        nodes.placeholder = [op == "placeholder" for op in index.ops]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(self.stream.values()))}
        fill_in(nodes.stream, {i: numbers[name] for i, name in self.stream.items()})
        fill_in(nodes.waited, {**index.wait_of, **index.begun_elsewhere})
        fill_in(nodes.transfer, {**{i: self.costs.ns[i] for i in index.launches}, **index.estimates.arrivals})
        fill_in(nodes.bytes, {**self.bytes, **{i: input_bytes(index, i) for i in index.begun_elsewhere.values()}})
        fill_in(nodes.between, self.own_prefetch)
        fill_in(nodes.asynchronous, {i: facts.asynchronous for i, facts in index.launches.items()})
        fill_in(nodes.ends, {i: facts.kind is Kind.REDUCE_SCATTER for i, facts in index.launches.items()})
        fill_in(nodes.prepared, {launch: 1 + self.has_kernel(own) for launch, own in self.preparation.items()})
        fill_in(nodes.fixed, dict.fromkeys(index.estimates.resizes, 1))
        fill_in(nodes.writes, dict.fromkeys(index.writes, 1))
        return nodes
