"""``commcc lint`` as it is used: arguments, exit codes, baselines, forms, and one bad graph among good ones."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from commcc.cli.main import run
from commcc.lint.expand import expand
from tests.lint_graphs import graph, healthy
from tests.sarif_checker import problems
from tests.test_cli_commands import document, ok, output, refused

WAITING = graph("a", "g = gather(a)", "w = wait_wide(g)", "h = half(w)", "m = mm(h, h)", returns="m")
RACING = graph("a", "g = gather(a)", "h = half(g)", "m = mm(h, a)", "w = wait_wide(g)", returns="m, w")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fine.fx.txt").write_text(healthy())
    (tmp_path / "waits.fx.txt").write_text(WAITING)
    (tmp_path / "races.fx.txt").write_text(RACING)
    return tmp_path


def code(*arguments: object) -> int:
    return run(["lint", *map(str, arguments)])


def names(doc: dict, severity: str) -> list[tuple[str, str]]:
    return [
        (result["graph"], outcome["rule"])
        for result in doc["graphs"]
        for outcome in result["rules"]
        for finding in outcome["findings"]
        if finding["severity"] == severity
    ]


def test_warnings_pass_and_errors_do_not(folder, capsys):
    ok("lint", "waits.fx.txt", "--json")
    doc = document(capsys)
    assert (doc["passed"], names(doc, "error")) == (True, [])
    assert ("waits.fx.txt", "wait-after-launch") in names(doc, "warning")
    assert code("races.fx.txt", "--json") == 1
    assert names(document(capsys), "error") == [("races.fx.txt", "use-before-wait")]
    assert code("waits.fx.txt", "--rule", "wait-after-launch=error", "-q") == 1
    assert output(capsys) == "1 graph: 1 error\n"


def test_json_has_the_documented_shape(folder, capsys):
    ok("lint", "fine.fx.txt", "--json")
    doc = document(capsys)
    assert list(doc) == [
        *("schema", "command", "passed", "counts", "cost_model", "baseline", "hints", "graphs", "across"),
    ]
    assert set(doc["graphs"][0]) == {"graph", "error", "metrics", "rules"}
    assert doc["cost_model"]["name"] == "h100-sxm" and doc["graphs"][0]["metrics"]["step_ms"] > 0


def test_one_bad_graph_hides_nothing_about_the_others(folder, capsys):
    (folder / "torn.fx.txt").write_text(healthy()[:200])
    (folder / "empty.pt2").write_bytes(b"")
    assert code("races.fx.txt", "torn.fx.txt", "gone.fx.txt", "empty.pt2", "waits.fx.txt", "--json") == 2
    doc = document(capsys)
    assert [result["graph"] for result in doc["graphs"] if result["error"]] == [
        "torn.fx.txt",
        "gone.fx.txt",
        "empty.pt2",
    ]
    assert names(doc, "error") == [("races.fx.txt", "use-before-wait")]
    assert ("waits.fx.txt", "wait-after-launch") in names(doc, "warning")
    assert "no such file" in doc["graphs"][2]["error"]
    code("races.fx.txt", "gone.fx.txt")
    text = output(capsys)
    assert "error  use-before-wait" in text and "cannot be read  no such file" in text


def test_a_graph_that_cannot_run_is_a_finding(folder, capsys):
    wait = 'w: "f32[8, 8][8, 1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(n)'
    into = "i: \"f32[8, 8][8, 1]cuda:0\" = torch.ops._c10d_functional.all_reduce_.default(n, 'sum', '0')"
    (folder / "bad.fx.txt").write_text(graph("a", "n = mul(a, a)", into, wait, returns="w"))
    assert code("bad.fx.txt", "--json") == 1
    doc = document(capsys)
    assert names(doc, "error") == [("bad.fx.txt", "illegal-graph")]
    (finding,) = doc["graphs"][0]["rules"][0]["findings"]
    assert finding["nodes"][0]["node"] == "w" and finding["nodes"][0]["line"] == 5
    ok("lint", "bad.fx.txt", "--rule", "illegal-graph=warning")


def test_folders_patterns_and_files_of_several_graphs(folder, capsys):
    inner = folder / "dumps" / "rank10"
    inner.mkdir(parents=True)
    (folder / "dumps" / "rank9").mkdir()
    for name in ("rank10/b.fx.txt", "rank9/b.fx.txt", "rank9/notes.txt"):
        (folder / "dumps" / name).write_text(WAITING)
    (inner / "c.fx.txt.gz").write_bytes(gzip.compress(WAITING.encode()))
    found = [item.graph for item in expand(["dumps", "waits.fx.txt", "*.fx.txt", "dumps/**/c*"])]
    assert found == [
        *("dumps/rank9/b.fx.txt", "dumps/rank10/b.fx.txt", "dumps/rank10/c.fx.txt.gz"),
        *("waits.fx.txt", "fine.fx.txt", "races.fx.txt"),
    ]
    (folder / "two.log").write_text(WAITING + RACING)
    (first, second) = (item.graph for item in expand(["two.log"]))
    assert first.startswith("two.log::") and second.startswith("two.log::") and first != second
    assert code("two.log", "--json") == 1
    assert names(document(capsys), "error") == [(second, "use-before-wait")]
    (folder / "none").mkdir()
    errors = [item.error for item in expand(["none", "*.nothing", "gone"])]
    assert "no graphs" in errors[0] and "no file fits" in errors[1] and "no such file" in errors[2]


def test_folders_of_texts_and_of_pytorchs_own_tools(tmp_path):
    (tmp_path / "README.txt").write_text("not a graph")
    (tmp_path / "rank0.txt").write_text(WAITING)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "two.log").write_text(WAITING + RACING)
    found = expand([str(tmp_path)])
    assert [item.graph.removeprefix(f"{tmp_path}/").partition("::")[0] for item in found] == [
        *("rank0.txt", "sub/two.log", "sub/two.log"),
    ]
    (tmp_path / "x.fx.txt").write_text(WAITING)
    assert [item.graph for item in expand([str(tmp_path)])] == [str(tmp_path / "x.fx.txt")]


def test_nodes_in_folders_of_tlparse_have_the_file_that_they_are_in(capsys):
    folder, name = "tests/data/containers/tlparse", "0_0/aot_backward_graph"
    assert f"{folder}::{name}" in [item.graph for item in expand([folder])]
    assert code(f"{folder}::{name}", "--rule", "peak-memory.max=0", "--only", "peak-memory", "--json") == 1
    (node,) = document(capsys)["graphs"][0]["rules"][0]["findings"][0]["nodes"]
    assert node["file"] == f"{folder}/-_0_0_0/aot_backward_graph_8.txt"
    assert f" {node['node']}" in Path(node["file"]).read_text().splitlines()[node["line"] - 1]


CONFIG = """\
graphs: [waits.fx.txt]
rules: {wait-after-launch: error, collective-count: {max: {all_gather: 0}}}
overrides:
- {paths: fine*, rules: {collective-count: off}}
"""


def test_configuration(folder, capsys):
    (folder / "lint.yaml").write_text(CONFIG)
    assert code("--config", "lint.yaml", "--json") == 1
    assert names(document(capsys), "error") == [
        ("waits.fx.txt", "wait-after-launch"),
        ("waits.fx.txt", "collective-count"),
    ]
    ok("lint", "fine.fx.txt", "--config", "lint.yaml")
    assert code("fine.fx.txt", "--config", "lint.yaml", "--rule", "collective-count=error") == 1
    ok("lint", "waits.fx.txt", "--config", "lint.yaml", "--ignore", "collective-count,wait-after-launch")
    assert code("waits.fx.txt", "--config", "lint.yaml", "--only", "collective-count") == 1
    capsys.readouterr()
    (folder / "commcc.yaml").write_text("lint:\n  " + CONFIG.replace("\n", "\n  ") + "\n")
    assert code("--quiet") == 1
    assert output(capsys) == "1 graph: 2 errors\n"
    ok("lint", "waits.fx.txt", "--no-config")
    text = output(capsys)
    assert "defaults from" not in text
    code()
    assert f"defaults from {folder / 'commcc.yaml'}: lint settings" in output(capsys).replace(
        "commcc.yaml: ", "commcc.yaml: "
    )


def test_mistakes_come_before_any_graph_is_read(folder, capsys):
    (folder / "lint.yaml").write_text("rules: {peak-memroy: {max: 1 GiB}, step-time: {max: soon}}\n")
    said = refused(capsys, "lint", "fine.fx.txt", "--config", "lint.yaml")
    assert "lint.yaml:1: no rule 'peak-memroy' (did you mean 'peak-memory'?)" in said and "'soon'" in said
    assert "no rule 'x'" in refused(capsys, "lint", "fine.fx.txt", "--only", "x")
    neither = "--only", "collective-count", "--ignore", "collective-count"
    assert "leave no rule to run" in refused(capsys, "lint", "fine.fx.txt", *neither)
    assert "--rule: 'step-time.max=5': 'max' must be a time" in refused(
        capsys, "lint", "fine.fx.txt", "--rule", "step-time.max=5"
    )
    assert "no graph is named" in refused(capsys, "lint")
    assert "no such file" in refused(capsys, "lint", "fine.fx.txt", "--baseline", "b.yaml")
    assert "unknown extension" in refused(capsys, "lint", "fine.fx.txt", "--baseline", "b.txt", "--update-baseline")
    assert "has no file to write" in refused(capsys, "lint", "fine.fx.txt", "--update-baseline")
    assert "ask for two forms" in refused(capsys, "lint", "fine.fx.txt", "--json", "--format", "sarif")
    assert "unknown extension" in refused(capsys, "lint", "fine.fx.txt", "--format", "sarif", "-o", "x.xml")


def with_one_more(text: str) -> str:
    """The healthy graph with an all-reduce at its end."""
    kind, op = '"f32[8, 8][8, 1]cuda:0"', "torch.ops._c10d_functional"
    launch = f"        r: {kind} = {op}.all_reduce.default(m4, 'sum', '0')\n"
    wait = f"        more: {kind} = {op}.wait_tensor.default(r)\n"
    return text.replace("        return (m4, d1,)", f"{launch}{wait}        return (m4, d1, more,)")


def test_baseline_from_first_run_to_regression(folder, capsys):
    ok("lint", "fine.fx.txt", "waits.fx.txt", "--baseline", "b.yaml", "--update-baseline")
    assert "baseline written to b.yaml" in output(capsys)
    stored = (folder / "b.yaml").read_bytes()
    ok("lint", "fine.fx.txt", "waits.fx.txt", "--baseline", "b.yaml", "--update-baseline", "-q")
    assert (folder / "b.yaml").read_bytes() == stored
    ok("lint", "fine.fx.txt", "--baseline", "b.yaml")
    (folder / "fine.fx.txt").write_text(with_one_more(healthy()))
    capsys.readouterr()
    assert code("fine.fx.txt", "waits.fx.txt", "--baseline", "b.yaml", "--json") == 1
    doc = document(capsys)
    texts = [f["text"] for o in doc["graphs"][0]["rules"] if o["rule"] == "baseline-regression" for f in o["findings"]]
    assert "collectives.all_reduce went from 0 to 1" in texts and any(t.startswith("step_ms went") for t in texts)
    assert {graph for graph, _ in names(doc, "error")} == {"fine.fx.txt"}
    more = {"default": "1000 %", "exposed_ms": "1 ms", "hidden_share": "100 %", "collectives": 1, "bytes": "1 MiB"}
    rules = [("--rule", f"baseline-regression.tolerance.{name}={value}") for name, value in more.items()]
    ok("lint", "fine.fx.txt", "--baseline", "b.yaml", *(part for pair in rules for part in pair))
    assert code("fine.fx.txt", "--baseline", "b.yaml", "--cost", "a100", "--json") == 1
    assert "not compared" in output(capsys)
    assert (folder / "b.yaml").read_bytes() == stored
    ok("lint", "fine.fx.txt", "--baseline", "b.yaml", "--update-baseline")
    assert (folder / "b.yaml").read_bytes() != stored
    ok("lint", "fine.fx.txt", "waits.fx.txt", "--baseline", "b.yaml")


def test_a_baseline_keeps_graphs_that_could_not_be_read(folder, capsys):
    ok("lint", "fine.fx.txt", "waits.fx.txt", "--baseline", "b.json", "--update-baseline")
    (folder / "waits.fx.txt").write_text("torn")
    assert code("fine.fx.txt", "waits.fx.txt", "--baseline", "b.json", "--update-baseline") == 2
    assert sorted(json.loads((folder / "b.json").read_text())["graphs"]) == ["fine.fx.txt", "waits.fx.txt"]


def test_forms(folder, capsys):
    for form in ("sarif", "junit", "github"):
        assert code("races.fx.txt", "waits.fx.txt", "--format", form) == 1
        text = output(capsys)
        if form == "sarif":
            assert problems(json.loads(text)) == []
        elif form == "junit":
            assert ElementTree.fromstring(text).get("failures") == "1"
        else:
            assert text.startswith("::error file=races.fx.txt,line=")
            assert text.splitlines()[-1] == "2 graphs: 1 error, 1 warning"


NAMES = {"sarif": "a.sarif", "junit": "a.xml", "json": "a.json", "text": "a.txt", "github": "a.log"}


@pytest.mark.parametrize("form", NAMES)
def test_a_report_in_a_file_and_text_on_the_screen(form, folder, capsys):
    assert code("races.fx.txt", "--format", form, "-o", NAMES[form]) == 1
    first = (folder / NAMES[form]).read_bytes()
    assert b"use-before-wait" in first
    assert "  error  use-before-wait" in output(capsys).splitlines()
    assert code("races.fx.txt", "--format", form, "-o", NAMES[form], "-q") == 1
    assert (folder / NAMES[form]).read_bytes() == first
    assert output(capsys) == "1 graph: 1 error\n"


def test_inputs_are_never_written_over(folder, capsys):
    said = refused(capsys, "lint", "races.fx.txt", "--format", "text", "-o", "races.fx.txt")
    assert "would overwrite the input" in said and (folder / "races.fx.txt").read_text() == RACING
    (folder / "a.json").write_text('{"rules": {}}')
    said = refused(capsys, "lint", "fine.fx.txt", "--config", "a.json", "--format", "json", "-o", "a.json")
    assert "would overwrite the input" in said
    (folder / "c.yaml").write_text("rules: {}\n")
    said = refused(capsys, "lint", "fine.fx.txt", "--config", "c.yaml", "--baseline", "c.yaml", "--update-baseline")
    assert (folder / "c.yaml").read_text() == "rules: {}\n"


def test_rules_are_listed_without_torch(capsys):
    ok("lint", "--rules")
    assert "peak-memory" in output(capsys)
    ok("lint", "--rules", "--json")
    rules = document(capsys)["rules"]
    assert {"id", "severity", "summary", "about", "costed", "across", "needs", "options"} == set(rules[0])
    script = (
        "import sys; from commcc.cli.main import run; run(['lint', '--rules', '-q']); "
        "heavy = {'torch', 'numpy', 'llvmlite'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_limits_that_need_costs_are_said_to_be_unchecked(folder, capsys):
    ok("lint", "fine.fx.txt", "--cost", "none", "--rule", "step-time.max=1ns", "--rule", "bound-gap.max=0")
    assert "not checked, since there is no cost model: step-time, bound-gap" in output(capsys)


def test_two_runs_give_the_same_bytes(folder, capsys):
    code("fine.fx.txt", "waits.fx.txt", "races.fx.txt", "--json")
    first = output(capsys)
    code("fine.fx.txt", "waits.fx.txt", "races.fx.txt", "--json")
    assert output(capsys) == first


def test_hints_that_fit_nothing_are_said(folder, capsys):
    ok("lint", "fine.fx.txt", "--hint", "u9=512", "-q")
    assert capsys.readouterr().err == "warning: hint 'u9' fits no size that is known only at run time; there is none\n"


def test_a_dump_without_shapes_is_told_to_have_them(folder, capsys):
    """Hints are for symbols; where the file gives no shapes at all, only another dump helps."""
    bare = """def forward(self, x):
    all_reduce = torch.ops._c10d_functional.all_reduce.default(x, 'sum', '0')
    wait_tensor = torch.ops._c10d_functional.wait_tensor.default(all_reduce)
    return (wait_tensor,)
"""
    (folder / "bare.fx.txt").write_text(bare)
    (folder / "sized.fx.txt").write_text(bare.replace("(self, x)", '(self, s: "Sym(u0)", x: "f32[u0]")'))
    for name, remedy in (("bare", "dump the graph with its shapes"), ("sized", "--hint 'u*=512'")):
        ok("lint", f"{name}.fx.txt", "--only", "unknown-size")
        assert remedy in capsys.readouterr().out
