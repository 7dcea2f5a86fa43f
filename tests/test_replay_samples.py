"""What passes make of the small samples gives the same bits on virtual ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commcc.passes.options import parse_pipeline
from commcc.run.forms import PRESETS
from commcc.run.pipeline import run
from commcc.timing.cost import load_model
from tests.corruptions import CORRUPTIONS
from tests.random_graphs import random_program
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
ALL = ("tiny_llama_hsdp_bw", "tiny_moe_fsdp4_ep2_fw")
CASES = [(name, way) for name in TINY for way in ("whole", "moved")] + [
    (name, way) for name in ALL for way in PIPELINES if way not in ("whole", "moved")
]


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_give_the_same_bits(seed):
    program = random_program(seed)
    for text in (MERGED, "reorder"):
        after = run(program, parse_pipeline(text), model=load_model()).program
        found = numeric(program, after, seed=seed)
        assert found.status == "equal", found.values[:1]
        assert found.compared > 3


@pytest.mark.parametrize("name", ["tiny_llama_hsdp_bw", "tiny_moe_fsdp4_ep2_fw"])
@pytest.mark.full
def test_corruptions_are_found(name):
    """All but another group: who is in that is not in the graph, so that it is a remark."""
    after = rewritten(name, SMALL)
    damaged = {label: made for label, damage in CORRUPTIONS.items() if (made := damage(after.graph)) is not None}
    assert len(damaged) >= 6
    for label, graph in damaged.items():
        found = numeric(sample(name), replace(after, graph=graph))
        if label == "wrong_group":
            assert "AFTER uses group '2', which BEFORE does not use and which is split off from none" in found.notes
        else:
            assert found.status == "different", label
        if label == "moved_before_definition":
            assert found.failure.startswith("AFTER cannot be run: node 'wait_tensor")


def test_fused_ops_run_as_what_they_stand_for():
    found = numeric(sample("tiny_llama_fsdp2_tp2_fw"), rewritten("tiny_llama_fsdp2_tp2_fw", "async-tp"))
    assert found.status == "equal"
    assert "fused ops of tensor parallelism are run as the plain ops they stand for" in found.notes


@pytest.mark.parametrize(("name", "way"), CASES)
@pytest.mark.sampled(3)
def test_passes_change_no_bit(name, way):
    found = numeric(sample(name), rewritten(name, PIPELINES[way]))
    assert found.status == "equal", found.values[:2]
    assert found.values == ()
    assert found.compared > 20
    assert found.failure is None
    assert not [note for note in found.notes if "AFTER" in note]
