"""One rank of a bench: runs all graphs in turns and times them; started by :mod:`commcc.replay.bench.benchmark`.

::

    python -c 'from commcc.replay.bench.worker import main; main()' FOLDER

    result = measure(graphs, rank, settings, watch)       # on rank 0 what every rank has measured

    bench = make_bench(variant, prepared, RankContext(rank, place, team, watch, seed=0))
    bench.sample(rank_inputs, keep=True)         # of the rank's inputs the graph gets copies of its own
    bench.wall_ns, bench.exposed_ns              # nanoseconds, one for each repetition that was kept

    nodes = record_nodes(1, bench, rank_inputs, settings)
    nodes.ops["mm_3"]                            # nanoseconds, the median of settings.recorded runs

FOLDER holds ``graph1.fx.txt``, ``graph2.fx.txt``, ... and ``settings.json``. A rank has its times, its peak memory,
and how what the other graphs return differs from what the first one returns; rank 0 writes those of all ranks to
``rank0.json``, the others write where that is. A graph is called op by op, through Inductor, as a recorded CUDA
graph, or both.

Limits: nodes are called one by one from Python, which is part of the time. of a recorded CUDA graph no waits can be
timed. Nodes are recorded op by op, however the graph runs otherwise.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commcc.base.gc_pause import no_collection
from commcc.replay.bench.forecast import replay_model
from commcc.replay.bench.graph_set import (
    BenchSettings,
    check_device_memory,
    graph_file,
    make_set,
    trace_file,
    variants_of,
)
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
from commcc.replay.bench.steadiness import Sums, behind, varying
from commcc.replay.compiled.cuda_graphs import CapturedRun
from commcc.replay.compiled.inductor import CACHE_VARIABLE, CompiledRun, Direct
from commcc.replay.emulate.transport import CommTotals, make_transports
from commcc.replay.numeric.compare import compare_rank
from commcc.replay.numeric.pair import own_inputs
from commcc.replay.place import CPU, CUDA, make_place
from commcc.replay.rank_run import RankRun, run
from commcc.replay.ranks.worker import Alone, join, serve, stand_in_groups
from commcc.replay.work_folder import work_folder
from commcc.serialization import load
from commcc.serialization.op_files import read_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from commcc.base.terms import Json
    from commcc.replay.bench.graph_set import GraphSet, Variant
    from commcc.replay.emulate.transport import CommTime, Transport
    from commcc.replay.place import Place
    from commcc.replay.prepare import Prepared, Step
    from commcc.replay.rank_run import Runnable
    from commcc.replay.ranks.watch import Watch
    from commcc.replay.ranks.worker import Team
    from commcc.replay.values import RankResults


def main() -> None:
    """Run the rank that the environment names, and exit with 0 when it has its times."""
    serve(_run, BenchSettings)


def _run(folder: Path, rank: int, settings: BenchSettings, watch: Watch) -> dict[str, Json]:
    """What all ranks have measured, or where that is."""
    files = [folder / graph_file(number) for number in range(1, settings.graphs + 1)]
    os.environ.setdefault(CACHE_VARIABLE, str(folder / "inductor"))
    watch.stage("reading the graphs")
    known = read_with(settings.ops, settings.imports)
    programs = [load(file, descriptions=known) for file in files]
    result = measure(make_set(programs, settings), rank, settings, watch)
    return {"elsewhere": os.environ["MASTER_ADDR"]} if result is None else {"ranks": [*result]}


def measure(graphs: GraphSet, rank: int, settings: BenchSettings, watch: Watch) -> list[dict[str, Json]] | None:
    """All repetitions of all graphs, as rank ``rank``: on rank 0 what every rank has measured, None on the others."""
    place = make_place(settings.device, int(os.environ.get("LOCAL_RANK", "0")))
    check_device_memory(graphs, place.free_bytes())
    watch.stage("making its inputs")
    rank_inputs = graphs.maker.of_rank(rank)
    benches = _benches(graphs, rank, place, settings, watch)
    gaps, unsteady = _compared(benches, variants_of(settings), rank_inputs, rank)
    _in_turns(benches, rank_inputs, settings)
    eager = enumerate(benches[: settings.graphs], 1)
    nodes: list[Json] = [
        record_nodes(n, bench, rank_inputs, settings).to_json() for n, bench in eager if settings.recorded
    ]
    watch.stage("waiting for the other ranks to end")
    result = benches[0].context.team.gather(
        {
            "graphs": [bench.to_json() for bench in benches],
            "gaps": gaps,
            "unsteady": unsteady,
            "nodes": nodes,
            "raised": [name for prepared in graphs.prepared for name in prepared.settings.raised],
        }
    )
    for bench in benches:
        bench.release()
    benches[0].leave()
    return result


def _benches(graphs: GraphSet, rank: int, place: Place, settings: BenchSettings, watch: Watch) -> list[Bench]:
    """All variants of all graphs, on process groups or on emulated streams."""
    order = variants_of(settings)
    if settings.emulated:
        if settings.compiled:
            stand_in_groups(graphs.layout)
        context = RankContext(rank, place, Alone(), watch, settings.seed)
        transports = make_transports(graphs, place, replay_model(settings.cost, device=settings.device))
        return [
            make_bench(variant, transports[variant.graph].prepared, context, transports[variant.graph])
            for variant in order
        ]
    team = join(graphs.layout, rank, place, settings.timeout, watch)
    context = RankContext(rank, place, team, watch, settings.seed)
    return [make_bench(variant, graphs.prepared[variant.graph], context) for variant in order]


def _compared(
    benches: Sequence[Bench], order: Sequence[Variant], rank_inputs: dict[str, Any], rank: int
) -> tuple[list[Json], list[str]]:
    """What each but the first returns against another one, and which values of the first are others in a second run;
    these runs are not timed.
    """
    kept: dict[int, RankResults] = {}
    gaps: list[Json] = []
    twice = benches[0].context.place.name == CUDA and len(benches) > 1
    unsteady = _unsteady(benches[0], rank_inputs) if twice else []
    for number, (bench, variant) in enumerate(zip(benches, order, strict=True)):
        bench.context.watch.program = variant.called
        results, *again = (
            bench.run(bench.ready(own_inputs(bench.prepared, rank_inputs))).on_cpu()
            for _ in range(2 if variant.against is None and twice else 1)
        )
        unsteady += [gap.name for other in again for gap in compare_rank(results, other, rank).gaps]
        if variant.against is not None:
            gaps.append(asdict(compare_rank(kept[variant.against], results, rank)))
        if any(other.against == number for other in order):
            kept[number] = results
    return gaps, unsteady


def _unsteady(bench: Bench, rank_inputs: dict[str, Any]) -> list[str]:
    """Values behind ops of the graph that do not give the same twice, by two runs op by op."""
    bench.context.watch.program = "graph 1"
    sums = Sums()
    run_once, runs = bench.runner(sums.step), []
    for _ in range(2):
        run(run_once, own_inputs(bench.prepared, rank_inputs))
        runs.append(sums.taken())
    return sorted(behind(bench.prepared, varying(*runs)))


@no_collection()
def _in_turns(benches: Sequence[Bench], rank_inputs: dict[str, Any], settings: BenchSettings) -> None:
    """Warm-ups, then what counts: A B A B, so that what changes with time changes for all."""
    for repetition in range(-settings.warmup, settings.repeat):
        for bench, variant in zip(benches, variants_of(settings), strict=True):
            bench.context.watch.program = variant.called
            bench.sample(rank_inputs, keep=repetition >= 0)


# One graph


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
    """One graph with the samples that were kept, in nanoseconds and bytes. transport: of emulated communication.
    host_ns: what calling the ops took where they run on a device.
    """

    prepared: Prepared
    context: RankContext
    transport: Transport | None = None
    wall_ns: list[int] = field(default_factory=list)
    exposed_ns: list[int] = field(default_factory=list)
    host_ns: list[int] = field(default_factory=list)
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

    def beginnings(self, rank_inputs: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
        """Inputs for so many runs, each yielded when all ranks are there to begin."""
        for _ in range(count):
            inputs = self.ready(own_inputs(self.prepared, rank_inputs))
            self.context.place.synchronize()
            self.take_times()
            self.context.watch.stage("waiting for the other ranks to begin a repetition")
            self.context.team.barrier()
            yield inputs

    def sample(self, rank_inputs: dict[str, Any], *, keep: bool) -> None:
        """One run on inputs of its own, begun by all ranks together."""
        place = self.context.place
        counted = place.forget_peak()
        self._waits.forget()
        (inputs,) = self.beginnings(rank_inputs, 1)
        # The host runs ahead of a device, so last words also say how far the device has come.
        self.context.watch.device = self._waits.newest if place.name == CUDA else None
        with self.program.running():
            start, called = place.stamp(), time.perf_counter_ns()
            self.program.outputs(inputs)
            end, returned = place.stamp(), time.perf_counter_ns()
            place.synchronize()
        self.context.watch.device = None
        took = self.take_times()
        if keep:
            self.communication += [CommTotals.of(took)] if self.transport is not None else []
            self.wall_ns.append(place.elapsed_ns(start, end))
            self.host_ns += [returned - called] if place.name == CUDA else []
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
        named = {"wall_ns": self.wall_ns, "exposed_ns": self.exposed_ns, "host_ns": self.host_ns}
        times: dict[str, Json] = {name: list(samples) for name, samples in named.items()}
        communication: list[Json] = [asdict(totals) for totals in self.communication]
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
        data = {**super().to_json(), "order": None if order is None else order.kept.to_json()}
        return {**data, "exposed_ns": []} if self.captured else data


def _plain(step: Step) -> Step:
    return step


def record_nodes(number: int, bench: Bench, rank_inputs: dict[str, Any], settings: BenchSettings) -> RankNodes:
    """Runs that are recorded node by node, and kept as a trace if there is a folder for it."""
    context = bench.context
    context.watch.program = f"graph {number}"
    result = RankNodes(waits=medians(bench.waits))
    if context.place.name == CPU:
        # A trace of the CPU does not tell what an op takes, so these runs are timed call by call.
        times = StepTimes(context.place, which=every)
        timed = bench.runner(times.step)
        runs = []
        for inputs in bench.beginnings(rank_inputs, settings.recorded):
            times.forget()
            timed(inputs)
            runs.append(times.taken())
        waits = {step.name for step in bench.prepared.steps if stalls(step)}
        result.ops = {node: ns for node, ns in medians(runs).items() if node not in waits}
    file = trace_file(number, context.rank)
    if settings.trace:
        result.add_runs(_recorded(bench, rank_inputs, settings.recorded, Path(settings.trace) / file))
    else:
        with work_folder("trace") as folder:
            result.add_runs(_recorded(bench, rank_inputs, settings.recorded, folder / file))
    return result


def _recorded(bench: Bench, rank_inputs: dict[str, Any], count: int, file: Path) -> list[NodeRun]:
    """What a trace tells of so many runs."""
    marking = bench.runner(marked)
    times: list[dict[str, CommTime]] = []

    def run(inputs: dict[str, Any]) -> None:
        marking(inputs)
        bench.context.place.synchronize()
        times.append(bench.take_times())

    record(bench.context.place, (partial(run, inputs) for inputs in bench.beginnings(rank_inputs, count)), file)
    index = bench.prepared.index
    runs = read_runs(file, {index.names[node]: launch.kind for node, launch in index.launches.items()})
    if bench.transport is None:
        return runs
    # The trace knows what an emulated collective copies and idles as work of the node that launches it.
    return [
        NodeRun(
            {node: ns for node, ns in traced.ops.items() if node not in took},
            {node: of.took_ns for node, of in took.items()},
        )
        for traced, took in zip(runs, times, strict=True)
    ]
