"""The commands on small graphs: what they print, write and return."""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path

import pytest

from commcc import verify as verifier
from commcc.cli import session as session_module
from commcc.cli.main import run
from commcc.cli.session import Session
from commcc.verify.verdict import Finding, Verdict


def tensor(rows: int) -> str:
    return f'"f32[{rows}, 8][8, 1]cuda:0"'


def collective(name: str, rows: int, call: str) -> str:
    return f"        {name}: {tensor(rows)} = torch.ops._c10d_functional.{call}\n"


def product(name: str, left: str, right: str) -> str:
    return f"        {name}: {tensor(16)} = torch.ops.aten.mm.default({left}, {right})\n"


def gathered(i: str, parameter: str) -> str:
    launch = collective(f"ag{i}", 8, f"all_gather_into_tensor.default({parameter}, 2, '0');  {parameter} = None")
    return launch + collective(f"w{i}", 8, f"wait_tensor.default(ag{i});  ag{i} = None")


def reduced(i: str, wait: str, gradient: str) -> str:
    launch = collective(f"rs{i}", 8, f"reduce_scatter_tensor.default({gradient}, 'avg', 2, '0')")
    return launch + collective(wait, 8, f"wait_tensor.default(rs{i});  rs{i} = None")


PARAMETERS = ", ".join(f"primals_{i}: {tensor(4)}" for i in (1, 2, 3))
FSDP = (
    "class GraphModule(torch.nn.Module):\n"
    f"    def forward(self, {PARAMETERS}, tangents_1: {tensor(16)}):\n"
    + gathered("", "primals_1")
    + product("mm", "tangents_1", "w")
    + gathered("_1", "primals_2")
    + product("mm_1", "mm", "w_1")
    + gathered("_2", "primals_3")
    + product("mm_2", "mm_1", "w_2")
    + reduced("", "w_3", "mm")
    + reduced("_1", "w_4", "mm_1")
    + "        return (mm_2, w_3, w_4)\n"
)

METRICS = {"nodes", "compute_nodes", "collectives", "bytes", "groups", "max_consecutive_compute"}
COSTED = {"step_ms", "compute_ms", "communication_ms", "exposed_ms", "hidden_share", "lower_bound_ms"} | {
    *("peak_bytes", "in_flight_bytes"),
}


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "g.fx.txt"
    path.write_text(FSDP)
    return path


def ok(*arguments: object) -> None:
    assert run([str(a) for a in arguments]) == 0


def output(capsys) -> str:
    return capsys.readouterr().out


def document(capsys) -> dict:
    return json.loads(output(capsys))


def refused(capsys, *arguments: object, code: int = 2) -> str:
    """Run a command that must fail with one line on standard error; that line."""
    assert run([str(a) for a in arguments]) == code
    out, err = capsys.readouterr()
    if "--json" in arguments:
        assert err == f"commcc: error: {json.loads(out)['error']['message']}\n"
    else:
        assert out == ""
    assert len(err.splitlines()) == 1, err
    return err


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_bucket_writes_beside_the_input(graph, capsys):
    ok("bucket", graph)
    out = output(capsys)
    assert files(graph.parent) == {"g.fx.txt", "g.bucket.fx.txt"}
    assert graph.read_text() == FSDP
    assert "all_gather launches" in out and "before" in out and "after" in out
    assert "proved to be the same program" in out
    assert out.rstrip().endswith(str(graph.with_name("g.bucket.fx.txt")))


def test_bucket_json_has_the_documented_shape(graph, capsys):
    ok("bucket", graph, "--bucket-cap-mb", "25", "--json")
    doc = document(capsys)
    assert list(doc) == [
        *("schema", "command", "input", "output", "verified", "options", "cost_model", "hints", "before", "after"),
        *("passes", "verdicts", "warnings", "notes"),
    ]
    assert (doc["schema"], doc["command"], doc["verified"]) == (1, "bucket", "proved")
    assert (doc["input"], doc["output"]) == (str(graph), str(graph.with_name("g.bucket.fx.txt")))
    assert doc["options"]["bucket_cap_mb"] == 25
    assert doc["options"]["max_topo_span"] == 1500
    assert set(doc["before"]) == set(doc["after"]) == METRICS | COSTED
    assert set(doc["cost_model"]) == {"name", "hash", "sources"} and doc["hints"] == []
    assert doc["before"]["collectives"] == {"all_gather": 3, "reduce_scatter": 2, "all_reduce": 0, "all_to_all": 0}
    assert doc["after"]["collectives"]["all_gather"] == doc["after"]["collectives"]["reduce_scatter"] == 1
    (step,) = doc["passes"]
    assert set(step) == {"name", "options", "changed", "dropped", "seconds", "phases", "report", "metrics"}
    assert (step["name"], step["options"], step["changed"]) == ("bucket", "bucket{bucket_cap_mb=25}", True)
    assert step["report"]["buckets"] == 2


def test_bucket_quiet_prints_the_path_only(graph, capsys):
    ok("bucket", graph, "-q", "-o", graph.with_name("out.fx.txt.gz"))
    out, err = capsys.readouterr()
    assert out == f"{graph.with_name('out.fx.txt.gz')}\n"
    assert err == ""


def test_two_runs_give_the_same_bytes(graph, capsys):
    written = [graph.with_name(f"{name}.fx.txt.gz") for name in "ab"]
    for path in written:
        ok("bucket", graph, "-o", path)
    assert written[0].read_bytes() == written[1].read_bytes()


def test_nothing_to_merge_is_said_and_still_written(graph, capsys):
    ok("bucket", graph, "--max-topo-span", "0")
    assert "changed nothing" in output(capsys)
    assert graph.with_name("g.bucket.fx.txt").exists()


def test_tag_then_bucket(graph, capsys):
    tagged = graph.with_name("tagged.fx.txt")
    ok("tag", graph, "-o", tagged)
    ok("bucket", tagged, "--json")
    capsys.readouterr()
    ok("verify", graph, graph.with_name("tagged.bucket.fx.txt"), "-q")
    assert output(capsys) == "proved\n"


@pytest.mark.parametrize("name", ["g.fx.txt", "./g.fx.txt", "link.fx.txt", "hard.fx.txt"])
@pytest.mark.parametrize("command", ["bucket", "convert"])
def test_the_input_is_never_overwritten(command, name, graph, capsys, monkeypatch):
    monkeypatch.chdir(graph.parent)
    Path("link.fx.txt").symlink_to("g.fx.txt")
    Path("hard.fx.txt").hardlink_to("g.fx.txt")
    assert "overwrite the input" in refused(capsys, command, "g.fx.txt", "-o", name)
    assert graph.read_text() == FSDP


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("x.onnx", ".pt2"),
        ("x", ".fx.txt"),
        ("g.fx.txt/x.fx.txt", "not a folder"),
        (".", "extension"),
        ("d.pt2", "folder"),
    ],
)
def test_outputs_that_cannot_be_written_are_refused_first(target, words, graph, capsys, monkeypatch):
    monkeypatch.chdir(graph.parent)
    Path("d.pt2").mkdir()
    before = files(graph.parent)
    assert words in refused(capsys, "bucket", "g.fx.txt", "-o", target)
    assert files(graph.parent) == before


@pytest.mark.parametrize("others", [True, False])
def test_inspect_says_what_no_figure_counts(tmp_path, capsys, others):
    """Point-to-point messages are no collectives, but not nothing either."""
    path = tmp_path / "pipeline.fx.txt"
    path.write_text(
        f"def forward(self, x: {tensor(4)}, primals_1: {tensor(4)}, group):\n"
        + (gathered("", "primals_1") if others else "")
        + "        send = torch.ops.c10d.send.default([x], group, 2, 0)\n        return (x,)\n"
    )
    ok("inspect", path, "--json")
    assert document(capsys)["unknown_communication"] == ["send"]
    ok("inspect", path)
    text = " ".join(output(capsys).split())
    assert "1 op communicates in an unknown way (send): no figure counts the time and bytes of that" in text
    assert "no collectives" not in text
    path.write_text(FSDP)
    ok("inspect", path, "--json")
    assert "unknown_communication" not in document(capsys)


@pytest.mark.parametrize("command", ["inspect", "bucket", "tag"])
def test_missing_input(command, graph, capsys):
    err = refused(capsys, command, graph.with_name("gg.fx.txt"))
    assert "no such file (did you mean 'g.fx.txt'?)" in err


@pytest.mark.parametrize(
    "text",
    [
        FSDP.replace("aten.mm.default(mm, w_1)", "aten.mm.default(nobody, w_1)"),
        FSDP.replace("torch.ops.aten.mm.default(mm, w_1)", "__import__('os').system('touch owned')"),
        FSDP[: len(FSDP) // 2],
        "",
        "[" * 100_000,
        "\0\1\2",
    ],
    ids=["unknown name", "code", "truncated", "empty", "brackets", "binary"],
)
def test_bad_files_give_one_line_and_no_output(text, graph, capsys):
    graph.write_text(text)
    for command in ("inspect", "bucket"):
        assert str(graph) in refused(capsys, command, graph)
    assert files(graph.parent) == {"g.fx.txt"}


def answering(monkeypatch, verdict: Verdict) -> None:
    monkeypatch.setattr(verifier, "verify", lambda _before, _after, **_options: verdict)


def test_a_different_result_is_a_bug_and_is_not_written(graph, capsys, monkeypatch):
    answering(monkeypatch, Verdict("different", findings=(Finding("value", "mm_1", "other operand"),)))
    err = refused(capsys, "bucket", graph, code=3)
    assert "not the same program" in err and "report" in err
    assert files(graph.parent) == {"g.fx.txt"}


UNPROVED = Verdict("unproved", unproved=(Finding("value", "mm_1", "symbolic size"),))


def test_an_unproved_result_is_written_with_a_warning(graph, capsys, monkeypatch):
    answering(monkeypatch, UNPROVED)
    ok("bucket", graph)
    out, err = capsys.readouterr()
    assert err.startswith("warning: not proved") and "mm_1: symbolic size" in err
    assert "NOT PROVED" in out
    assert graph.with_name("g.bucket.fx.txt").exists()


def test_an_unproved_result_is_refused_on_request(graph, capsys, monkeypatch):
    answering(monkeypatch, UNPROVED)
    assert "not proved" in refused(capsys, "bucket", graph, "--require-proof", code=1)
    assert files(graph.parent) == {"g.fx.txt"}


def test_inspect(graph, capsys):
    ok("inspect", graph)
    out = output(capsys)
    assert "fsdp" in out and "primary" in out and "most exposed 5 of 5" in out
    ok("inspect", graph, "--all")
    assert "gathers primals_1" in output(capsys)
    ok("inspect", graph, "-q")
    assert output(capsys) == "18 nodes, 3 all_gather, 2 reduce_scatter\n"


def test_inspect_json(graph, capsys):
    ok("inspect", graph, "--json")
    doc = document(capsys)
    assert set(doc) == {
        *("schema", "command", "input", "format", "fingerprint", "graph", "primary", "groups", "collectives"),
        *("warnings", "notes", "cost_model", "hints", "provenance", "in_flight_at_start", "in_flight_at_end"),
    }
    assert set(doc["graph"]) == METRICS | COSTED
    assert doc["primary"] == "0"
    assert [each["name"] for each in doc["collectives"]] == ["ag", "ag_1", "ag_2", "rs", "rs_1"]
    first = doc["collectives"][0]
    assert (first["kind"], first["role"], first["group"], first["group_size"]) == ("all_gather", "fsdp", "0", 2)
    assert (first["input_bytes"], first["output_bytes"], first["wire_bytes"]) == (128, 256, 128)
    (group,) = doc["groups"]
    assert (group["name"], group["size"], group["roles"]) == ("0", 2, {"fsdp": 5})


LOG = "".join(f" ===== {title} =====\n /somewhere.py {FSDP}\n" for title in ("Forward graph 0", "Backward graph 0"))


def test_several_graphs_are_listed_and_chosen(graph, capsys):
    log = graph.with_name("run.log")
    log.write_text(LOG)
    ok("inspect", log, "--json")
    doc = document(capsys)
    assert len(doc["graphs"]) == 2
    name = doc["graphs"][1]["name"]
    ok("inspect", log)
    out = output(capsys)
    assert "holds 2 graphs" in out and name in out
    assert doc["graphs"][0]["collectives"]["all_gather"] and doc["graphs"][0]["step_ms"] > 0
    assert doc["graphs"][0]["graph"] == f"{log}::{doc['graphs'][0]['name']}"
    ok("inspect", log, "-q")
    assert output(capsys).splitlines()[1] == f"{log}::{name}"
    ok("inspect", f"{log}::{name}", "-q")
    assert output(capsys).startswith("18 nodes")
    assert "holds 2 graphs" in refused(capsys, "bucket", log)
    ok("bucket", f"{log}::{name}", "-q")
    assert Path(output(capsys).strip()).exists()


def test_listed_steps_of_unknown_sizes(graph, capsys):
    log = graph.with_name("run.log")
    log.write_text(LOG + LOG.replace("f32[8, 8]", "f32[u0, 8]"))
    ok("inspect", log, "--json")
    assert ["unknown_sizes" in each for each in document(capsys)["graphs"]] == [False, False, True, True]


def test_a_folder_of_graphs_is_listed(graph, tmp_path, capsys):
    """As lint reads it; a file that cannot be read is named, and the others are shown."""
    inner = tmp_path / "dumps" / "rank0"
    inner.mkdir(parents=True)
    for name in ("fw.fx.txt", "bw.fx.txt"):
        (inner / name).write_text(graph.read_text())
    (inner / "broken.fx.txt").write_text("nothing")
    ok("inspect", tmp_path / "dumps", "--json")
    graphs = document(capsys)["graphs"]
    assert [each["name"] for each in graphs] == ["rank0/broken.fx.txt", "rank0/bw.fx.txt", "rank0/fw.fx.txt"]
    assert [("step_ms" in each, "error" in each) for each in graphs] == [(False, True), (True, False), (True, False)]
    ok("inspect", tmp_path / "dumps")
    assert "holds 3 graphs" in output(capsys)


def test_a_folder_of_texts_lists_what_lint_checks(graph, tmp_path, capsys):
    """A torch_compile_debug folder and collected logs hold no graph files; what is no graph is left out."""
    inner = tmp_path / "debug" / "run_1"
    inner.mkdir(parents=True)
    for name in ("fx_graph_readable.py", "graph_10.txt", "graph_9.txt"):
        (inner / name).write_text(graph.read_text())
    (inner / "ir_pre_fusion.txt").write_text("op0: SchedulerNode(ComputedBuffer)")
    ok("inspect", tmp_path / "debug", "--json")
    names = [each["name"] for each in document(capsys)["graphs"]]
    assert names == ["run_1/fx_graph_readable.py", "run_1/graph_9.txt", "run_1/graph_10.txt"]
    ok("lint", tmp_path / "debug", "--json")
    assert [Path(each["graph"]).name for each in document(capsys)["graphs"]] == [Path(name).name for name in names]


def test_verify(graph, capsys):
    other = graph.with_name("other.fx.txt")
    ok("verify", graph, graph)
    assert output(capsys).startswith("proved")
    other.write_text(FSDP.replace("return (mm_2, w_3, w_4)", "return (mm_2, w_4, w_3)"))
    assert run(["verify", str(graph), str(other)]) == 1
    assert output(capsys).startswith("different")
    assert run(["verify", str(graph), str(other), "--json"]) == 1
    doc = document(capsys)
    assert set(doc) == {"schema", "command", "inputs", "verified", "verdict", "numeric", "memory"}
    assert doc["verified"] == "different"
    assert doc["verdict"]["findings"][0]["rule"]


def test_verify_tells_unproved_from_different(graph, capsys, monkeypatch):
    answering(monkeypatch, UNPROVED)
    assert run(["verify", str(graph), str(graph)]) == 1
    out = output(capsys)
    assert out.startswith("not proved") and "symbolic size" in out
    assert run(["verify", str(graph), str(graph), "-q"]) == 1
    assert output(capsys) == "unproved\n"


def test_diff(graph, capsys):
    ok("bucket", graph, "-q")
    after = output(capsys).strip()
    ok("diff", graph, after)
    out = output(capsys)
    assert "merged: 5 collectives into 2" in out and "nodes added" in out
    ok("diff", graph, after, "--json")
    doc = document(capsys)
    assert {tuple(m["members"]) for m in doc["merged"]} == {("ag", "ag_1", "ag_2"), ("rs", "rs_1")}
    ok("diff", graph, after, "-q")
    assert output(capsys).startswith("2 merged")
    ok("diff", graph, graph)
    assert output(capsys).startswith("identical")


def test_convert(graph, capsys):
    pt2, back = graph.with_name("g.pt2"), graph.with_name("back.fx.txt.gz")
    ok("convert", graph, "-o", pt2)
    ok("convert", pt2, "-o", back, "--json")
    capsys.readouterr()
    ok("diff", graph, back)
    assert output(capsys).startswith("identical")


def test_convert_says_what_is_lost(graph, capsys, monkeypatch):
    from commcc import serialization
    from commcc.graph.program import Note

    monkeypatch.setattr(serialization, "save", lambda _program, _path: (Note("has no place for flavour", "mm"),))
    ok("convert", graph, "-o", graph.with_name("x.pt2"))
    assert "not held by the format" in (out := output(capsys)) and "flavour" in out
    ok("convert", graph, "-o", graph.with_name("x.pt2"), "--json")
    assert document(capsys)["lost"] == [{"text": "has no place for flavour", "node": "mm"}]


@pytest.mark.parametrize("columns", [80, 140])
def test_tables_fit_the_terminal(columns, graph, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    ok("bucket", graph, "-o", graph.with_name("o.fx.txt"))
    for command in (["inspect", graph, "--all"], ["diff", graph, graph.with_name("o.fx.txt")], ["passes", "bucket"]):
        ok(*command)
    assert max(map(len, output(capsys).splitlines())) <= max(columns, len(str(graph)) + 60)


def test_piped_tables_are_neither_wrapped_nor_coloured(graph, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    ok("inspect", graph, "--all")
    out = output(capsys)
    assert "\x1b" not in out
    assert not any(line.endswith(" ") for line in out.splitlines())
    assert any("ag_1" in line and "gathers primals_2" in line for line in out.splitlines())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_appears_on_a_terminal_when_work_takes_long(monkeypatch):
    monkeypatch.setattr(session_module, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    session = Session()
    with session.working("reading"):
        pass
    assert terminal.getvalue() == ""
    with session.working("reading") as say:
        say("planning")
        time.sleep(0.3)
    assert "planning" in terminal.getvalue()
    seen = len(terminal.getvalue())
    session.quiet = True
    with session.working("reading"):
        time.sleep(0.1)
    assert len(terminal.getvalue()) == seen
