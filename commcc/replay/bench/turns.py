"""One graph that a rank runs in turns with others: what each repetition took.

::

    bench = make_bench(variant, prepared, RankContext(rank, place, team, watch, seed=0))
    bench.sample(made, keep=True)                # made: the rank's inputs, of which the graph gets copies of its own
    bench.wall_ns, bench.exposed_ns              # nanoseconds, one for each repetition that was kept

    nodes = record_nodes(1, bench, made, settings)
    nodes.ops["mm_3"]                            # nanoseconds, the median of settings.recorded runs

A graph is called op by op, through Inductor, as a recorded CUDA graph, or both.

Limits: of a recorded CUDA graph no waits can be timed. Nodes are recorded op by op, however the graph runs otherwise.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commcc.replay.bench.graph_set import BenchSettings, trace_file
from commcc.replay.bench.recording import (
    NodeRun,
    RankNodes,
    StepTimes,
    every,
    marked,
    medians,
    read_runs,
    record,
    stalls,
)
from commcc.replay.compiled.cuda_graphs import CapturedRun
from commcc.replay.compiled.inductor import CompiledRun, Direct
from commcc.replay.emulate.times import CommTotals
from commcc.replay.numeric.pair import own_inputs
from commcc.replay.place import CPU, CUDA
from commcc.replay.rank_run import RankRun, run
from commcc.replay.work_folder import work_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from commcc.base.terms import Json
    from commcc.replay.bench.graph_set import Variant
    from commcc.replay.emulate.times import CommTime
    from commcc.replay.emulate.transport import Transport
    from commcc.replay.place import Place
    from commcc.replay.prepare import Prepared, Step
    from commcc.replay.rank_run import Runnable
    from commcc.replay.ranks.watch import Watch
    from commcc.replay.ranks.worker import Team
    from commcc.replay.values import RankResults


@dataclass(frozen=True)
class RankContext:
    """One rank among the others, and what it runs on."""

    rank: int
    place: Place
    team: Team
    watch: Watch
    seed: int


def make_bench(variant: Variant, prepared: Prepared, context: RankContext, transport: Transport | None = None) -> Bench:
    """What runs this variant of a graph; transport: of emulated communication."""
    if not variant.compiled and not variant.captured:
        return Bench(prepared, context, transport)
    return CompiledBench(prepared, context, transport, compiled=variant.compiled, captured=variant.captured)


@dataclass
class Bench:
    """One graph with the samples that were kept, in nanoseconds and bytes. transport: of emulated communication."""

    prepared: Prepared
    context: RankContext
    transport: Transport | None = None
    wall_ns: list[int] = field(default_factory=list)
    exposed_ns: list[int] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    waits: list[dict[str, int]] = field(default_factory=list)
    communication: list[CommTotals] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._waits = StepTimes(self.context.place)
        self.program: Runnable = self.runner(self._waits.step)

    def run(self, inputs: dict[str, Any]) -> RankResults:
        """One run that is not timed, on inputs that are :meth:`ready`."""
        return run(self.program, inputs)

    def runner(self, wrap: Callable[[Step], Step]) -> RankRun:
        """Runs the graph with steps that are wrapped in something."""
        context = self.context
        prepared = replace(self.prepared, steps=tuple(map(wrap, self.prepared.steps)))
        return RankRun(prepared, context.rank, context.seed, context.watch.progress, context.place)

    def ready(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """What is done with inputs before a run that is timed."""
        return inputs

    def beginnings(self, made: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
        """Inputs for so many runs, each yielded when all ranks are there to begin."""
        for _ in range(count):
            inputs = self.ready(own_inputs(self.prepared, made))
            self.context.place.synchronize()
            self.take_times()
            self.context.watch.stage("waiting for the other ranks to begin a repetition")
            self.context.team.barrier()
            yield inputs

    def sample(self, made: dict[str, Any], *, keep: bool) -> None:
        """One run on inputs of its own, begun by all ranks together."""
        place = self.context.place
        counted = place.forget_peak()
        self._waits.forget()
        (inputs,) = self.beginnings(made, 1)
        # The host runs ahead of a device, so last words also say how far the device has come.
        self.context.watch.device = self._waits.newest if place.name == CUDA else None
        with self.program.running():
            start = place.stamp()
            self.program.outputs(inputs)
            end = place.stamp()
            place.synchronize()
        self.context.watch.device = None
        took = self.take_times()
        if keep:
            self.communication += [CommTotals.of(took)] if self.transport is not None else []
            self.wall_ns.append(place.elapsed_ns(start, end))
            self.waits.append(self._waits.taken())
            self.exposed_ns.append(sum(self.waits[-1].values()))
            self.peaks += [peak] if counted and (peak := place.peak_bytes()) is not None else []

    def take_times(self) -> dict[str, CommTime]:
        """What each emulated collective has taken, by node; the place must have been synchronized."""
        return {} if self.transport is None else self.transport.take_times()

    def release(self) -> None:
        """Release what has to be gone before the process groups are."""

    def leave(self) -> None:
        """The end, for all graphs of the rank."""
        self.context.team.leave()
        if self.transport is not None:
            self.transport.streams.close()

    def to_json(self) -> dict[str, Json]:
        peak: Json = max(self.peaks, default=None)
        times: dict[str, Json] = {"wall_ns": list(self.wall_ns), "exposed_ns": list(self.exposed_ns)}
        communication: list[Json] = [asdict(each) for each in self.communication]
        return {**times, "peak_bytes": peak, "communication": communication, "order": None}


@dataclass
class CompiledBench(Bench):
    """A graph that is not called op by op."""

    compiled: bool = False
    captured: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._code = self._compiled() if self.compiled else None
        program = self._code or self.runner(_plain)
        self._captured = CapturedRun(program, self.context.watch.stage) if self.captured else None
        self.program = self._captured or program

    def _compiled(self) -> CompiledRun:
        context, network = self.context, self.transport or Direct()
        real = self.prepared if self.transport is None else self.transport.real
        eager = RankRun(real, context.rank, context.seed, context.watch.progress, context.place)
        # Stamps within a recorded graph are never reached.
        return CompiledRun(eager, _plain if self.captured else self._waits.step, self._turn, network)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The first rank of a machine compiles before the others, which then find its code in the cache."""
        context, first = self.context, int(os.environ.get("LOCAL_RANK", "0")) == 0
        context.watch.stage("waiting for rank 0 to compile")
        if not first:
            context.team.barrier()
        context.watch.stage("compiling with Inductor")
        yield
        if first:
            context.team.barrier()

    def ready(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Compile and record, the first time; inputs are put where a recorded graph reads them."""
        if self._code is not None:
            self._code.compile(inputs)
        return inputs if self._captured is None else self._captured.ready(inputs)

    def release(self) -> None:
        if self._captured is not None:
            self._captured.release()

    def to_json(self) -> dict[str, Json]:
        order = self._code.order if self._code is not None else None
        found = {**super().to_json(), "order": None if order is None else order.kept.to_json()}
        return {**found, "exposed_ns": []} if self.captured else found


def _plain(step: Step) -> Step:
    return step


def record_nodes(number: int, bench: Bench, made: dict[str, Any], settings: BenchSettings) -> RankNodes:
    """Runs that are recorded node by node, and kept as a trace if there is a folder for it."""
    context = bench.context
    context.watch.program = f"graph {number}"
    found = RankNodes(waits=medians(bench.waits))
    if context.place.name == CPU:
        # A trace of the CPU does not tell what an op takes, so these runs are timed call by call.
        times = StepTimes(context.place, which=every)
        timed = bench.runner(times.step)
        runs = []
        for inputs in bench.beginnings(made, settings.recorded):
            times.forget()
            timed(inputs)
            runs.append(times.taken())
        waits = {step.name for step in bench.prepared.steps if stalls(step)}
        found.ops = {node: ns for node, ns in medians(runs).items() if node not in waits}
    file = trace_file(number, context.rank)
    if settings.trace:
        found.add_runs(_recorded(bench, made, settings.recorded, Path(settings.trace) / file))
    else:
        with work_folder("trace") as folder:
            found.add_runs(_recorded(bench, made, settings.recorded, folder / file))
    return found


def _recorded(bench: Bench, made: dict[str, Any], count: int, file: Path) -> list[NodeRun]:
    """What a trace tells of so many runs."""
    marking = bench.runner(marked)
    times: list[dict[str, CommTime]] = []

    def run(inputs: dict[str, Any]) -> None:
        marking(inputs)
        bench.context.place.synchronize()
        times.append(bench.take_times())

    record(bench.context.place, (partial(run, inputs) for inputs in bench.beginnings(made, count)), file)
    index = bench.prepared.index
    runs = read_runs(file, {index.names[node]: launch.kind for node, launch in index.launches.items()})
    if bench.transport is None:
        return runs
    # The trace knows what an emulated collective copies and idles as work of the node that launches it.
    return [
        NodeRun(
            {node: ns for node, ns in each.ops.items() if node not in took},
            {node: of.took_ns for node, of in took.items()},
        )
        for each, took in zip(runs, times, strict=True)
    ]
