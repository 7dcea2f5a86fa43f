"""Order of what acts, writes, or may do either: nothing is known of an op but what the table of facts says."""

from __future__ import annotations

import importlib
from itertools import pairwise

import pytest
import torch
from torch import fx

from commcc.graph import ops
from commcc.graph.index import build_index
from commcc.graph.ops import OpaqueOp
from commcc.serialization import load
from commcc.serialization.fx import parse_text
from tests.alias_graphs import own
from tests.random_graphs import GraphBuilder, aten, c10d, getitem
from tests.test_index import before


def add(b, target, *args, val=None):
    node = b.graph.call_function(target, args)
    node.meta["val"] = val
    return node


def unknown(b, *args, val=None):
    return add(b, OpaqueOp("mylib.thing.default"), *args, val=val)


def test_an_op_of_which_nothing_is_known_may_write_what_it_is_given():
    b = GraphBuilder()
    x, y = b.placeholder("x", (4,)), b.placeholder("y", (4,))
    early = b.call(aten.neg.default, b.call(aten.view.default, x, [2, 2]))
    act = unknown(b, x, val=x.meta["val"])
    late, other = b.call(aten.neg.default, x), b.call(aten.neg.default, y)
    index = build_index(b.program([early, act, late, other], {}))
    assert before(index, early.name, act.name) and before(index, act.name, late.name)
    assert not before(index, act.name, other.name)
    assert index.position[act.name] in index.stays
    assert index.storages[index.position[act.name]] == index.storages[0]


def test_its_result_may_be_any_of_its_arguments():
    b = GraphBuilder()
    x, y = b.placeholder("x", (4,)), b.placeholder("y", (4,))
    both = unknown(b, x, y, val=[x.meta["val"], x.meta["val"]])
    one = getitem(b, both, 0)
    write = b.call(aten.add_.Tensor, one, 1)
    read = b.call(aten.neg.default, y)
    index = build_index(b.program([write, read], {}))
    assert before(index, write.name, read.name)
    assert set(index.storages[index.position[one.name]]) == {*index.storages[0], *index.storages[1]}


def test_a_launch_that_reads_it_is_over_before():
    b = GraphBuilder()
    x = b.placeholder("x", (4,))
    launch = b.call(c10d.all_gather_into_tensor.default, x, 2, "0")
    wait = b.call(c10d.wait_tensor.default, launch)
    act = unknown(b, x)
    index = build_index(b.program([wait, x], {"0": 2}))
    assert before(index, wait.name, act.name)


def test_effects_keep_their_order_among_themselves_and_with_random_numbers():
    b = GraphBuilder()
    x, y = b.placeholder("x", (4,)), b.placeholder("y", (4,))
    first = b.call(own.act.default, x)
    said = add(b, aten._print.default, "hello")
    drawn = b.call(aten.rand.default, [4], device=torch.device("cpu"))
    second = b.call(own.note.default, y)
    checked = add(b, aten._assert_async.msg, y, "is zero")
    index = build_index(b.program([first, drawn], {}))
    names = [node.name for node in (first, said, second, checked)]
    assert all(before(index, one, other) for one, other in pairwise(names))
    assert before(index, said.name, drawn.name) and before(index, drawn.name, second.name)
    assert {index.position[name] for name in names} <= index.stays


def test_events_of_streams_order_all_around_them():
    importlib.import_module("torch._dynamo.variables.streams")
    b = GraphBuilder()
    x = b.placeholder("x", (4,))
    early = b.call(aten.neg.default, x)
    event = add(b, torch.ops.streams.record_event.default, 1, 2)
    late = b.call(aten.abs.default, x)
    index = build_index(b.program([early, late], {}))
    assert before(index, early.name, event.name) and before(index, event.name, late.name)
    assert index.warnings == (f"'{event.name}' (streams.record_event) orders streams: nothing moves across it",)


def test_what_runs_in_a_memory_pool_stays_in_it():
    """PyTorch 2.15 has the two ends of such a region in its graphs; no PyTorch needs to know them here."""
    b = GraphBuilder()
    x = b.placeholder("x", (4,))
    begin = add(b, OpaqueOp("mempool.begin.default"), 0, 1)
    inside = b.call(aten.neg.default, x)
    end = add(b, OpaqueOp("mempool.end.default"), 0, 1)
    after = b.call(aten.abs.default, x)
    index = build_index(b.program([inside, after], {}))
    assert before(index, begin.name, inside.name) and before(index, inside.name, end.name)
    assert before(index, end.name, after.name)
    assert index.warnings[0] == f"'{begin.name}' (mempool.begin) begins or ends a memory pool: nothing moves across it"


def test_gradients_that_are_accumulated_are_written():
    importlib.import_module("torch._inductor.inductor_prims")
    b = GraphBuilder()
    weight, grad, more = (b.placeholder(name, (4,)) for name in ("weight", "grad", "more"))
    early = b.call(aten.neg.default, grad)
    act = add(b, torch.ops.inductor.accumulate_grad_.default, weight, grad, more)
    late = b.call(aten.neg.default, grad)
    index = build_index(b.program([early, late], {}))
    assert before(index, early.name, act.name) and before(index, act.name, late.name)


def test_set_makes_two_storages_one():
    b = GraphBuilder()
    x, y = b.placeholder("x", (4,)), b.placeholder("y", (4,))
    b.call(aten.set_.source_Tensor, x, y)
    write = b.call(aten.add_.Tensor, y, 1)
    read = b.call(aten.neg.default, x)
    index = build_index(b.program([write, read], {}))
    assert before(index, write.name, read.name)
    assert index.storages[0] == index.storages[1]


def body(write: bool, view: bool, constant: bool) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    root = torch.nn.Module()
    root.buffer = torch.zeros(4)
    target = graph.get_attr("buffer") if constant else x
    x.meta["val"] = torch.empty(4, device="meta")
    if constant:
        target.meta["val"] = torch.empty(4, device="meta")
    if write:
        graph.call_function(aten.add_.Tensor, (target, 1))
    made = graph.call_function(aten.view.default if view else aten.neg.default, (x, [2, 2]) if view else (x,))
    made.meta["val"] = x.meta["val"]
    graph.output((made,))
    return fx.GraphModule(root, graph)


@pytest.mark.parametrize(("write", "view"), [(False, False), (True, False), (False, True), (True, True)])
def test_sub_graphs_do_what_their_ops_do(write, view):
    b = GraphBuilder()
    x, y = b.placeholder("x", (4,)), b.placeholder("y", (4,))
    inner = b.graph.get_attr("body")
    early = b.call(aten.neg.default, x)
    call = add(b, torch.ops.higher_order.invoke_subgraph, inner, "body", x, val=(x.meta["val"],))
    one = getitem(b, call, 0)
    late = b.call(aten.neg.default, x)
    change = b.call(aten.add_.Tensor, one, 1)
    after = b.call(aten.abs.default, x)
    program = b.program([early, late, y, after, change], {})
    program.root.body = body(write, view, constant=False)
    index = build_index(program)
    assert before(index, early.name, call.name) == before(index, call.name, late.name) == write
    assert before(index, change.name, after.name) == view


def test_a_body_that_writes_its_own_constant_acts():
    b = GraphBuilder()
    x = b.placeholder("x", (4,))
    inner = b.graph.get_attr("body")
    call = add(b, torch.ops.higher_order.invoke_subgraph, inner, "body", x, val=(x.meta["val"],))
    act = b.call(own.act.default, x)
    program = b.program([act], {})
    program.root.body = body(write=True, view=False, constant=True)
    index = build_index(program)
    assert before(index, call.name, act.name)
    assert index.position[call.name] in index.stays


@pytest.mark.parametrize(
    ("path", "pure"),
    [
        ("aten.mm.default", True),
        ("aten._foreach_add.Scalar", True),
        ("aten._foreach_add_.Scalar", False),
        ("prims.iota.default", True),
        ("aten._print.default", False),
        ("aten.record_stream.default", False),
        ("aten.retain_grad.default", False),
        ("prims._sink_tokens.default", False),
        ("aten._validate_sparse_coo_tensor_args.default", False),
        ("quantized.add.default", False),
        ("commcc_alias.act.default", False),
        ("profiler._record_function_enter.default", False),
        ("c10d.barrier.default", False),
    ],
)
def test_what_is_pure(path, pure):
    assert ops.facts(ops.overload(path)).pure == pure


def test_an_op_without_an_overload_may_be_any_of_them():
    found = ops.facts(torch.ops.aten.split)
    assert (found.views, found.pure) == (("self",), True)
    assert ops.facts(torch.ops.aten.add).writes == ("out",)
    assert ops.facts(torch.ops.aten.save).effect


def test_an_op_of_a_library_that_is_not_loaded_and_is_handed_a_process_group_is_a_barrier(tmp_path):
    """Its name says nothing, and its schema, which would, is not there."""
    path = tmp_path / "g.fx.txt"
    for group, fenced in (("'0'", ["s"]), ("'mode'", [])):
        path.write_text(
            'def forward(self, a: "f32[8, 64][64, 1]cpu", x: "f32[64, 64][64, 1]cpu"):\n'
            f'    s: "f32[64, 64][64, 1]cpu" = torch.ops.not_loaded.shuffle_rows.default(x, {group})\n'
            "    g: \"f32[64, 64][64, 1]cpu\" = torch.ops._c10d_functional.all_gather_into_tensor.default(a, 8, '0')\n"
            '    w: "f32[64, 64][64, 1]cpu" = torch.ops._c10d_functional.wait_tensor.default(g)\n'
            "    return (s, w)\n"
        )
        index = build_index(load(path))
        assert [index.names[node] for node in index.barriers] == fenced
        assert (index.position["s"] in index.preds(index.position["g"])) == bool(fenced)
        assert bool(index.warnings) == bool(fenced)


def test_an_op_in_a_sub_graph_that_is_handed_a_process_group_is_a_barrier():
    """Of a library that is not loaded; handed anything else, the op that runs the sub-graph only keeps its place."""

    def fenced(argument):
        return build_index(parse_text(BRANCH_OF_UNKNOWN.format(argument=argument), "made")).barriers

    assert len(fenced("'0'")) == len(fenced("['0', '1']")) == 1
    assert fenced("'mode'") == ()


BRANCH_OF_UNKNOWN = """class GraphModule(torch.nn.Module):
    def forward(self, p: "b8[]", x: "f32[8]"):
        g: "f32[64]" = torch.ops._c10d_functional.all_gather_into_tensor.default(x, 8, '0')
        w: "f32[64]" = torch.ops._c10d_functional.wait_tensor.default(g)
        true_graph_0 = self.true_graph_0
        false_graph_0 = self.false_graph_0
        cond = torch.ops.higher_order.cond(p, true_graph_0, false_graph_0, (x,))
        getitem: "f32[8]" = cond[0]
        return (getitem, w)

    class true_graph_0(torch.nn.Module):
        def forward(self, x: "f32[8]"):
            y: "f32[8]" = torch.ops.not_loaded.shuffle.default(x, {argument})
            return (y,)

    class false_graph_0(torch.nn.Module):
        def forward(self, x: "f32[8]"):
            z: "f32[8]" = torch.ops.aten.neg.default(x)
            return (z,)
"""
