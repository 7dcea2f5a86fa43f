"""Repetitions that are recorded node by node, and the traces of them.

    nodes = record_nodes(1, bench, made, settings)
    nodes.ops["mm_3"]                            # nanoseconds, the median of settings.recorded runs

Limits: graphs are called op by op here, also where they are compiled or captured otherwise.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commcc.replay.bench.graph_set import BenchSettings, trace_file
from commcc.replay.bench.node_times import RankNodes, medians
from commcc.replay.bench.recording import NodeRun, marked, read_runs, record
from commcc.replay.bench.waiting import StepTimes, every, holds_up
from commcc.replay.place import CPU

if TYPE_CHECKING:
    from commcc.replay.emulate.crossing import Took
    from commcc.replay.ranks.turns import Bench


def record_nodes(number: int, bench: Bench, made: dict[str, Any], settings: BenchSettings) -> RankNodes:
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
