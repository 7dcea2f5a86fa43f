"""Graphs timed next to each other on real ranks: the same inputs, repetitions in turns, the same results.

    result = bench([("before", old), ("after", new)], BenchSettings(ranks=2, repeat=20))
    result.graphs[0].wall.median           # nanoseconds of the slowest rank
    result.others[0].times.verdict         # 'faster', 'slower' or 'not distinguishable' from the first
    result.others[0].numeric.status        # 'equal': what it returns is the same to the bit

    machines = Machines(nnodes=2, node_rank=0, endpoint="node1:29500")
    bench(named, settings, Launched(machines))         # the ranks of this machine are started by this process

Everything that can be refused is refused before a rank is started.

Limits: ops are called one by one from Python. Times of one device say little about another.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from commcc.base.text import plural
from commcc.replay.bench.forecast import forecast, replay_model
from commcc.replay.bench.graph_set import (
    BenchSettings,
    check,
    check_devices,
    graph_file,
    make_set,
    variants_of,
    within_rounding,
)
from commcc.replay.bench.recording import RankNodes, gather_times
from commcc.replay.bench.statistics import Comparison, Spread, compare_times, slowest, spread
from commcc.replay.calls import raised_remarks
from commcc.replay.compiled.calls import OrderKept
from commcc.replay.emulate.transport import CommTotals, remarks, totals_json
from commcc.replay.numeric.compare import RankGaps
from commcc.replay.numeric.pair import pair_of
from commcc.replay.numeric.verification import judge_real
from commcc.replay.place import CUDA
from commcc.replay.work_folder import work_folder
from commcc.serialization import save
from commcc.timing.predict import predict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.base.errors import CommccError
    from commcc.base.terms import Json
    from commcc.graph.index import GraphIndex
    from commcc.graph.program import Program
    from commcc.replay.bench.forecast import Forecast
    from commcc.replay.bench.graph_set import GraphSet
    from commcc.replay.bench.recording import NodeTimes
    from commcc.replay.numeric.verdict import Numeric
    from commcc.replay.ranks.machines import Machines
    from commcc.timing.cost import CostModel
    from commcc.timing.predict import Prediction

_WORKER = "commcc.replay.bench.worker"
#: From which share of a step on the host is what it takes.
_HOST_BOUND = 0.95
_HINT = "commcc verify BEFORE AFTER --numeric runs graphs without processes"


@dataclass(frozen=True)
class RankTimes:
    """One graph on one rank, nanoseconds by repetition.

    exposed_ns: in waits, empty where unknown. peak_bytes: None where unknown. communication: what was emulated.
    host_ns: in which a host called the ops for its device, empty on the CPU.
    """

    wall_ns: tuple[int, ...]
    exposed_ns: tuple[int, ...]
    peak_bytes: int | None
    communication: tuple[CommTotals, ...] = ()
    host_ns: tuple[int, ...] = ()

    @staticmethod
    def of(data: Mapping[str, Any]) -> RankTimes:
        """What a rank wrote down."""
        communication = tuple(CommTotals(**totals) for totals in data["communication"])
        wall, exposed, host = (tuple(data[name]) for name in ("wall_ns", "exposed_ns", "host_ns"))
        return RankTimes(wall, exposed, data["peak_bytes"], communication, host)

    def to_json(self) -> dict[str, Json]:
        return {
            "wall_ms": _milliseconds(spread(self.wall_ns)),
            "exposed_ms": _milliseconds(spread(self.exposed_ns)) if self.exposed_ns else None,
            "peak_bytes": self.peak_bytes,
        }


@dataclass(frozen=True)
class GraphTimes:
    """One graph on all ranks; of each repetition the rank counts that takes longest, or waits longest.

    prediction: what the simulator says under the cost model of the benchmark. nodes: what each node took, where runs
    were recorded. order: of a compiled graph, what stands elsewhere in the code.
    """

    name: str
    ranks: tuple[RankTimes, ...]
    index: GraphIndex
    prediction: Prediction
    nodes: NodeTimes | None = None
    order: OrderKept | None = None

    @cached_property
    def samples(self) -> list[float]:
        """Nanoseconds of the slowest rank, by repetition."""
        return slowest([rank.wall_ns for rank in self.ranks])

    @property
    def wall(self) -> Spread:
        return spread(self.samples)

    @property
    def exposed(self) -> Spread | None:
        waited = slowest([rank.exposed_ns for rank in self.ranks])
        return spread(waited) if waited else None

    @property
    def peak_bytes(self) -> int | None:
        """The largest of all ranks."""
        return max((rank.peak_bytes for rank in self.ranks if rank.peak_bytes is not None), default=None)

    def forecast(self, prediction: Prediction | None = None) -> Forecast | None:
        """A prediction, its own if none is given, next to what was measured; None where nothing was recorded."""
        if self.nodes is None or self.exposed is None:
            return None
        step, exposed = self.wall.median, self.exposed.median
        return forecast(self.index, prediction or self.prediction, self.nodes, step_ns=step, exposed_ns=exposed)

    def to_json(self) -> dict[str, Json]:
        result, timeline = self.forecast(), self.prediction.timeline
        return {
            "name": self.name,
            "wall_ms": _milliseconds(self.wall),
            "exposed_ms": None if self.exposed is None else _milliseconds(self.exposed),
            "peak_bytes": self.peak_bytes,
            "samples_ms": [_ms(sample) for sample in self.samples],
            "predicted": {
                "step_ms": _ms(timeline.step_ns),
                "exposed_ms": _ms(timeline.exposed_ns),
                "peak_bytes": self.prediction.memory.peak_bytes,
            },
            "order": None if self.order is None else self.order.to_json(),
            "forecast": None if result is None else result.to_json(),
            "emulated": totals_json(self.ranks[0].communication),
            "ranks": [rank.to_json() for rank in self.ranks],
        }


@dataclass(frozen=True)
class Other:
    """One graph against another one: its times, and what it returns. Numbers are from 1."""

    number: int
    against: int
    times: Comparison
    numeric: Numeric

    def to_json(self) -> dict[str, Json]:
        results = self.numeric.to_json()
        del results["seconds"]  # these runs were not timed
        return {"graph": self.number, "against": self.against, **self.times.to_json(), "results": results}


@dataclass(frozen=True)
class Benchmark:
    """What was measured. model: name of the cost model that predicted. seconds: of all of it, with the start of the
    ranks.
    """

    graphs: tuple[GraphTimes, ...]
    others: tuple[Other, ...]
    settings: BenchSettings
    notes: tuple[str, ...]
    model: str
    seconds: float

    @property
    def fine(self) -> bool:
        """Whether all graphs return the same, as far as can be asked."""
        return all(other.numeric.fine for other in self.others)

    def how_json(self) -> dict[str, Json]:
        """How it was measured, without what was."""
        settings = self.settings
        return {
            "ranks": settings.ranks if settings.emulated else len(self.graphs[0].ranks),
            "backend": None if settings.emulated else "nccl" if settings.device == CUDA else "gloo",
            "emulated": settings.emulated,
            "device": settings.device,
            "cost": self.model,
            "seed": settings.seed,
            "warmup": settings.warmup,
            "repeat": settings.repeat,
        }

    def to_json(self) -> dict[str, Json]:
        return {
            **self.how_json(),
            "graphs": [graph.to_json() for graph in self.graphs],
            "comparisons": [other.to_json() for other in self.others],
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class Elsewhere:
    """Rank 0, which has what all have measured, is on another machine or in another process."""

    machine: str


class Runner(Protocol):
    """Runs prepared graphs on ranks."""

    def here(self, world: int) -> int:
        """How many of so many ranks are on this machine."""

    def __call__(
        self, graphs: GraphSet, programs: Sequence[Program], settings: BenchSettings
    ) -> list[dict[str, Any]] | Elsewhere:
        """What every rank has measured, in order. Raises :class:`CommccError`."""


@dataclass(frozen=True)
class Launched:
    """Ranks that this process starts. machines: None for this one alone."""

    machines: Machines | None = None

    def here(self, world: int) -> int:
        return world if self.machines is None else self.machines.of(world)

    def __call__(
        self, graphs: GraphSet, programs: Sequence[Program], settings: BenchSettings
    ) -> list[dict[str, Any]] | Elsewhere:
        # Imported here: what a graph can be refused for needs no process groups.
        from commcc.replay.ranks.failing import RanksError
        from commcc.replay.ranks.launch import run_ranks

        with work_folder("bench") as folder:
            for number, program in enumerate(programs, 1):
                save(program, folder / graph_file(number))
            (folder / "settings.json").write_text(settings.to_text(), encoding="utf-8")
            ranks = 1 if settings.emulated else self.here(graphs.layout.world)
            try:
                written = run_ranks(ranks, folder, settings.timeout, worker=_WORKER, machines=self.machines)
            except RanksError as error:
                raise hinted(error) from error
        ranked: list[dict[str, Any]] | None = written[0].get("ranks")
        return Elsewhere(written[0]["elsewhere"]) if ranked is None else ranked


def hinted(error: CommccError) -> CommccError:
    """An error of ranks with what to do about it in a bench."""
    from commcc.replay.ranks.failing import RanksError

    if not isinstance(error, RanksError) or error.memory:
        return error
    more = "--timeout allows more seconds; " if error.late else ""
    explained = RanksError(error.what, hint=more + _HINT, failed=error.failed)
    explained.late = error.late
    return explained


def bench(
    named: Sequence[tuple[str, Program]], settings: BenchSettings, runner: Runner | None = None
) -> Benchmark | Elsewhere:
    """Time the graphs, each given with the name to show. runner: None for ranks that are started on this machine.

    Raises :class:`CommccError` where they cannot be run.
    """
    started, runner = time.perf_counter(), runner or Launched()
    settings = replace(settings, graphs=len(named))
    programs = [program for _, program in named]
    # Asked first: a graph cannot be prepared for a device that is not there.
    if settings.device == CUDA:
        check_devices(1)
    model = replay_model(settings.cost, device=settings.device)
    graphs = make_set(programs, settings)
    world, here = graphs.layout.world, runner.here(graphs.layout.world)
    check(graphs, settings, here)
    settings = replace(settings, ranks=world)
    measured = runner(graphs, programs, settings)
    if isinstance(measured, Elsewhere):
        return measured
    order = variants_of(settings)
    fusing = replay_model(settings.cost, device=settings.device, compiled=True) if settings.compiled else model
    times = tuple(
        _times(n, variant.named(named[variant.graph][0]), graphs, measured, fusing if variant.compiled else model)
        for n, variant in enumerate(order)
    )
    others = tuple(_other(n, graphs, times, measured, settings) for n in range(1, len(order)))
    emulated = [variant.ranks[0].communication for variant in times]
    about = remarks(world, model.name, emulated) if settings.emulated else _crowded(here)
    notes = [*graphs.layout.assumed, *graphs.maker.assumed]
    if any(prepared.unfolded for prepared in graphs.prepared):
        notes.append("fused ops of tensor parallelism are run as the plain ops they stand for")
    if any(step.meets for prepared in graphs.prepared for step in prepared.steps):
        notes.append("waits in sub-graphs are part of the step, not of the exposed time")
    notes += [*raised_remarks(name for rank in measured for name in rank.get("raised", ())), *about]
    unsteady = _unsteady(measured)
    if unsteady and others:
        few = plural(len(unsteady), "value")
        notes.append(f"{few} of graph 1 differ from one run of it to the next on this device: compared within rounding")
    for number, variant in enumerate(times, 1):
        notes += _host_bound(number, variant)
        if variant.order is not None and (variant.order.moved or variant.order.missing):
            notes.append(f"graph {number}: {variant.order.text}")
    return Benchmark(times, others, settings, tuple(notes), model.name, time.perf_counter() - started)


def _host_bound(number: int, graph: GraphTimes) -> tuple[str, ...]:
    """A remark where a device ended as soon as its host had called the last op: it had waited for the host."""
    host = slowest([rank.host_ns for rank in graph.ranks])
    if not host or median(host) < _HOST_BOUND * graph.wall.median:
        return ()
    took = f"{median(host) / 1e6:,.3f} of {graph.wall.median / 1e6:,.3f} ms"
    return (f"graph {number}: the host took {took} to call the ops, and the device waited for it",)


def _crowded(world: int) -> tuple[str, ...]:
    """A remark where ranks have to take turns on the cores that this process may use."""
    # Not every system has it; what there is then is the number of all cores.
    usable = getattr(os, "sched_getaffinity", None)
    cores = len(usable(0)) if usable is not None else os.cpu_count() or world
    if world <= cores:
        return ()
    return (f"{world} ranks share {plural(cores, 'core')}: times are more of turns than of work",)


def _times(
    number: int, name: str, graphs: GraphSet, measured: Sequence[dict[str, Any]], model: CostModel
) -> GraphTimes:
    """What all ranks measured of one variant; number: of the variant, from 0."""
    index = graphs.prepared[number % len(graphs.prepared)].index
    ranks = tuple(RankTimes.of(rank["graphs"][number]) for rank in measured)
    nodes = [RankNodes.of(nodes_of_rank) for rank in measured for nodes_of_rank in rank["nodes"][number : number + 1]]
    times = gather_times(index, graphs.layout, nodes) if nodes else None
    placed = measured[0]["graphs"][number]["order"]
    order = None if placed is None else OrderKept.of(placed)
    return GraphTimes(name, ranks, index, predict(index, model), times, order)


def _unsteady(measured: Sequence[dict[str, Any]]) -> set[str]:
    """Values that graph 1 does not return twice alike."""
    return {name for rank in measured for name in rank["unsteady"]}


def _other(
    number: int, graphs: GraphSet, times: Sequence[GraphTimes], measured: list[dict[str, Any]], settings: BenchSettings
) -> Other:
    order = variants_of(settings)
    against = order[number].against or 0
    old, new = graphs.prepared[order[against].graph], graphs.prepared[order[number].graph]
    pair = pair_of(old, new, graphs.layout, graphs.maker)
    rounded = within_rounding(settings, (old.index, new.index))
    unsteady = dict.fromkeys(_unsteady(measured), rounded.tolerance)
    judged = rounded if order[number].compiled else settings
    numeric = judge_real(pair, judged, [RankGaps.of(rank["gaps"][number - 1]) for rank in measured], unsteady)
    return Other(number + 1, against + 1, compare_times(times[against].samples, times[number].samples), numeric)


def _milliseconds(times: Spread) -> dict[str, Json]:
    return {key: _ms(ns) for key, ns in (("median", times.median), ("p10", times.p10), ("p90", times.p90))}


def _ms(ns: float) -> float:
    return round(ns / 1e6, 6)
