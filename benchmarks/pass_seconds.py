"""How long planning and applying take, beside torch's own ``schedule_overlap_bucketing`` on the same graph.

    python benchmarks/pass_seconds.py [FILE...] [--repetitions 3] [--modes bucket] [--cost h100] [--json OUT]

All in one process, in turns: the peer in each of its modes, then every pipeline of commcc, and again. Shown are medians
of CPU seconds, and the peer's best mode over commcc's. commcc's seconds are those of planning and applying; what
comes between two passes (index, identification, prices, bound) counts. What a run knows of its first graph before it
plans (the same, which every report needs) does not, as the peer is given its durations. Verification stands beside.
One turn before does not count: kernels are compiled, caches fill.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
SAMPLE = HERE.parent / "sample_graphs" / "llama3_8b_fsdp64_bw.fx.txt.gz"
PIPELINES = {"reorder": "reorder", "auto": "bucket{strategy=auto},reorder"}


class Ours:
    """Pipelines of commcc on one program."""

    def __init__(self, program: Any, model: Any) -> None:
        from commcc.graph.collectives import identify
        from commcc.graph.index import build_index
        from commcc.timing.predict import predict

        self.program, self.model = program, model
        self.first = build_index(program)
        self.ident = identify(self.first)
        self.prediction = predict(self.first, model)

    def run(self, text: str) -> tuple[Any, float]:
        """The result of a pipeline, and the CPU seconds of planning and applying it."""
        from commcc.apply import apply_plan
        from commcc.base.gc_pause import no_collection
        from commcc.passes.base import PlanContext
        from commcc.passes.options import parse_pipeline

        if "commcc.schedule.search" in sys.modules:  # what the last turn found would be known
            sys.modules["commcc.schedule.search"]._last = None
        gc.collect()
        start = time.process_time()
        context = PlanContext(self.program, self.first, self.ident, self.model, prediction=self.prediction)
        program = self.program
        with no_collection():  # as the pipeline does
            for number, each in enumerate(parse_pipeline(text)):
                if number and program is not context.program:
                    context = replace(PlanContext.of(program, self.model), first=self.first)
                plan = each.plan(context)
                if plan.changes:
                    program = apply_plan(program, context.index, plan)
        return program, time.process_time() - start


def measure(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Medians of CPU seconds for one graph."""
    from against_torch import load_on_cpu, register_groups
    from torch_overlap import Peer

    from commcc.serialization import load
    from commcc.timing.cost import load_model
    from commcc.verify import verify

    program, on_cpu = load(path), load_on_cpu(path)
    model = load_model(options.cost)
    seconds: dict[str, list[float]] = {}
    ours = Ours(program, model)
    register_groups(on_cpu)
    peer = Peer(program, on_cpu, model)
    for turn in range(options.repetitions + 1):
        for mode in options.modes.split(","):
            made = peer.run(mode)
            if turn and made.failed is None:
                seconds.setdefault(f"torch {mode}", []).append(made.seconds)
        for name, text in PIPELINES.items():
            after, took = ours.run(text)
            if turn:
                seconds.setdefault(name, []).append(took)
            if turn == 1:
                start = time.process_time()
                verify(program, after)
                seconds[f"verify {name}"] = [time.process_time() - start]
    return {"nodes": len(ours.first), **{name: median(times) for name, times in seconds.items()}}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, default=[SAMPLE])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--modes", default="bucket", help="of the peer")
    parser.add_argument("--cost", default="h100")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = {}
    for path in options.files:
        row = rows[path.name] = measure(path, options)
        peers = [took for name, took in row.items() if name.startswith("torch ")]
        print(f"\n{path.name}: {row['nodes']} nodes")
        for name, took in row.items():
            ratio = f"{min(peers) / took:8.1f}x" if name in PIPELINES and peers else ""
            if name != "nodes":
                print(f"  {name:20}{took:9.3f} s{ratio}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
