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
from tests.page_driver import needs_browser

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


def test_nothing_is_a_known_size(capsys, tmp_path):
    """The shard of a rank that has no row of a parameter."""
    text = TEXT.replace("torch.ops.aten.index.Tensor(x, [m])", "torch.ops.aten.slice.Tensor(x, 0, 7, 7)")
    assert not context(text).index.estimates.unknown
    (tmp_path / "empty.fx.txt").write_text(text)
    assert command(["lint", str(tmp_path / "empty.fx.txt")]) == 0
    assert command(["inspect", str(tmp_path / "empty.fx.txt")]) == 0
    out, err = capsys.readouterr()
    assert "unknown" not in out + err and "known only" not in out + err


def test_a_mesh_has_no_size():
    """PyTorch 2.13 hands the mesh of DTensors to the backward, and takes it out of a larger one for that."""
    pytest.importorskip("torch.distributed.tensor")
    if not hasattr(pytest.importorskip("torch.distributed._ops.device_mesh"), "_get_submesh"):
        pytest.skip("this PyTorch has no such op")
    text = TEXT.replace("x:", "mesh, x:").replace("index.Tensor(x, [m])", "relu.default(x)")
    text = text.replace(
        "return (wait,)", "part = torch.ops.device_mesh._get_submesh(mesh, [1])\n        return (wait, part)"
    )
    found = context(text)
    assert not found.index.estimates.unknown
    assert found.budget(1.0) == 2**30


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


def test_what_a_budget_leaves_uncounted_is_said(tmp_path, capsys):
    """With ``auto``, the budget is that of the sizes that are known."""
    path, out = tmp_path / "g.fx.txt", tmp_path / "o.fx.txt"
    path.write_text(TEXT)
    assert command(["reorder", str(path), "-o", str(out)]) == 0
    assert "to spare, 3 unknown sizes not counted" in capsys.readouterr().out
    assert command(["reorder", str(path), "-o", str(out), "--hint", "u0=64"]) == 0
    assert "to spare\n" in capsys.readouterr().out


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
@pytest.mark.parametrize(
    "passes", ["bucket{strategy=auto,memory_budget=own},reorder{memory_budget=own}", "reorder{memory_budget=own}"]
)
@pytest.mark.sampled(3)
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


BACKWARD = f"{LOG}::0_0/aot_backward_graph"
#: A graph in which sizes of collectives are missing too.
EXCHANGES = """class G(torch.nn.Module):
    def forward(self, x: "bf16[2048, 64]cpu", m: "b8[2048]cpu"):
        rows: "bf16[u0, 64]cpu" = torch.ops.aten.index.Tensor(x, [m])
        all_gather: "bf16[4*u0, 64]cpu" = torch.ops._c10d_functional.all_gather_into_tensor.default(rows, 4, '0')
        wait: "bf16[4*u0, 64]cpu" = torch.ops._c10d_functional.wait_tensor.default(all_gather)
        relu: "bf16[4*u0, 64]cpu" = torch.ops.aten.relu.default(wait)
        return (relu,)
"""


@pytest.fixture
def exchanges(tmp_path):
    path = tmp_path / "g.txt"
    path.write_text(EXCHANGES)
    return str(path)


def test_the_page_says_so(exchanges, tmp_path):
    page = tmp_path / "page.html"
    assert command(["simulate", exchanges, "--html", str(page), "-q"]) == 0
    text = page.read_text()
    assert '"unknown":true' in text and '"unknown_sizes":{"all_gather":1,' in text
    assert text.count("leastBytes(") >= 8
    assert command(["simulate", exchanges, "--html", str(page), "-q", "--hint", "u0=64"]) == 0
    assert '"unknown":true' not in page.read_text() and '"unknown_sizes"' not in page.read_text()


def test_times_say_so(exchanges, capsys):
    assert command(["simulate", exchanges]) == 0
    assert "; 4 sizes unknown, so they count what is known" in capsys.readouterr().out
    assert command(["inspect", exchanges]) == 0
    assert "; 4 sizes unknown, so they count what is known" in capsys.readouterr().out
    assert command(["simulate", exchanges, "-q"]) == 0
    assert capsys.readouterr().out.endswith(", 4 sizes unknown)\n")
    assert command(["simulate", exchanges, "-q", "--hint", "u0=64"]) == 0
    assert "unknown" not in capsys.readouterr().out


def test_the_trace_says_so(exchanges, tmp_path):
    trace = tmp_path / "t.json"
    assert command(["simulate", exchanges, "--trace", str(trace), "-q"]) == 0
    events = json.loads(trace.read_text())["traceEvents"]
    counters = {event["name"] for event in events if event["ph"] == "C"}
    assert counters == {"live, at least: 4 sizes unknown", "in flight, at least: 4 sizes unknown"}
    said = [event["args"].get("bytes are") for event in events if event.get("cat") == "collective"]
    assert said == ["at least: a size is unknown"]
    assert command(["simulate", exchanges, "--trace", str(trace), "-q", "--hint", "u0=64"]) == 0
    assert "at least" not in trace.read_text()


def test_explain_says_so(exchanges, capsys):
    assert command(["explain", exchanges, "all_gather"]) == 0
    assert "? in, ? out, one rank" in capsys.readouterr().out
    assert command(["explain", exchanges, "all_gather", "--memory-budget", "1"]) == 2
    error = capsys.readouterr().err
    assert "memory_budget=1: 4 sizes of this graph are not known, the first of 'rows'" in error
    assert "--hint 'u*=512'" in error and error.count("\n") <= 4
    assert command(["explain", exchanges, "all_gather", "--memory-budget", "1", "--hint", "u0=64"]) == 0


@pytest.mark.parametrize(
    ("rule", "limit", "said"),
    [
        ("peak-memory", "1GiB", "nobody knows whether it is within 1.0 GiB: 4 sizes unknown, the first of 'rows'"),
        ("in-flight-bytes", "1GiB", "bytes in flight is at least 0 B, and nobody knows whether it is within 1.0 GiB"),
        ("collective-bytes", "1GiB", "0 B by launches at least, and nobody knows whether that is within 1.0 GiB"),
    ],
)
def test_limits_of_lint_are_not_kept_by_what_nobody_knows(exchanges, capsys, rule, limit, said):
    arguments = ["lint", exchanges, "--only", rule, "--rule", f"{rule}.max={limit}"]
    assert command(arguments) == 1
    assert said in " ".join(capsys.readouterr().out.split())
    assert command([*arguments, "--hint", "u0=64"]) == 0


def test_waits_say_so(exchanges, capsys):
    assert command(["lint", exchanges, "--only", "wait-after-launch"]) in (0, 1)
    said = " ".join(capsys.readouterr().out.split())
    assert "? on the wire" in said and "0 B" not in said


def test_diff_says_so(exchanges, tmp_path, capsys):
    (tmp_path / "after.txt").write_text(EXCHANGES.replace("aten.relu", "aten.sigmoid"))
    assert command(["diff", exchanges, str(tmp_path / "after.txt")]) == 0
    assert "1 size unknown" in capsys.readouterr().out


@needs_browser
def test_the_page_shows_it(exchanges, tmp_path, browser):
    page = tmp_path / "page.html"
    assert command(["simulate", exchanges, "--html", str(page), "-q"]) == 0
    shown = browser.open(page)
    cards = shown.evaluate("[...document.querySelectorAll('.card')].map((card) => card.innerText).join(' ')")
    assert ">= 258.0" in cards and "4 sizes unknown" in cards
    tables = shown.evaluate("[...document.querySelectorAll('table')].map((table) => table.innerText).join(' ')")
    assert "\t?\t" in tables, "bytes sent"
