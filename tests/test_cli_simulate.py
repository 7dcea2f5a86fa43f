"""``commcc simulate``, and what ``--cost`` and ``--hint`` do in the other commands."""

from __future__ import annotations

import gzip
import json
import math
import re
from pathlib import Path

import pytest

from commcc import verify as verifier
from commcc.base.errors import OptionError
from commcc.cli.main import run
from tests.test_cli_commands import COSTED, FSDP, UNPROVED, document, files, ok, output, refused
from tests.test_cli_shell import completions
from tests.trace_checker import read_trace

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
MOE = SAMPLES / "tiny_moe_fsdp4_ep2_bw.fx.txt.gz"
LLAMA = SAMPLES / "tiny_llama_fsdp2_tp2_bw.fx.txt.gz"


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "g.fx.txt"
    path.write_text(FSDP)
    return path


def simulated(capsys, *arguments: object) -> dict:
    ok("simulate", *arguments, "--json")
    return document(capsys)


def test_tables(graph, capsys):
    ok("simulate", graph)
    out, err = capsys.readouterr()
    for words in ("step time", "peak memory", "critical path", "streams", "group 0", "matmul", "priced by"):
        assert words in out, out
    assert "most exposed 5 of 5 collectives" in out
    assert out.count("times simulated with h100-sxm, hash ") == 2
    assert err.startswith("warning: cost model: ")  # nothing says where the ranks sit
    assert files(graph.parent) == {"g.fx.txt"}


def test_json_of_one_graph(graph, capsys):
    doc = simulated(capsys, graph)
    assert list(doc) == [
        *("schema", "command", "input", "after", "passes", "verified", "trace", "html", "cost_model", "hints"),
        *("graphs", "warnings"),
    ]
    assert (doc["schema"], doc["command"], doc["input"]) == (1, "simulate", str(graph))
    assert doc["after"] is doc["passes"] is doc["verified"] is doc["trace"] is doc["html"] is None
    (side,) = doc["graphs"]
    assert set(side) == {
        *("label", "fingerprint", "metrics", "launch_ms", "slowed_ms", "bound", "streams", "families", "sources"),
        *("peak_at", "input_bytes", "collectives", "in_flight_at_start", "in_flight_at_end", "tail_ms"),
    }
    assert set(side["metrics"]) >= COSTED and len(side["collectives"]) == 5
    assert set(side["collectives"][0]) >= {"ms", "exposed_ms", "hidden_share", "priced_by", "how", "latency_ms"}


@pytest.mark.parametrize("sample", [MOE, LLAMA], ids=lambda path: path.name)
@pytest.mark.parametrize("cost", ["h100", "a100,slowdown=1.3,share_link=all,launch_us=7,fused=no"])
def test_the_figures_add_up(sample, cost, capsys):
    doc = simulated(capsys, sample, "--cost", cost)
    (side,) = doc["graphs"]
    metrics = side["metrics"]
    parts = ("compute_ms", "exposed_ms")
    whole = sum(metrics[key] for key in parts) + side["launch_ms"] + side["slowed_ms"]
    assert math.isclose(metrics["step_ms"], whole, abs_tol=1e-5)
    compute, *lanes = side["streams"]
    assert math.isclose(compute["ms"], metrics["step_ms"] - metrics["exposed_ms"], abs_tol=1e-5)
    assert math.isclose(sum(lane["ms"] for lane in lanes), metrics["communication_ms"], abs_tol=1e-5)
    assert math.isclose(sum(lane["exposed_ms"] for lane in lanes), metrics["exposed_ms"], abs_tol=1e-5)
    assert math.isclose(sum(each["ms"] for each in side["families"]), metrics["compute_ms"], abs_tol=1e-4)
    priced = sum(source["ms"] for source in side["sources"])
    assert math.isclose(priced, metrics["compute_ms"] + metrics["communication_ms"], abs_tol=1e-4)
    assert math.isclose(sum(c["exposed_ms"] for c in side["collectives"]), metrics["exposed_ms"], abs_tol=1e-4)
    assert side["bound"]["ms"] == max(side["bound"]["parts"].values()) <= metrics["step_ms"]
    assert doc["cost_model"]["sources"] == side["sources"]


def test_before_and_after_from_two_files(graph, capsys):
    ok("bucket", graph, "--json")
    bucketed = document(capsys)
    doc = simulated(capsys, graph, graph.with_name("g.bucket.fx.txt"))
    assert [side["label"] for side in doc["graphs"]] == ["before", "after"]
    assert doc["verified"] is None and doc["after"].endswith("g.bucket.fx.txt")
    assert [side["metrics"] for side in doc["graphs"]] == [bucketed["before"], bucketed["after"]]
    assert doc["cost_model"] == bucketed["cost_model"]
    ok("diff", graph, graph.with_name("g.bucket.fx.txt"), "--json")
    found = document(capsys)
    assert (found["before"], found["after"]) == (bucketed["before"], bucketed["after"])
    assert found["cost_model"] == bucketed["cost_model"]


def test_before_and_after_by_passes(graph, capsys):
    doc = simulated(capsys, graph, "--passes", "tag, bucket{bucket_cap_mb=25}")
    assert doc["passes"] == "tag,bucket{bucket_cap_mb=25}" and doc["verified"] == "proved"
    before, after = (side["metrics"] for side in doc["graphs"])
    assert (before["collectives"]["all_gather"], after["collectives"]["all_gather"]) == (3, 1)
    assert after["step_ms"] < before["step_ms"]
    assert files(graph.parent) == {"g.fx.txt"}
    ok("simulate", graph, "--passes", "bucket")
    out = output(capsys)
    assert "proved to be the same program" in out and "before: most exposed" in out and "after: most exposed" in out
    ok("simulate", graph, "--passes", "bucket", "-q")
    line = output(capsys)
    assert line.startswith("step 0.") and " -> " in line and line.endswith(f"hash {doc['cost_model']['hash']})\n")


def test_an_unproved_rewrite_is_shown_with_a_warning(graph, capsys, monkeypatch):
    monkeypatch.setattr(verifier, "verify", lambda _before, _after: UNPROVED)
    ok("simulate", graph, "--passes", "bucket")
    out, err = capsys.readouterr()
    assert "NOT PROVED" in out and "warning: not proved" in err


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_trace(name, graph, capsys):
    path = graph.with_name(name)
    doc = simulated(capsys, graph, "--passes", "bucket", "--trace", path)
    assert doc["trace"] == str(path) and files(graph.parent) == {"g.fx.txt", name}
    data = path.read_bytes()
    trace = read_trace(gzip.decompress(data) if name.endswith(".gz") else data)
    assert [about["process_name"] for about in trace.processes.values()] == ["before", "after"]
    exposed = [sum(s.ns for s in trace.thread(pid, "compute") if s.category == "stall") / 1e6 for pid in (1, 2)]
    assert exposed == pytest.approx([side["metrics"]["exposed_ms"] for side in doc["graphs"]])
    ok("simulate", graph, "--passes", "bucket", "--trace", path)
    assert path.read_bytes() == data
    assert f"trace written to {path}" in output(capsys)


@pytest.mark.parametrize(
    ("flag", "target", "words"),
    [
        ("--trace", "x.txt", "use .json, .json.gz"),
        ("--trace", "x", "unknown extension"),
        ("--trace", "g.fx.txt/x.json", "'g.fx.txt' is not a folder; choose another with --trace"),
        ("--trace", "d.json", "is a folder"),
        ("--trace", "run.json", "would overwrite the input"),
        ("--trace", "link.json", "would overwrite the input"),
        ("--html", "x.htm", "use .html"),
        ("--html", "d.html", "is a folder"),
    ],
)
def test_outputs_that_cannot_be_written_are_refused_first(flag, target, words, graph, capsys, monkeypatch):
    monkeypatch.chdir(graph.parent)
    Path("d.json").mkdir()
    Path("d.html").mkdir()
    Path("run.json").write_text('{"traceEvents": []}')
    Path("link.json").symlink_to("run.json")
    before = files(graph.parent)
    monkeypatch.setattr("commcc.timing.cost.load_model", lambda _text: None)  # only what is read matters here
    err = refused(capsys, "simulate", "g.fx.txt", "--cost", "h100,profile=run.json", flag, target)
    assert words in err and target in err
    assert files(graph.parent) == before and "traceEvents" in Path("run.json").read_text()


def test_a_table_is_not_written_over_by_a_graph(graph, capsys, monkeypatch):
    monkeypatch.setattr("commcc.timing.cost.load_model", lambda _text: None)
    table = graph.with_name("nccl.txt")
    table.write_text("#")
    assert "overwrite the input" in refused(capsys, "bucket", graph, "--cost", f"h100,table={table}", "-o", table)
    assert table.read_text() == "#"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cost", "h10"], ["unknown device 'h10'", "did you mean 'h100'?"]),
        (["--cost", "none"], ["needs costs", "--cost h100"]),
        (["--cost", "h100,fusd=no,skew=0"], ["did you mean 'fused'?", "skew"]),
        (["--cost", "h100,table=no.yaml"], ["no.yaml"]),
        (["--cost", ""], ["an empty part"]),
        (
            ["--hint", "u0", "--hint", "u1=-1", "--hint", "u2=1e3", "--hint", "u3=1", "--hint", "u3=2"],
            ["'u0' is not SYMBOL=NUMBER", "u1: '-1'", "u2: '1e3'", "u3 is given twice"],
        ),
        (["--hint", "u0=" + "9" * 5000], ["99...' is not a whole number"]),
        (["--passes", "bukcet"], ["did you mean 'bucket'?"]),
        (["g.fx.txt", "--passes", "bucket"], ["AFTER and --passes"]),
        (["nowhere.fx.txt"], ["nowhere.fx.txt: no such file"]),
        (["--top", "-1"], ["--top"]),
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_wrong_use(arguments, words, graph, capsys, monkeypatch):
    monkeypatch.chdir(graph.parent)
    err = refused(capsys, "simulate", "g.fx.txt", *arguments)
    assert all(word in err for word in words), err


def test_a_wrong_cost_file_is_named_with_its_line(graph, capsys):
    device = graph.with_name("mine.yaml")
    device.write_text("name: mine\ntitle: Mine\nlaunch_us: soon\n")
    err = refused(capsys, "inspect", graph, "--cost", device)
    assert "mine.yaml:" in err and "line 3: 'launch_us'" in err


def test_an_empty_pipeline_shows_one_graph_unless_it_is_refused(graph, capsys):
    try:
        from commcc.passes.options import parse_pipeline

        parse_pipeline("")
    except OptionError:
        refused(capsys, "simulate", graph, "--passes", "")
    else:
        assert len(simulated(capsys, graph, "--passes", "")["graphs"]) == 1


def test_hints_change_estimates_and_are_reported(capsys):
    plain = simulated(capsys, MOE)
    ok("simulate", MOE, "-q")
    out, err = capsys.readouterr()
    assert err == "" and out.startswith("step ")
    ok("simulate", MOE)
    said = capsys.readouterr().err
    named = (
        r"note: 4 sizes known only at run time: (u\d+=\d+, ){2}u\d+=\d+ and 1 more \(from the file\); --hint SYMBOL=NUM"
    )
    assert re.search(named, said)
    first = plain["hints"][0]["symbol"]
    assert {hint["source"] for hint in plain["hints"]} == {"file"}
    given = simulated(capsys, MOE, "--hint", f"{first}=100000", "--hint", "*=200000")
    assert {hint["source"] for hint in given["hints"]} == {"given"}
    assert {hint["symbol"]: hint["value"] for hint in given["hints"]}[first] == 100000
    assert given["graphs"][0]["metrics"]["step_ms"] > plain["graphs"][0]["metrics"]["step_ms"]
    assert given["graphs"][0]["fingerprint"] == plain["graphs"][0]["fingerprint"]
    ok("simulate", MOE, "--hint", f"{first}x=3")
    assert f"hint '{first}x' fits no size that is known only at run time (did you mean '" in capsys.readouterr().err


def test_hints_reach_every_command(tmp_path, capsys):
    after = tmp_path / "after.fx.txt"
    hint = ("--hint", "*=200000")
    ok("bucket", MOE, "-o", after, *hint, "--json")
    bucketed = document(capsys)
    assert {h["source"] for h in bucketed["hints"]} == {"given"}
    ok("inspect", MOE, *hint, "--json")
    seen = document(capsys)
    assert seen["graph"] == bucketed["before"] and seen["hints"] == bucketed["hints"]
    ok("diff", MOE, after, *hint, "--json")
    found = document(capsys)
    assert (found["before"], found["after"]) == (bucketed["before"], bucketed["after"])
    ok("tag", MOE, "-o", tmp_path / "tagged.fx.txt", *hint, "--json")
    assert document(capsys)["after"]["step_ms"] == seen["graph"]["step_ms"]


def test_without_costs_nothing_is_simulated(graph, capsys):
    for command in (["inspect", graph], ["bucket", graph], ["diff", graph, graph]):
        ok(*command, "--cost", "none")
        out, err = capsys.readouterr()
        assert "simulated" not in out and " ms" not in out and err == ""
        ok(*command, "--cost", "none", "--json")
        doc = document(capsys)
        assert doc["cost_model"] is None
        assert not COSTED & set(doc.get("graph") or doc["before"])
        assert all("ms" not in each for each in doc.get("collectives", ()))


def test_inspect_shows_costs(graph, capsys):
    ok("inspect", graph)
    out = output(capsys)
    assert "collectives, simulated time" in out and "priced by" in out and "most exposed 5 of 5" in out
    assert out.count("times simulated with") == 2
    ok("inspect", graph, "--all")
    assert "ring" in output(capsys)
    ok("inspect", graph, "--json")
    doc = document(capsys)
    (group,) = doc["groups"]
    assert math.isclose(group["ms"], sum(each["ms"] for each in doc["collectives"]), abs_tol=1e-6)
    assert math.isclose(group["exposed_ms"], doc["graph"]["exposed_ms"], abs_tol=1e-6)
    assert doc["cost_model"]["name"] == doc["collectives"][0]["priced_by"] == "h100-sxm"


def test_answers_are_the_same_to_the_byte(capsys):
    answers = []
    for _ in range(2):
        ok("simulate", LLAMA, "--passes", "bucket{groups=all}", "--json")
        answers.append(output(capsys))
    assert answers[0] == answers[1] and json.loads(answers[0])


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit_the_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    ok("simulate", MOE, "--passes", "bucket", "--cost", "h100,share_link=topology")
    assert max(map(len, output(capsys).splitlines())) <= columns


def test_completion_of_cost_texts():
    assert completions("commcc simulate x --cost h1", 4) == ["h100-sxm"]
    assert "none" in completions("commcc inspect x --cost n", 4)
    assert completions("commcc inspect x --cost h100,tab", 4) == ["h100,table="]


def test_a_refused_rewrite_is_not_shown(graph, capsys, monkeypatch):
    from commcc.verify.verdict import Finding, Verdict

    different = Verdict("different", findings=(Finding("value", "mm_1", "other operand"),))
    monkeypatch.setattr(verifier, "verify", lambda _before, _after: different)
    assert run(["simulate", str(graph), "--passes", "bucket"]) == 3
    assert capsys.readouterr().out == ""


def test_html(graph, capsys):
    path = graph.with_name("report.html")
    doc = simulated(capsys, graph, "--passes", "bucket", "--html", path)
    assert doc["html"] == str(path) and files(graph.parent) == {"g.fx.txt", "report.html"}
    page = path.read_bytes()
    for words in ("g.fx.txt", doc["cost_model"]["hash"], "before", "after", "bucket"):
        assert words.encode() in page, words
    ok("simulate", graph, "--passes", "bucket", "--html", path, "--trace", graph.with_name("t.json"))
    assert path.read_bytes() == page
    ok("simulate", graph, graph, "--html", path)
    assert b"<title>g.fx.txt and g.fx.txt - commcc simulate</title>" in path.read_bytes()
    out = output(capsys)
    assert f"trace written to {graph.with_name('t.json')}" in out and f"page written to {path}" in out
