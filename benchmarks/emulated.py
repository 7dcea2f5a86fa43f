"""Emulated communication beside the simulator: what a step takes, what of it is exposed, and what passes gain.

    python benchmarks/emulated.py [GRAPH...] [--device emulated-cpu] [--cost TEXT] [--passes 'bucket;bucket,reorder']
    python benchmarks/emulated.py --narrow          # as many layers and ranks as Llama-3-8B, 1/16 as wide

Each graph is run as it is and after each of the passes, in turns, by one process that stands for all ranks. Then
the simulator is asked twice: with the cost model alone, and with the times that the nodes of each graph were measured
to take (and the same small time for each call on top, which is what the first graph's step has in it besides). The
second leaves only what the two have in common to disagree about: which communication hides behind what.

In a graph with every wait behind its launch nothing hides, so the exposed time that is measured must be all of the
modelled time; the column ``of modelled`` is that quotient.

Limits: on a CPU compute is not like that of an accelerator, so communication is made long enough to be seen: the usual
cost text puts each rank on a node of its own, 1 Gb/s apart. Figures of a busy machine are those of a busy machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commcc.graph.program import Program
    from commcc.replay.bench.benchmark import Benchmark, GraphTimes
    from commcc.timing.cost import Costs
    from commcc.timing.simulate import Timeline

SAMPLES = Path(__file__).parent.parent / "sample_graphs"
GRAPHS = ("tiny_llama_fsdp4_bw", "tiny_llama_hsdp_bw", "tiny_moe_fsdp4_ep2_fw", "tiny_deepseek_fsdp4_ep2")
PASSES = "bucket;reorder;bucket,reorder"
CPU_COST = "laptop-cpu,ranks_per_node=1"
COLUMNS = (
    *("graph", "step ms", "exposed", "modelled", "of modelled", "simulated step", "exposed"),
    *("with own times", "exposed", "time of the first: measured", "simulated", "with own times"),
)


def narrow() -> list[tuple[str, Program]]:
    """The graphs of Llama-3-8B on 64 ranks, but 256 channels wide and with 64 tokens."""
    from commcc.capture.capturing import capture
    from commcc.capture.models.llama import LlamaConfig
    from commcc.capture.recipes import COMPILED
    from commcc.capture.recipes import llama_step as step
    from commcc.capture.world import Layout

    config = LlamaConfig(
        dim=256, layers=32, heads=8, kv_heads=2, hidden=896, vocabulary=2048, sequence=64, attention="math"
    )
    made = capture(partial(step, config), Layout((("dp_shard", 64),)), COMPILED)
    return [(f"llama of 32 layers, 64 ranks, {side}", program) for side, program in made.items()]


def measured(name: str, program: Program, options: argparse.Namespace) -> tuple[Benchmark, list[dict[str, Any]]]:
    """One graph and what passes make of it."""
    from commcc.passes.options import parse_pipeline
    from commcc.replay.bench.benchmark import bench
    from commcc.replay.bench.graph_set import BenchSettings
    from commcc.run.pipeline import run
    from commcc.timing.cost import load_model

    device = options.device.removeprefix("emulated-")
    cost = options.cost or (CPU_COST if device == "cpu" else "")
    plan = load_model(options.plan)
    after = [(text, run(program, parse_pipeline(text), model=plan).program) for text in options.passes.split(";")]
    named = [(name, program), *after]
    chosen = BenchSettings(
        device=device, emulated=True, cost=cost, repeat=options.repeat, warmup=3, recorded=5, timeout=options.timeout
    )
    found = bench(named, chosen)
    besides = host_ns(found.graphs[0])
    return found, [row(graph, found.graphs[0], besides) for graph in found.graphs]


def host_ns(graph: GraphTimes) -> float:
    """What each call takes besides its op, its launch and its wait."""
    assert graph.nodes is not None
    parts = sum(graph.nodes.ops.values()) + graph.exposed.median
    return max(0.0, graph.wall.median - parts) / max(1, len(graph.nodes.ops))


def own_costs(graph: GraphTimes, besides: float) -> Costs:
    """The model's communication beside the graph's own compute."""
    assert graph.nodes is not None
    costs, index, ops = graph.prediction.costs, graph.index, graph.nodes.ops
    ns = list(costs.ns)
    for node, name in enumerate(index.names):
        if node not in index.launches and name in ops:
            ns[node] = round(ops[name] + besides)
    launches = [ops[index.names[node]] + besides for node in index.launches if index.names[node] in ops]
    launch_ns = round(sum(launches) / len(launches)) if launches else 0
    return replace(costs, ns=tuple(ns), launch_ns=launch_ns)


def row(graph: GraphTimes, first: GraphTimes, besides: float) -> dict[str, Any]:
    """All figures of one graph, milliseconds."""
    from commcc.replay.emulate.transport import totals_json
    from commcc.timing.simulate import Simulator

    own = Simulator(graph.index, own_costs(graph, besides)).run()
    communication: Any = totals_json(graph.ranks[0].communication)
    base = Simulator(first.index, own_costs(first, besides)).run()
    return {
        "graph": graph.name,
        "step_ms": graph.wall.median / 1e6,
        "exposed_ms": graph.exposed.median / 1e6,
        "modelled_ms": communication["modelled_ms"],
        "took_ms": communication["took_ms"],
        "model": side(graph.prediction.timeline, graph),
        "own": side(own, graph),
        "gain": {
            "measured": graph.wall.median / first.wall.median,
            "model": graph.prediction.timeline.step_ns / first.prediction.timeline.step_ns,
            "own": own.step_ns / base.step_ns,
        },
    }


def side(timeline: Timeline, graph: GraphTimes) -> dict[str, float]:
    """What a simulation says, with its error."""
    return {
        "step_ms": timeline.step_ns / 1e6,
        "exposed_ms": timeline.exposed_ns / 1e6,
        "step_error": timeline.step_ns / graph.wall.median - 1,
        "exposed_error_of_step": (timeline.exposed_ns - graph.exposed.median) / graph.wall.median,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown. Errors of exposed times are shares of the measured step."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * (len(COLUMNS) - 1)]
    for each in rows:
        model, own, gain = each["model"], each["own"], each["gain"]
        cells = [
            each["graph"],
            *(f"{each[key]:.2f}" for key in ("step_ms", "exposed_ms", "modelled_ms")),
            f"{each['exposed_ms'] / each['modelled_ms']:.3f}" if each["modelled_ms"] else "",
            *(
                f"{part[key]:.2f} ({100 * part[error]:+.1f} %)"
                for part in (model, own)
                for key, error in (("step_ms", "step_error"), ("exposed_ms", "exposed_error_of_step"))
            ),
            *(f"{gain[key]:.3f}" for key in ("measured", "model", "own")),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Emulated communication beside the simulator.")
    parser.add_argument("graphs", nargs="*", metavar="GRAPH", help="files; by default some small samples")
    parser.add_argument("--narrow", action="store_true", help="a graph of production size, but narrow")
    parser.add_argument("--device", default="emulated-cpu", choices=("emulated-cpu", "emulated-cuda"))
    parser.add_argument("--cost", default="", help="of communication")
    parser.add_argument("--plan", default="h100", help="the cost model of the passes")
    parser.add_argument("--passes", default=PASSES, help="separated by semicolons")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    from commcc.serialization import load

    named = narrow() if options.narrow else []
    files = options.graphs or ([] if options.narrow else [str(next(SAMPLES.glob(f"{n}.fx.txt*"))) for n in GRAPHS])
    every = []
    for name, program in (*named, *((Path(file).name.partition(".")[0], load(file)) for file in files)):
        found, rows = measured(name, program, options)
        every += rows
        if not options.json:
            print(f"\n{name}: {found.model}, {'all' if found.fine else 'NOT all'} results the same\n\n{table(rows)}")
            sys.stdout.flush()
    if options.json:
        print(json.dumps(every, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
