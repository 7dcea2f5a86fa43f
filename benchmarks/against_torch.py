"""Bucketing time against PyTorch's own passes, on the same graph in the same process.

    python benchmarks/against_torch.py [FILE...] [--repeat 5]

Ours: index, identify, plan and apply, on a loaded program. Theirs, on a copy of the same
``GraphModule``: ``bucket_all_gather`` (all-gathers only, default cap) and
``pre_bucket_fsdp_collectives`` (all kinds of the FSDP groups). Runs are interleaved; medians and
their ratios are printed. PyTorch's passes ask process groups for their rank, so a fake process
group of the right size is registered under every name; they also trace on the device of the graph,
so both sides get the graph relabelled to the CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import gzip
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).parent.parent / "sample_graphs"


def register_groups(program: Any) -> None:
    """Fake process groups under the names that the graph uses."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    world = max([64, *(group.size or 1 for group in program.groups.values())])
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    native = torch._C._distributed_c10d
    for name, group in sorted(program.groups.items()):
        made = dist.new_group(list(range(group.size or world)))
        with contextlib.suppress(RuntimeError, ValueError):
            native._unregister_process_group(name)
        native._register_process_group(name, made)


def ours(program: Any) -> Any:
    from commcc.apply import apply_plan
    from commcc.graph.collectives import identify
    from commcc.graph.index import build_index
    from commcc.passes.base import PlanContext
    from commcc.passes.bucket import Bucket

    index = build_index(program)
    return apply_plan(program, index, Bucket().plan(PlanContext(program, index, identify(index)))).graph


def peer_all_gather(module: Any) -> Any:
    from torch._inductor.fx_passes.bucketing import bucket_all_gather

    bucket_all_gather(module)
    return module.graph


def peer_pre_bucket(module: Any) -> Any:
    from torch._inductor.fx_passes.fsdp import pre_bucket_fsdp_collectives

    pre_bucket_fsdp_collectives(module, bucket_cap_mb=200.0)
    return module.graph


def launches(graph: Any) -> dict[str, int]:
    from commcc.graph import ops

    counts: dict[str, int] = {}
    for node in graph.nodes:
        fact = ops.collective_of(node.target) if node.op == "call_function" else None
        if fact is not None:
            counts[fact.kind.value] = counts.get(fact.kind.value, 0) + 1
    return counts


def load_on_cpu(path: Path) -> Any:
    """The graph with its devices rewritten in the text."""
    from commcc.serialization import load

    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "graph.fx.txt"
        target.write_text(text.replace("cuda:0", "cpu").replace("type='cuda', index=0", "type='cpu'"))
        return load(target)


def compare(path: Path, repeat: int) -> dict[str, Any]:
    """Interleaved medians for one file."""
    program = load_on_cpu(path)
    register_groups(program)
    module = program.graph_module()
    runs = {
        "commcc": lambda: (program, ours),
        "torch bucket_all_gather": lambda: (copy.deepcopy(module), peer_all_gather),
        "torch pre_bucket_fsdp_collectives": lambda: (copy.deepcopy(module), peer_pre_bucket),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    after: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for _ in range(repeat):
        for name, prepare in runs.items():
            if name in failed:
                continue
            subject, work = prepare()
            gc.collect()
            start = time.perf_counter()
            try:
                after[name] = launches(work(subject))
            except Exception as error:  # the peer's failures are results here
                failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                continue
            seconds[name].append(time.perf_counter() - start)
    own = statistics.median(seconds["commcc"])
    medians = {name: statistics.median(values) for name, values in seconds.items() if values}
    return {
        "file": path.name,
        "nodes": len(program.graph.nodes),
        "seconds": {name: round(value, 3) for name, value in medians.items()},
        "ratio": {name: round(value / own, 1) for name, value in medians.items() if name != "commcc"},
        "launches": {"before": launches(program.graph), **after},
        "failed": failed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    default = [p for p in sorted(SAMPLES.glob("*.fx.txt.gz")) if p.name.startswith(("llama3", "moe"))]
    for path in options.files or default:
        print(json.dumps(compare(path, options.repeat)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
