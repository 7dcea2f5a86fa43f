"""The memory bound of ``verify``, worked out anew."""

from __future__ import annotations

import json

import pytest

from commcc.cli.main import run as command
from commcc.planning.headroom import budget_bytes
from commcc.serialization import save
from commcc.verify import compare_peaks
from tests.step_graphs import sample
from tests.verify_graphs import Graph, aten

BYTES = 4 * 1024 * 1024


def sums(late):
    """Four large temporaries, each used at once or all of them at the end."""
    g = Graph()
    x = g.input("x", 1024, 1024)
    made = [g(aten.mul.Tensor, x, i + 2, name=f"large{i}") for i in range(4)] if late else []
    totals = []
    for i in range(4):
        large = made[i] if late else g(aten.mul.Tensor, x, i + 2, name=f"large{i}")
        totals.append(g(aten.sum.default, large))
    return g.program(*totals)


def test_peaks_of_both_graphs():
    peak = compare_peaks(sums(late=False), sums(late=True), lambda own: own)
    assert (peak.before_bytes // BYTES, peak.after_bytes // BYTES) == (2, 5)
    assert peak.at == "large3" or peak.at.startswith("sum")
    assert not peak.within
    assert compare_peaks(sums(late=True), sums(late=False), lambda own: own).within
    assert compare_peaks(sums(late=False), sums(late=True), lambda own: own + 4 * BYTES).within


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"{name}.fx.txt" for name in ("before", "after")]
    for path, late in zip(paths, (False, True), strict=True):
        save(sums(late), path)
    return [str(path) for path in paths]


@pytest.mark.parametrize(("budget", "code"), [("own", 1), ("auto", 0), ("0.01", 1), ("1", 0)])
def test_the_command(files, capsys, budget, code):
    assert command(["verify", *files, "--memory-budget", budget, "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["verified"] == "proved"
    assert document["memory"]["within"] is (code == 0)
    assert command(["verify", *files, "--memory-budget", budget]) == code
    assert ("within the budget" if code == 0 else "over the budget") in capsys.readouterr().out


def test_without_a_budget_memory_is_not_asked_for(files, capsys):
    assert command(["verify", *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"] is None


@pytest.mark.parametrize("text", ["much", "-1", "nan", "inf"])
def test_what_is_no_budget(files, capsys, text):
    assert command(["verify", *files, "--memory-budget", text]) == 2
    assert "neither auto nor own nor a number of GiB" in capsys.readouterr().err


def test_reordering_keeps_its_budget():
    from commcc.passes.options import parse_pipeline
    from commcc.run.pipeline import run
    from commcc.timing.cost.model import load_model

    before = sample("tiny_llama_fsdp2_bw")
    after = run(before, parse_pipeline("bucket,reorder{memory_budget=own}"), model=load_model("h100")).program
    bucketed = run(before, parse_pipeline("bucket")).program
    assert compare_peaks(bucketed, after, lambda own: budget_bytes("own", own)).within
