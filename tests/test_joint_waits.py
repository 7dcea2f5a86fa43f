"""Waits for several tensors in one call: read as a wait for each, from files and in a job."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from commcc.capture.importing import from_graph_module
from commcc.capture.world import Layout, fake_world
from commcc.graph.ops import is_wait
from commcc.graph.program import Note
from commcc.live import graph_pass
from commcc.serialization.fx import parse_text
from commcc.serialization.loading import _with_plain_waits, load
from commcc.verify import verify

C10D = torch.ops._c10d_functional
JOINT = "wait_tensors = torch.ops._c10d_functional.wait_tensors.default([all_reduce, all_reduce_1])"
APART = """wait_tensor: "f32[8]" = torch.ops._c10d_functional.wait_tensor.default(all_reduce)
        wait_tensor_1: "f32[8]" = torch.ops._c10d_functional.wait_tensor.default(all_reduce_1)"""
GRAPH = """class G(torch.nn.Module):
    def forward(self, a: "f32[8]", b: "f32[8]"):
        all_reduce: "f32[8]" = torch.ops._c10d_functional.all_reduce.default(a, 'sum', '0')
        all_reduce_1: "f32[8]" = torch.ops._c10d_functional.all_reduce.default(b, 'sum', '0')
        {lines}
        mul: "f32[8]" = torch.ops.aten.mul.Tensor({first}, {second})
        neg: "f32[8]" = torch.ops.aten.neg.default({first})
        return (mul, neg)
"""


def written(folder, lines, first, second):
    path = folder / "graph.fx.txt"
    path.write_text(GRAPH.format(lines="\n        ".join(lines), first=first, second=second))
    return load(path)


def part(name, number):
    return f'{name}: "f32[8]" = wait_tensors[{number}]'


def waits_of(program):
    return [(node.name, node.args[0].name) for node in program.graph.nodes if is_wait(node.target)]


def test_each_result_is_a_wait_of_its_own(tmp_path):
    """Under the name of the result, at the place of the call."""
    after = 'sin: "f32[8]" = torch.ops.aten.sin.default(a)'
    joint = written(tmp_path, [JOINT, after, part("x", 1), part("y", 0), part("y_1", 0)], "y", "x")
    assert waits_of(joint) == [("y", "all_reduce"), ("x", "all_reduce_1")]
    assert [node.name for node in joint.graph.nodes][4:7] == ["y", "x", "sin"]
    assert verify(written(tmp_path, [APART, after], "wait_tensor", "wait_tensor_1"), joint).status == "proved"
    assert verify(written(tmp_path, [APART, after], "wait_tensor_1", "wait_tensor"), joint).status == "different"
    joint.graph.lint()


def test_nothing_is_said_to_be_unknown_that_is_taken_apart(tmp_path):
    """Of a .pt2, where this PyTorch does not have the op."""
    note = Note("_c10d_functional.wait_tensors.default is not registered with this PyTorch; it is kept")
    for call, left in (("([all_reduce, all_reduce_1])", 0), ("(all_reduce)", 1)):
        text = GRAPH.format(lines=JOINT.partition("(")[0] + call, first="a", second="b")
        assert len(_with_plain_waits(replace(parse_text(text, "here"), notes=(note,))).notes) == left


def test_a_tensor_that_nobody_reads_is_waited_for(tmp_path):
    joint = written(tmp_path, [JOINT, part("x", 0)], "x", "x")
    assert waits_of(joint) == [("x", "all_reduce"), ("wait_tensors_1", "all_reduce_1")]
    assert joint.graph.find_nodes(op="call_function", target=C10D.wait_tensor.default)[1].meta["val"].shape == (8,)


@pytest.mark.parametrize("call", ["(all_reduce)", "()", "([all_reduce, 3])", "([all_reduce], 3)"])
def test_other_calls_stay_as_they_are(tmp_path, call):
    """And are a barrier, of which lint tells."""
    line = f"wait_tensors = torch.ops._c10d_functional.wait_tensors.default{call}"
    program = written(tmp_path, [line], "a", "b")
    assert "wait_tensors" in [node.name for node in program.graph.nodes]
    assert not waits_of(program)


@pytest.mark.parametrize("number", ["2", "-1", "slice(0, 1)"])
def test_results_that_are_not_there(tmp_path, number):
    assert not waits_of(written(tmp_path, [JOINT, part("x", number)], "x", "b"))


@pytest.mark.parametrize("pipeline", ["reorder", "tag"])
def test_waits_in_the_graph_of_a_job(pipeline):
    """As coalesced collectives have them; moved, or left where they are."""
    if not hasattr(C10D, "wait_tensors"):
        pytest.skip("this PyTorch waits for one tensor at a time")

    def code(group, x, y):
        total, other = C10D.wait_tensors(C10D.all_reduce_coalesced([x @ x, y @ y], "sum", group))
        return total + 1, other * 2, x @ y

    with fake_world(Layout((("dp", 2),))) as world:
        group = world.meshes[""].get_group().group_name
        gm = make_fx(lambda x, y: code(group, x, y))(torch.ones(4, 4), torch.ones(4, 4))
        before = from_graph_module(gm)
        graph_pass(pipeline=pipeline, on_refusal="raise")(gm)
    assert len(waits_of(before)) == 2
    assert verify(before, from_graph_module(gm)).status == "proved"
    assert "wait_tensors" not in gm.code and gm.code.count("wait_tensor.default(") == 2
