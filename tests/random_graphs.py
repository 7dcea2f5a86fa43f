"""Random training-like graphs with collectives, built node by node, for property tests.

Values are fake; :mod:`tests.virtual_ranks` runs the graphs on real tensors. Every graph is legal:
topological order, one wait for each launch, groups with one size.
"""

from __future__ import annotations

import operator
import random
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from commcc.graph.program import ProcessGroup, Program

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
WIDTH = 8


class GraphBuilder:
    """A graph under construction; ``call`` runs the op on fake values to get the result's value."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.mode = FakeTensorMode()

    def placeholder(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> fx.Node:
        node = self.graph.placeholder(name)
        with self.mode:
            node.meta["val"] = torch.empty(shape, dtype=dtype, device="cpu")
        return node

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        values = fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        with self.mode, torch.no_grad():
            node.meta["val"] = target(*values[0], **values[1])
        return node

    def gather(self, source: fx.Node, size: int, group: str) -> fx.Node:
        return self.call(c10d.wait_tensor.default, self.call(c10d.all_gather_into_tensor.default, source, size, group))

    def scatter(self, source: fx.Node, size: int, group: str, op: str = "sum") -> fx.Node:
        launch = self.call(c10d.reduce_scatter_tensor.default, source, op, size, group)
        return self.call(c10d.wait_tensor.default, launch)

    def reduce(self, source: fx.Node, group: str, op: str = "sum") -> fx.Node:
        return self.call(c10d.wait_tensor.default, self.call(c10d.all_reduce.default, source, op, group))

    def program(self, outputs: list[fx.Node | None], groups: dict[str, int], header: dict[str, Any] | None = None):
        self.graph.output(tuple(outputs))
        table = {name: ProcessGroup(name, size) for name, size in groups.items()}
        return Program(self.graph, torch.nn.Module(), table, header=header or {})


class _Recipe:
    def __init__(self, seed: int, layers: int, world: int) -> None:
        self.rng = random.Random(seed)
        self.build = GraphBuilder()
        self.world = world
        self.layers = layers
        self.outputs: list[fx.Node | None] = []

    def make(self) -> Program:
        b, rng = self.build, self.rng
        rows = WIDTH // self.world
        shards = [
            b.placeholder(f"primals_{i}", (rows, WIDTH), rng.choice([torch.float64, torch.float64, torch.float32]))
            for i in range(self.layers)
        ]
        buffer = b.placeholder("buffer", (WIDTH, WIDTH))
        x = b.placeholder("x", (WIDTH, WIDTH))
        for shard in shards:
            x = self.layer(shard, buffer, x)
        self.outputs.append(x)
        rng.shuffle(self.outputs)
        return b.program(self.outputs, {"0": self.world, "1": self.world, "2": self.world})

    def layer(self, shard: fx.Node, buffer: fx.Node, x: fx.Node) -> fx.Node:
        b, rng = self.build, self.rng
        if rng.random() < 0.3:
            self.mutate(buffer, x)
        weight = self.weight(shard)
        x = b.call(aten.mm.default, x, weight)
        if rng.random() < 0.3:
            x = b.call(aten.add.Tensor, x, buffer)
        if rng.random() < 0.3:
            x = b.reduce(x, rng.choice(["1", "2"]))
        x = b.call(aten.fmod.Scalar, x, 7)
        if rng.random() < 0.8:
            self.gradient(x, weight)
        return x

    def mutate(self, buffer: fx.Node, x: fx.Node) -> None:
        b = self.build
        if self.rng.random() < 0.5:
            b.call(aten.copy_.default, buffer, x)
        else:
            b.call(aten.add_.Tensor, b.call(aten.view.default, buffer, [WIDTH * WIDTH]), 1)

    def weight(self, shard: fx.Node) -> fx.Node:
        b, rng = self.build, self.rng
        source = shard
        if rng.random() < 0.4 or shard.meta["val"].dtype != torch.float64:
            source = b.call(aten._to_copy.default, shard, dtype=torch.float64)
        if rng.random() < 0.3:
            source = b.call(aten.view.default, source, [WIDTH * WIDTH // self.world])
        full = b.gather(source, self.world, rng.choice(["0", "0", "0", "1"]))
        return b.call(aten.view.default, full, [WIDTH, WIDTH])

    def gradient(self, x: fx.Node, weight: fx.Node) -> None:
        b, rng = self.build, self.rng
        grad = b.call(aten.mm.default, b.call(aten.t.default, x), weight)
        grad = b.call(aten.fmod.Scalar, grad, 5)
        how = rng.randrange(5)
        if how == 0:
            done = b.reduce(grad, rng.choice(["0", "1"]))
        elif how == 1:
            done = b.scatter(b.reduce(grad, "1"), self.world, "0")
        elif how == 2:
            done = b.reduce(b.scatter(grad, self.world, "0"), "1")
        else:
            done = b.scatter(grad, self.world, "0", rng.choice(["sum", "sum", "max"]))
        if rng.random() < 0.5:
            done = b.call(aten._to_copy.default, done, dtype=torch.float32)
        self.outputs.append(done)


def random_program(seed: int, layers: int = 6, world: int = 2) -> Program:
    """A random graph; the same seed gives the same graph. Nodes keep a random legal order."""
    program = _Recipe(seed, layers, world).make()
    return shuffled(program, random.Random(seed + 1)) if seed % 2 else program


def shuffled(program: Program, rng: random.Random) -> Program:
    """The same program in another legal order, by the index's dependences."""
    from dataclasses import replace

    from commcc.graph.index import build_index

    index = build_index(program)
    nodes = list(program.graph.nodes)
    missing = [len(index.preds(i)) for i in range(len(nodes))]
    users: list[list[int]] = [[] for _ in nodes]
    for i in range(len(nodes)):
        for p in index.preds(i):
            users[p].append(i)
    ready = [i for i, count in enumerate(missing) if not count and i != len(nodes) - 1]
    graph, env = fx.Graph(), {}
    placeholders = [i for i in ready if nodes[i].op == "placeholder"]
    while ready:
        at = placeholders.pop(0) if placeholders else rng.choice(ready)
        ready.remove(at)
        env[nodes[at]] = graph.node_copy(nodes[at], env.__getitem__)
        for user in users[at]:
            missing[user] -= 1
            if not missing[user] and user != len(nodes) - 1:
                ready.append(user)
    graph.node_copy(nodes[-1], env.__getitem__)
    return replace(program, graph=graph)


def getitem(builder: GraphBuilder, source: fx.Node, which: int) -> fx.Node:
    return builder.call(operator.getitem, source, which)
