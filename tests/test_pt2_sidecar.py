"""Graphs from texts and from memory, written as ``.pt2``: PyTorch loads them, and nothing is lost on the way back."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace

import pytest
import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from commcc.base.errors import OutputError
from commcc.graph.program import NodeRecord, Note, ProcessGroup
from commcc.serialization.fx import parse_text, write_text
from commcc.serialization.pt2.program import write_pt2
from tests.pt2_compare import assert_bitwise, differences
from tests.pt2_graphs import GRAPHS, HEAD, RUNNABLE, X, build, read, write


@pytest.mark.parametrize("name", GRAPHS)
def test_nothing_is_lost(name, tmp_path):
    program = GRAPHS[name]
    data, notes = write(program)
    again = read(data, tmp_path)
    assert [note.text.split(":")[0] for note in notes] == ["the .pt2 file has a new signature"]
    assert not differences(program, again)
    assert write(again)[0] == data
    assert write_text(again)[0] == write_text(program)[0]


@pytest.mark.parametrize("name", GRAPHS)
def test_pytorch_loads_it(name, tmp_path):
    data, _ = write(GRAPHS[name])
    exported = torch.export.load(io.BytesIO(data))
    calls = [node for node in exported.graph.nodes if node.op == "call_function"]
    names = {node.name for node in GRAPHS[name].graph.nodes if node.op == "call_function"}
    assert names & {node.name for node in calls}
    assert exported.dialect == "TRAINING"


@pytest.mark.parametrize("name", RUNNABLE)
def test_it_computes_the_same(name):
    program = GRAPHS[name]
    exported = torch.export.load(io.BytesIO(write(program)[0]))
    inputs = [
        torch.linspace(-1, 1, node.meta["val"].numel()).reshape(node.meta["val"].shape)
        for node in program.graph.nodes
        if node.op == "placeholder"
    ]
    returned = list(program.graph.nodes)[-1].args[0]
    expected = fx.Interpreter(program.graph_module()).run(*inputs)
    found = exported.module()(*inputs)
    assert_bitwise(found, type(found)(expected) if isinstance(returned, (list, tuple)) else expected)


def test_nested_outputs_come_back_nested():
    exported = torch.export.load(io.BytesIO(write(GRAPHS["nested and doubled outputs"])[0]))
    x = torch.ones(4, 4)
    found = exported.module()(x)
    assert_bitwise(found, [x, (x, [x, None, 2]), x, {"k": x}])


def test_constants_become_inputs_and_come_back(tmp_path):
    def make(node, tensor, root):
        root.register_buffer("_tensor_constant0", torch.arange(6.0).reshape(2, 3).T)
        root.wide = torch.ones(1, 2).expand(3, 2)
        root.part = torch.arange(100_000.0)[::1000]
        root.empty = torch.zeros(0, 2)
        root.inner = torch.nn.Module()
        root.inner.weight = torch.nn.Parameter(torch.tensor([True, False, True]), requires_grad=False)
        x = node("placeholder", "x", val=tensor(3, 2))
        a = node("get_attr", "_tensor_constant0")
        b = node("get_attr", "inner.weight", name="flags")
        add = node("call_function", torch.ops.aten.add.Tensor, (x, a), val=tensor(3, 2))
        more = node("call_function", torch.ops.aten.add.Tensor, (x, node("get_attr", "wide")), val=tensor(3, 2))
        where = node("call_function", torch.ops.aten.logical_not.default, (b,), val=tensor(3))
        return (add, where, a, more, node("get_attr", "empty"), node("get_attr", "part"))

    program = build(make)
    data, notes = write(program)
    again = read(data, tmp_path)
    assert len(notes) == 1
    assert not differences(program, again)
    assert torch.equal(again.root._tensor_constant0, program.root._tensor_constant0)
    assert again.root._tensor_constant0.stride() == (1, 3)
    assert isinstance(again.root.inner.weight, torch.nn.Parameter)
    assert write(again)[0] == data
    found = torch.export.load(io.BytesIO(data)).module()(torch.ones(3, 2))
    assert torch.equal(found[0], program.root._tensor_constant0 + 1)
    assert torch.equal(found[1], torch.tensor([False, True, False]))
    assert torch.equal(found[3], torch.full((3, 2), 2.0))
    assert again.root.wide.stride() == (0, 1)
    assert found[4].shape == (0, 2)
    assert torch.equal(found[5], program.root.part)
    assert len(data) < 20_000


def test_constants_in_a_list_become_inputs(tmp_path):
    def make(node, tensor, root):
        root.a, root.b = torch.ones(2), torch.arange(3.0)
        parts = [node("get_attr", name) for name in ("a", "b")]
        return (node("call_function", torch.ops.aten.cat.default, (parts,), val=tensor(5)),)

    program = build(make)
    data, _ = write(program)
    again = read(data, tmp_path)
    assert not differences(program, again)
    found = torch.export.load(io.BytesIO(data)).module()()
    assert torch.equal(found[0], torch.tensor([1.0, 1.0, 0.0, 1.0, 2.0]))


def test_constants_without_values_are_zeros_and_said_to_be(tmp_path):
    def make(node, tensor, root):
        root.table = tensor(2)
        return (node("call_function", torch.ops.aten.neg.default, (node("get_attr", "table"),), val=tensor(2)),)

    data, notes = write(build(make))
    assert "the constant table are not known" in notes[1].text
    assert torch.equal(torch.export.load(io.BytesIO(data)).module()()[0], torch.zeros(2))
    assert not read(data, tmp_path).notes


def test_numbers_and_texts_as_inputs(tmp_path):
    def make(node, tensor, root):
        x = node("placeholder", "x", val=tensor(2))
        n = node("placeholder", "n", val=3)
        f = node("placeholder", "f", val=0.5)
        node("placeholder", "s", val="sum")
        mul = node("call_function", torch.ops.aten.mul.Scalar, (x, f), val=tensor(2))
        add = node("call_function", torch.ops.aten.add.Tensor, (mul, x), {"alpha": n}, val=tensor(2))
        return (add, n, None)

    program = build(make)
    data, _ = write(program)
    assert not differences(program, read(data, tmp_path))
    found = torch.export.load(io.BytesIO(data)).module()(torch.ones(2), 3, 0.5, "sum")
    assert_bitwise(found, (torch.full((2,), 3.5), 3, None))


def test_higher_order_ops(tmp_path):
    from torch._inductor.fx_passes.control_dependencies import control_deps

    def make(node, tensor, root):
        inner = fx.Graph()
        a = inner.placeholder("a")
        a.meta["val"] = tensor(2)
        b = inner.call_function(torch.ops.aten.neg.default, (a,))
        b.meta = {"val": tensor(2), "seq_nr": 3}
        inner.output(b)
        root.body = fx.GraphModule(torch.nn.Module(), inner)
        x = node("placeholder", "x", val=tensor(2))
        body = node("get_attr", "body", name="sub")
        y = node("call_function", control_deps, ((x,), body, x), val=tensor(2), name="dep")
        z = node("call_function", control_deps, ((x, y), body, x), val=tensor(2), name="dep_again")
        node("call_function", control_deps, ((y,), body, x), name="nothing").meta["val"] = None
        return (y, z)

    program = build(make)
    data, _ = write(program)
    again = read(data, tmp_path)
    assert not differences(program, again)
    assert write(again)[0] == data
    names = [n.name for n in torch.export.load(io.BytesIO(data)).graph.nodes]
    assert names == ["x", "body", "dep", "body_1", "dep_again", "body_2", "control_deps_unused", "output"]
    without = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(without, "w") as target:
        for entry in source.namelist():
            if not entry.endswith("commcc.json"):
                target.writestr(entry, source.read(entry))
    assert [n.name for n in read(without.getvalue(), tmp_path).graph.nodes] == names


def test_sums_of_sizes_become_additions():
    data, _ = write(GRAPHS["sizes"])
    nodes = {node.name: node for node in torch.export.load(io.BytesIO(data)).graph.nodes}
    found = [sorted(str(nodes[name].meta["val"]).split(" + ")) for name in ("total_part_1", "total_part_2", "total")]
    assert found == [["9*u0"], ["9*u0", "s1"], ["3", "9*u0", "s1"]]
    assert nodes["total"].args == (nodes["total_part_2"], 3)


def test_all_that_a_program_knows_is_kept(tmp_path):
    program = GRAPHS["collectives"]
    nodes = list(program.graph.nodes)
    nodes[2].meta.update(
        {
            "commcc": NodeRecord("fsdp", "because", ("a", "b")),
            "seq_nr": 7,
            "recompute": CheckpointPolicy.MUST_SAVE,
            "custom": {"module_fqn": "layers.0", "EP": 1, "nested": (1, [2.5, None])},
            "nn_module_stack": {"L['self'].a,b": ("a;b", "torch.nn.Linear")},
            "fwd_nn_module_stack": {"x": ["y", "z"]},
            "stack_trace": 'File "a.py", line 1\n  x = 1',
            "desc": "PlainAOTInput(idx=0)",
        }
    )
    nodes[3].meta["fwd_nn_module_stack"] = nodes[2].meta["fwd_nn_module_stack"]
    groups = ProcessGroup("0", 4, (0, 2, 4, 6), "mesh_fsdp"), ProcessGroup("1", None), ProcessGroup("z", 2)
    program = replace(
        program,
        groups={group.name: group for group in groups},
        header={"schema": 1, "captured": {"rank": 0, "é": [1.5, None]}},
        provenance=({"pass": "bucket", "buckets": 3},),
        notes=(Note("a note", "ag"), Note("another")),
    )
    data, _ = write(program)
    again = read(data, tmp_path)
    assert not differences(program, again)
    restored = list(again.graph.nodes)
    assert restored[2].meta["commcc"] == NodeRecord("fsdp", "because", ("a", "b"))
    assert restored[2].meta["fwd_nn_module_stack"] is restored[3].meta["fwd_nn_module_stack"]
    assert torch.export.load(io.BytesIO(data)).graph is not None


def test_metadata_that_cannot_be_kept_is_named():
    program = GRAPHS["one output"]
    list(program.graph.nodes)[1].meta["weird"] = object()
    _, notes = write(program)
    del list(program.graph.nodes)[1].meta["weird"]
    assert notes[0] == Note("metadata 'weird' cannot be written", "relu")


REFUSED = {
    "a mesh that is used": (
        f"{X}, mesh",
        "m = torch.ops._dtensor.mesh_get_process_group.default(mesh, 0)",
        "return (x,)",
    ),
    "an op that nobody registered": (X, 'y: "f32[4][1]cpu" = torch.ops.lost.op.default(x)', "return (y,)"),
    "a slice of a tensor": (X, 'y: "f32[2][1]cpu" = x[0]', "return (y,)"),
    "a text as output": (X, "return (x, 'text')"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_format_cannot_hold(name, tmp_path):
    arguments, *lines = REFUSED[name]
    text = f"{HEAD}{arguments}):\n" + "".join(f"        {line}\n" for line in lines)
    with pytest.raises(OutputError) as caught:
        write_pt2(parse_text(text, "test"), tmp_path / "out.pt2")
    assert "\n" not in str(caught.value)
    assert ".fx.txt" in str(caught.value)
    assert not (tmp_path / "out.pt2").exists()


def test_flex_attention_is_refused(tmp_path):
    def make(node, tensor, root):
        from torch._higher_order_ops.flex_attention import flex_attention

        graph = fx.Graph()
        graph.output(graph.placeholder("a"))
        root.score = fx.GraphModule(torch.nn.Module(), graph)
        x = node("placeholder", "x", val=tensor(1, 2, 8, 4))
        score = node("get_attr", "score")
        args = (x, x, x, score, (8, 8, x, None), 1.0, {"BACKEND": "AUTO"}, (), ())
        return (node("call_function", flex_attention, args, val=(tensor(2), tensor(2)), name="flex"),)

    with pytest.raises(OutputError, match=r"node 'flex' \(higher_order.flex_attention\).*write it as .fx.txt"):
        write_pt2(build(make), tmp_path / "out.pt2")
