"""``commcc run``: pipelines, presets, plans and configuration on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commcc.passes.options import parse_pipeline
from commcc.plan import Plan, Reordering, StoredReport
from commcc.run.forms import preset_names
from commcc.run.pipeline import Job, Rules, run
from commcc.serialization import load
from commcc.timing.cost import load_model
from tests.random_graphs import random_program
from tests.test_cli_commands import FSDP, UNPROVED, answering, document, files, ok, output, refused
from tests.test_cli_shell import completions


@pytest.fixture
def graph(tmp_path: Path, monkeypatch) -> Path:
    """A graph in a folder of its own, which is the working folder."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "g.fx.txt").write_text(FSDP)
    return folder / "g.fx.txt"


def test_text_yaml_and_preset_give_the_same_graph(graph, capsys):
    Path("p.yaml").write_text("passes: [tag, bucket, reorder]")
    ways = {
        "text": ("--passes", "tag,bucket,reorder"),
        "file": ("--pipeline", "p.yaml"),
        "name": ("--preset", "pre-overlap"),
    }
    for name, way in ways.items():
        ok("run", graph, *way, "-o", f"{name}.fx.txt", "--json")
        doc = document(capsys)
        assert doc["pipeline"] == "tag,bucket,reorder"
        assert doc["from"] == {way[0][2:]: way[1]}
    assert len({Path(f"{name}.fx.txt").read_bytes() for name in ways}) == 1


def test_json_has_the_documented_shape(graph, capsys):
    ok("run", graph, "--passes", "tag,bucket,bucket{groups=all}", "--json")
    doc = document(capsys)
    assert list(doc) == [
        *("schema", "command", "input", "output", "pipeline", "from", "plan_out", "dumped", "verified", "options"),
        *("cost_model", "hints", "before", "after", "passes", "verdicts", "warnings", "notes"),
    ]
    assert doc["output"] == str(graph.with_name("g.run.fx.txt"))
    assert list(doc["options"]) == ["tag", "bucket", "bucket#2"]
    assert doc["options"]["bucket#2"]["groups"] == "all"
    tag, first, second = doc["passes"]
    assert (tag["changed"], first["changed"], second["changed"]) == (True, True, False)
    assert tag["metrics"] == doc["before"] and first["metrics"] == second["metrics"] == doc["after"]
    assert first["metrics"]["collectives"]["all_gather"] == 1


def test_tables_show_the_metrics_after_each_pass(graph, capsys):
    ok("run", graph, "--passes", "tag,bucket,bucket")
    lines = output(capsys).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("after each pass"))
    for heading in ("after each pass", "step time", "exposed", "hidden", "peak memory", "launches", "max consecutive"):
        assert heading in lines[at]
    rows = [line.split("  ")[0] for line in lines[at + 2 : at + 6]]
    assert rows == ["input graph", "tag", "bucket", "bucket"]
    assert "(no change)" in lines[at + 5] and "changed nothing" in "\n".join(lines)
    ok("run", graph, "--passes", "tag,bucket", "--cost", "none")
    assert "step time" not in output(capsys)


def test_plans_are_written_and_applied(graph, capsys):
    ok("run", graph, "--preset", "pre-overlap", "-o", "a.fx.txt", "--plan-out", "plan.yaml")
    assert "plan written to plan.yaml" in output(capsys)
    ok("run", graph, "--plan", "plan.yaml", "-o", "b.fx.txt", "--plan-out", "again.yaml", "--json")
    doc = document(capsys)
    assert doc["from"] == {"plan": "plan.yaml"} and doc["plan_out"] == "again.yaml"
    assert doc["pipeline"] == "tag,bucket,reorder"
    assert doc["options"]["bucket"]["max_topo_span"] == 1500
    assert Path("plan.yaml").read_bytes() == Path("again.yaml").read_bytes()
    assert Path("a.fx.txt").read_bytes() == Path("b.fx.txt").read_bytes()


def test_a_plan_for_another_graph(graph, capsys):
    ok("run", graph, "--passes", "bucket", "--plan-out", "plan.yaml", "-q")
    graph.write_text(FSDP.replace("mm.default(mm, w_1)", "mm.default(mm, w)"))
    capsys.readouterr()
    before = files(Path())
    err = refused(capsys, "run", graph, "--plan", "plan.yaml", "-o", "x.fx.txt")
    assert "plan.yaml:" in err and "node 9, 'mm_1' (aten.mm), is the first that differs" in err
    assert files(Path()) == before


def test_a_plan_file_that_does_other_things_is_the_files_fault(graph, capsys):
    ok("run", graph, "--passes", "bucket", "--plan-out", "plan.yaml", "-q")
    capsys.readouterr()
    text = Path("plan.yaml").read_text()
    Path("plan.yaml").write_text(text.replace("members: [ag, ag_1, ag_2]", "members: [ag, ag_1, w]"))
    assert "plan.yaml:" in (err := refused(capsys, "run", graph, "--plan", "plan.yaml")) and "'w'" in err


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("dead: [{nodes: [mm], reason: no}]", "cannot be applied"),
        ("duplicates: [{keep: ag, drop: [mm], wait: w, waits: [], reason: no}]", "plan.yaml:"),
        ("regroups: [{launch: mm, group: '0'}]", "launches no collective"),
        ("before: [{first: mm_2, then: mm}]", "cannot come before"),
        ("control: [{node: mm, after: mm_2, reason: no}]", "cannot be applied"),
    ],
)
def test_edits_that_no_pass_would_plan(edit, words, graph, capsys):
    ok("run", graph, "--passes", "tag", "--plan-out", "plan.yaml", "-q")
    text = Path("plan.yaml").read_text()
    Path("plan.yaml").write_text(text.replace("  options: {}", f"  {edit}\n  options: {{}}"))
    capsys.readouterr()
    err = refused(capsys, "run", graph, "--plan", "plan.yaml", "-o", "x.fx.txt")
    assert "plan.yaml:" in err and words in err and not Path("x.fx.txt").exists()


def test_dumps_of_every_graph(graph, capsys):
    ok("run", graph, "--passes", "tag,bucket,bucket", "--dump-after-each", "dumps", "--json")
    doc = document(capsys)
    names = ["01-tag.fx.txt", "02-bucket.fx.txt", "03-bucket.fx.txt"]
    assert doc["dumped"] == [f"dumps/{name}" for name in names] and files(Path("dumps")) == set(names)
    counts = [len([n for n in load(f"dumps/{name}").graph.nodes if "all_gather" in str(n.target)]) for name in names]
    assert counts == [3, 1, 1]
    assert Path("dumps/03-bucket.fx.txt").read_bytes() == Path("g.run.fx.txt").read_bytes()
    ok("run", graph, "--passes", "tag,bucket,bucket", "--dump-after-each", "dumps", "-o", "o.fx.txt", "-q")
    capsys.readouterr()
    assert "of another run" in refused(capsys, "run", graph, "--passes", "tag", "--dump-after-each", "dumps")


@pytest.mark.parametrize(
    ("folder", "words"),
    [("g.fx.txt", "not a folder"), ("g.fx.txt/such", "'g.fx.txt' is not a folder")],
    ids=["file", "nested"],
)
def test_dumps_that_have_no_place(folder, words, graph, capsys):
    assert words in refused(capsys, "run", graph, "--passes", "tag", "--dump-after-each", folder)
    assert files(Path()) == {"g.fx.txt"}


def test_folders_of_outputs_are_made(graph):
    outputs = ["-o", "out/a/o.fx.txt", "--plan-out", "out/b/p.yaml", "--dump-after-each", "out/c/dumps"]
    ok("run", graph, "--passes", "tag", *outputs, "-q")
    assert files(Path("out/a")) == {"o.fx.txt"} and files(Path("out/b")) == {"p.yaml"}
    assert files(Path("out/c/dumps")) == {"01-tag.fx.txt"}


def test_no_folder_is_made_for_what_fails(graph, capsys):
    refused(
        capsys, "run", graph, "--passes", "bucket{max_topo_span=0}", "--expect-change", "-o", "out/o.fx.txt", code=1
    )
    assert files(Path()) == {"g.fx.txt"}


def test_dumps_never_overwrite_the_input(graph, capsys):
    Path("d").mkdir()
    Path("d/01-tag.fx.txt").write_text(FSDP)
    err = refused(capsys, "run", "d/01-tag.fx.txt", "--passes", "tag", "--dump-after-each", "d", "-o", "x.fx.txt")
    assert "overwrite the input" in err and Path("d/01-tag.fx.txt").read_text() == FSDP


def test_a_pass_that_changed_nothing(graph, capsys):
    ok("run", graph, "--passes", "bucket{max_topo_span=0}")
    assert "changed nothing" in output(capsys)
    Path("g.run.fx.txt").unlink()
    passes = "tag,bucket{max_topo_span=0}"
    err = refused(capsys, "run", graph, "--passes", passes, "--expect-change", "--plan-out", "p.yaml", code=1)
    assert "bucket{max_topo_span=0} changed nothing" in err and "nothing was written" in err
    assert files(Path()) == {"g.fx.txt"}
    ok("run", graph, "--passes", "tag,bucket", "--expect-change")


def improved():
    """A random graph that ``reorder`` makes faster, and a job that undoes it."""
    model = load_model()
    for seed in range(20):
        program = random_program(seed, layers=8)
        result = run(program, parse_pipeline("reorder"), model=model)
        before, after = result.predictions
        if after.timeline.step_ns < before.timeline.step_ns:
            break
    back = tuple(result.steps[0].plan.rewrite.order.index(node) for node in range(len(result.first.index)))

    def undo(context):
        return Plan("undo", context.index.fingerprint, Reordering(back), report=StoredReport({"why": "a test"}))

    return program, model, Job("undo", "undo", {}, undo), result


def test_a_pass_that_makes_the_step_longer_is_dropped():
    program, model, undo, once = improved()
    passes = [*parse_pipeline("reorder"), undo]
    seen = []
    rules = Rules(keep_if_better=True, after_step=lambda n, step, made: seen.append((n, step.dropped, made)))
    kept = run(program, passes, model=model, rules=rules)
    assert kept.last.index.names == once.last.index.names
    assert kept.steps[0].dropped is None and "the simulated step grew from" in kept.steps[1].dropped
    assert not kept.steps[1].changed and kept.steps[1].after is kept.steps[1].before
    assert [entry["changed"] for entry in kept.program.provenance] == [True, False]
    assert kept.program.provenance[1]["dropped"] == kept.steps[1].dropped
    assert [node.name for node in seen[1][2].graph.nodes] == list(kept.first.index.names)
    without = run(program, passes, model=model)
    assert without.last.index.names == without.first.index.names
    assert len(kept.verdicts) == 1 and len(without.verdicts) == 2


def test_keeping_what_is_better_takes_costs(graph, capsys):
    arguments = ("run", graph, "--passes", "tag", "--keep-if-better", "--cost", "none")
    assert "needs costs" in refused(capsys, *arguments)
    ok("run", graph, "--passes", "tag,bucket", "--keep-if-better", "--json")
    assert [(step["changed"], step["dropped"]) for step in document(capsys)["passes"]] == [(True, None)] * 2


def test_what_is_stored_with_the_result(graph, capsys):
    ok("run", graph, "--passes", "bucket{bucket_cap_mb=25,max_topo_span=6},reorder", "--hint", "u*=5", "-q")
    ok("convert", "g.run.fx.txt", "-o", "g.pt2", "-q")
    first = load("g.run.fx.txt").provenance
    assert load("g.pt2").provenance == first
    bucket, _reorder = first
    assert bucket["pass"] == "bucket{bucket_cap_mb=25,max_topo_span=6}"
    assert bucket["options"]["multi_dtype"] is False and bucket["options"]["bucket_cap_mb"] == 25
    assert bucket["input"] != bucket["output"] == _reorder["input"]
    assert bucket["cost_model"] == {"name": "h100-sxm", "hash": load_model().hash}
    assert any("members" in reason for reason in bucket["reasons"]["buckets"])
    assert set(bucket["metrics"]) >= {"step_ms", "peak_bytes", "nodes", "max_consecutive_compute"}
    assert _reorder["metrics"]["step_ms"] <= bucket["metrics"]["step_ms"]
    assert "seconds" not in json.dumps(first)


def test_provenance_of_older_files_is_kept(graph):
    text = '# commcc: {"fx_text": 1}\n# commcc: {"provenance": [{"pass": "tag", "input": "x"}]}\n' + FSDP
    graph.write_text(text)
    ok("run", graph, "--passes", "bucket", "-q")
    first, second = load("g.run.fx.txt").provenance
    assert first == {"pass": "tag", "input": "x"} and second["pass"] == "bucket"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing says what to run"),
        (("--passes", "tag", "--preset", "auto"), "--passes and --preset both say what to run"),
        (("--passes", "tagg"), "did you mean 'tag'"),
        (("--preset", "pre-overlpa"), "did you mean 'pre-overlap'"),
        (("--pipeline", "no.yaml"), "no.yaml: no such file"),
        (("--plan", "g.fx.txt"), "g.fx.txt:"),
        (("--passes", "tag", "--plan-out", "plan.txt"), "use .yaml, .yml"),
        (("--passes", ""), "no pass given"),
    ],
)
def test_wrong_use(arguments, words, graph, capsys):
    assert words in refused(capsys, "run", graph, *arguments)
    assert files(Path()) == {"g.fx.txt"}


def test_files_that_are_read_are_not_overwritten(graph, capsys):
    ok("run", graph, "--passes", "tag", "--plan-out", "plan.yaml", "-q")
    Path("p.yaml").write_text("[tag]")
    Path("commcc.yaml").write_text("preset: pre-overlap")
    capsys.readouterr()
    for arguments in (
        ("--plan", "plan.yaml", "--plan-out", "plan.yaml"),
        ("--pipeline", "p.yaml", "--plan-out", "p.yaml"),
    ):
        assert "overwrite the input" in refused(capsys, "run", graph, *arguments)
    assert "overwrite the input" in refused(capsys, "run", graph, "--plan-out", "commcc.yaml")


def test_unproved_results_of_runs(graph, capsys, monkeypatch):
    answering(monkeypatch, UNPROVED)
    assert "not proved" in refused(capsys, "run", graph, "--passes", "tag", "--require-proof", code=1)
    assert files(Path()) == {"g.fx.txt"}


def test_completion_knows_the_presets():
    assert completions("commcc run g.fx.txt --preset ", 4) == list(preset_names())


CONFIG = "cost: a100\nhints: {'zz*': 7}\npreset: pre-overlap\noptions: {bucket: {bucket_cap_mb: 0.0001, groups: all}}\n"


def test_the_configuration_sets_defaults(graph, capsys):
    (graph.parent.parent / "commcc.yaml").write_text(CONFIG)
    ok("run", graph, "--json")
    doc = document(capsys)
    assert doc["from"] == {"preset": "pre-overlap"} and doc["cost_model"]["name"] == "a100-sxm"
    assert doc["pipeline"] == "tag,bucket{bucket_cap_mb=0.0001,groups=all},reorder"
    assert doc["config"] == {
        "file": str(graph.parent.parent / "commcc.yaml"),
        "used": {
            "cost": "a100",
            "hints": {"zz*": 7},
            "preset": "pre-overlap",
            "options": {"bucket": {"bucket_cap_mb": "0.0001", "groups": "all"}},
        },
    }
    ok("bucket", graph)
    out, err = capsys.readouterr()
    assert "defaults from" in out and "bucket{bucket_cap_mb=0.0001,groups=all}" in out and "cost a100" in out
    assert "zz" not in err  # a hint of the project need not fit every graph
    ok("inspect", graph, "--json")
    assert document(capsys)["config"]["used"] == {"cost": "a100", "hints": {"zz*": 7}}


def test_the_command_line_wins(graph, capsys):
    Path("commcc.yaml").write_text(CONFIG)
    ok("run", graph, "--passes", "bucket{groups=0}", "--cost", "h100", "--hint", "zz*=9", "--json")
    doc = document(capsys)
    assert doc["cost_model"]["name"] == "h100-sxm" and doc["pipeline"] == "bucket{bucket_cap_mb=0.0001,groups=0}"
    assert doc["config"]["used"] == {"options": {"bucket": {"bucket_cap_mb": "0.0001"}}}
    ok("bucket", graph, "--bucket-cap-mb", "25", "--groups", "0", "--cost", "h100", "--hint", "zz*=9", "--json")
    doc = document(capsys)
    assert doc["passes"][0]["options"] == "bucket{bucket_cap_mb=25,groups=0}" and "config" not in doc


def test_no_config(graph, capsys):
    Path("commcc.yaml").write_text("cost: [")
    assert "commcc.yaml:" in refused(capsys, "bucket", graph)
    ok("bucket", graph, "--no-config", "--json")
    doc = document(capsys)
    assert "config" not in doc and doc["cost_model"]["name"] == "h100-sxm"
    assert "nothing says what to run" in refused(capsys, "run", graph, "--no-config")


def test_a_broken_configuration_does_not_stop_help(graph, capsys):
    Path("commcc.yaml").write_text("cost: [")
    ok("run", "--help")
    ok("--help")
    ok("passes")


def test_costs_can_be_off_for_a_project(graph, capsys):
    Path("commcc.yaml").write_text("cost: none")
    ok("bucket", graph, "--json")
    assert document(capsys)["cost_model"] is None
    ok("simulate", graph, "--json")
    assert document(capsys)["cost_model"]["name"] == "h100-sxm"


def test_inspect_tells_how_a_graph_was_made(graph, capsys):
    ok("run", graph, "--passes", "tag,bucket", "-q")
    ok("inspect", "g.run.fx.txt")
    assert "written by" in (out := output(capsys).split("\n\n0")[0]) and "h100-sxm" in out
    ok("inspect", "g.run.fx.txt", "--json")
    assert [entry["pass"] for entry in document(capsys)["provenance"]] == ["tag", "bucket"]
    odd = '[{}, {"pass": 3}, {"pass": "x", "metrics": 1, "cost_model": []}]'
    graph.write_text(f'# commcc: {{"fx_text": 1}}\n# commcc: {{"provenance": {odd}}}\n{FSDP}')
    ok("inspect", graph)


def test_presets_are_listed_and_shown(capsys):
    ok("passes")
    out = output(capsys)
    assert all(name in out for name in preset_names())
    ok("passes", "pre-overlap")
    assert "passes: [tag, bucket, reorder]" in output(capsys)
    ok("passes", "pre-overlap", "-q")
    assert output(capsys) == "tag,bucket,reorder\n"
