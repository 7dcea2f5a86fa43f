"""What share of compiling is commcc's: a twin of Llama-3-8B, with all of its layers and narrow ones.

    python benchmarks/compile_share.py [--layers 32] [--inner inductor] [--ways auto,plan] [--repetitions 3]

The twin is sharded over fake ranks and compiled, forward and backward, as in a training job: the graphs have the nodes
of a step of production, so that commcc has the same to do, while kernels are no smaller in number. ``auto`` plans in
the job; ``plan`` applies what ``commcc run`` wrote of the same graphs before. Every repetition is a process of its own
with empty caches, in turns. Shown are the CPU seconds of the backend, compilers that it calls included (AOTAutograd,
Inductor and commcc; Dynamo's own time before it is not in them), those of them that are commcc's, and the share;
medians at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

RANKS = 64


def cpu_seconds() -> float:
    """Of this process and those that it waited for."""
    return sum(os.times()[:4])


def compile_once(layers: int, inner: str, way: str, folder: Path) -> dict[str, Any]:
    """Seconds of one way, in this process. way: ``auto``, which writes plans to ``folder``, or ``plan``."""
    import torch

    from commcc.capture.models.llama import Llama, LlamaConfig
    from commcc.capture.shards import shard
    from commcc.capture.world import Layout, fake_world
    from commcc.live import watching
    from commcc.live.backends import _over_eager, _over_inductor
    from commcc.live.rewriting import graph_pass
    from commcc.run.planfile import plan_text

    torch.set_num_threads(1)
    watching.time = SimpleNamespace(perf_counter=cpu_seconds)  # type: ignore[attr-defined]
    config = LlamaConfig(64, layers, 4, 2, 128, 256, 16, 1, attention="math")
    the_pass = graph_pass(plan=folder) if way == "plan" else graph_pass(preset="auto", cost="h100")
    with fake_world(Layout((("dp", RANKS),))) as world:
        model = Llama(config)
        for block in model.layers.values():
            shard(block, world.mesh("dp"))
        backend = (_over_inductor if inner == "inductor" else _over_eager)(the_pass, None)
        words = torch.zeros(1, config.sequence, dtype=torch.long)
        torch.compile(shard(model, world.mesh("dp")), backend=backend)(words, words).backward()
    if way == "auto":
        for number, result in enumerate(the_pass.results):
            (folder / f"{number}.yaml").write_text(plan_text(result))
    clock = the_pass.clock
    launches = [[sum(end.collectives.values()) for end in (r.before, r.after)] for r in the_pass.results]
    nodes = [len(result.first.index) for result in the_pass.results]
    return {"way": way, "seconds": clock.total, "commcc": clock.own, "nodes": nodes, "launches": launches}


def in_a_process(options: argparse.Namespace, way: str, folder: Path) -> dict[str, Any]:
    """As :func:`compile_once`, with caches of its own."""
    with tempfile.TemporaryDirectory() as caches:
        command = [sys.executable, __file__, "--layers", str(options.layers), "--inner", options.inner]
        known = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": caches, "OMP_NUM_THREADS": "1"}
        known["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # compilers are called here, where their time is seen
        done = subprocess.run(
            [*command, "--one", way, "--folder", str(folder)], env=known, stdout=subprocess.PIPE, text=True, check=True
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--inner", choices=("inductor", "aot_eager"), default="inductor")
    parser.add_argument("--ways", default="auto,plan")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(compile_once(options.layers, options.inner, options.one, options.folder)))
        return
    ways, found = options.ways.split(","), []
    with tempfile.TemporaryDirectory() as place:
        if ways[0] != "auto":
            in_a_process(options, "auto", Path(place))
        for _ in range(options.repetitions):
            for way in ways:
                found.append(each := in_a_process(options, way, Path(place)))
                share = each["commcc"] / each["seconds"]
                told = f"{way:6} {each['seconds']:8.1f} s, commcc {each['commcc']:6.2f} s, {share:6.1%}"
                print(f"{told}  nodes {each['nodes']}  launches {each['launches']}", flush=True)
    for way in ways:
        share = median(each["commcc"] / each["seconds"] for each in found if each["way"] == way)
        print(f"{way:6} median {share:.1%} over {options.inner}, {options.layers} layers")
    if options.json:
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
