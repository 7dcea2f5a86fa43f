"""Runs a graph on W virtual ranks in one process: an oracle that shares no code with commcc.

All ranks advance node by node; a collective is computed over their tensors. A launch's result is
poisoned until its wait, so that a value used too early shows up as a difference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_REDUCTIONS = {
    "sum": lambda ts: torch.stack(ts).sum(0),
    "avg": lambda ts: torch.stack(ts).sum(0) / len(ts),
    "max": lambda ts: torch.stack(ts).amax(0),
}


class VirtualRanks:
    """One run. Groups hold all ranks; ``inputs`` is a list of input lists, one for each rank.

    root: where ``get_attr`` nodes find the sub-graphs of ``control_deps``.
    """

    def __init__(self, graph: fx.Graph, inputs: list[list[torch.Tensor]], root: Any = None) -> None:
        self.graph = graph
        self.root = root
        self.inputs = [[t.clone() for t in one] for one in inputs]
        self.world = len(inputs)
        self.pending: dict[fx.Node, list[Any]] = {}

    def run(self) -> list[list[Any]]:
        """Outputs of every rank, then the (possibly mutated) inputs of every rank."""
        env: dict[fx.Node, list[Any]] = {}
        arguments = [iter(one) for one in self.inputs]
        with torch.no_grad():
            for node in self.graph.nodes:
                if node.op == "placeholder":
                    env[node] = [next(one) for one in arguments]
                elif node.op == "output":
                    results = [self._resolve(node.args[0], env, r) for r in range(self.world)]
                    return [list(r) + self.inputs[i] for i, r in enumerate(results)]
                elif node.op == "get_attr":
                    env[node] = [getattr(self.root, node.target)] * self.world
                else:
                    env[node] = self._call(node, env)
        raise AssertionError("graph without output")

    @staticmethod
    def _resolve(argument: Any, env: dict[fx.Node, list[Any]], rank: int) -> Any:
        return fx.node.map_arg(argument, lambda n: env[n][rank])

    def _held(self, node: fx.Node, env: dict[fx.Node, list[Any]]) -> list[Any]:
        """What a sub-graph returns; what is in flight under an outer name is so under the inner one."""
        _, source, *operands = node.args
        inner: dict[fx.Node, list[Any]] = {}
        given = iter(operands)
        for part in env[source][0].graph.nodes:
            if part.op == "output":
                return inner[part.args[0]]
            if part.op == "placeholder":
                outer = next(given)
                inner[part] = env[outer]
                if outer in self.pending:
                    self.pending[part] = self.pending.pop(outer)
            else:
                inner[part] = self._call(part, inner)
                if part in self.pending:
                    self.pending[node] = self.pending.pop(part)
        raise AssertionError("sub-graph without output")

    def _call(self, node: fx.Node, env: dict[fx.Node, list[Any]]) -> list[Any]:
        if getattr(node.target, "_name", "") == "control_deps":
            return self._held(node, env)
        name = str(node.target).rsplit(".", 1)[0]
        per_rank = [self._resolve((node.args, node.kwargs), env, r) for r in range(self.world)]
        if name == "_c10d_functional.wait_tensor":
            real = self.pending.pop(node.args[0])
            for rank, held in enumerate(env[node.args[0]]):
                held.copy_(real[rank])
            return env[node.args[0]]
        if name.startswith("_c10d_functional."):
            real = self._collective(name.split(".")[1], node, [args for args, _ in per_rank])
            self.pending[node] = real
            return [torch.full_like(t, float("nan") if t.is_floating_point() else -77) for t in real]
        return [node.target(*args, **kwargs) for args, kwargs in per_rank]

    def _collective(self, name: str, node: fx.Node, args: list[tuple[Any, ...]]) -> list[torch.Tensor]:
        sent = [a[0].clone() for a in args]
        if name == "all_gather_into_tensor":
            assert node.args[1] == self.world
            return [torch.cat(sent) for _ in sent]
        reduced = _REDUCTIONS[args[0][1]](sent)
        if name == "all_reduce":
            return [reduced.clone() for _ in sent]
        assert name == "reduce_scatter_tensor", name
        assert node.args[2] == self.world
        return [chunk.clone() for chunk in reduced.chunk(self.world)]


def random_inputs(graph: fx.Graph, world: int, seed: int = 0) -> list[list[torch.Tensor]]:
    """Small whole numbers, so that every sum is exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    values = [n.meta["val"] for n in graph.nodes if n.op == "placeholder"]
    return [
        [torch.randint(-3, 4, tuple(v.shape), generator=generator).to(v.dtype) for v in values] for _ in range(world)
    ]


def same(first: list[list[Any]], second: list[list[Any]]) -> bool:
    """Bitwise equality of two runs, NaN included."""
    flat = [(a, b) for one, other in zip(first, second, strict=True) for a, b in zip(one, other, strict=True)]
    return all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(9e9), b.nan_to_num(9e9)) for a, b in flat
    )
