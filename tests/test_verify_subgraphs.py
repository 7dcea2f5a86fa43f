"""The verifier on higher-order ops: sub-graphs are compared by what they compute."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from commcc.graph.ops import OpaqueOp
from commcc.verify import verify
from tests.verify_graphs import WORLD, Graph, aten, c10d, differs, proved, rules

cond = torch.ops.higher_order.cond


def body(change="", names=("x",)):
    g = Graph()
    xs = [g.input(name, 4, 4) for name in names]
    x = xs[0]
    if change == "random":
        x = g(aten.bernoulli.p, x, 0.5)
    if change == "write":
        g(aten.add_.Tensor, x, 1)
    y = g(aten.mul.Tensor, x, 3 if change == "constant" else 2, name=f"{names[0]}_doubled")
    if change == "dead":
        g.wait(g(c10d.all_reduce.default, y, "sum", "0"))
    if change == "nested":
        g.root.inner = body("dead")
        made = g(torch.ops.higher_order.invoke_subgraph, g.graph.get_attr("inner"), "inner", y, val=(y.meta["val"],))
        g(operator.getitem, made, 0, val=y.meta["val"])
    if change == "effect":
        g(aten._assert_async.msg, g(aten.any.default, y), "wrong")
    if change == "launch":
        y = g(c10d.all_reduce.default, y, "sum", "0")
    if change in ("waited", "early"):
        launch = g(c10d.all_reduce.default, y, "sum", "0")
        y = g.wait(launch) if change == "waited" else g(aten.sin.default, launch)
        if change == "waited":
            y = g(aten.sin.default, y)
    g.graph.output((y,))
    return fx.GraphModule(g.root, g.graph)


def calls(*changes, names=("x",), attribute="branch"):
    """A conditional with the same or different branches."""
    g = Graph()
    p, x = g.input("p", dtype=torch.bool), g.input("x", 4, 4)
    branches = []
    for i, change in enumerate(changes):
        setattr(g.root, f"{attribute}_{i}", body(change, names))
        branches.append(g.graph.get_attr(f"{attribute}_{i}"))
    with g.mode:
        val = (torch.empty(4, 4),)
    made = g(cond, p, branches[0], branches[-1], [x], val=val)
    return g.program(g(operator.getitem, made, 0))


def test_equal_subgraphs_under_other_names():
    proved(calls("", "constant"), calls("", "constant"))
    proved(calls("", "constant"), calls("", "constant", names=("other",), attribute="sub"))


@pytest.mark.parametrize("change", ["constant", "random", "write", "effect", "launch"])
def test_a_changed_subgraph(change):
    assert verify(calls("", ""), calls("", change)).status == "different"
    proved(calls("", change), calls("", change))


def test_swapped_branches():
    differs(calls("", "constant"), calls("constant", ""), "value")


def test_a_wait_that_a_subgraph_lost():
    verdict = differs(calls("waited"), calls("early"), "wait")
    assert rules(verdict) == {"wait", "value"}  # and so the sub-graph is another one
    proved(calls("waited"), calls("waited"))


@pytest.mark.parametrize("change", ["waited", "constant"])
def test_a_subgraph_that_communicates_is_not_left_out_nor_run_again(change):
    def make(dead: int, live: int):
        g = Graph()
        x = g.input("x", 4, 4)
        g.root.branch = body(change)
        inner = g.graph.get_attr("branch")
        val = x.meta["val"]

        def call() -> fx.Node:
            made = g(torch.ops.higher_order.invoke_subgraph, inner, "branch", x, val=(val,))
            return g(operator.getitem, made, 0, val=val)

        for _ in range(dead):
            call()
        results = [g(aten.cos.default, call()) for _ in range(live)]
        return g.program(g(aten.sin.default, x), *results[-1:])

    for before, after in (((1, 0), (0, 0)), ((0, 1), (1, 1)), ((0, 1), (0, 2))):
        status = verify(make(*before), make(*after)).status
        assert status == ("unproved" if change == "waited" else "proved"), (before, after)


@pytest.mark.parametrize("change", ["dead", "nested"])
def test_what_a_subgraph_launches_for_nothing_is_not_proved_without(change):
    for before, after in (("", change), (change, "")):
        verdict = verify(calls(before, before), calls(before, after))
        assert (verdict.status, "other ranks may need it" in str(verdict.unproved)) == ("unproved", True)
    proved(calls(change, change), calls(change, change))
    differs(calls("", "constant"), calls(change, ""), "value")  # what it returns is another matter


def test_random_numbers_in_subgraphs_keep_their_order():
    def make(swapped):
        g = Graph()
        p, x = g.input("p", dtype=torch.bool), g.input("x", 4, 4)
        g.root.branch = body("random")
        branch = g.graph.get_attr("branch")
        with g.mode:
            val = (torch.empty(4, 4),)
        if swapped:
            draw = g(aten.rand_like.default, x)
            made = g(cond, p, branch, branch, [x], val=val)
        else:
            made = g(cond, p, branch, branch, [x], val=val)
            draw = g(aten.rand_like.default, x)
        return g.program(made, draw)

    proved(make(False), make(False))
    differs(make(False), make(True), "random")


def test_a_subgraph_that_is_out_of_order():
    before, after = calls(""), calls("")
    nodes = list(after.root.branch_0.graph.nodes)
    nodes[0].prepend(nodes[1])
    differs(before, after, "order", "in a sub-graph")


def test_subgraphs_in_subgraphs():
    def make(change):
        g = Graph()
        inner = Graph()
        x = inner.input("x", 4, 4)
        inner.root.deep = body(change)
        p = inner.input("p", dtype=torch.bool)
        with g.mode:
            val = (torch.empty(4, 4),)
        deep = inner.graph.get_attr("deep")
        inner.graph.output((inner(cond, p, deep, deep, [x], val=val),))
        g.root.outer = fx.GraphModule(inner.root, inner.graph)
        p, x = g.input("p", dtype=torch.bool), g.input("x", 4, 4)
        outer = g.graph.get_attr("outer")
        return g.program(g(cond, p, outer, outer, [x, p], val=val))

    proved(make(""), make(""))
    differs(make(""), make("constant"), "value")


def test_sharing_one_subgraph_or_owning_a_copy_is_the_same():
    first, second = calls("", ""), calls("", "")
    second.root.branch_1 = second.root.branch_0
    proved(first, second)


def test_unknown_ops_are_terms():
    def make(name, value=1):
        g = Graph()
        x = g.input("x", 4)
        with g.mode:
            val = torch.empty(4)
        return g.program(g(OpaqueOp(name), x, value, val=val))

    proved(make("mylib.op.default"), make("mylib.op.default"))
    differs(make("mylib.op.default"), make("mylib.other.default"), "value")
    differs(make("mylib.op.default"), make("mylib.op.default", 2), "value")


def test_ops_that_are_not_registered_have_effects_where_they_are_handed_to_others():
    def make(swapped):
        g = Graph()
        x = g.input("x", 4)
        with g.mode:
            val = (None, torch.empty(4))
        functionalized = torch.ops.higher_order.auto_functionalized_v2
        made = [
            g(functionalized, OpaqueOp(f"mylib.{name}.default"), _x_base_index=0, _all_bases=[x], val=val, name=name)
            for name in (("b", "a") if swapped else ("a", "b"))
        ]
        made.sort(key=lambda node: node.name)
        return g.program(*(g(operator.getitem, node, 1, val=val[1]) for node in made))

    proved(make(False), make(False))
    differs(make(False), make(True), "effect")


def test_calls_of_modules_are_a_gap():
    def make():
        g = Graph()
        x = g.input("x", 4)
        g.root.act = torch.nn.ReLU()
        return g.program(g.graph.call_module("act", (x,)))

    program = make()
    assert verify(program, program).status == "unproved"
    assert verify(make(), make()).status != "proved"


def test_two_results_of_different_shapes_keep_apart():
    """Inputs of sub-graphs have no name of their own; their shapes must not leak into one another."""

    def make(size):
        g = Graph()
        inner = Graph()
        x = inner.input("x", size)
        inner.graph.output((inner(aten.cat.default, [inner(aten.view.default, x, [-1])]),))
        g.root.sub = fx.GraphModule(inner.root, inner.graph)
        p, x = g.input("p", dtype=torch.bool), g.input("x", 4 * WORLD)
        sub = g.graph.get_attr("sub")
        with g.mode:
            val = (torch.empty(size),)
        return g.program(g(cond, p, sub, sub, [x], val=val))

    proved(make(8), make(8))
    assert verify(make(8), make(16)).status == "different"


# Results in the storage of something else


def handed_on(body, use, outs=1, constant=False):
    """A graph that calls a sub-graph on its input, and returns what ``use`` makes of input and results."""
    inner = Graph()
    x = inner.input("x", 4)
    if constant:
        x = inner.attribute("c", torch.ones(4))
    inner.graph.output(tuple(body(inner, x)))
    g = Graph()
    x = g.input("x", 4)
    g.root.inner = fx.GraphModule(inner.root, inner.graph)
    with g.mode:
        val = tuple(torch.empty(4) for _ in range(outs))
    called = g(torch.ops.higher_order.invoke_subgraph, g.graph.get_attr("inner"), "inner", x, val=val)
    return g.program(*use(g, x, [g(operator.getitem, called, i) for i in range(outs)]))


def view(g, x):
    return [g(aten.alias.default, x)]


def itself(_, x):
    return [x]


def copy(g, x):
    return [g(aten.clone.default, x)]


def twice(g, x):
    y = g(aten.sin.default, x)
    return [y, g(aten.alias.default, y)]


def apart(g, x):
    y = g(aten.sin.default, x)
    return [y, g(aten.clone.default, y)]


def input_is_written(g, x, results):
    g(aten.add_.Tensor, x, 1)
    return [g(aten.cos.default, results[-1])]


def input_is_written_late(g, x, results):
    y = g(aten.cos.default, results[-1])
    g(aten.add_.Tensor, x, 1)
    return [y]


def result_is_written(g, x, results):
    g(aten.add_.Tensor, results[0], 1)
    return [g(aten.cos.default, each) for each in (x, results[-1])]


def result_is_written_late(g, x, results):
    ys = [g(aten.cos.default, each) for each in (x, results[-1])]
    g(aten.add_.Tensor, results[0], 1)
    return ys


@pytest.mark.parametrize("body", [view, itself, copy])
def test_a_result_in_the_storage_of_an_operand(body):
    proved(handed_on(body, input_is_written), handed_on(body, input_is_written))
    verdict = verify(handed_on(body, input_is_written), handed_on(body, input_is_written_late))
    assert verdict.status == ("proved" if body is copy else "different")
    if body is not copy:
        differs(handed_on(copy, input_is_written), handed_on(body, input_is_written), "value")


@pytest.mark.parametrize("body", [twice, apart])
def test_results_in_one_storage(body):
    verdict = verify(handed_on(body, result_is_written, 2), handed_on(body, result_is_written_late, 2))
    assert verdict.status == ("proved" if body is apart else "different")
    if body is twice:
        differs(handed_on(apart, result_is_written, 2), handed_on(body, result_is_written, 2), "value")


@pytest.mark.parametrize("body", [view, itself])
def test_a_result_that_is_a_constant_of_the_body(body):
    def after_the_write(g, _, results):
        called = results[0].args[0]
        g(aten.add_.Tensor, results[0], 1)
        more = g(called.target, *called.args, val=called.meta["val"])
        return [g(aten.cos.default, g(operator.getitem, more, 0))]

    def before_the_write(g, _, results):
        called = results[0].args[0]
        more = g(called.target, *called.args, val=called.meta["val"])
        y = g(aten.cos.default, g(operator.getitem, more, 0))
        g(aten.add_.Tensor, results[0], 1)
        return [y]

    proved(handed_on(body, after_the_write, constant=True), handed_on(body, after_the_write, constant=True))
    verdict = verify(handed_on(body, after_the_write, constant=True), handed_on(body, before_the_write, constant=True))
    assert verdict.status == "different"
    proved(handed_on(copy, after_the_write, constant=True), handed_on(copy, before_the_write, constant=True))


@pytest.mark.parametrize("shared", [False, True])
def test_a_graph_that_writes_is_handed_one_tensor_twice(shared):
    """A read of one input and a write to the other may change places, unless both are in one memory."""

    def called(early):
        inner = Graph()
        a, b = inner.input("a", 4), inner.input("b", 4)
        if early:
            inner(aten.add_.Tensor, a, 1)
        read = inner(aten.sin.default, b)
        if not early:
            inner(aten.add_.Tensor, a, 1)
        inner.graph.output((read,))
        g = Graph()
        x, y = g.input("x", 4), g.input("y", 4)
        g.root.body = fx.GraphModule(inner.root, inner.graph)
        handed = (g.graph.get_attr("body"), "body", x, g(aten.alias.default, x) if shared else y)
        made = g(torch.ops.higher_order.invoke_subgraph, *handed, val=(x.meta["val"],))
        return g.program(g(operator.getitem, made, 0))

    assert verify(called(early=True), called(early=False)).status == ("unproved" if shared else "proved")


def test_a_loop_that_is_functionalized_is_handed_its_operands_by_name():
    """As ``auto_functionalized_v2`` has a loop that writes: names are in no order, what is written stands apart."""

    def step(loop):
        g = Graph()
        at, total, added = g.input("at", dtype=torch.int64), g.input("total", 4), g.input("added", 4)
        if loop:
            g(aten.add_.Tensor, added, total)
            results = (g(aten.add.Tensor, at, 1), g(aten.sin.default, total))
        else:
            results = g(aten.lt.Scalar, at, 3)
        g.graph.output(results)
        return fx.GraphModule(g.root, g.graph)

    def made(dtype=torch.float32):
        g = Graph()
        start, total, written = g.input("start", dtype=torch.int64), g.input("total", 4), g.input("written", 4)
        vals = [start.meta["val"], total.meta["val"].to(dtype), written.meta["val"]]
        g.root.condition, g.root.loop = step(loop=False), step(loop=True)
        called = g(
            torch.ops.higher_order.auto_functionalized_v2,
            torch.ops.higher_order.while_loop,
            cond_fn=g.graph.get_attr("condition"),
            body_fn=g.graph.get_attr("loop"),
            carried_input0=start,
            carried_input1=total,
            _additional_input0_base_index=0,
            _all_bases=[written],
            val=tuple(vals),
        )
        return g.program(*(g(operator.getitem, called, at, val=vals[at]) for at in range(3)))

    proved(made(), made())
    assert verify(made(torch.float16), made(torch.float16)).status == "unproved"  # what the loop does not return
