"""Steps cut between a launch and its wait: the forward returns it, the backward waits for its input."""

from __future__ import annotations

import json

import pytest

from commcc.cli.main import run as command_line
from commcc.graph.index import build_index
from commcc.lint.ranks import agree
from commcc.passes.options import parse_pipeline
from commcc.run.forms import from_preset
from commcc.run.pipeline import run
from commcc.serialization import propagate
from commcc.serialization.fx import parse_text
from commcc.timing.cost.model import load_model
from commcc.verify import verify

FORWARD = """
class step(torch.nn.Module):
    def forward(self, x: "f32[16, 8][8, 1]cpu", w1: "f32[8, 8][8, 1]cpu", w2: "f32[8, 8][8, 1]cpu"):
        mm: "f32[16, 8][8, 1]cpu" = torch.ops.aten.mm.default(x, w1)
        rs: "f32[4, 8][8, 1]cpu" = torch.ops._c10d_functional.reduce_scatter_tensor.default(mm, 'sum', 4, '0')
        mm_1: "f32[16, 8][8, 1]cpu" = torch.ops.aten.mm.default(x, w2)
        relu: "f32[16, 8][8, 1]cpu" = torch.ops.aten.relu.default(mm_1)
        return (relu, rs)
"""
BACKWARD = """
class step(torch.nn.Module):
    def forward(self, rs: "f32[4, 8][8, 1]cpu", gy: "f32[16, 8][8, 1]cpu", w: "f32[8, 8][8, 1]cpu", s: "f32[2, 8][8, 1]cpu"):
        ag: "f32[8, 8][8, 1]cpu" = torch.ops._c10d_functional.all_gather_into_tensor.default(s, 4, '0')
        mm: "f32[16, 8][8, 1]cpu" = torch.ops.aten.mm.default(gy, w)
        WAIT
        mul: "f32[4, 8][8, 1]cpu" = torch.ops.aten.mul.Tensor(READ, 2)
        full: "f32[8, 8][8, 1]cpu" = torch.ops._c10d_functional.wait_tensor.default(ag)
        mm_1: "f32[16, 8][8, 1]cpu" = torch.ops.aten.mm.default(mm, full)
        rs_1: "f32[4, 8][8, 1]cpu" = torch.ops._c10d_functional.reduce_scatter_tensor.default(mm_1, 'sum', 4, '0')
        out: "f32[4, 8][8, 1]cpu" = torch.ops._c10d_functional.wait_tensor.default(rs_1)
        return (out, mul)
"""  # noqa: E501 (as PyTorch prints it)
WAIT = 'here: "f32[4, 8][8, 1]cpu" = torch.ops._c10d_functional.wait_tensor.default(rs)'


def graph(text):
    return propagate(parse_text(text, "step"))


def backward(wait=WAIT, read="here"):
    lines = BACKWARD.replace("READ", read)
    return graph(lines.replace("        WAIT\n", f"        {wait}\n" if wait else ""))


def late():
    """The input is read, and waited for after that."""
    lines = BACKWARD.replace("READ", "rs").split("\n")
    at = lines.index("        WAIT")
    lines[at : at + 2] = [lines[at + 1], f"        {WAIT}"]
    return "\n".join(lines)


def test_the_index_knows_what_is_in_flight():
    index = build_index(backward())
    assert {index.names[w]: index.names[s] for w, s in index.begun_elsewhere.items()} == {"here": "rs"}
    assert build_index(graph(FORWARD)).begun_elsewhere == {}


@pytest.mark.parametrize("text", ["reorder", "bucket{groups=all},reorder", "dedup,cleanup,reorder"])
@pytest.mark.parametrize("program", [backward, lambda: graph(FORWARD)], ids=["backward", "forward"])
def test_passes_prove_their_results(text, program):
    before = program()
    result = run(before, parse_pipeline(text), model=load_model("h100"))
    assert verify(before, result.program).status == "proved"
    waits = [n.name for n in result.program.graph.nodes if "wait_tensor" in str(n.target)]
    assert ("here" in waits) is (program is backward)


def test_a_preset():
    before = backward()
    assert run(before, from_preset("auto"), model=load_model("h100")).verified == "proved"


def test_no_wait_may_be_left_out_or_come_late():
    before = backward()
    assert verify(before, backward()).status == "proved"
    for wrong in (backward(wait="", read="rs"), graph(late())):
        verdict = verify(before, wrong)
        assert verdict.status == "different"
        assert {finding.rule for finding in verdict.findings} == {"wait"}


def test_an_input_that_was_waited_for_is_read_under_either_name():
    assert verify(backward(), backward(read="rs")).status == "proved"


def test_a_wait_for_an_input_that_nobody_waited_for_does_nothing():
    assert verify(backward(wait="", read="rs"), backward()).status == "proved"


def run_cli(tmp_path, text, *arguments):
    path = tmp_path / "step.txt"
    path.write_text(text)
    return command_line([arguments[0], str(path), *arguments[1:]])


def test_lint_finds_the_early_reader(tmp_path, capsys):
    assert run_cli(tmp_path, late(), "lint") == 1
    assert "'mul' reads the input 'rs', which is in flight" in capsys.readouterr().out


def test_inspect_lists_both_ends(tmp_path, capsys):
    assert run_cli(tmp_path, BACKWARD.replace("READ", "here").replace("WAIT", WAIT), "inspect", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["in_flight_at_start"] == [{"input": "rs", "wait": "here"}]
    assert document["in_flight_at_end"] == []
    assert run_cli(tmp_path, FORWARD, "inspect") == 0
    assert "in flight at the end, for another graph to wait for: rs" in capsys.readouterr().out


def test_what_is_returned_in_flight_is_compared(tmp_path, capsys):
    (tmp_path / "other.txt").write_text(FORWARD.replace("'sum'", "'max'"))
    assert run_cli(tmp_path, FORWARD, "verify", str(tmp_path / "step.txt"), "--numeric") == 0
    assert "the same to the bit" in capsys.readouterr().out
    assert run_cli(tmp_path, FORWARD, "verify", str(tmp_path / "other.txt"), "--numeric") == 1


def test_ranks_agree():
    assert not agree({0: backward(), 1: backward()}).differences
