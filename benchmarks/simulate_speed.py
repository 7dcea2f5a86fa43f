"""Seconds that a prediction takes, and how they grow with the graph: from 4k to 128k nodes.

    python benchmarks/simulate_speed.py [FILE] [--nodes 4000,8000,...] [--cost h100] [--repeat 5]

A graph of any size is made of copies of a sample's nodes (their shapes are shared, nothing is traced):
each copy goes on from the residual stream of the one before, with weights of its own, as further layers
would; the last copy is cut where the size is reached. Stages: ``index`` (with the estimates), ``price``,
``simulate`` (one order, with what is prepared once), ``again`` (a further order), ``memory``, ``bound``.
Times are CPU time of this one thread, so that other work on the machine counts less. Runs of all sizes
are interleaved; medians are printed, and under each stage the power of the size that its time grew with,
between neighbouring sizes and over all (1.00: linear). One JSON document with ``--json``.

Exit code 1 if simulating 16k nodes takes 50 ms or more.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLE = Path(__file__).parent.parent / "sample_graphs" / "llama3_8b_fsdp64_bw.fx.txt.gz"
SIZES = (4_000, 8_000, 16_000, 32_000, 64_000, 128_000)
STAGES = ("index", "price", "simulate", "again", "memory", "bound")
#: Seconds that simulating 16,000 nodes may take.
BAR_NODES, BAR_SECONDS = 16_000, 0.050


def repeated(program: Any, count: int) -> Any:
    """A program of ``count`` nodes, made of copies of this one's."""
    from torch import fx

    bodies, inputs = chosen_nodes(list(program.graph.nodes), count)
    first, last = stream_ends(list(program.graph.nodes))
    graph = fx.Graph()
    env: dict[tuple[int, Any], Any] = {key: graph.node_copy(key[1]) for key in inputs}
    for copy, node in bodies:
        env[copy, node] = graph.node_copy(node, lambda source, copy=copy: env[copy, source])
        if node is first and copy:
            env[copy, node] = env[copy - 1, last]
    results = [node for node in next(reversed(program.graph.nodes)).all_input_nodes if node.op != "placeholder"]
    copies = range(bodies[-1][0] + 1)
    graph.output(tuple(env[copy, node] for copy in copies for node in results if (copy, node) in env))
    return replace(program, graph=graph, source=None, carrier=None)


def chosen_nodes(nodes: list[Any], count: int) -> tuple[list[tuple[int, Any]], dict[tuple[int, Any], None]]:
    """The nodes to copy, each with the number of its copy, and the inputs that they use; ``count`` with an output."""
    bodies: list[tuple[int, Any]] = []
    inputs: dict[tuple[int, Any], None] = {}
    copy = 0
    while True:
        for node in nodes[:-1]:
            if node.op == "placeholder":
                continue
            used = {(copy, source): None for source in node.all_input_nodes if source.op == "placeholder"}
            if len(bodies) + len(inputs | used) + 2 > count:
                return bodies, inputs
            inputs.update(used)
            bodies.append((copy, node))
        copy += 1


def stream_ends(nodes: list[Any]) -> tuple[Any, Any]:
    """First and last node of the type of tensor that spans most of the graph: the residual stream."""
    import torch

    ends: dict[Any, list[int]] = {}
    for position, node in enumerate(nodes):
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, torch.Tensor) and value.ndim > 2 and node.users:
            ends.setdefault((tuple(value.shape), value.dtype), [position]).append(position)
    first, *_, last = max(ends.values(), key=lambda found: found[-1] - found[0])
    return nodes[first], nodes[last]


class Case:
    """One size: its program, and the stages that can be timed."""

    def __init__(self, program: Any, count: int, model: Any) -> None:
        from commcc.graph.index import build_index
        from commcc.timing.simulate import Simulator

        self.program, self.model = repeated(program, count), model
        self.index = build_index(self.program)
        self.costs = model.price(self.index)
        self.simulator = Simulator(self.index, self.costs)
        self.seconds: dict[str, list[float]] = {stage: [] for stage in STAGES}

    def stages(self) -> dict[str, Callable[[], object]]:
        from commcc.graph.index import build_index
        from commcc.graph.memory import live_bytes
        from commcc.timing.simulate import Simulator, lower_bound

        return {
            "index": lambda: build_index(self.program),
            "price": lambda: self.model.price(self.index),
            "simulate": lambda: Simulator(self.index, self.costs).run(),
            "again": self.simulator.run,
            "memory": lambda: live_bytes(self.index),
            "bound": lambda: lower_bound(self.index, self.costs),
        }

    def measure(self) -> None:
        """Each stage once."""
        for stage, work in self.stages().items():
            gc.collect()
            start = time.process_time()
            work()
            self.seconds[stage].append(time.process_time() - start)

    def row(self) -> dict[str, Any]:
        """Medians, and what the graph holds."""
        return {
            "nodes": len(self.index),
            "collectives": len(self.index.launches),
            "edges": sum(len(self.index.preds(node)) for node in range(len(self.index))),
            "step_ms": self.simulator.run().step_ns / 1e6,
            "seconds": {stage: round(statistics.median(found), 5) for stage, found in self.seconds.items()},
        }


def powers(rows: list[dict[str, Any]]) -> list[dict[str, float]]:
    """For each pair of neighbouring sizes, and at the end for the smallest and the largest, the power of growth."""
    pairs = [*pairwise(rows), (rows[0], rows[-1])] if len(rows) > 1 else []
    return [
        {
            stage: math.log(b["seconds"][stage] / a["seconds"][stage]) / math.log(b["nodes"] / a["nodes"])
            for stage in STAGES
        }
        for a, b in pairs
    ]


def table(name: str, rows: list[dict[str, Any]]) -> str:
    """All rows as fixed-width text."""
    lines = [f"{name}; milliseconds", f"{'nodes':>8} {'collectives':>11} " + " ".join(f"{s:>10}" for s in STAGES)]
    for row in rows:
        times = " ".join(f"{1000 * row['seconds'][stage]:10.1f}" for stage in STAGES)
        lines.append(f"{row['nodes']:8} {row['collectives']:11} {times}")
    grown = powers(rows)
    for count, found in enumerate(grown):
        sizes = (rows[0], rows[-1]) if count == len(grown) - 1 else rows[count : count + 2]
        label = f"{sizes[0]['nodes'] // 1000}k to {sizes[1]['nodes'] // 1000}k, power"
        lines.append(f"{label:>20} " + " ".join(f"{found[stage]:10.2f}" for stage in STAGES))
    return "\n".join(lines)


def main() -> int:
    from commcc.serialization import load
    from commcc.timing.cost import load_model

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=SAMPLE)
    parser.add_argument("--nodes", default=",".join(map(str, SIZES)))
    parser.add_argument("--cost", default="h100")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    program, model = load(options.file), load_model(options.cost)
    cases = [Case(program, count, model) for count in map(int, options.nodes.split(","))]
    for _ in range(options.repeat):
        for case in cases:
            case.measure()
    rows = [case.row() for case in cases]
    name = f"{options.file.name}, {model.name} {model.hash}, CPU time, medians of {options.repeat}"
    print(json.dumps({"file": options.file.name, "rows": rows}, indent=1) if options.json else table(name, rows))
    slow = [row for row in rows if row["nodes"] <= BAR_NODES and row["seconds"]["simulate"] >= BAR_SECONDS]
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
