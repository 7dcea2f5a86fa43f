"""Ops without an overload: what any overload does, they may do, and their arguments are found by name."""

from __future__ import annotations

import pytest
import torch
from torch._ops import OpOverloadPacket

from commcc.graph.index import build_index
from commcc.graph.index.traits import traits_of
from commcc.graph.ops import ALL, argument, facts, takes
from commcc.graph.ops.packets import fixed_names, overloads_of, position_names
from commcc.verify import verify
from tests.verify_graphs import Graph, aten, differs, proved

SHAPE = (4, 4)
FLAGS = (
    *("sometimes", "writes_keywords", "reads", "strides", "storage", "identity"),
    *("random", "host_sync", "barrier", "effect", "body"),
)


def packets():
    names = sorted({schema.name for schema in torch._C._jit_get_all_schemas()})
    for name in names:
        library, _, op = name.partition("::")
        packet = getattr(getattr(torch.ops, library), op, None) if library in ("aten", "prims") else None
        if isinstance(packet, OpOverloadPacket):
            yield packet


def covers(packet, known, name):
    """Whether an argument of an overload is among those that are known of all of them."""
    keyword = all(a.kwarg_only for op in overloads_of(packet) for a in op._schema.arguments if a.name == name)
    return known == ALL or (name in known and (keyword or name in fixed_names(packet)))


def test_an_op_without_an_overload_may_do_what_each_of_them_does():
    seen = 0
    for packet in packets():
        whole = facts(packet)
        for op in overloads_of(packet):
            fact, seen = facts(op), seen + 1
            assert all(getattr(whole, flag) or not getattr(fact, flag) for flag in FLAGS), op
            assert all(covers(packet, whole.writes, name) for name in fact.writes), op
            assert all(covers(packet, whole.views, name) for name in fact.views), op
            assert whole.joins == fact.joins, op
            assert fact.pure or not whole.pure, op
            assert not fact.assertion or whole.assertion or whole.effect, op
            assert fact.allocates or not whole.allocates, op
    assert seen > 2000


def writing(op, *given, keep=True):
    g = Graph()
    x, y = g.input("x", *SHAPE), g.input("y", *SHAPE)
    if keep:
        g(op, x, *(y if part is None else part for part in given))
    return g.program(g(aten.neg.default, x), g(aten.neg.default, y))


WRITING = [(aten.mul_, 2), (aten.add_, None), (aten.copy_, None), (aten.squeeze_, 0), (aten.fill_, 1.0)]


@pytest.mark.parametrize(("op", "given"), WRITING)
def test_a_write_is_seen(op, given):
    proved(writing(op, given), writing(op, given))
    verdict = verify(writing(op, given), writing(op, given, keep=False))
    assert verdict.status == "different"
    index = build_index(writing(op, given))
    at = next(i for i, name in enumerate(index.ops) if name.startswith("aten.") and name.endswith("_"))
    assert index.names.index("x") in index.writes[at]


def read(op, *given, early):
    g = Graph()
    x, y = g.input("x", *SHAPE), g.input("y", *SHAPE)
    result = g(aten.neg.default, x) if early else None
    g(op, x, *(y if part is None else part for part in given))
    return g.program(g(aten.neg.default, x) if result is None else result)


@pytest.mark.parametrize(("op", "given"), WRITING)
def test_a_read_does_not_move_over_a_write(op, given):
    assert verify(read(op, given, early=True), read(op, given, early=False)).status != "proved"


def viewing(op, *given, cloned=False, late=False, vals=True):
    g = Graph()
    x = g.input("x", *SHAPE)
    view = g(op, x, *given)
    if not vals:
        del x.meta["val"]
    if cloned:
        view = g(aten.clone.default, view, val=view.meta["val"])
    if not late:
        result = g(aten.neg.default, view)
    g(aten.add_.Tensor, x, 1, val=view.meta["val"])
    if late:
        result = g(aten.neg.default, view)
    return g.program(result, view)


VIEWS = [(aten.squeeze,), (aten.squeeze, 0), (aten.slice, 0, 1, 3), (aten.select, 0, 1), (aten.view, [16]), (aten.t,)]


@pytest.mark.parametrize("call", VIEWS)
@pytest.mark.parametrize("vals", [True, False])
def test_a_view_is_seen(call, vals):
    plain = viewing(*call, vals=vals)
    for changed in ({"cloned": True}, {"late": True}):
        assert verify(plain, viewing(*call, vals=vals, **changed)).status != "proved"
    trait = traits_of(next(node for node in plain.graph.nodes if node.target is call[0]), plain.root)
    assert trait.shares or facts(call[0]).views == ("self",)


def joined(early):
    """One storage is made of two, and then one of them is written."""
    g = Graph()
    x, y = g.input("x", *SHAPE), g.input("y", *SHAPE)
    own = g(aten.add.Tensor, x, 0)
    g(aten.set_, own, y)
    if early:
        g(aten.add_.Tensor, y, 1)
    result = g(aten.mul.Tensor, own, 2)
    if not early:
        g(aten.add_.Tensor, y, 1)
    return g.program(result)


def test_what_is_joined_is_one_storage():
    assert verify(joined(True), joined(False)).status != "proved"
    index = build_index(joined(True))
    own, y = (index.storages[index.names.index(name)] for name in ("add_tensor", "y"))
    assert own == y


def test_the_overload_is_the_one_that_fits():
    g = Graph()
    x, y = g.input("x", *SHAPE), g.input("y", *SHAPE)
    assert position_names(g(aten.add, x, y)) == ("self", "other")
    assert position_names(g(aten.copy_, x, y, True)) == ("self", "src", "non_blocking")
    assert argument(g(aten.to, x, torch.float64, True), "non_blocking") is True
    assert takes(aten.to, "non_blocking") and not takes(aten.add, "non_blocking")
    node = g(aten.mul_, x, 2)
    del x.meta["val"]
    assert position_names(node) == ()  # of numbers and lists there are other overloads, with other names


def added(op, *, twice=False):
    g = Graph()
    x, y = g.input("x", *SHAPE), g.input("y", *SHAPE)
    total = g(op, x, y)
    if twice:
        g(op, x, y)
    return g.program(g(aten.neg.default, total))


def test_what_only_computes_is_as_before():
    proved(added(aten.add), added(aten.add))
    g = Graph()
    x, y = g.input("x", *SHAPE), g.input("y", *SHAPE)
    by_name = g.program(g(aten.neg.default, g(aten.add, x, other=y)))
    proved(added(aten.add), by_name)
    differs(added(aten.add), added(aten.sub), "value")
    node = next(node for node in added(aten.matmul).graph.nodes if node.target is aten.matmul)
    assert not traits_of(node, torch.nn.Module()).writes
