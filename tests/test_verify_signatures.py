"""What a caller sees of a graph besides its tensors: types of what it returns, default values of what it takes."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from commcc.graph.program import Program
from commcc.verify import verify
from commcc.verify.same import alike, identical
from tests.verify_graphs import Graph, aten, differs, proved

SHAPE = (4,)
One, Other = namedtuple("One", "u v"), namedtuple("Other", "v u")
Same = namedtuple("One", "u v")


def returning(kind, *, nested=False):
    g = Graph()
    x = g.input("x", *SHAPE)
    outputs = kind(g(aten.neg.default, x), g(aten.sin.default, x))
    g.graph.output((outputs,) if nested else outputs)
    return Program(g.graph, g.root, {})


def plain(*parts):
    return parts


def named(*parts):
    return dict(zip("uv", parts, strict=True))


def ordered(*parts):
    return OrderedDict(zip("uv", parts, strict=True))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", [One, Other, plain, list, named, ordered])
def test_outputs_are_nested_in_one_type(kind, nested):
    if kind is list:

        def kind(*parts):
            return list(parts)

    proved(returning(kind, nested=nested), returning(kind, nested=nested))
    for other in (One, Other, Same, plain):
        if other is not kind:
            differs(returning(kind, nested=nested), returning(other, nested=nested), "output", "nested differently")


def taking(default, op=aten.neg.default):
    g = Graph()
    x = g.graph.placeholder("x", default_value=default)
    with g.mode:
        x.meta["val"] = torch.empty(SHAPE)
    return g.program(g(op, x))


def long(at=None):
    """A tensor of which PyTorch prints the ends."""
    held = torch.zeros(2000)
    if at is not None:
        held[at] = 5
    return held


def fake():
    with FakeTensorMode():
        return torch.empty(SHAPE)


OTHERS = {
    "elements that are not printed": (long(), long(1000)),
    "dtype": (torch.zeros(4), torch.zeros(4, dtype=torch.int64)),
    "strides": (torch.zeros(4, 4), torch.zeros(4, 4).t()),
    "what lies around": (torch.zeros(8)[:4], torch.zeros(4)),
    "tensors without values": (fake(), fake()),
    "a tensor in a tuple": ((1, long()), (1, long(1000))),
    "numbers of several types": (1, 1.0),
    "signs": (0.0, -0.0),
    "objects of one text": (type("Text", (), {"__repr__": lambda self: "text"})(), torch.nn.Identity()),
}


@pytest.mark.parametrize("name", OTHERS)
def test_default_values_are_compared(name):
    one, other = OTHERS[name]
    differs(taking(one), taking(other), "input", "default value")
    assert not identical(taking(one), taking(other)) and not alike(taking(one), taking(other))
    proved(taking(one), taking(one))


@pytest.mark.parametrize("value", [None, 1, 0.5, "text", (1, [2.0]), {"a": 1}, torch.float32, torch.arange(4)], ids=str)
def test_default_values_that_are_equal(value):
    copy = value.clone() if isinstance(value, torch.Tensor) else value
    proved(taking(value), taking(copy))
    differs(taking(value), taking("another"), "input", "default value")


def test_default_values_of_sub_graphs_are_no_constants():
    def made(default):
        g, h = Graph(), Graph()
        x, a = g.input("x", *SHAPE), h.input("a", *SHAPE)
        b = h.graph.placeholder("b", default_value=default)
        h.graph.output((h(aten.mul.Tensor, a, b, val=a.meta["val"]),))
        g.root.s = fx.GraphModule(h.root, h.graph)
        call = g(torch.ops.higher_order.invoke_subgraph, g.graph.get_attr("s"), "s", x, val=(x.meta["val"],))
        return g.program(call)

    assert verify(made(2), made(3)).status != "proved"
