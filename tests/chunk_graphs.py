"""Small graphs of modules that exchange tokens, built node by node, and what ep-chunk makes of them.

::

    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module("layers.0.moe"):
        route = b.dispatch(x)                            # counts, sort, exchange: between two ranks, by sign
        y = b.combine(b.call(aten.mul.Tensor, route.rows, 2.0), route)
    program = b.done([y])
    after = chunked(program, chunks=2)       # applied, verified to be cloned faithfully
    assert error(program, after) < 1e-12     # on two virtual ranks
"""

from __future__ import annotations

import operator
from contextlib import contextmanager
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from commcc.apply import apply_plan
from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.passes.base import PlanContext
from commcc.passes.ep_chunk import EpChunk
from commcc.verify import verify
from tests.random_graphs import GraphBuilder
from tests.virtual_ranks import VirtualRanks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commcc.graph.program import Program
    from commcc.plan import Plan

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
MOE = "layers.0.moe"


@dataclass
class Route:
    """rows: what this rank received. order: of the tokens sent. sent, received: split sizes. like: the tokens."""

    rows: fx.Node
    order: fx.Node
    sent: list[fx.Node]
    received: list[fx.Node]
    like: fx.Node


class Layers(GraphBuilder):
    """A graph whose nodes belong to the module and the direction that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        self.fqn: str | None = None
        self.backward = False
        self.custom: dict[str, str] = {}

    def tokens(self, name: str, *shape: int, dtype: torch.dtype = torch.float64) -> fx.Node:
        return self.described(name, shape, dtype, "PlainAOTInput(idx=0)")

    def weight(self, name: str, *shape: int) -> fx.Node:
        return self.described(name, shape, torch.float64, f"ParamAOTInput(target='{name}')")

    def buffer(self, name: str, *shape: int) -> fx.Node:
        return self.described(name, shape, torch.float64, f"BufferAOTInput(target='{name}')")

    def described(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, text: str) -> fx.Node:
        node = self.placeholder(name, shape, dtype)
        node.meta["desc"] = text
        return node

    @contextmanager
    def module(self, fqn: str | None, *, backward: bool = False, **custom: str) -> Iterator[None]:
        before = self.fqn, self.backward, self.custom
        self.fqn, self.backward, self.custom = fqn, backward, custom
        yield
        self.fqn, self.backward, self.custom = before

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        plain = isinstance(target, (BuiltinFunctionType, FunctionType))
        name = target.__name__ if plain else str(target).split(".")[-2]
        node = self.graph.create_node("call_function", target, args, kwargs, name)
        values = fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        with self.mode, torch.no_grad():
            node.meta["val"] = target(*values[0], **values[1])
        node.meta["custom"] = {**({"module_fqn": self.fqn} if self.fqn else {}), **self.custom}
        if self.backward:
            node.meta["autograd_backward"] = True
        return node

    def dispatch(self, x: fx.Node) -> Route:
        """Tokens go to rank 0 or 1 by the sign of their first number."""
        first = self.call(aten.select.int, x, 1, 0)
        rank = self.call(aten._to_copy.default, self.call(aten.gt.Scalar, first, 0), dtype=torch.float64)
        order = self.call(operator.getitem, self.call(aten.sort.stable, rank, stable=True), 1)
        counts = self.call(aten._to_copy.default, self.call(aten.histc.default, rank, 2, 0, 2), dtype=torch.int64)
        with self.noted(EP="dispatch", EP_token_count_exchange="dispatch"):
            others = self.exchange(counts, [1, 1], [1, 1])
        sent, received = self.numbers(counts), self.numbers(others)
        sorted_rows = self.call(aten.index.Tensor, x, [order])
        with self.noted(EP="dispatch", EP_token_exchange="dispatch"):
            rows = self.exchange(sorted_rows, received, sent)
        return Route(rows, order, sent, received, x)

    def combine(self, rows: fx.Node, route: Route) -> fx.Node:
        """Rows go back to where their tokens came from."""
        with self.noted(EP="combine", EP_token_exchange="combine"):
            back = self.exchange(rows, route.sent, route.received)
        return self.call(aten.index_add.default, self.call(aten.zeros_like.default, route.like), 0, route.order, back)

    def exchange(self, x: fx.Node, received: list[Any], sent: list[Any]) -> fx.Node:
        launch = self.call(c10d.all_to_all_single.default, x, received, sent, "0")
        return self.call(c10d.wait_tensor.default, launch)

    def numbers(self, counts: fx.Node) -> list[fx.Node]:
        parts = self.call(aten.unbind.int, counts)
        made = [self.call(aten._local_scalar_dense.default, self.call(operator.getitem, parts, i)) for i in range(2)]
        for node in made:
            with self.mode:
                torch._check(node.meta["val"] >= 0)
        return made

    def noted(self, **custom: str) -> Any:
        """Annotations in addition to the module."""
        return self.module(self.fqn, backward=self.backward, **custom)

    def done(self, outputs: list[fx.Node]) -> Program:
        return self.program(outputs, {"0": 2})


def plan_of(program: Program, modules: str | tuple[str, ...] = "layers.*.moe", **options: Any) -> Plan:
    index = build_index(program)
    return EpChunk(modules=modules, **options).plan(PlanContext(program, index, identify(index)))


def chunked(program: Program, modules: str | tuple[str, ...] = "layers.*.moe", **options: Any) -> Program:
    """The program cut; the verifier must not find more open than that tokens are independent."""
    after = apply_plan(program, build_index(program), plan_of(program, modules, **options))
    verdict = verify(program, after)
    assert verdict.findings == ()
    assert all("is cut in" in gap.text for gap in verdict.unproved)
    return after


def named(program: Program) -> dict[str, fx.Node]:
    return {node.name: node for node in program.graph.nodes}


def ops_of(program: Program, op: str) -> list[fx.Node]:
    """Calls of ``op``, as in ``aten.mm``, in graph order."""
    return [node for node in program.graph.nodes if str(node.target).rpartition(".")[0] == op]


def error(before: Program, after: Program, seed: int = 0) -> float:
    """The largest relative difference of any output or input left behind, on two virtual ranks."""
    generator = torch.Generator().manual_seed(seed)
    vals = [node.meta["val"] for node in before.graph.nodes if node.op == "placeholder"]
    inputs = [
        [
            torch.randn(tuple(v.shape), generator=generator, dtype=torch.float64).to(v.dtype)
            if v.is_floating_point()
            else torch.randint(0, 4, tuple(v.shape), generator=generator)
            for v in vals
        ]
        for _ in range(2)
    ]
    one, other = (VirtualRanks(program.graph, inputs, program.root).run() for program in (before, after))
    flat = [pair for ranks in zip(one, other, strict=True) for pair in zip(*ranks, strict=True)]
    assert all(a.shape == b.shape and a.dtype == b.dtype for a, b in flat)
    return max((float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)) for a, b in flat if a.numel()), default=0.0)
