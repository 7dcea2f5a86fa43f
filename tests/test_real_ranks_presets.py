"""Every preset, and the passes in none of them, on real gloo ranks: equal to the bit."""

from __future__ import annotations

import pytest
import torch

from commcc.passes.options import parse_pipeline
from commcc.run.forms import PRESETS
from commcc.run.pipeline import run
from commcc.serialization import load, save
from commcc.timing.cost import load_model

from .test_real_ranks import SAMPLES_FOR, job, replay, sample

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without distributed"),
]

#: Pipelines beside the presets; limits off, so that as much moves as can.
MORE = {
    "free": "reorder{memory_budget=none,max_in_flight_gb=none,max_compute_prefetch=none}",
    "rest": "dedup,groups,bucket{groups=all},reorder,cleanup",
}


@pytest.mark.parametrize("ranks", sorted(SAMPLES_FOR))
def test_every_preset_computes_the_same_bits(ranks, tmp_path):
    # Chunks change how sums are rounded, and need a whole training step: see test_ep_chunk_numbers.
    texts = {**{preset.name: preset.text for preset in PRESETS if preset.name != "ep-overlap"}, **MORE}
    model = load_model()
    jobs, changed = [], set()
    for name in SAMPLES_FOR[ranks]:
        program = load(sample(name))
        for way, text in texts.items():
            result = run(program, parse_pipeline(text), model=model)
            assert result.verified == "proved", (name, way)
            changed |= {way} if result.changed else set()
            after = tmp_path / f"{name}.{way}.fx.txt"
            save(result.program, after)
            jobs.append(job(f"{name}.{way}", sample(name), after, name))
    assert changed == texts.keys()
    code, verdicts = replay(ranks, jobs, tmp_path)
    assert {v["name"]: v["difference"] for rank in verdicts for v in rank if v["difference"] or v["nan"]} == {}
    assert code == 0
    assert [len(rank) for rank in verdicts] == [len(jobs)] * ranks
