"""How seconds and memory of scheduling grow with the graph: from 4k to 128k nodes.

    python benchmarks/reorder_growth.py [FILE] [--nodes 4000,8000,...] [--passes reorder] [--peer 8000] [--json OUT]

A graph of any size is made of copies of a sample's nodes (:mod:`simulate_speed`). Each size runs in a
process of its own, once: ``index`` (with identification), ``price``, ``plan``, ``apply`` in CPU seconds,
and the MiB by which planning and applying raised the highest resident memory of the process. Sizes up to
``--peer`` are also run through torch's ``schedule_overlap_bucketing`` (mode ``bucket``, see
:mod:`torch_overlap`).
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

SAMPLE = Path(__file__).parent.parent / "sample_graphs" / "llama3_8b_fsdp64_bw.fx.txt.gz"
SMALL = SAMPLE.with_name("tiny_llama_fsdp2_bw.fx.txt.gz")
SIZES = "4000,8000,16000,32000,64000,128000"


def reset_peak() -> float:
    """Forget the highest resident memory so far (Linux); returns the present one in MiB."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mib()


def peak_mib() -> float:
    """Highest resident memory since the reset, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measure(path: Path, count: int, options: argparse.Namespace) -> dict[str, Any]:
    """One size, in this process."""
    from simulate_speed import repeated

    from commcc.apply import apply_plan
    from commcc.base.gc_pause import no_collection
    from commcc.graph.collectives import identify
    from commcc.graph.index import build_index
    from commcc.passes.base import PlanContext
    from commcc.passes.options import parse_pipeline
    from commcc.serialization import load
    from commcc.timing.cost import load_model

    warm_up(options.passes)
    model, program = load_model(options.cost), repeated(load(path), count)
    seconds = dict.fromkeys(("index", "price", "plan", "apply"), 0.0)
    clock = time.process_time()

    def lap(stage: str) -> None:
        nonlocal clock
        seconds[stage] += time.process_time() - clock
        clock = time.process_time()

    before, row = reset_peak(), {"nodes": count}
    clock = time.process_time()
    for made in parse_pipeline(options.passes):
        index = build_index(program)
        ident = identify(index)
        lap("index")
        row.setdefault("collectives", len(index.launches))
        model.price(index)
        lap("price")  # planning prices again
        with no_collection():  # as the pipeline does
            plan = made.plan(PlanContext(program, index, ident, model))
        lap("plan")
        program = apply_plan(program, index, plan) if plan.changes else program
        lap("apply")
        report = plan.report.to_json()
        row["report"] = {key: report[key] for key in ("step_ms", "over_bound") if key in report}
    rounded = {stage: round(found, 3) for stage, found in seconds.items()}
    return {**row, "seconds": rounded, "mib": round(peak_mib() - before), "process_mib": round(peak_mib())}


def warm_up(passes: str) -> None:
    """The passes once on a small graph, so that no size pays for imports and for loading kernels."""
    from commcc.passes.base import PlanContext
    from commcc.passes.options import parse_pipeline
    from commcc.serialization import load
    from commcc.timing.cost import load_model

    context = PlanContext.of(load(SMALL), load_model())
    for made in parse_pipeline(passes):
        made.plan(context)


def measure_peer(path: Path, count: int, options: argparse.Namespace) -> dict[str, Any]:
    """The same for the peer."""
    from against_torch import load_on_cpu, register_groups
    from simulate_speed import repeated
    from torch_overlap import Peer

    from commcc.timing.cost import load_model

    program = repeated(load_on_cpu(path), count)
    for node in program.graph.find_nodes(op="placeholder"):
        node.target = node.name  # copies have the argument's name of the original
    register_groups(program)
    peer = Peer(program, program, load_model(options.cost))
    before = peak_mib()
    made = peer.run("bucket")
    return {
        "nodes": count,
        "peer_seconds": round(made.seconds, 2),
        "mib": round(peak_mib() - before),
        "failed": made.failed,
    }


def child(options: argparse.Namespace, count: int, *more: str) -> dict[str, Any]:
    """A size in a new process."""
    command = [sys.executable, __file__, str(options.file), "--cost", options.cost, "--passes", options.passes]
    result = subprocess.run([*command, "--only", str(count), *more], capture_output=True, text=True, check=False)
    if result.returncode:
        return {"nodes": count, "failed": result.stderr.strip().splitlines()[-1][:200] if result.stderr else "killed"}
    found: dict[str, Any] = json.loads(result.stdout.strip().splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=SAMPLE)
    parser.add_argument("--nodes", default=SIZES)
    parser.add_argument("--cost", default="h100")
    parser.add_argument("--passes", default="reorder")
    parser.add_argument("--peer", type=int, default=0, help="largest size for the peer")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--is-peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.only:
        work = measure_peer if options.is_peer else measure
        print(json.dumps(work(options.file, options.only, options)))
        return 0
    rows: list[dict[str, Any]] = []
    last: dict[str, Any] = {}
    for count in map(int, options.nodes.split(",")):
        row = child(options, count)
        if count <= options.peer:
            row["peer"] = child(options, count, "--is-peer")
        total = sum(row.get("seconds", {}).values())
        power = math.log(total / last["total"]) / math.log(count / last["nodes"]) if last and total else 0.0
        last = {"nodes": count, "total": total} if total else last
        rows.append(row)
        print(f"{count:7} nodes {total:8.2f} s (power {power:.2f})  {json.dumps(row)}", flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
