"""Functions of Python in a graph that no list names: each is another one, whatever it is called."""

from __future__ import annotations

import operator

import pytest
import torch

from commcc.graph.ops import OpaqueOp, facts, op_name
from commcc.verify import verify
from tests.verify_graphs import Graph, aten, proved
from tests.verify_texts import pair

SHAPE = (4,)
F = "f32[4][1]cpu"
higher = torch.ops.higher_order


def scaled(factor):
    def function(x):
        return x * factor

    return function


def calling(function, *given):
    g = Graph()
    x = g.input("x", *SHAPE)
    with g.mode:
        val = torch.empty(SHAPE)
    return g.program(g(function, *given, x, val=val))


def inside(function):
    """The call is in a sub-graph."""
    g, h = Graph(), Graph()
    x, a = g.input("x", *SHAPE), h.input("a", *SHAPE)
    h.graph.output((h(function, a, val=a.meta["val"]),))
    g.root.s = torch.fx.GraphModule(h.root, h.graph)
    called = g(higher.invoke_subgraph, g.graph.get_attr("s"), "s", x, val=(x.meta["val"],))
    return g.program(g(operator.getitem, called, 0))


PAIRS = {
    "closures": (scaled(2), scaled(3)),
    "lambdas": (lambda x: x + 1, lambda x: x - 1),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("make", [calling, inside])
def test_functions_of_one_name_are_two(name, make):
    one, other = PAIRS[name]
    proved(make(one), make(one))
    assert verify(make(one), make(other)).status != "proved"


def test_functions_that_are_handed_on_are_two():
    one, other = PAIRS["closures"]
    proved(calling(higher.wrap, one), calling(higher.wrap, one))
    assert verify(calling(higher.wrap, one), calling(higher.wrap, other)).status != "proved"


def test_swapped_functions_are_not_proved():
    def made(functions):
        g = Graph()
        x = g.input("x", *SHAPE)
        return g.program(*(g(function, x, val=x.meta["val"]) for function in functions))

    one, other = PAIRS["lambdas"]
    proved(made((one, other)), made((one, other)))
    assert verify(made((one, other)), made((other, one))).status != "proved"


@pytest.mark.parametrize("name", ["aten.mm", "operator.add", "_operator.getitem", "math.floor", "builtins.max"])
def test_a_module_that_is_called_like_a_library_is_not_it(name):
    def function(x):
        return x

    function.__module__, function.__name__ = name.split(".")
    assert op_name(function) == f"python.{name.removeprefix('_')}"
    assert facts(function).effect and not facts(function).pure


def test_functions_that_all_graphs_know_are_one(tmp_path):
    lines = [
        f'a: "{F}" = ops.foreign_library.make.default(x)',
        f'b: "{F}" = aten.add(a, x)',
        "l = torch._functorch.predispatch._vmap_increment_nesting(4, 'different')",
        f'c: "{F}" = aten.neg.default(b)',
        "m = torch._functorch.predispatch._vmap_decrement_nesting()",
        "d = torch.sym_max(2, 3)",
        f'e: "{F}" = aten.mul.Tensor(c, d)',
    ]
    proved(*pair(tmp_path, f'x: "{F}"', lines, range(len(lines)), "e,"))
    assert op_name(operator.add) == "operator.add" and op_name(max) == "builtins.max"
    assert op_name(aten.mm.default) == "aten.mm" and op_name(OpaqueOp("a.b.c")) == "a.b"
