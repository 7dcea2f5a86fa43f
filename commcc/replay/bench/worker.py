"""One rank of a bench: runs all graphs in turns and times them; started by :mod:`commcc.replay.bench.benchmark`.

    python -c 'from commcc.replay.bench.worker import main; main()' FOLDER

FOLDER holds ``graph1.fx.txt``, ``graph2.fx.txt``, ... and ``settings.json``. A rank has its times, its peak memory,
and how what the other graphs return differs from what the first one returns; rank 0 writes those of all ranks to
``rank0.json``, the others write where that is.

Limits: nodes are called one by one from Python, which is part of the time.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from commcc.base.gc_pause import no_collection
from commcc.replay.bench.forecast import replay_model
from commcc.replay.bench.graph_set import BenchSettings, check_device_memory, graph_file, make_set, variants_of
from commcc.replay.bench.turns import RankContext, make_bench, record_nodes
from commcc.replay.compiled.inductor import CACHE_VARIABLE
from commcc.replay.emulate.transport import make_transports
from commcc.replay.numeric.compare import compare_rank
from commcc.replay.numeric.pair import own_inputs
from commcc.replay.place import make_place
from commcc.replay.ranks.worker import Alone, join, serve, stand_in_groups
from commcc.serialization import load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from commcc.base.terms import Json
    from commcc.replay.bench.graph_set import GraphSet, Variant
    from commcc.replay.bench.turns import Bench
    from commcc.replay.place import Place
    from commcc.replay.ranks.watch import Watch
    from commcc.replay.values import RankResults


def main() -> None:
    """Run the rank that the environment names, and exit with 0 when it has its times."""
    serve(_run, BenchSettings)


def _run(folder: Path, rank: int, settings: BenchSettings, watch: Watch) -> dict[str, Json]:
    """What all ranks have measured, or where that is."""
    files = [folder / graph_file(number) for number in range(1, settings.graphs + 1)]
    os.environ.setdefault(CACHE_VARIABLE, str(folder / "inductor"))
    watch.stage("reading the graphs")
    found = measure(make_set([load(file) for file in files], settings), rank, settings, watch)
    return {"elsewhere": os.environ["MASTER_ADDR"]} if found is None else {"ranks": [*found]}


def measure(graphs: GraphSet, rank: int, settings: BenchSettings, watch: Watch) -> list[dict[str, Json]] | None:
    """All repetitions of all graphs, as rank ``rank``: on rank 0 what every rank has measured, None on the others."""
    place = make_place(settings.device, int(os.environ.get("LOCAL_RANK", "0")))
    check_device_memory(graphs, place.free_bytes())
    watch.stage("making its inputs")
    made = graphs.maker.of_rank(rank)
    benches = _benches(graphs, rank, place, settings, watch)
    gaps = _compared(benches, variants_of(settings), made, rank)
    _in_turns(benches, made, settings)
    eager = enumerate(benches[: settings.graphs], 1)
    nodes: list[Json] = [record_nodes(n, bench, made, settings).to_json() for n, bench in eager if settings.recorded]
    watch.stage("waiting for the other ranks to end")
    found = benches[0].context.team.gather(
        {"graphs": [bench.to_json() for bench in benches], "gaps": gaps, "nodes": nodes}
    )
    for bench in benches:
        bench.release()
    benches[0].leave()
    return found


def _benches(graphs: GraphSet, rank: int, place: Place, settings: BenchSettings, watch: Watch) -> list[Bench]:
    """All variants of all graphs, on process groups or on emulated streams."""
    order = variants_of(settings)
    if settings.emulated:
        if settings.compiled:
            stand_in_groups(graphs.layout)
        context = RankContext(rank, place, Alone(), watch, settings.seed)
        transports = make_transports(graphs, place, replay_model(settings.cost, device=settings.device))
        return [make_bench(each, transports[each.graph].prepared, context, transports[each.graph]) for each in order]
    team = join(graphs.layout, rank, place, settings.timeout, watch)
    context = RankContext(rank, place, team, watch, settings.seed)
    return [make_bench(each, graphs.prepared[each.graph], context) for each in order]


def _compared(benches: Sequence[Bench], order: Sequence[Variant], made: dict[str, Any], rank: int) -> list[Json]:
    """What each but the first returns against another one; these runs are not timed."""
    kept: dict[int, RankResults] = {}
    gaps: list[Json] = []
    for number, (bench, variant) in enumerate(zip(benches, order, strict=True)):
        bench.context.watch.program = variant.called
        results = bench.run(bench.ready(own_inputs(bench.prepared, made))).on_cpu()
        if variant.against is not None:
            gaps.append(asdict(compare_rank(kept[variant.against], results, rank)))
        if any(other.against == number for other in order):
            kept[number] = results
    return gaps


@no_collection()
def _in_turns(benches: Sequence[Bench], made: dict[str, Any], settings: BenchSettings) -> None:
    """Warm-ups, then what counts: A B A B, so that what changes with time changes for all."""
    for repetition in range(-settings.warmup, settings.repeat):
        for bench, variant in zip(benches, variants_of(settings), strict=True):
            bench.context.watch.program = variant.called
            bench.sample(made, keep=repetition >= 0)
