"""Graphs that no compiler wrote: the verifier says something, it does not crash."""

from __future__ import annotations

import operator
import random

import pytest
import torch
from torch import fx

from commcc.graph.ops import OpaqueOp
from commcc.graph.ops.collective_table import COLLECTIVES
from commcc.graph.ops.views import REGROUPING
from commcc.graph.program import Program
from commcc.serialization.fx import parse_text
from commcc.verify import verify
from tests.verify_graphs import Graph, aten, c10d

GARBAGE = [
    *(None, True, -1, 0, 1, 3, 2**70, 1.5, float("nan"), "", "sum", "x" * 99, torch.float32, torch.device("cpu")),
    *([], [1, -1], [None], ["a"], [[1]], {}, {"a": 1}, slice(1), ..., aten.mm.default, 1j, object()),
]


def _op(path):
    """The op, None when this PyTorch does not have it."""
    namespace, name, overload = path.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name, None), overload, None)


def _targets():
    paths = [*sorted(REGROUPING), *(f"{path}.default" for path in sorted(COLLECTIVES))]
    yield from filter(None, map(_op, paths))
    yield from (c10d.wait_tensor.default, operator.getitem, operator.add, operator.floordiv, torch.sym_sum)
    yield from (aten.sym_size.int, aten.add_.Tensor, aten.as_strided.default, aten._local_scalar_dense.default)
    yield OpaqueOp("lib.op.default")


def nonsense(target, rng):
    """A graph around one call with arguments that were drawn from a hat."""
    g = Graph()
    tensors = [g.input("x", 4, 6), g.input("y", 8), g.input("z"), g.input("e", 0, 3)]
    no_val = g.graph.placeholder("v")
    parts = g(aten.split.Tensor, tensors[1], 4)
    hat = [*tensors, parts, no_val, *GARBAGE]

    def draw():
        value = rng.choice(hat) if rng.random() < 0.6 else rng.choice(tensors)
        return [rng.choice(hat) for _ in range(rng.randint(0, 3))] if rng.random() < 0.2 else value

    args = tuple(draw() for _ in range(rng.randint(0, 5)))
    names = ["dim", "dtype", "out", "group_name", "size", "self", "memory_format"]
    kwargs = {rng.choice(names): draw() for _ in range(rng.randint(0, 2))} if rng.random() < 0.3 else {}
    node = g.graph.call_function(target, args, kwargs)
    values = [n.meta.get("val") for n in tensors] + [None, 3, "s", (), (tensors[0].meta["val"], None)]
    node.meta["val"] = rng.choice(values)
    after = g.graph.call_function(aten.view.default, (node, [24]), {})
    last = g.graph.call_function(c10d.wait_tensor.default, (node,))
    return g.program(node, after, last, *tensors[:2])


def _shown(target):
    """Without the address that a function has in this process: workers compare the names of their tests."""
    return getattr(target, "__qualname__", None) or str(target)


@pytest.mark.parametrize("target", list(_targets()), ids=_shown)
@pytest.mark.sampled(7)
def test_nonsense_is_equal_to_itself_and_not_a_crash(target):
    rng = random.Random(str(target))
    for _ in range(25):
        program = nonsense(target, rng)
        assert verify(program, program).status in ("proved", "unproved")
        other = nonsense(target, rng)
        assert verify(program, other).status in ("different", "unproved", "proved")


def test_arguments_nested_too_deeply():
    g = Graph()
    x = g.input("x", 4)
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    try:
        node = g(aten.sin.default, x, val=x.meta["val"])
        node.args = (x, deep)
    except RecursionError:
        pytest.skip("this PyTorch makes no such node")
    program = g.program(node)
    assert verify(program, program).status == "unproved"


def test_an_empty_graph():
    empty = Program(fx.Graph(), torch.nn.Module())
    assert verify(empty, empty).status == "different"
    nothing = fx.Graph()
    nothing.output(())
    program = Program(nothing, torch.nn.Module())
    assert verify(program, program).status == "proved"


def test_attributes_that_are_not_there():
    def make(name):
        graph = fx.Graph()
        node = graph.create_node("get_attr", name)
        graph.output((node,))
        return Program(graph, torch.nn.Module())

    assert verify(make("a.b.c"), make("a.b.c")).status == "unproved"
    assert verify(make("a.b.c"), make("a.b.c"), same_constants=True).status == "proved"
    assert verify(make("__class__"), make("forward")).status == "unproved"


def test_values_of_odd_kinds():
    def make():
        g = Graph()
        x = g.value("x", {"a": 1})
        y = g.value("y", [torch.empty(3, device="meta"), None])
        z = g.value("z", torch.eye(3).to_sparse())
        with g.mode:
            val = torch.empty(3)
        return g.program(g(OpaqueOp("lib.op.default"), x, y, z, val=val), x, y)

    assert verify(make(), make()).status == "proved"


@pytest.mark.parametrize("size", ["s0**s0**9", "FloorDiv(s0, 0)"])
def test_sizes_that_have_no_number(size):
    """Ops are tried with numbers in place of symbols: one that takes forever to work out, or that there is not."""
    text = f"""class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[s0]"):
        y: "f32[{size}]" = torch.ops.aten.neg.default(x)
        return (y,)
"""
    assert verify(parse_text(text, "before"), parse_text(text, "after")).status in ("proved", "unproved")
