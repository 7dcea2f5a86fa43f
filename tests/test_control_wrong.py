"""Wrappers that are not what they should be: what the verifier, the index and apply do about them."""

from __future__ import annotations

import operator
from dataclasses import replace

import pytest
import torch
from torch import fx

from commcc.apply import apply_plan
from commcc.base.errors import GraphError, InternalError
from commcc.graph.index import build_index
from commcc.passes.control_edges import control_edges
from commcc.passes.options import parse_pipeline
from commcc.plan import ControlEdge, Plan
from commcc.run.pipeline import run
from commcc.verify import verify
from tests.corruptions import copied
from tests.random_graphs import GraphBuilder
from tests.test_control import held, small

aten = torch.ops.aten
c10d = torch.ops._c10d_functional


def edited(program, name, change):
    """The program with ``change(graph, call, output)`` made to the sub-graph ``name``."""
    root = torch.nn.Module()
    for key, module in program.root._modules.items():
        inner = copied(module.graph)
        if key == name:
            *_, call, output = inner.nodes
            change(inner, call, output)
        root.add_module(key, fx.GraphModule(torch.nn.Module(), inner))
    return replace(program, root=root)


def rewired(program, name, change):
    """The program with new arguments for the wrapper ``name``: ``change(args, nodes by name)``."""
    graph = copied(program.graph)
    nodes = {node.name: node for node in graph.nodes}
    nodes[name].args = change(nodes[name].args, nodes)
    return replace(program, graph=graph)


def another_op(_graph, call, _output):
    call.target = aten.matmul.default


def swapped_inside(_graph, call, _output):
    call.args = call.args[::-1]


def another_constant(_graph, call, _output):
    call.kwargs = {"beta": 3}


def returns_its_input(graph, _call, output):
    output.args = (next(iter(graph.nodes)),)


def returns_a_tuple(_graph, call, output):
    output.args = ((call,),)


def writes_besides(graph, call, _output):
    with graph.inserting_before(call):
        graph.call_function(aten.add_.Tensor, (next(iter(graph.nodes)), 1))


def computes_more(graph, call, output):
    with graph.inserting_before(output):
        output.args = (graph.call_function(aten.neg.default, (call,)),)


def does_not_wait(_graph, call, _output):
    call.target = aten.clone.default


INSIDE = {
    "another op": ("mm_4", another_op),
    "swapped operands": ("mm_4", swapped_inside),
    "another constant": ("mm_4", another_constant),
    "the input comes back": ("mm_4", returns_its_input),
    "a tuple comes back": ("mm_4", returns_a_tuple),
    "a write besides": ("mm_4", writes_besides),
    "one op more": ("mm_4", computes_more),
    "no wait": ("v", does_not_wait),
}
OUTSIDE = {
    "swapped operands": ("mm_4", lambda args, n: (*args[:2], args[3], args[2])),
    "another operand": ("mm_4", lambda args, n: (*args[:3], n["mm_2"])),
    "one operand less": ("mm_4", lambda args, n: args[:3]),
    "one operand more": ("mm_4", lambda args, n: (*args, n["x"])),
    "another sub-graph": ("mm_4", lambda args, n: (args[0], n["subgraph_mm_1"], *args[2:])),
    "another launch": ("v", lambda args, n: (*args[:2], n["ag"])),
    "behind what follows": ("mm_1", lambda args, n: ((n["mm_3"],), *args[1:])),
    "behind itself": ("mm_1", lambda args, n: ((n["mm_1"],), *args[1:])),
    "an order that is no list": ("mm_1", lambda args, n: (n["ag"], *args[1:])),
}


def test_the_undamaged_form_is_proved():
    program = small()
    after, _ = held(program)
    assert verify(program, edited(after, "subgraph_mm_4", lambda *_: None)).status == "proved"
    assert verify(program, rewired(after, "mm_4", lambda args, _: args)).status == "proved"
    assert verify(after, program).status == "proved"


@pytest.mark.parametrize("name", INSIDE)
def test_other_sub_graphs_are_rejected(name):
    node, change = INSIDE[name]
    program = small()
    assert verify(program, edited(held(program)[0], f"subgraph_{node}", change)).status == "different"


def test_a_method_call_is_no_op():
    def method(graph, call, output):
        with graph.inserting_before(call):
            output.args = (graph.call_method("matmul", call.args),)
        graph.erase_node(call)

    program = small()
    after = edited(held(program)[0], "subgraph_mm_4", method)
    assert verify(program, after).status != "proved"
    assert build_index(after).ops[build_index(after).position["mm_4"]] == "higher_order.control_deps"


@pytest.mark.parametrize("name", OUTSIDE)
def test_other_arguments_are_rejected(name):
    program = small()
    assert verify(program, rewired(held(program)[0], *OUTSIDE[name])).status == "different"


def test_a_lost_edge_is_a_remark():
    program = small()
    after, _ = held(program)
    loose = rewired(after, "mm_1", lambda args, _: ((), *args[1:]))
    verdict = verify(after, loose)
    assert verdict.status == "proved"
    assert [str(note) for note in verdict.notes] == ["order: mm_1: is no longer held behind 'ag' by a control edge"]
    assert verdict.checked["control_edges_before"] == verdict.checked["control_edges_after"] + 1


def test_edges_that_point_backwards_are_refused():
    after, _ = held(small())
    late = rewired(after, "mm_1", lambda args, n: ((n["mm_3"],), *args[1:]))
    with pytest.raises(GraphError):
        build_index(late)


@pytest.mark.parametrize("change", [returns_a_tuple, writes_besides, computes_more])
def test_wrappers_of_anything_else_stay_what_they_are(change):
    index = build_index(edited(held(small())[0], "subgraph_mm_4", change))
    node = index.position["mm_4"]
    assert index.ops[node] == "higher_order.control_deps"
    assert node in index.stays
    assert {index.names[n] for n in index.data_preds[node]} >= {"rs", "mm_3", "x"}


@pytest.mark.parametrize("name", ["one operand less", "one operand more"])
def test_wrappers_that_do_not_fit_stay_what_they_are(name):
    node, change = OUTSIDE[name]
    index = build_index(rewired(held(small())[0], node, change))
    assert index.ops[index.position[node]] == "higher_order.control_deps"


def test_wrappers_with_keywords_stay_what_they_are():
    program = small()
    after, _ = held(program)
    graph = copied(after.graph)
    next(n for n in graph.nodes if n.name == "mm_4").kwargs = {"more": 1}
    after = replace(after, graph=graph)
    index = build_index(after)
    assert index.ops[index.position["mm_4"]] == "higher_order.control_deps"
    assert verify(program, after).status == "different"


def test_the_fingerprint_tells_edges_apart():
    program = small()
    after, _ = held(program)
    loose = rewired(after, "mm_1", lambda args, _: ((), *args[1:]))
    assert len({build_index(p).fingerprint for p in (program, after, loose)}) == 3


def test_edges_are_added_to_what_is_held_already():
    after, _ = held(small())
    index = build_index(after)
    more = ControlEdge(index.position["mm_1"], index.position["p"], "")
    again = apply_plan(after, index, Plan("reorder", index.fingerprint, edits=(more,)))
    assert [n.name for n in next(n for n in again.graph.nodes if n.name == "mm_1").args[0]] == ["ag", "p"]
    assert again.root is after.root


@pytest.mark.parametrize(("node", "after"), [("mm_1", "mm_3"), ("x", "p"), ("mm_1", "mm_1")])
def test_apply_refuses(node, after):
    program = small()
    index = build_index(program)
    edge = ControlEdge(index.position[node], index.position[after], "")
    with pytest.raises(InternalError):
        apply_plan(program, index, Plan("reorder", index.fingerprint, edits=(edge,)))


def test_names_that_are_taken():
    program = small()
    program.root.subgraph_mm_1 = torch.nn.Module()
    after, _ = held(program)
    assert {"subgraph_mm_1", "subgraph_mm_1_0", "subgraph_w"} <= set(after.root._modules)
    assert set(program.root._modules) == {"subgraph_mm_1"}
    assert verify(program, after).status == "proved"


# What can be held, and behind what


def beside(*middle):
    """Edges of a gather with these ops, made by ``call(builder, x)``, between its launch and its wait."""
    b = GraphBuilder()
    p, x = b.placeholder("p", (4, 8)), b.placeholder("x", (1, 1, 8, 8))
    launch = b.call(c10d.all_gather_into_tensor.default, p, 2, "0")
    for call in middle:
        call(b, x)
    b.call(c10d.wait_tensor.default, launch)
    program = b.program([launch], {"0": 2})
    index = build_index(program)
    edges, left = control_edges(index, range(len(index)))
    if edges:
        after = apply_plan(program, index, Plan("reorder", index.fingerprint, edits=edges))
        assert verify(program, after).status == "proved"
    return [(index.names[e.node], index.names[e.after]) for e in edges], [str(entry.reason) for entry in left]


def attention(b, x):
    made = b.call(aten._scaled_dot_product_flash_attention_for_cpu.default, x, x, x)
    made.name = "attention"
    return made


def part(b, x):
    b.call(operator.getitem, next(n for n in b.graph.nodes if n.name == "attention"), 0).name = "part"


def attention_on_a_gpu(b, x):
    """The fifth of its results is a number."""
    made = b.call(aten._scaled_dot_product_flash_attention.default, x, x, x)
    made.name = "attention"
    b.call(operator.getitem, made, 4).name = "rows"


def matmul(b, x):
    b.call(aten.bmm.default, b.call(aten.view.default, x, [1, 8, 8]), b.call(aten.view.default, x, [1, 8, 8]))


def into_a_buffer(b, x):
    square = b.call(aten.view.default, x, [1, 8, 8])
    buffer = b.call(aten.empty_like.default, square)
    b.call(aten.bmm.out, square, square, out=buffer).name = "writes"


def test_compute_with_several_results():
    launch, wait = "all_gather_into_tensor_default", "wait_tensor_default"
    assert beside(attention) == ([("attention", launch), (wait, "attention")], [])
    assert beside(attention, part) == ([("attention", launch), (wait, "part")], [])
    assert beside(attention_on_a_gpu) == ([("attention", launch), (wait, "attention")], [])
    assert beside(attention_on_a_gpu, part) == ([("attention", launch), (wait, "part")], [])


def test_compute_that_writes_is_not_held():
    assert beside(into_a_buffer) == ([], ["no compute node beside it can be held"])
    edges, left = beside(into_a_buffer, matmul)
    assert edges[0] == ("bmm_default", "all_gather_into_tensor_default")
    assert not left
    assert beside() == ([], [])


def test_higher_order_compute_is_not_held():
    index = build_index(small())
    ops = tuple(
        "higher_order.flex_attention" if name == "mm_1" else op for name, op in zip(index.names, index.ops, strict=True)
    )
    edges, _ = control_edges(replace(index, ops=ops), range(len(index)))
    assert [(index.names[e.node], index.names[e.after]) for e in edges][:2] == [("mm_2", "ag"), ("w", "mm_2")]


# Passes that remove nodes


def doubled():
    """The same gather twice, the second one beside a matmul that nothing else needs."""
    b = GraphBuilder()
    p, x = b.placeholder("p", (4, 8)), b.placeholder("x", (8, 8))
    first = b.gather(p, 2, "0")
    launch = b.call(c10d.all_gather_into_tensor.default, p, 2, "0")
    b.call(aten.mm.default, x, x).name = "beside"
    second = b.call(c10d.wait_tensor.default, launch)
    return b.program([b.call(aten.mm.default, first, second)], {"0": 2})


def test_held_gathers_are_not_merged():
    program = doubled()
    assert run(program, parse_pipeline("dedup")).changed
    result = run(held(program)[0], parse_pipeline("dedup"))
    assert not result.changed
    assert [str(entry.reason) for entry in result.steps[0].plan.left_out] == ["is held in place by a control edge"]


def test_what_others_are_held_behind_is_not_dead():
    program = doubled()
    assert [n.name for n in run(program, parse_pipeline("cleanup")).program.graph.nodes if n.name == "beside"] == []
    assert not run(held(program)[0], parse_pipeline("cleanup")).changed
