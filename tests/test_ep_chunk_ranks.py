"""Steps in chunks on real gloo ranks, in float32 and as captured (bfloat16), within a tolerance.

Sums of chunks are rounded in another order than those of the whole: float32 within 1e-5 of a tensor's largest number
(seen: 1.2e-6), bfloat16 within 0.02 (seen: 0.006; one rounding is 0.004).
"""

from __future__ import annotations

import pytest
import torch

from commcc.run.forms import from_preset
from commcc.run.pipeline import run
from commcc.serialization import save
from tests.captured_steps import captured
from tests.step_graphs import on_cpu, sample
from tests.test_ep_chunk_numbers import cut
from tests.test_real_ranks import replay

WITHIN = {None: 0.02, torch.float32: 1e-5}

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without distributed"),
]


@pytest.mark.full
def test_experts_over_all_ranks(tmp_path):
    """The whole preset on a step in which all four ranks exchange tokens, in float32."""
    made = run(captured(4), from_preset("ep-overlap")).program
    before, after = tmp_path / "before.fx.txt", tmp_path / "after.fx.txt"
    save(on_cpu(captured(4), torch.float32), before)
    save(on_cpu(made, torch.float32), after)
    job = {"name": "all four", "before": str(before), "after": str(after), "within": str(WITHIN[torch.float32])}
    code, verdicts = replay(4, [job], tmp_path)
    assert [v["difference"] for rank in verdicts for v in rank] == [None] * 4
    assert code == 0 and not any(v["nan"] for rank in verdicts for v in rank)


@pytest.mark.parametrize(("name", "ranks"), [("tiny_deepseek_ep2", 2), ("tiny_deepseek_fsdp4_ep2", 4)])
@pytest.mark.full
def test_a_step_on_real_ranks(name, ranks, tmp_path):
    jobs = []
    for dtype, within in WITHIN.items():
        before = tmp_path / f"{dtype}.fx.txt"
        save(on_cpu(sample(name), dtype), before)
        for chunks in (2, 3):
            after = tmp_path / f"{dtype}.{chunks}.fx.txt"
            save(on_cpu(cut(name, chunks=chunks), dtype), after)
            jobs.append({"name": after.name, "before": str(before), "after": str(after), "within": str(within)})
    code, verdicts = replay(ranks, jobs, tmp_path)
    assert [v["difference"] for rank in verdicts for v in rank] == [None] * len(jobs) * ranks
    assert not any(v["nan"] for rank in verdicts for v in rank)
    assert code == 0
