"""Sub-graphs that reach memory which a call does not show: nothing but the same program is proved, nothing moves."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.passes.base import PlanContext
from commcc.passes.dedup import Dedup
from commcc.verify import verify
from tests.verify_graphs import Graph, aten, c10d, differs, proved, undecided

invoke = torch.ops.higher_order.invoke_subgraph
SHAPE = (4, 4)


def body(build, inputs=1, constant=None):
    """A sub-graph of tensors. build: of the graph, its inputs and the constant ``buf``, if it has one; the result."""
    g = Graph()
    given = [g.input(f"a{at}", *SHAPE) for at in range(inputs)]
    held = [] if constant is None else [g.attribute("buf", constant)]
    g.graph.output((build(g, *given, *held),))
    return fx.GraphModule(g.root, g.graph)


def counted(constant=None):
    """Adds what it is given to a constant, and returns what that holds."""
    held = torch.zeros(SHAPE) if constant is None else constant
    return body(lambda g, a, buf: g(aten.clone.default, g(aten.add_.Tensor, buf, a)), constant=held)


def called(g, name, module, *operands):
    if not hasattr(g.root, name):
        setattr(g.root, name, module)
    with g.mode:
        val = (torch.empty(SHAPE),)
    return g(operator.getitem, g(invoke, g.graph.get_attr(name), name, *operands, val=val), 0)


def twice(order, *, modules=1, names=("s0", "s1")):
    """A sub-graph that counts its calls is called twice, or two that are alike are called."""
    g = Graph()
    x, held = g.input("x", *SHAPE), [counted() for _ in range(modules)]
    results = [called(g, names[at % modules], held[at % modules], x) for at in range(2)]
    return g.program(*(results[at] for at in order))


def test_what_depends_on_how_often_it_was_called():
    proved(twice((0, 1)), twice((0, 1)))
    undecided(twice((0, 1)), twice((1, 0)))
    assert verify(twice((0, 1)), twice((0, 0))).status != "proved"
    proved(twice((0, 1), modules=2), twice((0, 1), modules=2))
    assert verify(twice((0, 1), modules=2), twice((0, 1))).status != "proved"


def around(read_first, *, tied):
    """A constant is read outside, and written by a sub-graph that has it under a name of its own."""
    g, held = Graph(), torch.ones(SHAPE)
    x, module = g.input("x", *SHAPE), counted(held)
    g.root.s = module
    outside = held if tied else held.clone()
    buf = g.attribute("buf", outside)
    read = g(aten.mul.Tensor, buf, 2) if read_first else None
    result = called(g, "s", module, x)
    read = read or g(aten.mul.Tensor, buf, 2)
    return g.program(result, read)


@pytest.mark.parametrize("tied", [False, True])
def test_a_constant_that_a_sub_graph_writes(tied):
    proved(around(True, tied=tied), around(True, tied=tied))
    undecided(around(True, tied=tied), around(False, tied=tied))


def read_inside(write_first):
    """A constant is written outside, and read by a sub-graph."""
    g, held = Graph(), torch.ones(SHAPE)
    x = g.input("x", *SHAPE)
    buf = g.attribute("buf", held)
    module = body(lambda h, a, b: h(aten.add.Tensor, a, b), constant=held)
    if write_first:
        g(aten.copy_.default, buf, x)
    result = called(g, "s", module, x)
    if not write_first:
        g(aten.copy_.default, buf, x)
    return g.program(result)


def test_a_constant_that_a_sub_graph_reads():
    proved(read_inside(True), read_inside(True))
    undecided(read_inside(True), read_inside(False))


def looking_around(write_first):
    """A sub-graph is given a few rows, and reads others of the same storage."""
    g = Graph()
    x, y = g.input("x", 8, 4), g.input("y", *SHAPE)
    module = body(lambda h, a: h(aten.mul.Tensor, h(aten.as_strided.default, a, [4, 4], [4, 1], 16), 2))
    rows, others = g(aten.slice.Tensor, x, 0, 0, 4), g(aten.slice.Tensor, x, 0, 4, 8)
    if write_first:
        g(aten.copy_.default, others, y)
    result = called(g, "s", module, rows)
    if not write_first:
        g(aten.copy_.default, others, y)
    return g.program(result)


def joining(write_first):
    """A sub-graph makes one storage of two inputs."""
    g = Graph()
    x, y = g.input("x", *SHAPE), g.input("y", *SHAPE)
    own = g(aten.add.Tensor, x, 0)
    module = body(lambda h, a, b: h(aten.sin.default, (h(aten.set_.source_Tensor, a, b), b)[1]), 2)
    result = called(g, "s", module, own, y)
    if write_first:
        g(aten.add_.Tensor, y, 1)
    read = g(aten.mul.Tensor, own, 2)
    if not write_first:
        g(aten.add_.Tensor, y, 1)
    return g.program(result, read)


@pytest.mark.parametrize("make", [looking_around, joining])
def test_memory_besides_what_is_given(make):
    proved(make(False), make(False))
    assert verify(make(False), make(True)).status != "proved"


def test_one_tensor_under_two_names_is_read_as_it_is():
    def make(late):
        g, held = Graph(), torch.ones(SHAPE)
        a = g.attribute("a", held)
        b = None if late else g.attribute("b", held)
        g(aten.add_.Tensor, a, 1)
        return g.program(g(aten.sin.default, b or g.attribute("b", held)))

    proved(make(True), make(False))
    g, held = Graph(), torch.ones(SHAPE)
    a, b = g.attribute("a", held), g.attribute("b", held)
    early = g(aten.sin.default, b)
    g(aten.add_.Tensor, a, 1)
    differs(make(True), g.program(early), "mutation")


def test_an_overlap_that_is_named_behind_a_write_is_not_decided():
    def make(late):
        g, held = Graph(), torch.ones(24)
        parts = held[:16], held[8:]
        a = g.attribute("a", parts[0])
        b = None if late else g.attribute("b", parts[1])
        g(aten.add_.Tensor, a, 1)
        return g.program(g(aten.sin.default, b or g.attribute("b", parts[1])))

    undecided(make(True), make(True))
    undecided(make(True), make(False))


def gathered_around(module, name):
    """A constant is gathered in front of a call and behind it."""
    g, held = Graph(), torch.ones(SHAPE)
    x, module = g.input("x", *SHAPE), module(held)
    w = g.attribute(name, held)
    w.meta["desc"] = "ParamAOTInput(target='w')"
    first = g.wait(g(c10d.all_gather_into_tensor.default, w, 2, "0"))
    result = called(g, "s", module, x)
    second = g.wait(g(c10d.all_gather_into_tensor.default, w, 2, "0"))
    return g.program(g(aten.mul.Tensor, first, 2), g(aten.mul.Tensor, second, 3), result)


def test_passes_leave_what_such_a_call_may_change():
    def pure(held):
        return body(lambda h, a, b: h(aten.add.Tensor, a, b), constant=held)

    for module, removed in ((pure, 1), (counted, 0)):
        program = gathered_around(module, "w")
        index = build_index(program)
        plan = Dedup().plan(PlanContext(program, index, identify(index)))
        assert plan.report.gathers_removed == removed
        assert bool(index.barriers) == (not removed)


def test_constants_in_one_memory_are_one_storage():
    g, held = Graph(), torch.ones(24)
    for name, value in (("a", held[:16]), ("b", held[8:]), ("c", torch.ones(16))):
        g.attribute(name, value)
    index = build_index(g.program())
    a, b, c, _ = index.storages
    assert a == b != c


@pytest.mark.parametrize("writes", [False, True])
def test_another_part_of_a_constant_that_is_shared(writes):
    def make(at):
        base = torch.zeros(8, 4)
        g = Graph()
        x, held = g.input("x", *SHAPE), g.attribute("c", base)
        if writes:
            inside = body(lambda h, a, b: h(aten.clone.default, h(aten.add_.Tensor, b, a)), constant=base[at : at + 4])
        else:
            inside = body(lambda h, a, b: h(aten.add.Tensor, a, b), constant=base[at : at + 4])
            g(aten.copy_.default, g(aten.slice.Tensor, held, 0, 0, 4), x)
        return g.program(called(g, "s", inside, x), g(aten.sum.dim_IntList, held, [1]))

    proved(make(0), make(0))
    assert verify(make(0), make(4)).status != "proved"


def launching(op="sum", group="0", *, conditional=False, calls=1):
    """A sub-graph without results launches a collective and waits for it."""

    def nothing(launch):
        g = Graph()
        x = g.input("a0", *SHAPE)
        if launch:
            g.reduce(x, op, group)
        g.graph.output(())
        return fx.GraphModule(g.root, g.graph)

    g = Graph()
    x, wanted = g.input("x", *SHAPE), g.input("p", dtype=torch.bool)
    s, t = g.attribute("s", nothing(True)), g.attribute("t", nothing(False))
    for _ in range(calls):
        if conditional:
            g(torch.ops.higher_order.cond, wanted, s, t, (x,), val=())
        else:
            g(invoke, s, "s", x, val=())
    return g.program(g(aten.mul.Tensor, x, 2))


@pytest.mark.parametrize("conditional", [False, True])
def test_what_a_call_without_results_launches_is_compared(conditional):
    before = launching(conditional=conditional)
    proved(before, launching(conditional=conditional))
    for other in ({"op": "max"}, {"group": "other"}, {"calls": 0}):
        after = launching(**{"conditional": conditional, **other})
        assert verify(before, after).status != "proved", other
        assert verify(after, before).status != "proved", other
    # What was launched twice may be launched once, as dedup does, and not the other way round.
    twice = launching(conditional=conditional, calls=2)
    undecided(before, twice)
    assert {note.rule for note in proved(twice, before).notes} == {"dropped"}


@pytest.mark.parametrize("used", [False, True])
def test_a_wait_in_a_sub_graph_whose_result_nobody_needs(used):
    def make(waits):
        g = Graph()
        x = g.input("x", *SHAPE)
        launch = g(c10d.all_reduce.default, x, "sum", "0")
        if waits:
            called(g, "s", body(lambda h, a: h(aten.sin.default, h.wait(a)) if used else h.wait(a)), launch)
        return g.program(g(aten.mul.Tensor, launch, 2))

    proved(make(True), make(True))
    assert verify(make(True), make(False)).status != "proved"
    assert verify(make(False), make(True)).status != "proved"


def given_back(how):
    """A sub-graph gives a view of what it is given, which is x, or y with the same in it, or such a view is copied."""
    g = Graph()
    x, y = g.input("x", *SHAPE), g.input("y", *SHAPE)
    g(aten.copy_.default, y, x)
    view = body(lambda h, a: h(aten.t.default, a))
    result = called(g, "s", view, y if how == "y" else x)
    return g.program(g(aten.clone.default, result) if how == "copy" else result)


def test_outputs_in_memory_that_a_sub_graph_gives_back():
    for how in ("x", "y", "copy"):
        proved(given_back(how), given_back(how))
        for other in {"x", "y", "copy"} - {how}:
            undecided(given_back(how), given_back(other))


def test_two_results_of_a_sub_graph_in_one_storage():
    def make(*, copies):
        h = Graph()
        value = h(aten.sin.default, h.input("a0", *SHAPE))
        h.graph.output((value, h(aten.view.default, value, [16])))
        g = Graph()
        x, s = g.input("x", *SHAPE), g.attribute("s", fx.GraphModule(h.root, h.graph))
        with g.mode:
            both = g(invoke, s, "s", x, val=(torch.empty(SHAPE), torch.empty(16)))
        first, second = g(operator.getitem, both, 0), g(operator.getitem, both, 1)
        return g.program(first, g(aten.clone.default, second) if copies else second)

    for copies in (False, True):
        proved(make(copies=copies), make(copies=copies))
        undecided(make(copies=copies), make(copies=not copies))


@pytest.mark.parametrize("said", ["all", "part", "nothing"])
def test_a_view_that_a_sub_graph_gives_without_a_val(said):
    def make(late):
        h = Graph()
        given = h.input("a0", *SHAPE)
        h.graph.output((h(aten.add.Tensor, given, 1), h(aten.t.default, given)))
        g = Graph()
        x, s = g.input("x", *SHAPE), g.attribute("s", fx.GraphModule(h.root, h.graph))
        with g.mode:
            vals = torch.empty(SHAPE), torch.empty(SHAPE)
        both = g(invoke, s, "s", x, val=vals)
        first, view = g(operator.getitem, both, 0), g(operator.getitem, both, 1)
        early = None if late else g(aten.neg.default, view)
        g(aten.add_.Tensor, x, 1)
        read = early or g(aten.neg.default, view)
        if said != "all":
            both.meta["val"] = (vals[0], None)
            del view.meta["val"], read.meta["val"]
        if said == "nothing":
            del both.meta["val"]
        return g.program(first, read)

    proved(make(False), make(False))
    assert verify(make(False), make(True)).status != "proved"
