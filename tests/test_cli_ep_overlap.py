"""``commcc ep-overlap``: the pipeline it runs, its options, its report in tables and JSON."""

from __future__ import annotations

import contextlib
import io
import json
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from commcc.cli.main import run
from commcc.passes.options import to_text
from commcc.report import overlapping
from commcc.report.overlapping import Chunks
from commcc.run.forms import from_preset
from tests.step_graphs import SAMPLES

GRAPH = str(SAMPLES / "tiny_deepseek_ep2.fx.txt.gz")


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    """The JSON of a run with four chunks by wavefront, and the other reports that it wrote."""
    folder = tmp_path_factory.mktemp("ep")
    files = [folder / name for name in ("o.fx.txt.gz", "t.json.gz", "p.html")]
    options = ["--chunks", "4", "--order", "wavefront", "--in-flight", "2"]
    flags = ["-o", str(files[0]), "--trace", str(files[1]), "--html", str(files[2]), "--json"]
    out = _output(["ep-overlap", GRAPH, *options, *flags], 0)
    assert all(file.stat().st_size > 1000 for file in files)
    return json.loads(out)


def _run(arguments: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        return run(arguments), out.getvalue(), err.getvalue()


def _output(arguments: list[str], code: int) -> str:
    found, out, err = _run(arguments)
    assert found == code, err
    return out if code == 0 else err


@pytest.mark.full
def test_the_pipeline_is_the_preset_with_what_was_given(document):
    texts = [to_text(each) for each in from_preset("ep-overlap")]
    texts = ["ep-chunk{chunks=4}" if text == "ep-chunk" else text for text in texts]
    texts = ["ep-schedule{order=wavefront}" if text == "ep-schedule" else text for text in texts]
    assert document["pipeline"] == ",".join(texts)
    assert document["from"] == {"preset": "ep-overlap"}
    assert document["options"]["ep-chunk"]["chunks"] == 4


@pytest.mark.full
def test_exchanges_are_counted(document):
    found = document["overlap"]["exchanges"]
    assert found["token_exchanges"] == [8, 32] and found["count_exchanges"] == [2, 8]
    assert found["waits"] == [10, 40] and found["others"] == [0, 0]
    assert found["sent_bytes"][0] == found["sent_bytes"][1]
    assert sum(row["before"] for row in found["histogram"]) == 8
    assert sum(row["after"] for row in found["histogram"]) == 32


@pytest.mark.full
def test_regions_and_their_lanes(document):
    regions = document["overlap"]["regions"]
    assert [(r["module"], r["direction"]) for r in regions] == [
        ("layers.1.moe", "forward"),
        ("layers.2.moe", "forward"),
        ("layers.2.moe", "backward"),
        ("layers.1.moe", "backward"),
    ]
    for region in regions:
        lanes = region["lanes"]
        assert len(lanes) == region["chunks"] == 4 and len(set(map(len, lanes))) == 1
        first, second = ("C", "D") if region["direction"] == "backward" else ("D", "C")
        for lane in lanes:
            marks = [cell for cell in lane if cell in "DdCc"]
            assert marks == [first, first.lower(), second, second.lower()]
        blocking = sum(lane.count("H") for lane in lanes)
        assert blocking == (1 if region["direction"] == "forward" else 0), "the host waits once"
        assert 0 <= region["exposed_ms"] <= region["ms"]


@pytest.mark.full
def test_no_more_dispatches_than_in_flight(document):
    for region in document["overlap"]["regions"]:
        label = region["exchanges"][0][0].upper()
        flying = most = 0
        for column in zip(*region["lanes"], strict=True):
            flying += sum(cell == label for cell in column) - sum(cell == label.lower() for cell in column)
            most = max(most, flying)
        assert most <= 2


@pytest.mark.full
def test_hidden_share_follows_the_passes(document):
    rows = document["overlap"]["hidden"]
    assert rows[0]["after"] == "input graph" and rows[0]["all_to_alls"] == 10
    assert rows[-1]["all_to_alls"] == 40
    assert rows[-1]["hidden_share"] > rows[0]["hidden_share"]


@pytest.mark.parametrize("width", [60, 100, 160])
@pytest.mark.full
def test_the_section_fits_the_console(document, width: int):
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    for each in overlapping.view(document["overlap"]):
        console.print(each)
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    assert sum(line.startswith("  chunk 3") for line in lines) >= 2


def test_lanes_are_broken_in_blocks():
    console = Console(file=io.StringIO(), width=20, highlight=False, markup=False)
    console.print(Chunks("h", [["12", "D", ".", "d"], [".", ".", "D", "."]]))
    console.print(Chunks("h", [["1"] * 7, ["."] * 7]))
    assert console.file.getvalue().splitlines() == [
        "h",
        "  chunk 0  12 D . d",
        "  chunk 1   . . D .",
        "h",
        "  chunk 0  1 1 1 1",
        "  chunk 1  . . . .",
        "",
        "  chunk 0  1 1 1",
        "  chunk 1  . . .",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--chunks", "1"], "--chunks takes 2 or more"),
        (["--keep-chunks", "--chunks", "3"], "--keep-chunks leaves no use for --chunks"),
        (["--keep-chunks"], "no chunked region exchanges tokens"),
        (["--modules", "layer.*"], "no module 'layer.\\*'.*did you mean"),
        (["--order", "phases"], "expected one of phase, wavefront, auto"),
        (["--cost", "none", "--html", "x.html"], "need costs"),
        (["--trace", "x.txt"], "unknown extension"),
    ],
)
@pytest.mark.sampled(2)
def test_what_is_refused(options, message, tmp_path):
    said = _output(["ep-overlap", GRAPH, "-o", str(tmp_path / "o.fx.txt"), *options], 2)
    assert re.search(message, said), said
    assert not (tmp_path / "o.fx.txt").exists()


@pytest.mark.full
def test_chunks_are_kept_and_costs_left_out(document, tmp_path):
    out = tmp_path / "again.fx.txt.gz"
    text = _output(["ep-overlap", document["output"], "--keep-chunks", "--cost", "none", "-o", str(out)], 0)
    assert "token exchanges" in text and "hidden" not in text.split("all-to-alls after")[1].split("exchanges")[0]
    assert "proved to be the same program" in text and "NOT" not in text


@pytest.mark.full
def test_reorder_behind_it_takes_no_more_memory(tmp_path, monkeypatch):
    """``own``, unless the configuration says something else."""
    out = str(tmp_path / "o.fx.txt.gz")
    made = json.loads(_output(["ep-overlap", GRAPH, "--reorder", "--json", "-o", out], 0))
    before, after = (step["metrics"] for step in made["passes"][-2:])
    assert made["passes"][-1]["options"] == "reorder{memory_budget=own}"
    assert after["peak_bytes"] <= before["peak_bytes"] and after["step_ms"] <= before["step_ms"]
    assert made["passes"][-1]["report"]["memory_budget_bytes"] == made["before"]["peak_bytes"]
    (tmp_path / "commcc.yaml").write_text("options:\n  reorder: {memory_budget: 1}\n")
    monkeypatch.chdir(tmp_path)
    made = json.loads(_output(["ep-overlap", GRAPH, "--reorder", "--json", "-o", out], 0))
    assert made["passes"][-1]["report"]["memory_budget_bytes"] == 1 << 30


@pytest.mark.full
def test_sizes_that_are_fixed_are_told(document):
    assert document["overlap"]["fixed"] == {}
    console = Console(file=io.StringIO(), width=120)
    console.print(*overlapping.view({**document["overlap"], "fixed": {"s21": 2}}), sep="\n")
    assert "for inputs with s21 = 2 only" in console.file.getvalue()


def _taking(step: int, compute: int, exposed: int) -> SimpleNamespace:
    timeline = SimpleNamespace(step_ns=step, compute_ns=compute, exposed_ns=exposed)
    return SimpleNamespace(prediction=SimpleNamespace(timeline=timeline))


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ((10_000_000, 9_000_000, 0), ""),
        ((10_009_000, 9_000_000, 0), ""),
        ((12_000_000, 9_000_000, 1_000_000), "10.0 ms -> 12.0 ms: kernels .* 4.0 ms more in all, and 2.0 ms less of"),
        ((12_000_000, 5_000_000, 5_000_000), "10.0 ms -> 12.0 ms: 2.0 ms more of communication is exposed"),
    ],
)
def test_a_longer_step_is_told_with_what_it_pays(after, said):
    result = SimpleNamespace(first=_taking(10_000_000, 5_000_000, 3_000_000), last=_taking(*after))
    found = overlapping.longer(result)
    assert re.search(said.replace(".0 ms", r"\.?0* ms"), found) if said else found == ""
    assert overlapping.longer(SimpleNamespace(first=SimpleNamespace(prediction=None), last=result.last)) == ""


@pytest.mark.parametrize("options", [["--chunks", "8"], ["--chunks", "8", "--reorder"], ["--chunks", "auto"]])
@pytest.mark.sampled(1)
def test_a_warning_where_chunks_do_not_pay(options, tmp_path):
    """It names what has not been asked for yet."""
    code, _, said = _run(["ep-overlap", GRAPH, *options, "-o", str(tmp_path / "o.fx.txt.gz")])
    assert code == 0
    longer = next((line for line in said.splitlines() if "the predicted step gets longer" in line), "")
    assert bool(longer) == ("auto" not in options)
    assert ("--chunks auto" in longer) == bool(longer) and ("--reorder" in longer) == (
        bool(longer) and len(options) == 2
    )
