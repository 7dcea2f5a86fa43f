"""Baselines of the gate: what is stored, what counts as worse, and what cannot be compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from commcc.base.errors import InputError, OutputError
from commcc.base.yaml_file import parse_yaml
from commcc.lint.baseline import baseline_text, key_of, measured, read_baseline, write_baseline
from commcc.lint.reading import settings_of
from commcc.lint.tolerance import EXACT, TIMED, Tolerance, flat, read_tolerance, tolerance_of
from commcc.lint.types import Known, Severity
from tests.lint_graphs import findings, healthy, subject

RULE = "baseline-regression"


def known(**changes: float) -> Known:
    """What is stored for the healthy graph, with some figures changed by what is added to them."""
    stored = measured(subject(healthy()).seen)
    metrics = dict(stored.metrics)
    for name, change in changes.items():
        dotted = name.replace("__", ".")
        assert dotted in metrics, dotted
        metrics[dotted] += change
    return replace(stored, metrics=metrics)


def compared(stored: Known | None, *, cost: str | None = "h100", **options):
    return findings(RULE, subject(healthy(), cost=cost, baseline=stored, against="b.yaml"), **options)


def test_the_same_graph_is_fine():
    assert compared(known()) == []


def test_one_launch_more_is_a_regression():
    (found,) = compared(known(collectives__all_gather=-1))
    assert found.text == "collectives.all_gather went from 2 to 3 (+50.0 %)"
    assert (found.measured, found.limit, found.unit, found.severity) == (3, 2, "count", None)
    assert "--update-baseline" in found.remedy


@pytest.mark.parametrize(
    ("tolerance", "worse"),
    [
        ({"collectives": Tolerance(absolute=1)}, 0),
        ({"collectives.all_gather": Tolerance(relative=0.5)}, 0),
        ({"collectives": Tolerance(relative=0.4)}, 1),
        ({"collectives.reduce_scatter": Tolerance(absolute=9)}, 1),
        ({"default": Tolerance(relative=0.5)}, 0),
        ({"collectives": None}, 0),
        ({"default": None}, 0),
        ({"default": Tolerance(relative=9), "collectives": EXACT}, 1),
        ({"collectives": Tolerance(absolute=9), "collectives.all_gather": EXACT}, 1),
    ],
)
def test_tolerances(tolerance, worse):
    assert len(compared(known(collectives__all_gather=-1), tolerance=tolerance)) == worse


def test_times_may_be_one_percent_worse():
    step = known().metrics["step_ms"]
    assert compared(known(step_ms=-0.0098 * step)) == []
    (found,) = compared(known(step_ms=-0.02 * step))
    assert found.text.startswith("step_ms went from 0.") and "was allowed" in found.text and found.unit == "ns"


def test_a_tolerance_lets_exactly_that_much_pass():
    for amount in (1e-6, 0.1, 3.0, 1234.5678):
        base = known().metrics["step_ms"]
        stored = known(step_ms=-base + amount)
        factor = base / amount - 1
        tolerance = {"default": None, "step_ms": Tolerance(relative=factor)}
        assert [f for f in compared(stored, tolerance=tolerance) if f.severity is None] == []


def test_hidden_share_is_better_when_it_is_more_and_compared_in_points():
    assert compared(known(hidden_share=0.009)) == []
    (found,) = compared(known(hidden_share=0.02))
    assert found.text.startswith("hidden_share went from") and found.unit == "share"
    assert compared(known(hidden_share=0.02), tolerance={"hidden_share": Tolerance(absolute=0.03)}) == []
    assert compared(known(hidden_share=0.02), tolerance={"default": Tolerance(relative=0.03)}) == []


def test_what_is_better_is_said_and_is_no_error():
    (found,) = compared(known(collectives__all_gather=2, bytes__reduce_scatter=100))
    assert found.severity is Severity.INFO
    assert found.text.startswith(
        "better than the baseline: bytes.reduce_scatter 356 B -> 256 B, collectives.all_gather 5"
    )


def test_a_kind_that_the_baseline_has_none_of():
    stored = known()
    fewer = {name: number for name, number in stored.metrics.items() if not name.endswith(".all_gather")}
    found = compared(replace(stored, metrics=fewer))
    assert [f.text for f in found if f.severity is None][-1] == "collectives.all_gather went from 0 to 3"
    gone = replace(stored, metrics={**stored.metrics, "collectives.broadcast": 3.0})
    (better,) = compared(gone)
    assert better.text == "better than the baseline: collectives.broadcast 3 -> 0"
    few = replace(stored, metrics={"step_ms": stored.metrics["step_ms"]})
    assert compared(few) == []


@pytest.mark.parametrize("given", ["{default: none}", "none", "{collectives: none}", "{collectives.all_gather: none}"])
def test_none_in_a_file_leaves_metrics_out(given):
    file = parse_yaml(f"rules:\n  {RULE}: {{tolerance: {given}}}\n", "lint.yaml")
    options = settings_of(file.root, "lint.yaml").of("g").options[RULE].tolerance
    file.check()
    assert compared(known(collectives__all_gather=-1), tolerance=options) == []


def test_neutral_metrics_are_compared_only_with_a_tolerance():
    stored = known(nodes=-1, compute_nodes=-1, lower_bound_ms=-1e-3)
    assert compared(stored) == []
    assert len(compared(stored, tolerance={"nodes": EXACT})) == 1


def test_nothing_stored():
    (found,) = compared(None)
    assert found.severity is Severity.WARNING and found.text == "the baseline b.yaml has nothing on this graph"


@pytest.mark.parametrize("cost", ["a100", None])
def test_another_cost_model_is_said_and_only_counts_are_compared(cost):
    found = compared(known(collectives__all_gather=-1, step_ms=-1e-2, hidden_share=0.5), cost=cost)
    assert [f.severity for f in found] == [Severity.WARNING, None]
    assert "not compared" in found[0].text and "h100-sxm" in found[0].text
    assert found[1].text.startswith("collectives.all_gather")


def test_memory_does_not_depend_on_the_cost_model():
    found = compared(known(peak_bytes=-400, in_flight_bytes=-400), cost="a100")
    worse = {f.text.split()[0] for f in found if f.severity is None}
    assert worse == {"in_flight_bytes", "peak_bytes"}


def test_a_baseline_without_times():
    stored = Known({k: v for k, v in known().metrics.items() if k not in TIMED})
    (found,) = compared(stored)
    assert found.severity is Severity.WARNING and "no simulated times" in found.text
    assert compared(stored, cost=None) == []


def test_other_hints_are_another_graph():
    stored = replace(known(step_ms=-1e-2, bytes__all_gather=-1, peak_bytes=-99), hints={"u0": 512})
    found = compared(stored)
    assert [f.severity for f in found] == [Severity.WARNING]
    assert "the size u0 was 512 in the baseline and is not known now" in found[0].text


@pytest.mark.parametrize("name", ["b.yaml", "b.json"])
def test_what_is_written_reads_back_equal(name, tmp_path):
    path = str(tmp_path / name)
    stored = replace(known(), hints={"u1": 3, "u0": 512})
    write_baseline(path, {"x/y.pt2": stored, "a: b # c": Known({"nodes": 3.0})})
    assert read_baseline(path) == {"x/y.pt2": stored, "a: b # c": Known({"nodes": 3.0})}
    first = Path(path).read_bytes()
    write_baseline(path, {"a: b # c": Known({"nodes": 3.0}), "x/y.pt2": stored})
    assert Path(path).read_bytes() == first
    assert list(tmp_path.iterdir()) == [tmp_path / name]
    if name.endswith("json"):
        assert json.loads(first)["commcc_baseline"] == 1


def test_keys_are_sorted():
    document = yaml.safe_load(baseline_text({"b": known(), "a": known()}, "b.yaml"))
    assert list(document["graphs"]) == ["a", "b"]
    metrics = list(document["graphs"]["a"]["metrics"])
    assert len(metrics) > 15 and metrics == sorted(metrics)


def test_other_graphs_are_kept_and_a_file_that_is_no_baseline_is_left_alone(tmp_path):
    path = tmp_path / "b.yaml"
    write_baseline(str(path), {"a": known(), "b": known()})
    write_baseline(str(path), {"b": Known({"nodes": 1})})
    assert read_baseline(str(path)) == {"a": known(), "b": Known({"nodes": 1})}
    path.write_text("something: else\n")
    with pytest.raises(InputError):
        write_baseline(str(path), {"b": known()})
    assert path.read_text() == "something: else\n"
    with pytest.raises(OutputError, match="unknown extension"):
        write_baseline(str(tmp_path / "b.txt"), {})


def test_mistakes_in_a_baseline_are_all_named(tmp_path):
    path = tmp_path / "b.yaml"
    path.write_text(
        "commcc_baseline: 1\ngraphs:\n  a:\n    metrics: {nodes: many}\n    cost_model: {name: x}\n  b: 3\n  c: {}\n"
    )
    with pytest.raises(InputError) as caught:
        read_baseline(str(path))
    said = str(caught.value)
    for part in (
        "b.yaml:4: 'nodes' must be a finite number",
        "line 5: 'cost_model' has no 'hash'",
        "line 6: 'b' must be",
    ):
        assert part in said, said
    assert "line 7: 'c' has no 'metrics'" in said
    path.write_text("commcc_baseline: 2\ngraphs: {}\n")
    with pytest.raises(InputError, match="version 2, expected 1"):
        read_baseline(str(path))


def test_graphs_go_by_their_path_from_the_baseline(tmp_path, monkeypatch):
    (tmp_path / "dumps").mkdir()
    (tmp_path / "ci").mkdir()
    monkeypatch.chdir(tmp_path)
    assert key_of("dumps/a.pt2", "ci/b.yaml") == "../dumps/a.pt2"
    assert key_of("dumps/run.log::0_0/x", "b.yaml") == "dumps/run.log::0_0/x"
    inside = key_of("dumps/a.pt2", "b.yaml")
    monkeypatch.chdir(tmp_path / "dumps")
    assert key_of("a.pt2", "../b.yaml") == key_of(str(tmp_path / "dumps" / "a.pt2"), "../b.yaml") == inside


def test_flat_metrics():
    runs = {"all_gather": 4, "all_to_all": 9}
    nested = {"nodes": 3, "collectives": {"all_gather": 2, "all_to_all": 0}, "max_consecutive_compute": runs}
    nested |= {"groups": {"0": 2}, "hidden_share": None, "step_ms": 1.5}
    flattened = {"nodes": 3, "collectives.all_gather": 2, "collectives.all_to_all": 0, "step_ms": 1.5}
    assert flat(nested) == flattened | {"max_consecutive_compute.all_gather": 4}


def test_the_most_specific_tolerance_counts():
    given = {"bytes": Tolerance(relative=0.1), "default": Tolerance(relative=0.2)}
    assert tolerance_of("bytes.all_gather", given) == Tolerance(relative=0.1)
    assert tolerance_of("step_ms", given) == Tolerance(relative=0.2)
    assert tolerance_of("nodes", given) is None
    assert tolerance_of("bytes.all_gather", {}) == EXACT
    assert tolerance_of("step_ms", {}) == Tolerance(relative=0.01)
    assert tolerance_of("hidden_share", {}) == Tolerance(absolute=0.01)
    assert read_tolerance("bytes", "1 MiB") == Tolerance(absolute=1 << 20)
    assert read_tolerance("step_ms", "1.5 ms") == Tolerance(absolute=1.5)
