"""Figures of the main job on the production-size sample graphs, stage by stage.

    python benchmarks/bucket_figures.py [FILE...] [--repeat 5] [--passes bucket]

Every file is measured in a process of its own: seconds to read, index, plan, apply, verify and
write (medians), collectives by kind before and after, longest run of compute between
reduce-scatters, spans, and the process's peak memory. One JSON document on standard output with
``--json``, else a table.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).parent.parent / "sample_graphs"
STAGES = ("read", "index", "plan", "apply", "verify", "write")


def measure_file(path: Path, repeat: int, passes: str) -> dict[str, Any]:
    """Run every stage ``repeat`` times in this process."""
    from commcc.apply import apply_plan
    from commcc.graph.collectives import identify
    from commcc.graph.index import build_index
    from commcc.graph.metrics import measure
    from commcc.passes.base import PlanContext
    from commcc.passes.options import parse_pipeline
    from commcc.serialization import load, save
    from commcc.verify import verify

    seconds: dict[str, list[float]] = {stage: [] for stage in STAGES}
    made = parse_pipeline(passes)[-1]
    for _ in range(repeat):
        program = timed(seconds["read"], lambda: load(path))
        index, ident = timed(seconds["index"], lambda p=program: _identify(build_index(p), identify))
        context = PlanContext(program, index, ident)
        plan = timed(seconds["plan"], lambda c=context: made.plan(c))
        after = timed(seconds["apply"], lambda p=program, i=index, n=plan: apply_plan(p, i, n))
        verdict = timed(seconds["verify"], lambda p=program, a=after: verify(p, a))
        with tempfile.TemporaryDirectory() as folder:
            suffix = ".pt2" if path.suffix == ".pt2" else ".fx.txt.gz"
            timed(seconds["write"], lambda a=after, f=folder, s=suffix: save(a, Path(f) / f"out{s}"))
    new_index = build_index(after)
    return {
        "file": path.name,
        "seconds": {stage: round(statistics.median(values), 3) for stage, values in seconds.items()},
        "before": measure(index, ident).to_json(),
        "after": measure(new_index, identify(new_index)).to_json(),
        "report": plan.report.to_json(),
        "verified": verdict.status,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _identify(index: Any, identify: Any) -> tuple[Any, Any]:
    return index, identify(index)


def timed(into: list[float], work: Any) -> Any:
    """Run ``work``, append its seconds to ``into`` and return its result."""
    start = time.perf_counter()
    result = work()
    into.append(time.perf_counter() - start)
    return result


def table(rows: list[dict[str, Any]]) -> str:
    """All rows as fixed-width text."""
    lines = [f"{'file':38} {'nodes':>14} " + " ".join(f"{s:>7}" for s in STAGES) + f" {'MiB':>6} {'span':>6}  verified"]
    for row in rows:
        times = " ".join(f"{row['seconds'][stage]:7.3f}" for stage in STAGES)
        nodes = f"{row['before']['nodes']} -> {row['after']['nodes']}"
        span = row["report"].get("largest_span", 0)
        lines.append(f"{row['file']:38} {nodes:>14} {times} {row['peak_mib']:6} {span:>6}  {row['verified']}")
        kinds = [
            f"{kind} {count} -> {row['after']['collectives'][kind]}"
            for kind, count in row["before"]["collectives"].items()
            if count
        ]
        runs = [row[which]["max_consecutive_compute"]["reduce_scatter"] for which in ("before", "after")]
        lines.append(f"    {', '.join(kinds)}; max consecutive compute {runs[0]} -> {runs[1]}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--passes", default="bucket")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    files = options.files or sorted(p for p in SAMPLES.iterdir() if p.name.startswith(("llama3", "moe")))
    if options.here:
        print(json.dumps(measure_file(files[0], options.repeat, options.passes)))
        return 0
    rows = []
    for path in files:
        command = [sys.executable, __file__, str(path), "--here", "--repeat", str(options.repeat)]
        done = subprocess.run([*command, "--passes", options.passes], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.stderr.write(done.stderr)
            return 1
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    print(json.dumps(rows, indent=1) if options.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
