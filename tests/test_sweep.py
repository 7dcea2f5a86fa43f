"""Sweeps: every combination, the same outcomes in any number of processes, a front that nothing beats."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.base.errors import OptionError
from commcc.passes.options import parse_pipeline
from commcc.passes.reorder import Reorder
from commcc.report.sweeping import write_html
from commcc.run.forms import pipeline_text, read_pipeline
from commcc.run.sweep import Task, make_grid, running, sweep
from commcc.run.sweep.outcome import pareto
from commcc.timing.cost import load_model
from tests.effort import examples
from tests.page_driver import needs_browser, text_of
from tests.test_cli_commands import FSDP, document, files, ok, output, refused

PIPELINE = "tag,bucket,reorder"


@pytest.fixture
def graph(tmp_path: Path, monkeypatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "g.fx.txt").write_text(FSDP)
    return folder / "g.fx.txt"


def grid(*params: str, passes: str = PIPELINE):
    return make_grid(parse_pipeline(passes), params)


def test_every_combination_in_order():
    found = grid("bucket.max_topo_span=5,none", "reorder.effort=1,2", "bucket.bucket-cap-mb=10:25,25.0")
    assert [p.name for p in found.parameters] == ["bucket.max_topo_span", "reorder.effort", "bucket.bucket_cap_mb"]
    assert [p.values for p in found.points] == list(itertools.product(("5", "none"), ("1", "2"), ("10:25", "25")))
    assert found.points[0].text == "tag,bucket{bucket_cap_mb=10:25,max_topo_span=5},reorder{effort=1}"
    assert found.fixed == 1


def test_the_second_pass_of_a_name():
    found = grid("bucket#2.bucket_cap_mb=1,2", passes="bucket,reorder,bucket{max_topo_span=3}")
    assert [p.text for p in found.points] == [
        f"bucket,reorder,bucket{{bucket_cap_mb={cap},max_topo_span=3}}" for cap in (1, 2)
    ]
    assert found.fixed == 2


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (
            (),
            "no parameter is given: name an option of tag, bucket, reorder, which 'commcc passes' lists; as in --param",
        ),
        (("x",), "'x' is not PASS.OPTION=VALUE"),
        (("bukcet.effort=1",), "did you mean 'bucket'"),
        (("bucket#2.effort=1",), "no pass 'bucket#2' in the pipeline (did you mean 'bucket'?)"),
        (("reorder.effrt=1",), "did you mean 'effort'"),
        (("reorder.effort=1,x,,0,1",), "got 'x'; reorder.effort: an empty value; reorder.effort: must be at least 1"),
        (("reorder.effort=1,1.0",), "reorder.effort: 1 is given twice"),
        (("reorder.effort=1", "reorder.effort=2"), "reorder.effort is given twice"),
        (
            ("reorder.max_in_flight_gb=0,1",),
            "reorder with max_in_flight_gb=0: max_in_flight_gb=0 leaves room for no collective",
        ),
        (("bucket.max_topo_span=" + ",".join(map(str, range(3000))),), "3,000 settings are more than 2,000"),
    ],
)
def test_wrong_parameters(params, words):
    with pytest.raises(OptionError) as caught:
        grid(*params)
    assert words in str(caught.value)


AIMS = st.lists(st.one_of(st.none(), st.tuples(*[st.integers(0, 4)] * 3)), max_size=12)


@settings(max_examples=examples(300), deadline=None)
@given(AIMS)
def test_the_front_by_definition(aims):
    def beaten(one):
        others = [other for other in aims if other is not None and other != one]
        return any(all(a <= b for a, b in zip(other, one, strict=True)) for other in others)

    assert pareto(aims) == tuple(k for k, one in enumerate(aims) if one is not None and not beaten(one))


@pytest.mark.full
def test_processes_change_nothing(graph):
    from commcc.serialization import load

    chosen = grid("bucket.max_topo_span=0,6,none", "reorder.effort=1,2")
    task = Task(str(graph), False, load_model(), {})
    program = load(str(graph))
    counts: list[int] = []
    one = sweep(chosen, task, program, jobs=1, progress=counts.append)
    many = sweep(chosen, task, program, jobs=3)
    assert counts == [1, 2, 3, 4, 5, 6]
    same = [(o.metrics, o.verified, o.changed, o.error) for o in one.outcomes]
    assert same == [(o.metrics, o.verified, o.changed, o.error) for o in many.outcomes]
    assert one.front == many.front and one.best == many.best
    assert {o.verified for o in one.outcomes} == {"proved"}


def test_what_no_parameter_concerns_runs_once(graph, monkeypatch):
    from commcc.passes.tag import Tag
    from commcc.serialization import load

    planned, plan = [], Tag.plan
    monkeypatch.setattr(Tag, "plan", lambda self, *rest: (planned.append(1), plan(self, *rest))[1])
    task = Task(str(graph), False, load_model(), {})
    result = sweep(grid("bucket.max_topo_span=0,6,none"), task, load(str(graph)), jobs=1)
    assert planned == [1] and len(result.outcomes) == 3


def test_outcomes_are_those_of_run(graph, capsys):
    ok("sweep", graph, "--passes", PIPELINE, "--param", "bucket.max_topo_span=0,none", "--jobs", "1", "--json")
    doc = document(capsys)
    for setting in doc["settings"]:
        ok("run", graph, "--passes", setting["pipeline"], "-o", "o.fx.txt", "--json")
        assert document(capsys)["after"] == setting["metrics"]


def test_json_and_best_setting(graph, capsys):
    ok(
        "sweep",
        graph,
        "--passes",
        PIPELINE,
        "--param",
        "bucket.max_topo_span=0,none",
        "--jobs",
        "1",
        "-o",
        "b.yaml",
        "--json",
    )
    doc = document(capsys)
    assert list(doc) == [
        *("schema", "command", "input", "fingerprint", "pipeline", "from", "best_out", "html", "parameters"),
        *("max_consecutive_of", "cost_model", "hints", "before", "settings", "front", "best", "best_yaml", "warnings"),
    ]
    assert doc["parameters"] == [{"name": "bucket.max_topo_span", "values": ["0", "none"]}]
    assert doc["max_consecutive_of"] == "reduce_scatter"
    best = doc["settings"][doc["best"]]
    assert best["metrics"]["step_ms"] == min(s["metrics"]["step_ms"] for s in doc["settings"])
    assert doc["best"] in doc["front"] and best["front"]
    assert Path("b.yaml").read_text() == doc["best_yaml"]
    assert pipeline_text(read_pipeline("b.yaml")) == best["pipeline"]
    ok("run", graph, "--pipeline", "b.yaml", "--json")
    assert document(capsys)["after"] == best["metrics"]


def test_tables(graph, capsys):
    ok("sweep", graph, "--passes", PIPELINE, "--param", "bucket.max_topo_span=0,none", "--jobs", "1")
    out = output(capsys)
    assert "2 settings, " in out and "input graph" in out and "passes:" in out
    assert len([line for line in out.splitlines() if line.startswith("**")]) == 1
    ok("sweep", graph, "--passes", PIPELINE, "--param", "bucket.max_topo_span=0,none", "--jobs", "1", "-q")
    best = next(line for line in out.splitlines() if line.startswith("**")).split()[2]
    assert output(capsys) == f"tag,bucket{{max_topo_span={best}}},reorder\n"


def test_settings_that_cannot_be_run(graph, capsys, monkeypatch):
    plan = Reorder.plan

    def failing(self, *rest):
        if self.effort == 2:
            raise OptionError("two is too many", where="pass 'reorder'")
        return plan(self, *rest)

    monkeypatch.setattr(Reorder, "plan", failing)
    arguments = ("sweep", graph, "--passes", "reorder", "--jobs", "1", "--param")
    ok(*arguments, "reorder.effort=1,2,3", "--json")
    doc = document(capsys)
    assert [setting["error"] is None for setting in doc["settings"]] == [True, False, True]
    assert 1 not in doc["front"] and doc["best"] != 1
    ok(*arguments, "reorder.effort=1,2")
    assert "setting 1: pass 'reorder': two is too many" in output(capsys)


def test_when_all_fail(graph, capsys, monkeypatch):
    def failing(*_):
        raise OptionError("no")

    monkeypatch.setattr(Reorder, "plan", failing)
    from commcc.cli.main import run

    assert run(["sweep", str(graph), "--passes", "reorder", "--param", "reorder.effort=1,2", "--jobs", "1"]) == 1
    assert "no setting could be run" in output(capsys)


def test_wrong_use(graph, capsys):
    assert "no parameter" in refused(capsys, "sweep", graph, "--passes", PIPELINE)
    assert "nothing says what to run" in refused(capsys, "sweep", graph, "--param", "bucket.max_topo_span=1")
    assert "needs costs" in refused(capsys, "sweep", graph, "--preset", "auto", "--cost", "none")
    assert "use .html" in refused(
        capsys, "sweep", graph, "--passes", "tag,bucket", "--param", "bucket.groups=all", "--html", "x"
    )
    assert files(Path()) == {"g.fx.txt"}


@pytest.mark.full
def test_a_process_that_dies(graph, capsys, monkeypatch):
    monkeypatch.setattr(running, "_run", _die)
    err = refused(capsys, "sweep", graph, "--passes", "bucket", "--param", "bucket.max_topo_span=1,2", "--jobs", "2")
    assert "a process of the sweep died" in err and "--jobs 1" in err


def _die(*_):
    import os

    os._exit(9)


HARMFUL = "</script><img src=x onerror=alert(1)>"


def page_of(capsys, graph: Path) -> dict:
    ok(
        *("sweep", graph, "--passes", PIPELINE, "--jobs", "1", "--html", "s.html", "--json"),
        *("--param", "bucket.max_topo_span=0,6,none", "--param", "reorder.effort=1,2"),
    )
    return document(capsys)


@pytest.mark.full
def test_pages_are_equal_and_harmless(graph, capsys):
    doc = page_of(capsys, graph)
    text = Path("s.html").read_text()
    assert write_html(doc) == text and "http" not in text.replace("http-equiv", "").replace(
        "http://www.w3.org/2000/svg", ""
    )
    harmful = json.loads(json.dumps(doc).replace("g.fx.txt", HARMFUL.replace('"', "")))
    page = write_html(harmful)
    assert HARMFUL not in page and page.count("<script") == 2


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.sampled(1)
def test_the_page_in_a_browser(dark, graph, capsys, browser):
    doc = page_of(capsys, graph)
    shown = browser.open(Path("s.html"), dark=dark)
    assert shown.data("errors") is None and shown.data("ready") == "yes"
    # Settings that give the same share a point and a row.
    first = [k for k, setting in enumerate(doc["settings"]) if setting["same_as"] is None]
    assert 1 < len(first) < 6
    assert shown.evaluate("document.querySelectorAll('.point').length") == len(first)
    assert shown.evaluate("document.querySelectorAll('.point.on-front').length") == sum(
        k in first for k in doc["front"]
    )
    assert shown.evaluate("document.querySelectorAll('.point.best').length") == 1
    assert shown.data("selected") == str(doc["best"])
    assert doc["settings"][doc["best"]]["pipeline"] in text_of(shown, "#command")
    assert text_of(shown, "#best-yaml").strip() == doc["best_yaml"].strip()
    other = next(k for k in first if k != doc["best"])
    shown.evaluate(f"document.querySelector('[data-number=\"{other}\"]').dispatchEvent(new MouseEvent('click'))")
    assert shown.data("selected") == str(other)
    assert doc["settings"][other]["pipeline"] in text_of(shown, "#command")
    rows = shown.evaluate("[...document.querySelectorAll('#settings-table tbody tr')].map((row) => row.cells.length)")
    assert rows == [2 + 2 + 6] * len(first)
    ticks = shown.evaluate("[...document.querySelectorAll('svg text:not(.axis-name)')].map((t) => t.textContent)")
    assert len(ticks) == len(set(ticks)) >= 4, ticks
    draws = int(shown.data("draws"))
    shown.evaluate(
        "(() => { const axis = document.querySelector('#axis-x'); axis.value = 'peak';"
        " axis.dispatchEvent(new Event('change')); })()"
    )
    assert int(shown.data("draws")) == draws + 1
    assert "peak memory" in shown.evaluate("[...document.querySelectorAll('.axis-name')].map((t) => t.textContent)")
    shown.evaluate("document.querySelector('#with-before').click()")
    assert shown.evaluate("document.querySelectorAll('.before').length") == 1
    wide = shown.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert wide, "the page scrolls sideways"


@needs_browser
def test_labels_of_a_narrow_plot_do_not_overlap(graph, capsys, browser):
    page_of(capsys, graph)
    shown = browser.open(Path("s.html"), size=(400, 1000))
    boxes = shown.evaluate(
        "[...document.querySelectorAll('svg text[text-anchor=middle]:not(.axis-name)')]"
        ".map((t) => t.getBoundingClientRect()).map((box) => [box.left, box.right])"
    )
    assert len(boxes) > 1 and all(end < start for (_, end), (start, _) in itertools.pairwise(boxes)), boxes


def equal_figures(doc: dict, *figures: str) -> None:
    """Makes all settings of a document equal in these figures, and those that are equal in all share a result."""
    settings = doc["settings"]
    for setting in settings:
        setting["metrics"] |= {key: settings[0]["metrics"][key] for key in figures}
    known: dict[str, int] = {}
    for number, setting in enumerate(settings):
        first = known.setdefault(json.dumps(setting["metrics"]), number)
        setting["same_as"] = None if first == number else first


@needs_browser
def test_axes_are_what_tells_results_apart(graph, capsys, browser):
    doc = page_of(capsys, graph)
    axis = "document.querySelector('#axis-{}').value".format
    shown = browser.open(Path("s.html"))
    assert [shown.evaluate(axis(name)) for name in ("x", "y")] == ["step", "peak"]
    equal_figures(doc, "step_ms")
    Path("s.html").write_text(write_html(doc))
    shown = browser.open(Path("s.html"))
    assert shown.evaluate(axis("x")) == "peak"
    assert "step time (equal)" in text_of(shown, "#axis-y")
    equal_figures(doc, *doc["settings"][0]["metrics"])
    Path("s.html").write_text(write_html(doc))
    shown = browser.open(Path("s.html"))
    assert shown.data("errors") is None and shown.evaluate("document.querySelectorAll('.point').length") == 0
    assert "All 6 settings give the same result" in text_of(shown, "#plot")
    assert "bucket.max_topo_span=0 | 6 | none, reorder.effort=1 | 2" in text_of(shown, "#details h3")
    for setting in doc["settings"][1:2]:
        setting["metrics"] = {**setting["metrics"], "step_ms": 99.0}
    equal_figures(doc)
    Path("s.html").write_text(write_html(doc))
    shown = browser.open(Path("s.html"))
    assert "4 other settings with the same result" in text_of(shown, "#details")  # of no whole product


def test_equal_settings_share_a_row(graph, capsys):
    ok("sweep", graph, "--passes", PIPELINE, "--param", "bucket.bucket_cap_mb=1,2", "--jobs", "1")
    out = output(capsys)
    assert "2 settings, 1 different result, 1 on the Pareto front" in out
    assert len([line for line in out.splitlines() if line.startswith("**")]) == 1 and " 1|2 " in out


@needs_browser
@pytest.mark.full
def test_a_page_without_results_and_with_harmful_names(graph, capsys, browser):
    doc = page_of(capsys, graph)
    doc["input"] = HARMFUL
    for setting in doc["settings"]:
        setting["error"], setting["metrics"], setting["front"] = HARMFUL, {}, False
    doc["best"], doc["best_yaml"], doc["front"] = None, None, []
    Path("s.html").write_text(write_html(doc))
    shown = browser.open(Path("s.html"))
    assert shown.data("errors") is None and shown.data("ready") == "yes"
    assert text_of(shown, "h1") == HARMFUL.rpartition("/")[2]  # the file's name; its path is the tooltip
    assert shown.evaluate("document.querySelector('h1 span').title") == HARMFUL
    assert HARMFUL in text_of(shown, "#failed-list")
    assert shown.evaluate("document.images.length") == 0
