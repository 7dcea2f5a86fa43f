"""Random programs that do everything to storages, and what they really hold when they run.

    program, waits = random_memory_program(seed)
    real_live_bytes(program, waits, order)      # one figure for each position of the order

The program runs on real tensors, each value let go after its last use, and storages are asked for
their bytes. Collectives are stand-ins that allocate what the real ones would; input and result are
held until the last wait. Nothing of commcc's index is read.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import fx
from torch._inductor import inductor_prims  # noqa: F401  registers resize_storage_bytes_

from tests.random_graphs import GraphBuilder, aten, c10d, getitem

ROWS, WIDTH = 4, 6
RESIZE = torch.ops.inductor.resize_storage_bytes_.default


class MemoryRecipe:
    """Builds one program; ``waits`` holds the waits of every launch."""

    def __init__(self, seed: int, steps: int) -> None:
        self.rng = random.Random(seed)
        self.build = GraphBuilder()
        self.steps = steps
        self.waits: dict[fx.Node, list[fx.Node]] = {}
        self.flying: list[fx.Node] = []
        self.pool: list[fx.Node] = []

    def make(self):
        rng = self.rng
        for i in range(rng.randint(1, 3)):
            self.pool.append(self.build.placeholder(f"x{i}", (ROWS, WIDTH), rng.choice([torch.float32, torch.float64])))
        actions = [
            *(self.fresh, self.fresh, self.view, self.view, self.reshape, self.split, self.mutate, self.two_results),
            *(self.launch, self.launch, self.wait, self.wait, self.coalesced, self.resize),
        ]
        for _ in range(self.steps):
            rng.choice(actions)()
        outputs = rng.sample(self.pool, min(len(self.pool), rng.randint(0, 3)))
        return self.build.program(outputs, {"0": 2, "1": 2}), self.waits

    def pick(self) -> fx.Node:
        return self.rng.choice(self.pool[-6:])

    def add(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = self.build.call(target, *args, **kwargs)
        self.pool.append(node)
        return node

    def fresh(self) -> None:
        how = self.rng.randrange(3)
        if how == 0:
            self.add(aten.mul.Tensor, self.pick(), 2)
        elif how == 1:
            self.add(aten.clone.default, self.pick())
        else:
            x = self.pick()
            self.add(aten._to_copy.default, x, dtype=self.rng.choice([torch.float32, torch.float64]))

    def view(self) -> None:
        x = self.pick()
        val = x.meta["val"]
        how = self.rng.randrange(5)
        if how == 0 and val.ndim == 2:
            self.add(aten.t.default, x)
        elif how == 1:
            self.add(aten.unsqueeze.default, x, self.rng.randint(0, val.ndim))
        elif how == 2 and val.ndim and val.shape[0] > 1:
            self.add(aten.slice.Tensor, x, 0, 0, val.shape[0] - 1)
        elif how == 3 and val.ndim > 1 and val.numel() < 500:
            wide = self.build.call(aten.unsqueeze.default, x, 0)
            self.add(aten.expand.default, wide, [3, *val.shape])
        elif val.ndim > 1:
            self.add(aten.select.int, x, 0, 0)

    def reshape(self) -> None:
        """A view where strides or dtypes allow it, a copy where they do not."""
        x, how = self.pick(), self.rng.randrange(5)
        if how == 0:
            self.add(aten.contiguous.default, x)
        elif how == 1:
            self.add(aten.to.dtype, x, self.rng.choice([torch.float32, torch.float64]))
        elif how == 2 and x.meta["val"].ndim:
            self.add(aten.flatten.using_ints, x)
        else:
            self.add(aten.reshape.default, x, [x.meta["val"].numel()])

    def split(self) -> None:
        x = self.pick()
        if x.meta["val"].ndim and x.meta["val"].shape[0] >= 2:
            parts = self.build.call(aten.split.Tensor, x, (x.meta["val"].shape[0] + 1) // 2)
            chosen = range(2) if self.rng.random() < 0.6 else [self.rng.randrange(2)]
            self.pool.extend(getitem(self.build, parts, i) for i in chosen)

    def two_results(self) -> None:
        x = self.pick()
        if x.meta["val"].ndim:
            both = self.build.call(aten.max.dim, x, 0)
            self.pool.append(getitem(self.build, both, 0))
            if self.rng.random() < 0.5:
                self.build.call(aten.neg.default, getitem(self.build, both, 1))

    def mutate(self) -> None:
        x = self.pick()
        val = x.meta["val"]
        if all(step or size <= 1 for size, step in zip(val.shape, val.stride(), strict=True)) and not self.held(x):
            done = self.build.call(aten.add_.Tensor, x, 1)
            if self.rng.random() < 0.5:
                self.pool.append(done)

    def held(self, _node: fx.Node) -> bool:
        """Writes of what a collective reads or writes wait until none is in flight."""
        return bool(self.flying)

    def resize(self) -> None:
        """The storage of a copy is emptied, and filled again or not."""
        x = self.build.call(aten.clone.default, self.pick(), memory_format=torch.contiguous_format)
        val = x.meta["val"]
        self.add(aten.mul.Tensor, x, 3)
        self.build.call(RESIZE, x, 0)
        if self.rng.random() < 0.6:
            self.add(aten.mul.Tensor, self.pick(), 2)
            self.build.call(RESIZE, x, val.numel() * val.dtype.itemsize)
            self.build.call(aten.fill_.Scalar, x, 1)
            self.pool.append(x)

    def launched(self, node: fx.Node) -> fx.Node:
        self.waits[node] = []
        if self.rng.random() < 0.9:
            self.flying.append(node)
        return node

    def launch(self) -> None:
        x, b = self.pick(), self.build
        if not x.meta["val"].ndim or x.meta["val"].numel() > 500:
            return
        how = self.rng.randrange(5)
        if how == 0:
            self.launched(b.call(c10d.all_gather_into_tensor.default, x, 2, "0"))
        elif how == 1:
            self.launched(b.call(c10d.all_reduce.default, x, "sum", "1"))
        elif how == 2 and x.meta["val"].shape[0] % 2 == 0:
            self.launched(b.call(c10d.reduce_scatter_tensor.default, x, "sum", 2, "0"))
        elif how == 3:
            copy = b.call(aten.clone.default, x, memory_format=torch.contiguous_format)
            self.launched(b.call(c10d.all_reduce_.default, copy, "sum", "1"))
        else:
            val = x.meta["val"]
            out = b.call(aten.empty.memory_format, [2 * val.shape[0], *val.shape[1:]], dtype=val.dtype)
            self.launched(b.call(c10d.all_gather_into_tensor_out.default, x, 2, "0", out=out))

    def coalesced(self) -> None:
        many = [self.pick() for _ in range(self.rng.randint(1, 3))]
        self.launched(self.build.call(c10d.all_reduce_coalesced.default, many, "sum", "0"))

    def wait(self) -> None:
        if not self.flying:
            return
        launch = self.rng.choice(self.flying)
        self.flying.remove(launch)
        val = launch.meta["val"]
        if isinstance(val, (list, tuple)):
            for i in range(len(val)):
                self.wait_for(launch, getitem(self.build, launch, i))
        elif self.rng.random() < 0.2 and val.is_contiguous():
            self.wait_for(launch, self.build.call(aten.view.default, launch, [val.numel()]))
        else:
            self.wait_for(launch, launch)

    def wait_for(self, launch: fx.Node, source: fx.Node) -> None:
        done = self.build.call(c10d.wait_tensor.default, source)
        self.waits[launch].append(done)
        self.pool.append(done)


def random_memory_program(seed: int, steps: int = 14):
    """A program, and the waits of each of its launches."""
    return MemoryRecipe(seed, steps).make()


def real_live_bytes(program, waits, order) -> list[int]:
    """Bytes of all storages that are held while each node of ``order`` runs."""
    nodes = list(program.graph.nodes)
    last = _last_uses(nodes, order)
    env: dict[fx.Node, Any] = {}
    for node in nodes:
        if node.op == "placeholder":
            val = node.meta["val"]
            env[node] = torch.ones(val.shape, dtype=val.dtype)
    flying: dict[fx.Node, Any] = {}
    open_waits = {launch: set(found) for launch, found in waits.items()}
    live = []
    for position, i in enumerate(order):
        node, before = nodes[i], held_bytes((env, flying))
        if node.op == "call_function":
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
            env[node] = call(node.target, args, kwargs)
            if node in waits:
                flying[node] = (args, kwargs, env[node])
        live.append(max(before, held_bytes((env, flying))))
        for launch in [n for n, missing in open_waits.items() if missing == {node}]:
            del flying[launch]
        for missing in open_waits.values():
            missing.discard(node)
        for other in [n for n in env if last.get(n, -1) == position]:
            del env[other]
    return live


def _last_uses(nodes, order) -> dict[fx.Node, int]:
    """Position after which a value is let go; none for graph inputs and outputs."""
    last: dict[fx.Node, int] = {}
    for position, i in enumerate(order):
        for node in (nodes[i], *nodes[i].all_input_nodes):
            last[node] = position
    kept = [n for n in nodes if n.op == "placeholder"] + nodes[-1].all_input_nodes
    return {node: position for node, position in last.items() if node not in kept}


def held_bytes(values: Any) -> int:
    """Bytes of the storages of all tensors in a nest of containers, each once."""
    sizes: dict[int, int] = {}
    stack = [values]
    while stack:
        value = stack.pop()
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            sizes[storage._cdata] = storage.nbytes()
        elif isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, (list, tuple)):
            stack.extend(value)
    return sum(sizes.values())


def call(target: Any, args: Any, kwargs: Any) -> Any:
    """The op, or a stand-in that allocates what the collective would."""
    if not str(target).startswith("_c10d_functional."):
        return target(*args, **kwargs)
    name = str(target).split(".")[1]
    if name in ("wait_tensor", "all_reduce_"):
        return args[0]
    if name == "all_gather_into_tensor_out":
        return kwargs["out"]
    if name == "all_reduce_coalesced":
        return [torch.ones_like(t) for t in args[0]]
    rows = {"all_gather_into_tensor": 2 * args[0].shape[0], "reduce_scatter_tensor": args[0].shape[0] // 2}
    shape = (rows.get(name, args[0].shape[0]), *args[0].shape[1:])
    return torch.ones(shape, dtype=args[0].dtype)
