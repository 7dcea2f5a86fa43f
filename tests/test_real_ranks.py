"""The small samples on real gloo ranks: bucketed, converted and corrupted, compared to the bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from commcc.graph.ops import collective_of, op_name
from commcc.passes.bucket import Bucket
from commcc.passes.tag import Tag
from commcc.run.pipeline import run
from commcc.serialization import load, save

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
WAYS = {
    "whole": Bucket(groups="all", bucket_cap_mb=None, max_topo_span=None),
    "small": Bucket(groups="all", bucket_cap_mb=0.01, max_topo_span=200),
    "mixed": Bucket(groups="primary", multi_dtype=True, param_order=True),
    "modules": Bucket(strategy="module", include_all_reduce=True),
    "ahead": Bucket(strategy="module", modules=("layers.*", "norm+output"), prefetch=("2",), multi_dtype=True),
}

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
    """Run the jobs on real ranks; the exit code, and each rank's verdicts."""
    todo = folder / "jobs.json"
    todo.write_text(json.dumps(jobs))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent), "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [*command, str(WORKER), str(todo), str(folder)],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    files = [folder / f"rank{rank}.json" for rank in range(ranks)]
    assert all(file.exists() for file in files), done.stdout + done.stderr
    return done.returncode, [json.loads(file.read_text()) for file in files]


@pytest.mark.parametrize("ranks", sorted(SAMPLES_FOR))
def test_bucketed_graphs_compute_the_same_bits(ranks, tmp_path):
    jobs, merged = [], {}
    for name in SAMPLES_FOR[ranks]:
        before = sample(name)
        program = load(before)
        for way, bucket in WAYS.items():
            result = run(program, [Tag(), bucket])
            after = tmp_path / f"{name}.{way}.fx.txt"
            save(result.program, after)
            merged[f"{name}.{way}"] = launches(program) - launches(result.program)
            jobs.append(job(f"{name}.{way}", before, after, name))
    code, verdicts = replay(ranks, jobs, tmp_path)
    wrong = {v["name"]: v["difference"] for rank in verdicts for v in rank if v["difference"] or v["nan"]}
    assert wrong == {}
    assert code == 0
    assert [len(rank) for rank in verdicts] == [len(jobs)] * ranks
    assert all(merged[f"{name}.whole"] > 0 for name in SAMPLES_FOR[ranks]), merged


def launches(program) -> int:
    return sum(n.op == "call_function" and collective_of(n.target) is not None for n in program.graph.nodes)


def test_other_formats_compute_the_same_bits(tmp_path):
    jobs = []
    for name in ("tiny_llama_fsdp2_fw", "tiny_moe_ep2_fw", "tiny_moe_ep2_bw"):
        after = tmp_path / f"{name}.pt2"
        save(load(sample(name)), after)
        jobs.append(job(name, sample(name), after, name))
    code, verdicts = replay(2, jobs, tmp_path)
    assert [v["difference"] for rank in verdicts for v in rank] == [None] * 6
    assert code == 0


def test_corrupted_graphs_are_caught(tmp_path):
    name = "tiny_llama_fsdp2_bw"
    before = sample(name)
    bucketed = tmp_path / "bucketed.fx.txt"
    save(run(load(before), [WAYS["whole"]]).program, bucketed)
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
