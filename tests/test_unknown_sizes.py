"""Figures that rest on sizes that nobody knows say so, and no budget in bytes is promised for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commcc.base.errors import OptionError
from commcc.base.text import least_size
from commcc.cli.main import run as command
from commcc.passes.base import PlanContext
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import Rules, run
from commcc.run.step import join, link, run_both
from commcc.serialization import load
from commcc.serialization.fx import parse_text
from commcc.serialization.propagate import propagate
from commcc.timing.cost.model import load_model
from commcc.timing.snapshot import take
from tests.counted_memory import counted_peak

CHUNKED = Path(__file__).parent / "data" / "torchtitan" / "deepseek_v3_chunked.fx.txt.gz"
TEXT = """class G(torch.nn.Module):
    def forward(self, x: "bf16[2048, 64]cuda:0", m: "b8[2048]cuda:0"):
        rows = torch.ops.aten.index.Tensor(x, [m])
        all_gather = torch.ops._c10d_functional.all_gather_into_tensor.default(rows, 4, '0')
        wait = torch.ops._c10d_functional.wait_tensor.default(all_gather)
        return (wait,)
"""


def test_texts():
    assert least_size(2048, 0) == "2.0 KiB" and least_size(0, 0) == "0 B"
    assert least_size(2048, 1) == ">= 2.0 KiB, 1 size unknown"
    assert least_size(2048, 422, brief=True) == ">= 2.0 KiB" and least_size(0, 422, brief=True) == "?"


def context(text=TEXT):
    return PlanContext.of(propagate(parse_text(text, "graph")))


def test_what_is_not_known_is_counted():
    found = context()
    assert {found.index.names[node] for node in found.index.estimates.unknown} == {"rows", "all_gather", "wait"}
    assert [each.unknown for each in found.ident.collectives] == [True]


def test_a_budget_in_bytes_needs_all_sizes():
    found = context()
    message = r"memory_budget=1: 3 sizes of this graph are not known, the first of 'rows'.*--hint 'u\*=512'"
    with pytest.raises(OptionError, match=message):
        found.budget(1.0)


def test_tables_and_documents(capsys):
    assert command(["inspect", str(CHUNKED), "--cost", "none"]) == 0
    table = capsys.readouterr().out
    assert ">= 128 B, 16 sizes unknown" in table and " ?" in table
    assert command(["inspect", str(CHUNKED), "--cost", "none", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["graph"]["unknown_sizes"]["all_to_all"] == 16
    assert sum(each.get("unknown_size", False) for each in document["collectives"]) == 16


def test_hints_make_them_known(capsys):
    assert command(["inspect", str(CHUNKED), "--cost", "none", "--hint", "u0=256"]) == 0
    assert "unknown" not in capsys.readouterr().out


def numbers_of(index):
    return {hint.symbol: hint.value for hint in index.estimates.hints}


SAMPLES = Path(__file__).parents[1] / "sample_graphs"
LOG = Path(__file__).parent / "data" / "symbols" / "moe_dynamic.log.gz"


@pytest.mark.parametrize(
    "graph",
    [
        SAMPLES / "tiny_moe_fsdp4_ep2_bw.fx.txt.gz",
        f"{LOG}::0_0/aot_backward_graph",
        f"{LOG}::0_0/inductor_post_grad_graph.2",
        CHUNKED,
    ],
    ids=["moe", "log", "post-grad", "chunked"],
)
@pytest.mark.parametrize("passes", ["bucket{strategy=auto,memory_budget=own}", "reorder{memory_budget=own}"])
def test_budgets_hold_by_an_independent_count(graph, passes):
    """Sizes that only hints give are in the budget: bytes are counted on the graphs before and after, by schemas."""
    program = load(graph)
    hints = {"u*": 96}
    result = run(program, parse_pipeline(passes), model=load_model("h100,ranks_per_node=1"), hints=hints)
    assert not result.first.index.estimates.unknown
    before, after = (
        counted_peak(each, numbers_of(side.index))
        for each, side in ((program, result.first), (result.program, result.last))
    )
    assert result.first.prediction.memory.peak_bytes == before
    assert result.last.prediction.memory.peak_bytes == after <= before
    assert result.changed or "bucket" in passes


def test_a_step_keeps_its_budget_too():
    forward, backward = (load(SAMPLES / f"tiny_moe_fsdp4_ep2_{half}.fx.txt.gz") for half in ("fw", "bw"))
    model = load_model("h100,ranks_per_node=1")

    def both_halves(program, outside):
        rules = Rules(outside=outside)
        return run(program, parse_pipeline("reorder{memory_budget=own}"), model=model, rules=rules)

    both = run_both(forward, backward, both_halves, lambda program: take(program, model))
    links = link(forward, backward)
    before, after = (
        counted_peak(join(*pair, links).program, numbers_of(both.first.index))
        for pair in ((forward, backward), (both.forward.program, both.backward.program))
    )
    assert both.first.prediction.memory.peak_bytes == before
    assert both.last.prediction.memory.peak_bytes == after <= before
    assert both.backward.changed
