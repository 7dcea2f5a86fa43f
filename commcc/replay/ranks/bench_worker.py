"""One rank of a bench: runs all graphs in turns and times them; started by :mod:`commcc.replay.bench`.

    python -c 'from commcc.replay.ranks.bench_worker import main; main()' FOLDER

FOLDER holds ``graph1.fx.txt``, ``graph2.fx.txt``, ... and ``settings.json``. A rank finds its times, its peak memory,
and how what the other graphs give back differs from what the first one gives; rank 0 writes those of all ranks to
``rank0.json``, the others write where that is.

Limits: nodes are called one by one from Python, which is part of the time.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commcc.collection import no_collection
from commcc.replay.bench_set import BenchSettings, check_room, graph_file, make_set, trace_file
from commcc.replay.compare import compare_rank
from commcc.replay.costing import replay_model
from commcc.replay.emulate.crossing import Crossing
from commcc.replay.emulate.transport import make_transports
from commcc.replay.inductor import CACHE_VARIABLE
from commcc.replay.node_times import RankNodes, medians
from commcc.replay.pair import own_inputs
from commcc.replay.place import CPU, CUDA, make_place
from commcc.replay.ranks.groups import stand_in_groups
from commcc.replay.ranks.team import Alone, join
from commcc.replay.ranks.worker import serve
from commcc.replay.recording import NodeRun, marked, read_runs, record
from commcc.replay.serial import RankRun
from commcc.replay.waiting import StepTimes, every, holds_up
from commcc.replay.ways import ways_of
from commcc.serialization import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from commcc.replay.bench_set import GraphSet
    from commcc.replay.emulate.crossing import Took
    from commcc.replay.emulate.transport import Transport
    from commcc.replay.place import Place
    from commcc.replay.prepare import Prepared, Step
    from commcc.replay.ranks.team import Team
    from commcc.replay.ranks.watch import Watch
    from commcc.replay.values import RankResults
    from commcc.replay.ways import Way
    from commcc.terms import Json


def main() -> None:
    """Run the rank that the environment names, and exit with 0 when it has its times."""
    serve(_run, BenchSettings)


def _run(folder: Path, rank: int, settings: BenchSettings, watch: Watch) -> dict[str, Json]:
    """What all ranks have found, or where that is."""
    files = [folder / graph_file(number) for number in range(1, settings.graphs + 1)]
    os.environ.setdefault(CACHE_VARIABLE, str(folder / "inductor"))
    watch.stage("reading the graphs")
    found = measure(make_set([load(file) for file in files], settings), rank, settings, watch)
    return {"elsewhere": os.environ["MASTER_ADDR"]} if found is None else {"ranks": [*found]}


def measure(graphs: GraphSet, rank: int, settings: BenchSettings, watch: Watch) -> list[dict[str, Json]] | None:
    """All repetitions of all graphs, as rank ``rank``; what every rank has found on rank 0, None on the others."""
    place = make_place(settings.device, int(os.environ.get("LOCAL_RANK", "0")))
    check_room(graphs, place.free_bytes())
    watch.stage("making its inputs")
    made = graphs.maker.of_rank(rank)
    benches = _benches(graphs, rank, place, settings, watch)
    gaps = _compared(benches, ways_of(settings), made, rank)
    _in_turns(benches, made, settings)
    eager = enumerate(benches[: settings.graphs], 1)
    nodes: list[Json] = [_nodes(n, bench, made, settings).to_json() for n, bench in eager if settings.recorded]
    watch.stage("waiting for the other ranks to end")
    found = benches[0].seat.team.gather(
        {"graphs": [bench.to_json() for bench in benches], "gaps": gaps, "nodes": nodes}
    )
    benches[0].leave()
    return found


def _benches(graphs: GraphSet, rank: int, place: Place, settings: BenchSettings, watch: Watch) -> list[Bench]:
    """All graphs in all ways, on process groups or beside lanes."""
    # Imported here: it builds on what is in this module.
    from commcc.replay.ranks.variants import make_bench

    order = ways_of(settings)
    if settings.emulated:
        if settings.compiled:
            stand_in_groups(graphs.layout)
        seat = Seat(rank, place, Alone(), watch, settings.seed)
        transports = make_transports(graphs, place, replay_model(settings.cost, device=settings.device))
        return [make_bench(way, transports[way.graph].prepared, seat, transports[way.graph]) for way in order]
    seat = Seat(rank, place, join(graphs.layout, rank, place, settings.timeout, watch), watch, settings.seed)
    return [make_bench(way, graphs.prepared[way.graph], seat) for way in order]


@no_collection()
def _in_turns(benches: Sequence[Bench], made: dict[str, Any], settings: BenchSettings) -> None:
    """Warm-ups, then what counts: A B A B, so that what changes with time changes for all."""
    for repetition in range(-settings.warmup, settings.repeat):
        for bench, way in zip(benches, ways_of(settings), strict=True):
            bench.seat.watch.program = way.called
            bench.sample(made, keep=repetition >= 0)


def _compared(benches: Sequence[Bench], order: Sequence[Way], made: dict[str, Any], rank: int) -> list[Json]:
    """What each but the first gives back against another one; these runs are not timed."""
    kept: dict[int, RankResults] = {}
    gaps: list[Json] = []
    for number, (bench, way) in enumerate(zip(benches, order, strict=True)):
        bench.seat.watch.program = way.called
        results = bench.run(bench.ready(own_inputs(bench.prepared, made))).on_cpu()
        if way.against is not None:
            gaps.append(asdict(compare_rank(kept[way.against], results, rank)))
        if any(other.against == number for other in order):
            kept[number] = results
    return gaps


def _nodes(number: int, bench: Bench, made: dict[str, Any], settings: BenchSettings) -> RankNodes:
    """Runs that are recorded node by node, and kept as a trace if there is a folder for it."""
    seat = bench.seat
    seat.watch.program = f"graph {number}"
    found = RankNodes(waits=medians(bench.waits))
    if seat.place.name == CPU:
        times = StepTimes(seat.place, which=every)
        timed = bench.runner(times.step)
        runs = []
        for inputs in bench.beginnings(made, settings.recorded):
            times.forget()
            timed(inputs)
            runs.append(times.taken())
        waits = {step.name for step in bench.prepared.steps if holds_up(step)}
        found.ops = {node: ns for node, ns in medians(runs).items() if node not in waits}
    with tempfile.TemporaryDirectory(prefix="commcc-trace-") as folder:
        file = Path(settings.trace or folder) / trace_file(number, seat.rank)
        found.add_runs(_recorded(bench, made, settings.recorded, file))
    return found


def _recorded(bench: Bench, made: dict[str, Any], count: int, file: Path) -> list[NodeRun]:
    """What a trace tells of so many runs."""
    marking = bench.runner(marked)
    crossed: list[dict[str, Took]] = []

    def run(inputs: dict[str, Any]) -> None:
        marking(inputs)
        bench.seat.place.synchronize()
        crossed.append(bench.settle())

    record(bench.seat.place, (partial(run, inputs) for inputs in bench.beginnings(made, count)), file)
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
        for each, took in zip(runs, crossed, strict=True)
    ]


@dataclass(frozen=True)
class Seat:
    """One rank among the others, and what it runs on."""

    rank: int
    place: Place
    team: Team
    watch: Watch
    seed: int


@dataclass
class Bench:
    """One graph with the samples that were kept, in nanoseconds and bytes. transport: of emulated communication."""

    prepared: Prepared
    seat: Seat
    transport: Transport | None = None
    wall_ns: list[int] = field(default_factory=list)
    exposed_ns: list[int] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    waits: list[dict[str, int]] = field(default_factory=list)
    crossings: list[Crossing] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._waits = StepTimes(self.seat.place)
        self.run: Callable[[dict[str, Any]], RankResults] = self.runner(self._waits.step)

    def runner(self, wrap: Callable[[Step], Step]) -> RankRun:
        """Runs the graph with steps that are wrapped in something."""
        seat = self.seat
        prepared = replace(self.prepared, steps=tuple(map(wrap, self.prepared.steps)))
        return RankRun(prepared, seat.rank, seat.seed, seat.watch.progress, seat.place)

    def ready(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """What is done with inputs before a run that is timed."""
        return inputs

    def beginnings(self, made: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
        """Inputs for so many runs, each given when all ranks are there to begin."""
        for _ in range(count):
            inputs = self.ready(own_inputs(self.prepared, made))
            self.seat.place.synchronize()
            self.settle()
            self.seat.watch.stage("waiting for the other ranks to begin a repetition")
            self.seat.team.barrier()
            yield inputs

    def sample(self, made: dict[str, Any], *, keep: bool) -> None:
        """One run on inputs of its own, begun by all ranks together."""
        place = self.seat.place
        counted = place.forget_peak()
        self._waits.forget()
        (inputs,) = self.beginnings(made, 1)
        self.seat.watch.device = self._waits.newest if place.name == CUDA else None
        start = place.stamp()
        self.run(inputs)
        end = place.stamp()
        place.synchronize()
        self.seat.watch.device = None
        took = self.settle()
        if keep:
            self.crossings += [Crossing.of(took)] if self.transport is not None else []
            self.wall_ns.append(place.elapsed_ns(start, end))
            self.waits.append(self._waits.taken())
            self.exposed_ns.append(sum(self.waits[-1].values()))
            self.peaks += [peak] if counted and (peak := place.peak_bytes()) is not None else []

    def settle(self) -> dict[str, Took]:
        """What each emulated collective has taken, by node; the place must have been synchronized."""
        return {} if self.transport is None else self.transport.settle()

    def leave(self) -> None:
        """The end, for all graphs of the rank."""
        self.seat.team.leave()
        if self.transport is not None:
            self.transport.lanes.close()

    def to_json(self) -> dict[str, Json]:
        peak: Json = max(self.peaks, default=None)
        times: dict[str, Json] = {"wall_ns": list(self.wall_ns), "exposed_ns": list(self.exposed_ns)}
        crossings: list[Json] = [asdict(each) for each in self.crossings]
        return {**times, "peak_bytes": peak, "crossings": crossings, "order": None}
