"""Groups, gathers made one, cleaned graphs and control edges on real gloo ranks, compared to the bit."""

from __future__ import annotations

import random

import pytest
import torch

from commcc.graph.ops import op_name
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.serialization import load, save
from commcc.timing.cost import load_model
from tests.test_dedup import regathered
from tests.test_real_ranks import job, replay, sample

NAMES = {
    2: ("tiny_llama_fsdp2_bw", "tiny_moe_ep2_fw"),
    4: ("tiny_llama_fsdp2_tp2_bw", "tiny_moe_fsdp4_ep2_fw"),
}
#: Before, PyTorch has no kernel for control edges outside its compiler.
RUNS_EDGES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
WAYS = {
    "dedup": "dedup",
    "groups": "groups{roles=ep:all_gather}",
    "cleanup": "cleanup{metadata=all}",
    "held": "reorder{control_deps=true}",
    "all": "dedup,groups{roles=ep:all_gather},bucket{groups=all},reorder{control_deps=true},cleanup{metadata=all}",
}

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without distributed"),
]


@pytest.mark.parametrize("ranks", sorted(NAMES))
def test_the_same_bits(ranks, tmp_path):
    model, jobs = load_model("h100"), []
    for name in NAMES[ranks]:
        before = sample(name)
        for way, text in WAYS.items():
            if "control_deps" in text and not RUNS_EDGES:
                continue
            program = regathered(load(before), random.Random(name), share=0.5)
            result = run(program, parse_pipeline(text), model=model)
            after = tmp_path / f"{name}.{way}.fx.txt"
            save(result.program, after)
            jobs.append(job(f"{name}.{way}", before, after, name))
            if way == "held":
                held = [n for n in result.program.graph.nodes if op_name(n.target) == "higher_order.control_deps"]
                assert held, name
    code, verdicts = replay(ranks, jobs, tmp_path)
    wrong = {v["name"]: v["difference"] for rank in verdicts for v in rank if v["difference"] or v["nan"]}
    assert wrong == {}
    assert code == 0
    assert [len(rank) for rank in verdicts] == [len(jobs)] * ranks
