"""Views that show all of a tensor as it is: which go, which stay, and that values stay."""

from __future__ import annotations

import pytest
import torch

from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.run.planfile import plan_text, read_plans
from tests.random_graphs import GraphBuilder, aten, c10d
from tests.step_graphs import on_cpu, run_ranks, sample
from tests.virtual_ranks import same


class Views(GraphBuilder):
    def cleaned(self, *outputs):
        result = run(self.program(list(outputs), {"g": 2}), parse_pipeline("cleanup{views=yes}"))
        assert result.verified == "proved"
        return [node.name for node in result.program.graph.nodes if node.op == "call_function"]


def test_views_of_all_go_and_others_stay():
    b = Views()
    x = b.placeholder("x", (4, 8))
    one = b.call(aten.view.default, b.call(aten.detach.default, b.call(aten.relu.default, x)), [4, 8])
    part = b.call(aten.slice.Tensor, one, 0, 0, 2)
    turned = b.call(aten.view.default, b.call(aten.slice.Tensor, one, 0, 0, 9), [8, 4])
    assert b.cleaned(b.call(aten.relu.default, part), b.call(aten.relu.default, turned)) == [
        *("relu_default", "slice_tensor", "view_default_1", "relu_default_1", "relu_default_2")
    ]


def test_what_is_returned_or_in_flight_stays():
    b = Views()
    x = b.placeholder("x", (4, 8))
    returned = b.call(aten.alias.default, b.call(aten.relu.default, x))
    launch = b.call(c10d.all_gather_into_tensor.default, x, 2, "g")
    seen = b.call(aten.view.default, launch, [8, 8])
    assert "view_default" in b.cleaned(returned, b.call(c10d.wait_tensor.default, seen)), "nobody has waited yet"
    b = Views()
    assert b.cleaned(b.call(aten.alias.default, b.call(aten.relu.default, b.placeholder("x", (4,))))) == [
        *("relu_default", "alias_default")
    ]


def test_strides_and_offsets_count():
    b = Views()
    x = b.placeholder("x", (1, 4, 4))
    turned = b.call(aten.permute.default, x, [0, 2, 1])
    rest = b.call(aten.slice.Tensor, b.placeholder("y", (4,)), 0, 1, 4)
    names = b.cleaned(b.call(aten.relu.default, turned), b.call(aten.relu.default, rest))
    assert "permute_default" in names and "slice_tensor" in names


@pytest.mark.parametrize("text", ["cleanup{views=yes}", "ep-chunk{chunks=3},cleanup{views=yes},ep-schedule"])
@pytest.mark.sampled(1)
def test_values_stay(text: str):
    program = on_cpu(sample("tiny_deepseek_ep2"), torch.float64)
    *first, last = parse_pipeline(text) if "chunk" not in text else (parse_pipeline("ep-chunk{chunks=3}")[0], None)
    before = run(program, first).program if first else program
    result = run(before, [last] if last else parse_pipeline("cleanup{views=yes},ep-schedule"))
    assert result.verified == "proved" and result.steps[0].report["views_removed"] > 20
    assert same(run_ranks(before, 5), run_ranks(result.program, 5))


def test_off_by_default_and_stored(tmp_path):
    program = sample("tiny_llama_fsdp2_tp2_bw")
    assert "views_removed" not in run(program, parse_pipeline("cleanup")).steps[0].report
    result = run(program, parse_pipeline("cleanup{views=yes}"))
    assert result.steps[0].report["views_removed"] == 57
    (tmp_path / "plan.yaml").write_text(plan_text(result))
    again = run(program, read_plans(tmp_path / "plan.yaml"))
    assert again.last.index.fingerprint == result.last.index.fingerprint
