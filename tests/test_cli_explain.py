"""``commcc explain``: what it prints, as JSON and for people, and what it refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.test_cli_commands import FSDP, collective, document, ok, output, product, refused, tensor

if TYPE_CHECKING:
    from pathlib import Path

SAMPLE = "sample_graphs/tiny_llama_fsdp4_bw.fx.txt.gz"
#: Keys that other reports and users rely on.
KEYS = {"name", "kind", "group", "role", "exposed_ms", "total_ms", "reasons", "knobs", "summary", "move", "picture"}


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "g.fx.txt"
    path.write_text(FSDP)
    return path


def test_json_has_the_documented_shape(graph, capsys):
    ok("explain", graph, "ag_1", "--json")
    doc = document(capsys)
    assert list(doc) == [
        *("schema", "command", "input", "fingerprint", "cost_model", "hints", "limits", "graph", "collectives"),
        "warnings",
    ]
    assert (doc["schema"], doc["command"], doc["input"]) == (1, "explain", str(graph))
    assert set(doc["limits"]) == {"max_compute_prefetch", "max_in_flight_gb", "memory_budget"}
    (found,) = doc["collectives"]
    assert set(found) >= KEYS
    assert (found["name"], found["waits"], found["kind"], found["role"]) == ("ag_1", ["w_1"], "all_gather", "fsdp")
    assert 0 < found["exposed_ms"] < doc["graph"]["exposed_ms"] / 4
    for reason in found["reasons"]:
        assert set(reason) == {"kind", "text", "path", "saves_ms", "simulated"}
    for knob in found["knobs"]:
        assert set(knob) == {"text", "pass", "saves_ms", "besides"}


def test_two_runs_print_the_same(graph, capsys):
    ok("explain", graph, "ag_1", "--json")
    first = output(capsys)
    ok("explain", graph, "w_1", "--json")
    assert output(capsys) == first


def test_one_in_full(graph, capsys):
    ok("explain", graph, "rs")
    out = output(capsys)
    for part in (
        "rs  0.", "exposed", "what could hide it", "why it is exposed", "what would change it", "  compute  ",
        "group 0", "bytes", "by h100-sxm", "without it the step",
        "= compute  . compute stalls  # this collective", "reduce_scatter for fsdp on group 0 (2 ranks)",
    ):  # fmt: skip
        assert part in out
    drawn = [line for line in out.splitlines() if line.startswith(("  compute ", "  group 0 "))]
    assert [set(line[11:].strip()) <= set(signs) for line, signs in zip(drawn, ("=.", "#- "), strict=True)] == [
        True
    ] * 2
    marks = out.splitlines()[out.splitlines().index(drawn[0]) - 1]
    assert set(marks) <= set(" LWE")
    assert "#" in drawn[1]


def test_the_worst_by_default_and_by_number(graph, capsys):
    ok("explain", graph, "--json")
    worst = document(capsys)["collectives"]
    assert len(worst) == 3
    assert [each["exposed_ms"] for each in worst] == sorted((each["exposed_ms"] for each in worst), reverse=True)
    ok("explain", graph, "--worst", "2")
    out = output(capsys)
    assert "2 collectives with most exposed time" in out
    assert out.count("why it is exposed") == 2
    assert "one in full: commcc explain GRAPH COLLECTIVE" in out
    ok("explain", graph, "--worst", "99", "--quiet")
    lines = output(capsys).splitlines()
    assert len(lines) == 5
    assert all("exposed (" in line for line in lines)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.sampled(1)
def test_it_fits_the_terminal(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    ok("explain", SAMPLE)
    ok("explain", SAMPLE, "reduce_scatter_tensor")
    lines = output(capsys).splitlines()
    assert max(map(len, lines)) <= width
    assert any(line.count("#") > width // 3 for line in lines)


def test_limits_are_taken_and_shown(graph, capsys):
    given = ("--max-compute-prefetch", "none", "--max-in-flight-gb", "5", "--memory-budget", "0.5")
    ok("explain", graph, "ag_1", "--json", *given)
    limits = document(capsys)["limits"]
    assert limits == {"max_compute_prefetch": None, "max_in_flight_gb": 5.0, "memory_budget": 1 << 29}
    ok("explain", graph, "ag_1", "--json", "--max-compute-prefetch", "7", "--max-in-flight-gb", "none")
    doc = document(capsys)
    assert (doc["limits"]["max_compute_prefetch"], doc["limits"]["max_in_flight_gb"]) == (7, None)
    assert doc["limits"]["memory_budget"] == doc["graph"]["peak_bytes"] + (1 << 30)


def test_a_window_of_none_allows_no_move(capsys):
    """With no compute node between launch and wait, all that is left are reasons."""
    ok("explain", SAMPLE, "all_gather_into_tensor_5", "--json")
    free = document(capsys)["collectives"][0]
    assert free["move"]["launch_earlier"] > 0
    ok("explain", SAMPLE, "all_gather_into_tensor_5", "--json", "--max-compute-prefetch", "0")
    held = document(capsys)["collectives"][0]
    assert held["move"] is None
    window = next(reason for reason in held["reasons"] if reason["kind"] == "window")
    assert window["saves_ms"] > 0
    assert window["text"].startswith("At most 0 compute nodes may stand between launch and wait")


def test_other_costs_give_other_times(graph, capsys):
    times = []
    for cost in ("h100", "mi300x,launch_us=5"):
        ok("explain", graph, "ag", "--json", "--cost", cost)
        doc = document(capsys)
        times.append((doc["cost_model"]["hash"], doc["collectives"][0]["total_ms"]))
    assert times[0][0] != times[1][0]
    assert times[0][1] != times[1][1]


def test_the_command_that_a_knob_names_works(capsys, tmp_path):
    ok("explain", SAMPLE, "reduce_scatter_tensor_3", "--json")
    knobs = [knob for knob in document(capsys)["collectives"][0]["knobs"] if knob["pass"] == "bucket"]
    assert knobs
    command = knobs[0]["text"].split("'commcc ")[1].split("'")[0].split()
    ok(command[0], SAMPLE, *command[1:], "-o", tmp_path / "merged.fx.txt", "--json")
    doc = document(capsys)
    assert doc["after"]["collectives"]["reduce_scatter"] < doc["before"]["collectives"]["reduce_scatter"]
    assert doc["after"]["communication_ms"] < doc["before"]["communication_ms"]


def test_hidden_collectives_say_what_hides_them(tmp_path, capsys):
    path = tmp_path / "hidden.fx.txt"
    left = 'primals_1: "f32[4, 8][8, 1]cuda:0", a: "f32[4096, 4096][4096, 1]cuda:0"'
    big = '"f32[4096, 4096][4096, 1]cuda:0"'
    path.write_text(
        "class GraphModule(torch.nn.Module):\n"
        f"    def forward(self, {left}):\n"
        + collective("ag", 8, "all_gather_into_tensor.default(primals_1, 2, '0')")
        + f"        mm: {big} = torch.ops.aten.mm.default(a, a)\n"
        + collective("w", 8, "wait_tensor.default(ag)")
        + "        return (mm, w)\n"
    )
    ok("explain", path, "ag")
    out = output(capsys)
    assert "hidden, all of its" in out
    assert "overlapped by " in out and " of work, 1 compute node: mm" in out
    assert "why it is exposed" not in out
    ok("explain", path)
    assert "no collective is exposed" in output(capsys)
    ok("explain", path, "-q")
    assert output(capsys) == "no collective is exposed\n"
    ok("explain", path, "ag", "-q")
    assert output(capsys).startswith("ag: hidden, all of its")


def test_graphs_without_collectives(tmp_path, capsys):
    path = tmp_path / "none.fx.txt"
    head = f"class GraphModule(torch.nn.Module):\n    def forward(self, x: {tensor(16)}, y: {tensor(16)}):\n"
    path.write_text(head + product("mm", "x", "y") + "        return (mm,)\n")
    ok("explain", path, "--json")
    assert document(capsys)["collectives"] == []
    assert "the graph has no collectives" in refused(capsys, "explain", path, "mmm")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ag_9"], "no node 'ag_9' in the graph (did you mean"),
        (["ag_9"], "'commcc inspect GRAPH --all' lists the collectives"),
        (["mm_1"], "'mm_1' is no collective but aten.mm; name a launch or its wait"),
        (["ag_1", "--worst", "2"], "COLLECTIVE and --worst exclude each other"),
        (["--worst", "0"], "--worst"),
        (["--max-compute-prefetch", "many"], "'many' is neither a number from 0 nor 'none'"),
        (["--max-in-flight-gb", "-1"], "'-1' is neither a number from 0 nor 'none'"),
        (["--memory-budget", "lots"], "--memory-budget"),
        (["--cost", "none"], "needs costs"),
        (["--cost", "h1000"], "h1000"),
    ],
)
def test_wrong_use_is_one_line(arguments, said, graph, capsys):
    assert said in refused(capsys, "explain", graph, *arguments)


def test_names_from_a_file_cannot_drive_the_terminal(tmp_path, capsys):
    path = tmp_path / "evil.fx.txt"
    path.write_text(FSDP.replace("'0'", "'0\\x1b[31m'"))
    ok("explain", path, "rs")
    out = output(capsys)
    assert "\x1b" not in out
    ok("explain", path, "rs", "--json")
    assert json.loads(output(capsys))["collectives"][0]["group"] == "0\x1b[31m"
