"""``commcc convert -o OUT.et``: traces that a reader of the bytes understands, and that replay to the same step."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from commcc.report import chakra
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.snapshot import take
from tests.chakra_reader import read, replayed
from tests.lint_graphs import graph
from tests.test_cli_commands import document, files, ok, output, refused

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
HSDP = SAMPLES / "tiny_llama_hsdp_bw.fx.txt.gz"
#: Of the format: numbers of kinds of collectives.
KINDS = {"all_reduce": 0, "all_gather": 2, "all_to_all": 6, "reduce_scatter": 7}


def test_one_file_a_rank(tmp_path, capsys):
    ok("convert", HSDP, "-o", tmp_path / "step.et", "--json")
    doc = document(capsys)
    assert files(tmp_path) == {f"step.{rank}.et" for rank in range(4)} and doc["ranks"] == [0, 1, 2, 3]
    seen = take(load(str(HSDP)), load_model("h100"))
    for rank in range(4):
        version, nodes = read(tmp_path / f"step.{rank}.et")
        assert version == "0.0.4"
        assert [node.id for node in nodes] == list(range(len(nodes)))  # nothing depends on what comes later
        assert all(need < node.id for node in nodes for need in node.needs)
        groups = json.loads(nodes[0].inputs[2:-2])  # as simulators take it out of PyTorch's own traces
        assert nodes[0].type == "METADATA" and all(rank in each["ranks"] for each in groups)
        launched = [node for node in nodes if node.type == "COLL"]
        expected = [(KINDS[str(each.kind)], each.input_bytes, each.group) for each in seen.ident.collectives]
        said = [tuple(node.attributes[key] for key in ("comm_type", "comm_size", "pg_desc")) for node in launched]
        assert sorted(said) == sorted(expected)
        numbers = {each["pg_name"]: each["pg_desc"] for each in groups}
        assert {(node.attributes["pg_name"], node.attributes["pg_desc"]) for node in launched} == set(numbers.items())
        assert launched[0].kinds == {
            **dict.fromkeys(("comm_type", "comm_size"), "int64"),
            **dict.fromkeys(("pg_name", "pg_desc", "op", "module"), "string"),
            "is_cpu_op": "bool",
            "duration_nanos": "uint64",
        }
    # Ranks of one part of a group share its number; other parts have others.
    named = [{node.attributes["pg_name"] for node in read(tmp_path / f"step.{rank}.et")[1][1:] if node.type == "COLL"}
             for rank in range(4)]  # fmt: skip
    assert len(set().union(*named)) == 4 and len(named[0] | named[1]) == 3


@pytest.mark.parametrize("passes", [None, "reorder", "bucket,reorder"])
def test_a_replay_takes_as_long_as_the_simulated_step(passes, tmp_path, capsys):
    source = SAMPLES / "tiny_llama_fsdp4_bw.fx.txt.gz"
    if passes is not None:
        ok("run", source, "--passes", passes, "-o", tmp_path / "after.fx.txt", "-q")
        source = tmp_path / "after.fx.txt"
        output(capsys)
    ok("convert", source, "-o", tmp_path / "step.et", "--ranks", "1", "--json")
    doc = document(capsys)
    _, nodes = read(tmp_path / "step.1.et")
    assert abs(replayed(nodes) - doc["step_ms"] * 1000) <= 2
    counts = Counter({"COLL": "COMM_COLL"}.get(node.type, node.type) for node in nodes[1:])
    assert doc["nodes"] == counts


def test_ten_thousand_ranks(tmp_path, capsys):
    text = graph("a", "g = gather(a)", "w = wait_wide(g)", "h = half(w)", "m = mm(h, h)", returns="m")
    (tmp_path / "g.fx.txt").write_text(text.replace(", 2, '0')", ", 10000, '0')").replace("16, 8", "80000, 8"))
    ok("convert", tmp_path / "g.fx.txt", "-o", tmp_path / "step.et", "--ranks", "0,5000-5001,9999", "--json")
    assert document(capsys)["world"] == 10_000
    assert files(tmp_path) == {"g.fx.txt", *(f"step.{rank}.et" for rank in (0, 5000, 5001, 9999))}
    _, nodes = read(tmp_path / "step.9999.et")
    assert json.loads(nodes[0].inputs[2:-2])[0]["ranks"] == list(range(10_000))


def test_wrong_use(tmp_path, capsys, monkeypatch):
    target = tmp_path / "step.et"
    assert "no rank of 0 to 3" in refused(capsys, "convert", HSDP, "-o", target, "--ranks", "3-4")
    assert "need costs" in refused(capsys, "convert", HSDP, "-o", target, "--cost", "none")
    assert "--ranks: only .et files" in refused(capsys, "convert", HSDP, "-o", tmp_path / "x.fx.txt", "--ranks", "0")
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    assert "takes protobuf; pip install 'commcc[chakra]'" in refused(capsys, "convert", HSDP, "-o", target)
    assert files(tmp_path) == set()


def test_what_the_format_cannot_hold_is_limited(tmp_path, capsys):
    text = graph("a", "g = gather(a)", "w = wait_wide(g)", "m = mm(a, a)", returns="w, m")
    side = 2 * 10**6
    large = text.replace("[8, 8][8, 1]", f"[{side}, {side}][{side}, 1]").replace(", 2, '0')", ", 2, 'a\\ud800')")
    (tmp_path / "g.fx.txt").write_text(large)
    ok("convert", tmp_path / "g.fx.txt", "-o", tmp_path / "step.et", "--json")
    _, nodes = read(tmp_path / "step.1.et")
    (launched,) = (node for node in nodes if node.type == "COLL")
    (matmul,) = (node for node in nodes if node.attributes.get("num_ops"))
    assert matmul.attributes["num_ops"] == (1 << 63) - 1  # 2 * side ** 3 is more
    assert launched.attributes["pg_desc"] == "a\\ud800" and launched.attributes["pg_name"] == "0"


def test_numbers_in_front_of_messages():
    class Message:
        def __init__(self, size: int) -> None:
            self.size = size

        def SerializeToString(self, *, deterministic: bool) -> bytes:
            return b"x" * self.size

    for size, head in ((1, b"\x01"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02"), (20_000, b"\xa0\x9c\x01")):
        assert chakra._framed(Message(size)) == head + b"x" * size


def test_inputs_in_flight_take_their_time(tmp_path, capsys):
    """Of two that arrive, the first in the graph arrives last."""
    text = graph("a b c", "m = mm(c, c)", "v = wait(b)", "w = wait(a)", "n = mm(v, w)", "o = mm(m, n)", returns="o")
    (tmp_path / "g.fx.txt").write_text(text)
    hints = ("--hint", "a=900", "--hint", "b=300")
    ok("convert", tmp_path / "g.fx.txt", "-o", tmp_path / "step.et", *hints, "--json")
    doc = document(capsys)
    _, nodes = read(tmp_path / "step.0.et")
    assert 900 < doc["step_ms"] * 1000 == pytest.approx(replayed(nodes), abs=2)
    arriving = {node.name: node for node in nodes if node.attributes.get("is_cpu_op")}
    assert list(arriving) == ["b", "a"] and sum(node.micros for node in arriving.values()) == 900
    assert all(need < node.id for node in nodes for need in node.needs)


def test_groups_that_are_given_are_priced(tmp_path, capsys):
    text = graph("a", "g = gather(a)", "w = wait_wide(g)", "h = half(w)", "m = mm(h, h)", returns="m")
    (tmp_path / "g.fx.txt").write_text(text)
    steps = []
    for groups in ("0=0,1", "0=0,8|1,9|2,10|3,11|4,12|5,13|6,14|7,15"):
        ok("convert", tmp_path / "g.fx.txt", "-o", tmp_path / "step.et", "--groups", groups, "--json")
        printed = capsys.readouterr()
        assert "is not known" not in printed.err
        steps.append(json.loads(printed.out)["step_ms"])
    assert steps[0] < steps[1]  # in one node, and over two
