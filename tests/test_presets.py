"""Plans of every preset are exact; that presets compute the same bits is in ``test_real_ranks``."""

from __future__ import annotations

from pathlib import Path

import pytest

from commcc.passes.options import parse_pipeline
from commcc.run.forms import PRESETS
from commcc.run.pipeline import run
from commcc.run.planfile import plan_text, read_plans
from commcc.serialization import load, save
from commcc.timing.cost import load_model
from tests.test_real_ranks import sample

#: Presets, and a pipeline of the passes that are in none of them.
TEXTS = {
    **{preset.name: preset.text for preset in PRESETS},
    "rest": "dedup,groups,bucket,reorder{control_deps=true},cleanup",
}


@pytest.mark.parametrize(
    "way", [*(text for text in TEXTS if text != "ep-overlap"), pytest.param("ep-overlap", marks=pytest.mark.full)]
)
@pytest.mark.sampled(1)
def test_plans_are_exact(way, tmp_path):
    name = {"rest": "tiny_moe_fsdp4_ep2_bw", "ep-overlap": "tiny_deepseek_fsdp4_ep2"}.get(
        way, "tiny_llama_fsdp2_tp2_bw"
    )
    program, model = load(sample(name)), load_model()
    result = run(program, parse_pipeline(TEXTS[way]), model=model)
    assert result.changed and result.verified == "proved"
    (tmp_path / "plan.yaml").write_text(plan_text(result))
    again = run(program, read_plans(tmp_path / "plan.yaml"), model=model)
    assert plan_text(again) == plan_text(result)
    for kind, made in (("a", result), ("b", again)):
        save(made.program, tmp_path / f"{kind}.fx.txt")
    assert (tmp_path / "a.fx.txt").read_bytes() == (tmp_path / "b.fx.txt").read_bytes()


def test_a_plan_fits_the_same_graph_in_another_format(tmp_path):
    text, archive = (
        load(sample("tiny_llama_fsdp2_fw").with_name(f"tiny_llama_fsdp2_fw{end}")) for end in (".fx.txt", ".pt2")
    )
    result = run(archive, parse_pipeline("bucket"))
    (tmp_path / "plan.yaml").write_text(plan_text(result))
    again = run(text, read_plans(tmp_path / "plan.yaml"))
    assert again.changed and again.last.index.fingerprint == result.last.index.fingerprint


def test_the_manual_lists_the_presets():
    manual = (Path(__file__).parents[1] / "docs" / "pipelines.md").read_text()
    rows = [f"| `{preset.name}` | `{preset.text}` |" for preset in PRESETS]
    assert [row for row in rows if row not in manual] == []
