"""Higher-order ops that are handed an op in place of a graph: what that op writes and looks at, the call does."""

from __future__ import annotations

import pytest
import torch
import torch._prims.rng_prims as rng
from torch._higher_order_ops.auto_functionalize import auto_functionalized

from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.graph.index.traits import traits_of
from commcc.graph.ops.operands import rewritten, sources, written
from commcc.passes.base import PlanContext
from commcc.passes.dedup import Dedup
from commcc.verify import verify
from tests.verify_graphs import Graph, aten, c10d, proved

higher = torch.ops.higher_order
SHAPE = (4, 4)
#: How each op is called: what stands in front of the op that it is handed.
CALLERS = {
    "run_with_rng_state": lambda g: (rng.run_with_rng_state, g.input("state", 16, dtype=torch.uint8)),
    "run_and_save_rng_state": lambda g: (rng.run_and_save_rng_state,),
    "graphsafe_run_with_rng_state": lambda g: (higher.graphsafe_run_with_rng_state,),
    "wrap": lambda g: (higher.wrap,),
    "strict_mode": lambda g: (higher.strict_mode,),
    "tag_activation_checkpoint": lambda g: (higher.tag_activation_checkpoint,),
    "foreach_map": lambda g: (higher.foreach_map,),
}
callers = pytest.mark.parametrize("name", CALLERS)


class Calling:
    """A graph of x and y that calls an op through another one. read: before the call, behind it, or never."""

    def __init__(self, name, op, *given, read="behind", nested=False):
        g = self.g = Graph()
        caller, *front = CALLERS[name](g)
        self.x, self.y = g.input("x", *SHAPE), g.input("y", *SHAPE)
        operands = [self.x, *(self.y if part is None else part for part in given)]
        first = g(aten.mul.Tensor, self.x, 2) if read == "before" else None
        with g.mode:
            val = torch.empty(SHAPE)
        self.call = g(caller, *front, *(([op, *operands],) if nested else (op, *operands)), val=val)
        self.result = g(aten.mul.Tensor, self.x, 2) if read == "behind" else first

    def program(self, *outputs):
        return self.g.program(*(outputs or (self.result,)))


@callers
@pytest.mark.parametrize("nested", [False, True])
def test_a_read_does_not_move_over_a_write(name, nested):
    def made(read):
        return Calling(name, aten.bernoulli_.float, 0.5, read=read, nested=nested)

    proved(made("behind").program(), made("behind").program())
    assert verify(made("before").program(), made("behind").program()).status != "proved"
    calling = made("behind")
    assert calling.x in written(calling.call)
    index = build_index(calling.program())
    at = index.names.index(calling.call.name)
    assert index.names.index("x") in index.writes[at]


@callers
def test_a_result_may_be_what_the_op_was_given(name):
    def made(late):
        calling = Calling(name, aten.dropout.default, 0.5, False, read="never")
        g = calling.g
        result = None if late else g(aten.neg.default, calling.call)
        g(aten.add_.Tensor, calling.x, 1)
        return calling, g.program(result or g(aten.neg.default, calling.call))

    proved(made(True)[1], made(True)[1])
    calling, program = made(True)
    assert verify(made(False)[1], program).status != "proved"
    assert calling.x in sources(calling.call)
    assert traits_of(calling.call, program.root).shares


REACHING = [
    (aten.set_.source_Tensor, None),
    (aten.as_strided.default, [4, 4], [4, 1], 16),
    (c10d.all_reduce_.default, "sum", "0"),
]


@callers
@pytest.mark.parametrize("call", REACHING, ids=lambda call: str(call[0]))
def test_nothing_moves_across_a_call_that_reaches_further(name, call):
    op, *given = call
    calling = Calling(name, op, *given)
    trait = traits_of(calling.call, torch.nn.Module())
    assert trait.barrier and trait.hidden and trait.opaque

    def program(early):
        g = Graph()
        caller, *front = CALLERS[name](g)
        x, y = g.input("x", 8, 4), g.input("y", *SHAPE)
        base = g(aten.add.Tensor, x, 0)
        own, rest = g(aten.slice.Tensor, base, 0, 0, 4), g(aten.slice.Tensor, base, 0, 4, 8)
        operands = [y if part is None else part for part in given]
        for other in (rest, y) if early else ():
            g(aten.add_.Tensor, other, 1)
        with g.mode:
            val = torch.empty(SHAPE)
        result = g(caller, *front, op, own, *operands, val=val)
        for other in () if early else (rest, y):
            g(aten.add_.Tensor, other, 1)
        return g.program(g(aten.neg.default, result), g(aten.neg.default, own))

    proved(program(True), program(True))
    assert verify(program(True), program(False)).status != "proved"


@callers
def test_what_only_computes_writes_nothing(name):
    calling = Calling(name, aten.add.Tensor, None)
    assert not written(calling.call) and not sources(calling.call)
    trait = traits_of(calling.call, torch.nn.Module())
    assert not (trait.writes or trait.shares or trait.barrier)
    other = Calling(name, aten.add.Tensor, None)
    proved(calling.program(calling.call), other.program(other.call))


def test_copies_are_written_in_place_of_operands():
    g = Graph()
    x, y = g.input("x", *SHAPE), g.input("y", *SHAPE)
    call = g(auto_functionalized, aten.copy_.default, y, src=x, val=(x.meta["val"], x.meta["val"]))
    assert not written(call) and not sources(call)
    trait = traits_of(call, torch.nn.Module())
    assert not (trait.writes or trait.shares or trait.barrier)


def test_dedup_keeps_gathers_around_a_draw_in_place():
    for op, removed in ((aten.bernoulli_.float, 0), (aten.bernoulli.p, 1)):
        g = Graph()
        state, w = g.input("state", 16, dtype=torch.uint8), g.input("w", *SHAPE)
        w.meta["desc"] = "ParamAOTInput(target='w')"
        first = g.wait(g(c10d.all_gather_into_tensor.default, w, 2, "0"))
        g(rng.run_with_rng_state, state, op, w, 0.5, val=w.meta["val"])
        second = g.wait(g(c10d.all_gather_into_tensor.default, w, 2, "0"))
        program = g.program(g(aten.mul.Tensor, first, 2), g(aten.mul.Tensor, second, 3))
        index = build_index(program)
        plan = Dedup().plan(PlanContext(program, index, identify(index)))
        assert plan.report.gathers_removed == removed


@pytest.mark.parametrize(("handed", "writes"), [("graph", True), (aten.add_.Tensor, True), (aten.add.Tensor, False)])
def test_operands_may_be_written_by_what_is_called(handed, writes):
    g, h = Graph(), Graph()
    x, a = g.input("x", *SHAPE), h.input("a", *SHAPE)
    h.graph.output((h(aten.clone.default, h(aten.add_.Tensor, a, 1)),))
    g.root.s = torch.fx.GraphModule(h.root, h.graph)
    view = g(aten.slice.Tensor, x, 0, 0, 2)
    if handed == "graph":
        g(higher.invoke_subgraph, g.graph.get_attr("s"), "s", x, val=(x.meta["val"],))
    else:
        g(higher.wrap, handed, x, 1, val=x.meta["val"])
    assert rewritten(view, [g(aten.neg.default, view)]) == writes
