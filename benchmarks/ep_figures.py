"""Figures of ep-overlap: CPU seconds with verification, hidden share with and without reorder, and what is proved.

    python benchmarks/ep_figures.py                       # a captured step of 8 layers and 1024 tokens
    python benchmarks/ep_figures.py GRAPH... [--ops FILE] [--cost h100,ranks_per_node=1]

The step is of DeepSeek's kind, on 4 ranks of which 2 exchange tokens each, captured from PyTorch on the CPU
(--layers, --batch and --sequence make others). Each skew is a run of its own.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from commcc.report.overlapping import overlap
from commcc.run.forms import from_preset
from commcc.run.pipeline import run
from commcc.serialization import load
from commcc.serialization.op_files import read_ops
from commcc.timing.cost import load_model

if TYPE_CHECKING:
    from commcc.graph.program import Program


def captured(layers: int, batch: int, sequence: int) -> Program:
    """A training step in one graph."""
    from commcc.capture import capture
    from commcc.capture.models.deepseek import TINY_DEEPSEEK
    from commcc.capture.recipes import STEP, deepseek_step
    from commcc.capture.world import Layout

    layout = Layout((("efsdp", 2), ("ep", 2)), (("dp_shard", ("efsdp", "ep")),))
    config = replace(TINY_DEEPSEEK, layers=layers, batch=batch, sequence=sequence)
    return capture(lambda world: deepseek_step(config, world), layout, STEP)["step"]


def figures(name: str, program: Program, cost: str, skews: list[str]) -> None:
    """One line for each skew and way to order."""
    from commcc.passes.reorder import Reorder

    for skew in skews:
        for behind in ([], [Reorder(memory_budget="own")]):
            started = time.process_time()
            model = load_model(f"{cost},skew={skew}")
            result = run(program, [*from_preset("ep-overlap"), *behind], model=model)
            seconds = time.process_time() - started
            shares = [f"{each['hidden_share']:.1%}" for each in overlap(result)["hidden"]]
            steps = [f"{seen.prediction.to_json()['step_ms']:.3f}" for seen in (result.first, result.last)]
            print(
                f"{name}: {len(program.graph.nodes):,} nodes, skew {skew}{', reorder' if behind else ''}: "
                f"{seconds:.1f} CPU s, {result.verified}; step {steps[0]} -> {steps[1]} ms, "
                f"all-to-alls hidden {shares[0]} -> {shares[-1]}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="*", type=Path)
    parser.add_argument("--ops", type=Path)
    parser.add_argument("--cost", default="h100,ranks_per_node=1")
    parser.add_argument("--skew", nargs="+", default=["1.0", "1.5"])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=128)
    options = parser.parse_args()
    descriptions = read_ops(options.ops) if options.ops else None
    for path in options.graphs:
        figures(path.name, load(path, descriptions=descriptions), options.cost, options.skew)
    if not options.graphs:
        step = captured(options.layers, options.batch, options.sequence)
        name = f"{options.layers} layers, {options.batch * options.sequence} tokens"
        figures(name, step, options.cost, options.skew)


if __name__ == "__main__":
    main()
