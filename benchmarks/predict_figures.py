"""What the cost model predicts for the sample graphs, before and after a pass.

    python benchmarks/predict_figures.py [FILE...] [--cost h100] [--passes bucket]

One row for each graph and side: step, compute, communication, exposed time, lower bound and which
bound it is, peak memory, bytes in flight; then the seconds that indexing, pricing, simulating, measuring
memory and bounding took (medians). With ``--json`` one JSON document.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES = Path(__file__).parent.parent / "sample_graphs"
STAGES = ("index", "price", "simulate", "memory", "bound")


def predict_file(path: Path, cost: str, passes: str, repeat: int) -> list[dict[str, Any]]:
    """One row for the graph and one for what the passes make of it."""
    from commcc.graph.index import build_index
    from commcc.passes.options import parse_pipeline
    from commcc.run import pipeline
    from commcc.serialization import load
    from commcc.timing.cost import load_model
    from commcc.timing.predict import predict

    model = load_model(cost)
    program = load(path)
    result = pipeline.run(program, parse_pipeline(passes))
    rows = []
    for side, made in (("before", program), ("after", result.program)):
        index = build_index(made)
        prediction = predict(index, model)
        rows.append(
            {
                "file": path.name,
                "side": side,
                "nodes": len(index),
                "model": prediction.costs.model,
                "hash": prediction.costs.hash,
                **prediction.to_json(),
                "bound": prediction.bound.name,
                "seconds": stage_seconds(made, model, repeat),
                "warnings": list(prediction.costs.warnings),
            }
        )
    return rows


def stage_seconds(program: Any, model: Any, repeat: int) -> dict[str, float]:
    """Medians of the parts of a prediction."""
    from commcc.graph.index import build_index
    from commcc.graph.memory import live_bytes
    from commcc.timing.simulate import Simulator, lower_bound

    index = build_index(program)
    costs = model.price(index)
    work: dict[str, Callable[[], object]] = {
        "index": lambda: build_index(program),
        "price": lambda: model.price(index),
        "simulate": lambda: Simulator(index, costs).run(),
        "memory": lambda: live_bytes(index),
        "bound": lambda: lower_bound(index, costs),
    }
    return {stage: round(statistics.median(timed(job) for _ in range(repeat)), 4) for stage, job in work.items()}


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def table(rows: list[dict[str, Any]]) -> str:
    """All rows as fixed-width text."""
    lines = [f"{rows[0]['model']}, hash {rows[0]['hash']}; ms, GiB, seconds"] if rows else []
    head = f"{'graph':28} {'nodes':>6} {'step':>9} {'compute':>9} {'comm':>9} {'exposed':>9} {'bound':>9} {'gap':>7}"
    lines.append(
        head + f" {'peak':>6} {'flight':>6}  " + " ".join(f"{stage:>8}" for stage in STAGES) + "  tightest bound"
    )
    for row in rows:
        name = row["file"].split(".")[0] if row["side"] == "before" else "    after"
        gap = row["step_ms"] / row["lower_bound_ms"] - 1 if row["lower_bound_ms"] else 0.0
        times = " ".join(f"{row[key]:9.2f}" for key in ("step_ms", "compute_ms", "communication_ms", "exposed_ms"))
        memory = " ".join(f"{row[key] / 2**30:6.2f}" for key in ("peak_bytes", "in_flight_bytes"))
        seconds = " ".join(f"{row['seconds'][stage]:8.3f}" for stage in STAGES)
        bound = f"{row['lower_bound_ms']:9.2f} {gap:7.1%}"
        lines.append(f"{name:28} {row['nodes']:6} {times} {bound} {memory}  {seconds}  {row['bound']}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--cost", default="h100")
    parser.add_argument("--passes", default="bucket")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    files = options.files or sorted(p for p in SAMPLES.iterdir() if p.name.startswith(("llama3", "moe")))
    rows = [row for path in files for row in predict_file(path, options.cost, options.passes, options.repeat)]
    print(json.dumps(rows, indent=1) if options.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
