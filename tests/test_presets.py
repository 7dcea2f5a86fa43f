"""Every preset on the small samples: proved, its plan exact, and the same bits on real gloo ranks."""

from __future__ import annotations

import pytest
import torch

from commcc.cost import load_model
from commcc.pipeline import run
from commcc.pipelines import from_preset, preset_names
from commcc.planfile import plan_text, read_plans
from commcc.serialization import load, save
from tests.test_real_ranks import job, replay, sample

SAMPLES = {
    2: ("tiny_llama_fsdp2_fw", "tiny_llama_fsdp2_bw", "tiny_moe_ep2_bw"),
    4: ("tiny_llama_fsdp2_tp2_bw", "tiny_llama_hsdp_bw", "tiny_moe_fsdp4_ep2_bw"),
}


@pytest.mark.parametrize("preset", preset_names())
def test_plans_of_presets_are_exact(preset, tmp_path):
    program, model = load(sample("tiny_llama_fsdp2_tp2_bw")), load_model()
    result = run(program, from_preset(preset), model=model)
    assert result.changed and result.verified == "proved"
    (tmp_path / "plan.yaml").write_text(plan_text(result))
    again = run(program, read_plans(tmp_path / "plan.yaml"), model=model)
    assert plan_text(again) == plan_text(result)
    for name, made in (("a", result), ("b", again)):
        save(made.program, tmp_path / f"{name}.fx.txt")
    assert (tmp_path / "a.fx.txt").read_bytes() == (tmp_path / "b.fx.txt").read_bytes()


@pytest.mark.ranks
@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without distributed")
@pytest.mark.parametrize("ranks", sorted(SAMPLES))
def test_presets_compute_the_same_bits_on_real_ranks(ranks, tmp_path):
    jobs, changed, model = [], 0, load_model()
    for name in SAMPLES[ranks]:
        program = load(sample(name))
        for preset in preset_names():
            result = run(program, from_preset(preset), model=model)
            after = tmp_path / f"{name}.{preset}.fx.txt"
            save(result.program, after)
            changed += result.changed
            jobs.append(job(f"{name}.{preset}", sample(name), after, name))
    code, verdicts = replay(ranks, jobs, tmp_path)
    wrong = {v["name"]: v["difference"] for rank in verdicts for v in rank if v["difference"] or v["nan"]}
    assert wrong == {} and code == 0
    assert [len(rank) for rank in verdicts] == [len(jobs)] * ranks
    assert changed == len(jobs)
