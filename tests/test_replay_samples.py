"""What passes make of the small samples gives the same bits on virtual ranks."""

from __future__ import annotations

import pytest

from commcc.pipelines import PRESETS
from tests.test_replay_numeric import MERGED, SAMPLES, SMALL, numeric, rewritten, sample

TINY = sorted({path.name.partition(".")[0] for path in SAMPLES.glob("tiny_*.fx.txt*")} - {"tiny_deepseek_fsdp4_ep2"})
PIPELINES = {
    "whole": MERGED,
    "small": SMALL,
    "mixed": "bucket{multi_dtype=yes,param_order=yes}",
    "moved": "reorder",
    **{preset.name: preset.text for preset in PRESETS if preset.name != "ep-overlap"},
}
#: Every sample meets the plain passes; the others meet one sample of each kind.
ALL = ("tiny_llama_hsdp_bw", "tiny_moe_fsdp4_ep2_fw", "tiny_llama_fsdp2_tp2_bw")
CASES = [(name, way) for name in TINY for way in ("whole", "moved")] + [
    (name, way) for name in ALL for way in PIPELINES if way not in ("whole", "moved")
]


def test_fused_ops_run_as_what_they_stand_for():
    found = numeric(sample("tiny_llama_fsdp2_tp2_fw"), rewritten("tiny_llama_fsdp2_tp2_fw", "async-tp"))
    assert found.status == "equal"
    assert "fused ops of tensor parallelism are run as the plain ops they stand for" in found.notes


@pytest.mark.parametrize(("name", "way"), CASES)
def test_passes_change_no_bit(name, way):
    found = numeric(sample(name), rewritten(name, PIPELINES[way]))
    assert found.status == "equal", found.values[:2]
    assert found.values == ()
    assert found.compared > 20
    assert found.failure is None
    assert not [note for note in found.notes if "AFTER" in note]
