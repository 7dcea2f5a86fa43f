"""Graphs for the verifier's tests, and the merged forms written out by hand, apart from commcc.apply.

A graph is built twice, once as it is and once changed, so that no test depends on copying graphs.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from commcc.graph.program import Program
from commcc.verify import Verdict, verify

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
WORLD = 4
SHAPES = ((4, 3), (2, 3, 5), (4, 3), (7,))


class Graph:
    """A graph under construction; calling it adds an op and runs it on fake values."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.mode = FakeTensorMode(shape_env=ShapeEnv())
        self.root = torch.nn.Module()

    def input(self, name: str, *shape: Any, dtype: torch.dtype = torch.float32) -> fx.Node:
        node = self.graph.placeholder(name)
        with self.mode:
            node.meta["val"] = torch.empty(shape, dtype=dtype)
        return node

    def value(self, name: str, val: Any) -> fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = val
        return node

    def __call__(self, target: Any, *args: Any, name: str | None = None, val: Any = None, **kwargs: Any) -> fx.Node:
        node = self.graph.create_node("call_function", target, args, kwargs, name)
        if val is None:
            values, keywords = fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
            with self.mode, torch.no_grad():
                val = target(*values, **keywords)
        node.meta["val"] = val
        return node

    def attribute(self, name: str, value: Any) -> fx.Node:
        if not hasattr(self.root, name):
            setattr(self.root, name, value)
        node = self.graph.get_attr(name)
        if isinstance(value, torch.Tensor):
            with self.mode:
                node.meta["val"] = torch.empty(value.shape, dtype=value.dtype)
        return node

    def program(self, *outputs: Any, groups: dict[str, Any] | None = None) -> Program:
        self.graph.output(tuple(outputs))
        return Program(self.graph, self.root, groups or {})

    # Collectives, one at a time

    def wait(self, launch: fx.Node) -> fx.Node:
        return self(c10d.wait_tensor.default, launch)

    def gather(self, x: fx.Node, group: str = "0", size: int = WORLD) -> fx.Node:
        return self.wait(self(c10d.all_gather_into_tensor.default, x, size, group))

    def scatter(self, x: fx.Node, op: str = "sum", group: str = "0", size: int = WORLD) -> fx.Node:
        return self.wait(self(c10d.reduce_scatter_tensor.default, x, op, size, group))

    def reduce(self, x: fx.Node, op: str = "sum", group: str = "0") -> fx.Node:
        return self.wait(self(c10d.all_reduce.default, x, op, group))

    # Collectives, merged

    def flat(self, x: fx.Node) -> fx.Node:
        return self(aten.reshape.default, x, [-1])

    def parts(self, source: fx.Node, sizes: list[int], dim: int) -> list[fx.Node]:
        split = self(aten.split_with_sizes.default, source, sizes, dim)
        return [self(operator.getitem, split, i) for i in range(len(sizes))]

    def merged_gather(
        self, xs: list[fx.Node], group: str = "0", size: int = WORLD, cast: torch.dtype | None = None
    ) -> list[fx.Node]:
        sizes = [x.meta["val"].numel() for x in xs]
        flat = self(aten.cat.default, [self.flat(x) for x in xs])
        if cast is not None:
            flat = self(aten._to_copy.default, flat, dtype=cast)
        waited = self.gather(flat, group, size)
        parts = self.parts(self(aten.view.default, waited, [size, sum(sizes)]), sizes, 1)
        return [
            self.shaped(p, (x.meta["val"].shape[0] * size, *x.meta["val"].shape[1:]))
            for p, x in zip(parts, xs, strict=True)
        ]

    def merged_scatter(
        self, xs: list[fx.Node], op: str = "sum", group: str = "0", size: int = WORLD, copy: bool = True
    ) -> list[fx.Node]:
        sizes = [x.meta["val"].numel() // size for x in xs]
        rows = [self(aten.reshape.default, x, [size, n]) for x, n in zip(xs, sizes, strict=True)]
        waited = self.scatter(self.flat(self(aten.cat.default, rows, 1)), op, group, size)
        shapes = [(x.meta["val"].shape[0] // size, *x.meta["val"].shape[1:]) for x in xs]
        made = [self.shaped(p, shape) for p, shape in zip(self.parts(waited, sizes, 0), shapes, strict=True)]
        return [self(aten.clone.default, m) for m in made] if copy else made

    def merged_reduce(self, xs: list[fx.Node], op: str = "sum", group: str = "0") -> list[fx.Node]:
        sizes = [x.meta["val"].numel() for x in xs]
        waited = self.reduce(self(aten.cat.default, [self.flat(x) for x in xs]), op, group)
        made = [self.shaped(p, x.meta["val"].shape) for p, x in zip(self.parts(waited, sizes, 0), xs, strict=True)]
        return [self(aten.clone.default, m) for m in made]

    def shaped(self, x: fx.Node, shape: Any) -> fx.Node:
        return self(aten.reshape.default, x, list(shape))


def rules(verdict: Verdict) -> set[str]:
    return {finding.rule for finding in verdict.findings}


def texts(verdict: Verdict) -> str:
    return "\n".join(map(str, (*verdict.findings, *verdict.unproved)))


def proved(before: Program, after: Program) -> Verdict:
    verdict = verify(before, after)
    assert verdict.status == "proved", texts(verdict)
    return verdict


def undecided(before: Program, after: Program) -> Verdict:
    verdict = verify(before, after)
    assert verdict.status == "unproved", texts(verdict)
    return verdict


def differs(before: Program, after: Program, rule: str, *words: str) -> Verdict:
    verdict = verify(before, after)
    assert verdict.status == "different", texts(verdict)
    assert rule in rules(verdict), texts(verdict)
    for word in words:
        assert word in texts(verdict)
    return verdict


# One layer of each kind of collective; ``merge`` writes the merged form


def gathers(merge: Any = None, cast: torch.dtype | None = None) -> Program:
    """Gathered parameters, each used by an op of its own."""
    g = Graph()
    xs = [g.input(f"p{i}", *shape) for i, shape in enumerate(SHAPES)]
    if merge is not None:
        full = merge(g, xs)
    else:
        sent = [g(aten._to_copy.default, x, dtype=cast) if cast else x for x in xs]
        full = [g.gather(x) for x in sent]
    return g.program(*[g(aten.mul.Tensor, w, i + 2, name=f"use{i}") for i, w in enumerate(full)])


def gradients(merge: Any = None) -> Program:
    """Gradients of equal shapes that are reduced, scattered and returned."""
    g = Graph()
    xs = [g(aten.sin.default, g.input(f"t{i}", 8, 3), name=f"grad{i}") for i in range(3)]
    return g.program(*(merge(g, xs) if merge else [g.scatter(x) for x in xs]))


def reductions(merge: Any = None) -> Program:
    g = Graph()
    xs = [g(aten.sin.default, g.input(f"t{i}", *shape), name=f"grad{i}") for i, shape in enumerate(SHAPES)]
    return g.program(*(merge(g, xs) if merge else [g.reduce(x) for x in xs]))


def compute(change: str = "") -> Program:
    """A few ops, one of which is changed."""
    g = Graph()
    x, y = g.input("x", 4, 4), g.input("y", 4, 4)
    a = g(aten.mm.default, x, y, name="a")
    b = g(aten.mul.Tensor, a, 3 if change == "constant" else 2, name="b")
    c = g(aten.sum.dim_IntList, b, [1] if change == "dim" else [0], name="c")
    if change == "operand":
        b = g(aten.mm.default, y, a, name="d")
    elif change == "op":
        b = g(aten.add.Tensor, x, b, name="d")
    else:
        b = g(aten.mm.default, x, b, name="d")
    if change == "twice":
        c = g(aten.add.Tensor, c, g(aten.sum.dim_IntList, g(aten.mul.Tensor, a, 2), [0]), name="e")
    else:
        c = g(aten.add.Tensor, c, c, name="e")
    return g.program(b, c) if change != "outputs" else g.program(c, b)
