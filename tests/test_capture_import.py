"""Programs from graphs in memory: exact copies, plain metadata, and what is said about the rest."""

from __future__ import annotations

import operator
from enum import Enum

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from commcc.base.errors import InputError, OutputError
from commcc.capture import from_exported_program, from_graph_module
from commcc.capture.devices import relabel
from commcc.capture.recompute import parameter_gathers
from commcc.graph.program import ProcessGroup
from commcc.serialization import load, save

C10D = torch.ops._c10d_functional
ATEN = torch.ops.aten


class Colour(Enum):
    RED = 1


def gather_graph():
    """A shard that is gathered, viewed and used, and an activation that is gathered too."""
    graph = fx.Graph()
    shard, x = graph.placeholder("shard"), graph.placeholder("x")
    cast = graph.call_function(ATEN._to_copy.default, (shard,), {"dtype": torch.bfloat16})
    launch = graph.call_function(C10D.all_gather_into_tensor.default, (cast, 4, "7"))
    wait = graph.call_function(C10D.wait_tensor.default, (launch,))
    view = graph.call_function(ATEN.t.default, (wait,))
    product = graph.call_function(ATEN.mm.default, (x, view))
    activation = graph.call_function(C10D.all_gather_into_tensor.default, (product, 2, "9"))
    reduced = graph.call_function(C10D.all_reduce.default, (activation, "sum", "11"))
    graph.output((graph.call_function(C10D.wait_tensor.default, (reduced,)), None))
    return graph


def module_of(graph):
    return fx.GraphModule(nn.Module(), graph)


def test_names_order_and_arguments_are_kept():
    graph = gather_graph()
    nodes = list(graph.nodes)
    nodes[2].name, nodes[3].name = "sum", "mm_1_1"
    program = from_graph_module(module_of(graph))
    copies = list(program.graph.nodes)
    assert [n.name for n in copies] == [n.name for n in nodes]
    assert [(n.op, n.target, str(n.args), n.kwargs) for n in copies] == [
        (n.op, n.target, str(n.args), n.kwargs) for n in nodes
    ]
    assert all(copy is not node for copy, node in zip(copies, nodes, strict=True))


def test_groups_come_from_the_graph_unless_given():
    program = from_graph_module(module_of(gather_graph()), {"9": ProcessGroup("9", 2, (0, 4))})
    assert [(g.name, g.size, g.ranks) for g in program.groups.values()] == [
        ("7", 4, None),
        ("9", 2, (0, 4)),
        ("11", None, None),
    ]


def test_metadata_becomes_plain():
    graph = gather_graph()
    node = next(iter(graph.nodes))
    node.meta = {
        "nn_module_stack": {"140123": ("L['self'].a", nn.Linear), "140456": ("L['self'].a.b", "x.Y")},
        "source_fn_stack": [("t", torch.rsqrt), ("m", "view"), ("c", nn.Linear)],
        "desc": Colour.RED,
        "original_aten": ATEN.mm.default,
        "recompute": Colour.RED,
        "custom": {"EP": "dispatch", "ids": (1, 2)},
        "seq_nr": 4,
        "tensor_meta": object(),
        "fwd_nn_module_stack": None,
    }
    program = from_graph_module(module_of(graph))
    assert next(iter(program.graph.nodes)).meta == {
        "nn_module_stack": {
            "L['self'].a": ["L['self'].a", "torch.nn.modules.linear.Linear"],
            "L['self'].a.b": ["L['self'].a.b", "x.Y"],
        },
        "source_fn_stack": [["t", "torch.rsqrt"], ["m", "view"], ["c", "torch.nn.modules.linear.Linear"]],
        "desc": "Colour.RED",
        "original_aten": "aten.mm.default",
        "recompute": "RED",
        "custom": {"EP": "dispatch", "ids": (1, 2)},
        "seq_nr": 4,
    }
    assert program.notes == ()


def test_metadata_that_cannot_be_kept_is_noted():
    graph = gather_graph()
    for node in list(graph.nodes)[:2]:
        node.meta["handle"] = object()
    notes = from_graph_module(module_of(graph)).notes
    assert [(note.node, note.text) for note in notes] == [("shard", "metadata key 'handle' cannot be kept")]


def test_values_that_are_no_values_become_none():
    graph = gather_graph()
    shard, x = list(graph.nodes)[:2]
    with FakeTensorMode():
        shard.meta["val"] = torch.empty(2, requires_grad=True)
        x.meta["val"] = (torch.empty(3), object(), 4)
    copies = list(from_graph_module(module_of(graph)).graph.nodes)
    assert not copies[0].meta["val"].requires_grad
    assert copies[0].meta["val"].shape == (2,)
    assert copies[1].meta["val"][1:] == (None, 4)


def test_constants_and_subgraphs_stay_reachable():
    inner = fx.Graph()
    argument = inner.placeholder("a")
    inner.output(inner.call_function(ATEN.neg.default, (argument,)))
    root = nn.Module()
    root.body = fx.GraphModule(nn.Module(), inner)
    root.part = nn.Module()
    root.part.constant = torch.ones(3)
    graph = fx.Graph()
    x = graph.placeholder("x")
    body, constant = graph.get_attr("body"), graph.get_attr("part.constant")
    result = graph.call_function(torch.ops.higher_order.invoke_subgraph, (body, "body", x))
    graph.output((graph.call_function(operator.getitem, (result, 0)), constant))
    program = from_graph_module(fx.GraphModule(root, graph))
    assert program.root.part.constant is root.part.constant
    assert program.root.body is not root.body
    assert [n.name for n in program.root.body.graph.nodes] == [n.name for n in inner.nodes]


def test_only_forward_gathers_of_inputs_are_gathered_again():
    graph = gather_graph()
    chosen = parameter_gathers(graph)
    assert [str(n.target) for n in chosen] == [
        "aten._to_copy.default",
        "_c10d_functional.all_gather_into_tensor.default",
        "_c10d_functional.wait_tensor.default",
        "aten.t.default",
    ]
    for node in graph.nodes:
        node.meta["partitioner_tag"] = "is_backward"
    assert parameter_gathers(graph) == []


def host_graph(copy_kwargs):
    graph = fx.Graph()
    with FakeTensorMode():
        counts = torch.empty(2, dtype=torch.int64)
    x = graph.placeholder("x")
    there = graph.call_function(ATEN._to_copy.default, (x,), copy_kwargs)
    one = graph.call_function(ATEN.select.int, (there, 0, 0))
    made = graph.call_function(ATEN.zeros.default, ([2],), {"device": torch.device("cpu")})
    both = graph.call_function(ATEN.add.Tensor, (made, one))
    for node in graph.nodes:
        node.meta["val"] = counts
    graph.output(both)
    return graph


def test_asynchronous_copies_to_the_host_stay_there():
    graph = host_graph({"device": torch.device("cpu"), "non_blocking": True})
    relabel(graph, torch.device("cuda:0"))
    nodes = list(graph.nodes)
    assert [str(n.meta["val"].device) for n in nodes[:-1]] == ["cuda:0", "cpu", "cpu", "cuda:0", "cuda:0"]
    assert nodes[1].kwargs["device"] == torch.device("cpu")
    assert nodes[3].kwargs["device"] == torch.device("cuda:0")


def test_other_copies_move():
    graph = host_graph({"device": torch.device("cpu")})
    relabel(graph, torch.device("cuda:0"))
    assert {str(n.meta["val"].device) for n in graph.nodes if "val" in n.meta} == {"cuda:0"}


def test_what_is_known_is_not_guessed():
    graph = host_graph({"device": torch.device("cpu"), "non_blocking": True})
    names = [n.name for n in graph.nodes]
    relabel(graph, torch.device("cuda:0"), {names[0]: True, names[1]: False})
    nodes = list(graph.nodes)
    assert [str(n.meta["val"].device) for n in nodes[:-1]] == ["cpu", *["cuda:0"] * 4]
    assert nodes[1].kwargs["device"] == torch.device("cuda:0")


def test_views_keep_strides_and_offset():
    graph = fx.Graph()
    x = graph.placeholder("x")
    with FakeTensorMode():
        x.meta["val"] = torch.empty(4, 6)[1:, ::2]
    graph.output(x)
    relabel(graph, torch.device("cuda:0"))
    val = x.meta["val"]
    assert (val.shape, val.stride(), val.storage_offset()) == ((3, 3), (6, 2), 6)


def test_exported_program_with_its_weights(tmp_path):
    exported = torch.export.export(nn.Linear(3, 2), (torch.ones(1, 3),))
    program = from_exported_program(exported, tmp_path / "in.pt2")
    save(program, tmp_path / "out.pt2")
    again = torch.export.load(tmp_path / "out.pt2")
    x = torch.randn(1, 3)
    assert torch.equal(again.module()(x), exported.module()(x))
    assert [n.name for n in load(tmp_path / "out.pt2").graph.nodes] == [n.name for n in exported.graph.nodes]


def test_exported_program_alone_says_what_it_lacks():
    program = from_exported_program(torch.export.export(nn.Linear(3, 2), (torch.ones(1, 3),)))
    assert [n.op for n in program.graph.nodes].count("placeholder") == 3
    assert "weights, buffers and calling convention" in program.notes[-1].text


def test_exported_program_that_torch_cannot_save(tmp_path):
    exported = torch.export.export(nn.Linear(3, 2), (torch.ones(1, 3),))
    next(iter(exported.graph.nodes)).meta["val"] = object()
    with pytest.raises(OutputError, match=r"in\.pt2: torch\.export\.save refuses the program"):
        from_exported_program(exported, tmp_path / "in.pt2")


def test_a_graph_that_is_not_in_order():
    graph = gather_graph()
    mm = next(node for node in graph.nodes if node.target is ATEN.mm.default)
    next(node for node in graph.nodes if node.op == "call_function").prepend(mm)
    with pytest.raises(InputError, match="node 'mm_default' uses 't_default' before it is defined; sort the graph"):
        from_graph_module(fx.GraphModule(nn.Module(), graph))
