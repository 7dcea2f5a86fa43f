"""The small samples on real gloo ranks: rewritten, converted and corrupted, compared to the bit.

``make test`` replays the samples of 2 ranks in a few ways; ``make test-full`` those of 4 as well, and every sample in
every way.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from commcc.graph.ops import collective_of, op_name
from commcc.passes.bucket import Bucket
from commcc.passes.options import parse_pipeline
from commcc.passes.tag import Tag
from commcc.run.forms import PRESETS
from commcc.run.pipeline import run
from commcc.serialization import load, save
from commcc.timing.cost import load_model
from tests.test_dedup import regathered

if TYPE_CHECKING:
    from commcc.passes.base import Pass

TESTS = Path(__file__).parent
SAMPLES = TESTS.parent / "sample_graphs"
WORKER = TESTS / "replay_worker.py"

#: (recipe, its graphs, whether the backward reads what the forward saved), by number of ranks.
SAMPLES_FOR = {
    2: ("tiny_llama_fsdp2_fw", "tiny_llama_fsdp2_bw", "tiny_llama_ddp_bw", "tiny_moe_ep2_fw", "tiny_moe_ep2_bw"),
    4: (
        "tiny_llama_fsdp4_fw",
        "tiny_llama_fsdp4_bw",
        "tiny_llama_fsdp2_tp2_fw",
        "tiny_llama_fsdp2_tp2_bw",
        "tiny_llama_hsdp_bw",
        "tiny_llama_joint",
        "tiny_moe_fsdp4_ep2_fw",
        "tiny_moe_fsdp4_ep2_bw",
    ),
}
#: One bucket for all; many small ones; one that also mixes dtypes; and one for each module, prefetched.
BUCKETS = {
    "whole": Bucket(groups="all", bucket_cap_mb=None, max_topo_span=None),
    "small": Bucket(groups="all", bucket_cap_mb=0.01, max_topo_span=200),
    "mixed": Bucket(groups="primary", multi_dtype=True, param_order=True),
    "modules": Bucket(strategy="module", include_all_reduce=True),
    "calls": Bucket(groups="all", form="coalesced", multi_dtype=True, bucket_cap_mb=0.05),
    "ahead": Bucket(strategy="module", modules=("layers.*", "norm+output"), prefetch=("2",), multi_dtype=True),
}
#: Pipelines that are no preset; in "free" limits are off, so that as much moves as can.
TEXTS = {
    "free": "reorder{memory_budget=none,max_in_flight_gb=none,max_compute_prefetch=none}",
    "rest": "dedup,groups,bucket{groups=all},reorder,cleanup",
    "dedup": "dedup",
    "groups": "groups{roles=ep:all_gather}",
    "cleanup": "cleanup{metadata=all}",
    "held": "reorder{control_deps=true}",
    "all": "dedup,groups{roles=ep:all_gather},bucket{groups=all},reorder{control_deps=true},cleanup{metadata=all}",
}
#: Those that get a graph in which parameters are gathered once more than they need to be.
REGATHERED = ("dedup", "groups", "cleanup", "held", "all")
#: What torchrun prints of a rank that aborted or broke into memory that is not its own.
ABORTED = re.compile(r"exitcode\s*: -(6|7|11)\b")
RUNS_EDGES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without distributed"),
]


def sample(name: str) -> Path:
    found = [path for end in (".fx.txt", ".fx.txt.gz") if (path := SAMPLES / f"{name}{end}").exists()]
    assert found, f"{name} is missing: make samples"
    return found[0]


def job(name: str, before: Path, after: Path, base: str) -> dict[str, str]:
    forward = str(sample(base.removesuffix("_bw") + "_fw")) if base.endswith("_bw") else ""
    return {"name": name, "before": str(before), "after": str(after), "forward": forward}


def replay(ranks: int, jobs: list[dict[str, str]], folder: Path) -> tuple[int, list[list[dict[str, object]]]]:
    """Run the jobs on real ranks; the exit code, and each rank's verdicts.

    A launch in which the C library stops a rank has no verdict, and is made once more: under load, gloo of PyTorch 2.13
    rarely ends so with four ranks ("unaligned tcache chunk"). Whatever a rank says itself counts the first time.
    """
    todo = folder / "jobs.json"
    todo.write_text(json.dumps(jobs))
    files = [folder / f"rank{rank}.json" for rank in range(ranks)]
    for again in (True, False):
        done = _launch(ranks, todo, folder)
        if not (again and ABORTED.search(done.stderr)):
            break
        warnings.warn(f"a rank was stopped by a signal, and all ranks are started again:\n{done.stderr}", stacklevel=2)
    assert all(file.exists() for file in files), done.stdout + done.stderr
    return done.returncode, [json.loads(file.read_text()) for file in files]


def _launch(ranks: int, todo: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    for file in folder.glob("rank*.json"):
        file.unlink()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    # The fault handler says where a rank was when a signal stopped it.
    known = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent), "PYTHONHASHSEED": "0", "PYTHONFAULTHANDLER": "1"}
    return subprocess.run(
        [*command, str(WORKER), str(todo), str(folder)],
        env={**os.environ, **known}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def ways_of(name: str) -> dict[str, list[Pass]]:
    """All pipelines that are tried: buckets of several forms, every preset, and the passes that are in none."""
    texts = {**{preset.name: preset.text for preset in PRESETS if preset.name != "ep-overlap"}, **TEXTS}
    # Before 2.13, PyTorch has no kernel for control edges outside its compiler.
    return {
        **{way: [Tag(), bucket] for way, bucket in BUCKETS.items()},
        **{way: parse_pipeline(text) for way, text in texts.items() if RUNS_EDGES or "control_deps" not in text},
    }


def rewritten(name: str, way: str, folder: Path) -> tuple[dict[str, str], set[str]]:
    """A job that compares a sample with what a pipeline makes of it, and what the pipeline did."""
    program = load(sample(name))
    if way in REGATHERED:
        program = regathered(program, random.Random(name), share=0.5)
    result = run(program, ways_of(name)[way], model=load_model("h100"))
    assert result.verified == "proved", (name, way)
    after = folder / f"{name}.{way}.fx.txt"
    save(result.program, after)
    done = {"changed"} if result.changed else set()
    done |= {"merged"} if launches(program) > launches(result.program) else set()
    if any(
        n.op == "call_function" and op_name(n.target) == "higher_order.control_deps" for n in result.program.graph.nodes
    ):
        done.add("held")
    return job(f"{name}.{way}", sample(name), after, name), done


def all_equal(ranks: int, jobs: list[dict[str, str]], folder: Path) -> None:
    code, verdicts = replay(ranks, jobs, folder)
    assert {v["name"]: v["difference"] for rank in verdicts for v in rank if v["difference"] or v["nan"]} == {}
    assert code == 0
    assert [len(rank) for rank in verdicts] == [len(jobs)] * ranks


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 4])
def test_each_sample_in_some_ways(ranks, tmp_path):
    every = [name for names in SAMPLES_FOR.values() for name in names]
    jobs = []
    for name in SAMPLES_FOR[ranks]:
        ways = list(ways_of(name))[every.index(name) :: len(every)] if name.endswith("_fw") else ()
        jobs += [rewritten(name, way, tmp_path)[0] for way in ways]
        converted = tmp_path / f"{name}.pt2"
        save(load(sample(name)), converted)
        jobs.append(job(f"{name}.pt2", sample(name), converted, name))
    all_equal(ranks, jobs, tmp_path)


LARGER = tuple((ranks, name) for ranks, names in SAMPLES_FOR.items() for name in names if not name.endswith("_fw"))


@pytest.mark.full
@pytest.mark.parametrize(("ranks", "name"), LARGER)
def test_each_sample_in_half_of_the_ways(ranks, name, tmp_path):
    """But for forwards, which have fewer kinds of collectives than their backwards. Every other one takes the other
    half, but one bucket for all, which all take.
    """
    ways = ["whole", *list(ways_of(name))[1 + LARGER.index((ranks, name)) % 2 :: 2]]
    jobs, did = zip(*(rewritten(name, way, tmp_path) for way in ways), strict=True)
    all_equal(ranks, list(jobs), tmp_path)
    done = dict(zip(ways, did, strict=True))
    assert "merged" in done["whole"]
    assert "held" in done.get("held", {"held"})


def launches(program) -> int:
    return sum(n.op == "call_function" and collective_of(n.target) is not None for n in program.graph.nodes)


@pytest.mark.full
def test_corrupted_graphs_are_caught(tmp_path):
    name = "tiny_llama_fsdp2_bw"
    before = sample(name)
    bucketed = tmp_path / "bucketed.fx.txt"
    save(run(load(before), [BUCKETS["whole"]]).program, bucketed)
    jobs = [job("intact", before, bucketed, name)]
    for damage in (swap_members, change_reduction, round_result):
        program = load(bucketed)
        damage(program.graph)
        after = tmp_path / f"{damage.__name__}.fx.txt"
        save(program, after)
        jobs.append(job(damage.__name__, before, after, name))
    code, verdicts = replay(2, jobs, tmp_path)
    assert code != 0
    for rank in verdicts:
        assert {v["name"]: v["difference"] is None for v in rank} == {
            "intact": True,
            "swap_members": False,
            "change_reduction": False,
            "round_result": False,
        }


def swap_members(graph) -> None:
    """Exchange two members of equal size in a merged reduce-scatter's results."""
    items = [n for n in graph.nodes if n.target is torch.ops.aten.split_with_sizes.default]
    split = items[-1]
    sizes = split.args[1]
    users = sorted(split.users, key=lambda n: n.args[1])
    first = next(i for i, size in enumerate(sizes) if sizes.count(size) > 1)
    second = sizes.index(sizes[first], first + 1)
    one, other = (next(n for n in users if n.args[1] == i) for i in (first, second))
    one.args, other.args = (split, second), (split, first)


def change_reduction(graph) -> None:
    node = next(n for n in graph.nodes if op_name(n.target) == "_c10d_functional.reduce_scatter_tensor")
    node.update_arg(1, "sum")


def round_result(graph) -> None:
    """Lose the lower half of a reduced gradient."""
    launch = next(n for n in graph.nodes if op_name(n.target) == "_c10d_functional.reduce_scatter_tensor")
    (wait,) = launch.users
    (user, *_) = wait.users
    with graph.inserting_after(wait):
        narrow = graph.call_function(torch.ops.aten._to_copy.default, (wait,), {"dtype": torch.bfloat16})
    with graph.inserting_after(narrow):
        wide = graph.call_function(torch.ops.aten._to_copy.default, (narrow,), {"dtype": torch.float32})
    narrow.meta["val"], wide.meta["val"] = wait.meta["val"].to(torch.bfloat16), wait.meta["val"]
    user.replace_input_with(wait, wide)
