"""One rank of a bench: runs all graphs in turns and times them; started by :mod:`commcc.replay.bench.benchmark`.

    python -c 'from commcc.replay.ranks.bench_worker import main; main()' FOLDER

FOLDER holds ``graph1.fx.txt``, ``graph2.fx.txt``, ... and ``settings.json``. A rank finds its times, its peak memory,
and how what the other graphs give back differs from what the first one gives; rank 0 writes those of all ranks to
``rank0.json``, the others write where that is.

Limits: nodes are called one by one from Python, which is part of the time.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from commcc.base.gc_pause import no_collection
from commcc.graph.ops.allowed import imported_ops
from commcc.replay.bench.cost_choice import replay_model
from commcc.replay.bench.graph_set import BenchSettings, check_room, graph_file, make_set
from commcc.replay.bench.ways import ways_of
from commcc.replay.compiled.inductor import CACHE_VARIABLE
from commcc.replay.emulate.transport import make_transports
from commcc.replay.numeric.compare import compare_rank
from commcc.replay.numeric.pair import own_inputs
from commcc.replay.place import make_place
from commcc.replay.ranks.groups import stand_in_groups
from commcc.replay.ranks.node_runs import record_nodes
from commcc.replay.ranks.team import Alone, join
from commcc.replay.ranks.turns import Seat
from commcc.replay.ranks.variants import make_bench
from commcc.replay.ranks.worker import serve
from commcc.serialization import load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from commcc.base.terms import Json
    from commcc.replay.bench.graph_set import GraphSet
    from commcc.replay.bench.ways import Way
    from commcc.replay.place import Place
    from commcc.replay.ranks.turns import Bench
    from commcc.replay.ranks.watch import Watch
    from commcc.replay.values import RankResults


def main() -> None:
    """Run the rank that the environment names, and exit with 0 when it has its times."""
    serve(_run, BenchSettings)


def _run(folder: Path, rank: int, settings: BenchSettings, watch: Watch) -> dict[str, Json]:
    """What all ranks have found, or where that is."""
    files = [folder / graph_file(number) for number in range(1, settings.graphs + 1)]
    os.environ.setdefault(CACHE_VARIABLE, str(folder / "inductor"))
    watch.stage("reading the graphs")
    imported_ops(settings.imports)
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
    nodes: list[Json] = [record_nodes(n, bench, made, settings).to_json() for n, bench in eager if settings.recorded]
    watch.stage("waiting for the other ranks to end")
    found = benches[0].seat.team.gather(
        {"graphs": [bench.to_json() for bench in benches], "gaps": gaps, "nodes": nodes}
    )
    for bench in benches:
        bench.release()
    benches[0].leave()
    return found


def _benches(graphs: GraphSet, rank: int, place: Place, settings: BenchSettings, watch: Watch) -> list[Bench]:
    """All graphs in all ways, on process groups or beside lanes."""
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
