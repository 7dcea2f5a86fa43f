"""Runs a graph on W virtual ranks in one process: an oracle that shares no code with commcc.

All ranks advance node by node; a collective is computed over their tensors. A launch's result is
poisoned until its wait, and so is a copy to the host that does not block until the next one that does, so
that a value used too early shows up as a difference.
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


#: The groups of one name: which ranks are in one with which.
Parts = tuple[tuple[int, ...], ...]


class VirtualRanks:
    """One run; ``inputs`` is a list of input lists, one for each rank.

    root: where ``get_attr`` nodes find the sub-graphs of ``control_deps``.
    groups: the ranks behind each group's name; without it every group holds all ranks.
    """

    def __init__(
        self,
        graph: fx.Graph,
        inputs: list[list[torch.Tensor]],
        root: Any = None,
        groups: dict[str, Parts] | None = None,
    ) -> None:
        self.graph = graph
        self.root = root
        self.groups = groups
        self.inputs = [[t.clone() for t in one] for one in inputs]
        self.world = len(inputs)
        self.pending: dict[fx.Node, list[Any]] = {}
        self.copying: list[tuple[list[Any], list[Any]]] = []
        self.parts: dict[fx.Node, list[list[Any]]] = {}

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
            real = self.pending.pop(node.args[0], None)
            for rank, held in enumerate(env[node.args[0]] if real is not None else ()):
                held.copy_(real[rank])
            return env[node.args[0]]  # a second wait finds nothing to wait for, as in PyTorch
        if name.endswith("_coalesced"):
            return self._in_one_call(node, name.split(".")[1].removesuffix("_coalesced"), [a for a, _ in per_rank])
        if name == "<built-in function getitem>" and node.args[0] in self.parts:
            self.pending[node] = self.parts[node.args[0]][node.args[1]]
        if name.startswith("_c10d_functional."):
            real = self._collective(name.split(".")[1], [args for args, _ in per_rank])
            self.pending[node] = real
            return _poisoned(real)
        if name == "aten._grouped_mm" and per_rank[0][0][0].dtype == torch.float64:
            return [grouped_product(*args) for args, _ in per_rank]
        results = [node.target(*args, **kwargs) for args, kwargs in per_rank]
        return self._copied(node, results) if name == "aten._to_copy" else results

    def _in_one_call(self, node: fx.Node, name: str, args: list[tuple[Any, ...]]) -> list[Any]:
        """Every tensor of the list by itself; each is there once it is waited for."""
        self.parts[node] = [
            self._collective(name, [(sent[place], *rest) for sent, *rest in args]) for place in range(len(args[0][0]))
        ]
        held = [_poisoned(real) for real in self.parts[node]]
        return [[part[rank] for part in held] for rank in range(self.world)]

    def _copied(self, node: fx.Node, real: list[Any]) -> list[Any]:
        """A copy to the host: one that does not block is there when the next one that blocks is."""
        if node.kwargs.get("non_blocking"):
            held = _poisoned(real)
            self.copying.append((held, real))
            return held
        if "EP_token_count_sync" in node.meta.get("custom", {}):
            for held, values in self.copying:
                for tensor, value in zip(held, values, strict=True):
                    tensor.copy_(value)
            self.copying.clear()
        return real

    def _collective(self, name: str, args: list[tuple[Any, ...]]) -> list[torch.Tensor]:
        """What every rank receives; the group's name is the last argument."""
        everyone = (tuple(range(self.world)),)
        parts = everyone if self.groups is None else self.groups[args[0][-1]]
        received = {}
        for part in parts:
            received.update(zip(part, _within(name, [args[rank] for rank in part]), strict=True))
        return [received[rank] for rank in range(self.world)]


def _poisoned(real: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.full_like(t, float("nan") if t.is_floating_point() else -77) for t in real]


def _within(name: str, args: list[tuple[Any, ...]]) -> list[torch.Tensor]:
    """What the ranks of one group receive, from the arguments of each."""
    sent = [a[0].clone() for a in args]
    if name == "all_to_all_single":
        return _exchanged(sent, args)
    if name == "all_gather_into_tensor":
        assert args[0][1] == len(sent)
        return [torch.cat(sent) for _ in sent]
    reduced = _REDUCTIONS[args[0][1]](sent)
    if name == "all_reduce":
        return [reduced.clone() for _ in sent]
    assert name == "reduce_scatter_tensor", name
    assert args[0][2] == len(sent)
    return [chunk.clone() for chunk in reduced.chunk(len(sent))]


def _exchanged(sent: list[torch.Tensor], args: list[tuple[Any, ...]]) -> list[torch.Tensor]:
    pieces = [tensor.split(list(a[2])) for tensor, a in zip(sent, args, strict=True)]
    received = []
    for rank, a in enumerate(args):
        mine = [piece[rank] for piece in pieces]
        assert [len(piece) for piece in mine] == list(a[1]), "ranks disagree about what is sent"
        received.append(torch.cat(mine))
    return received


def grouped_product(one: torch.Tensor, other: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """``_grouped_mm`` in any precision: rows by matrices, or (of two matrices) a product for each group."""
    stops = ends.tolist()
    ranges = list(zip([0, *stops[:-1]], stops, strict=True))
    if other.dim() == 3:
        assert stops[-1] == len(one)
        return torch.cat([one[start:stop] @ other[i] for i, (start, stop) in enumerate(ranges)])
    return torch.stack([one[:, start:stop] @ other[start:stop] for start, stop in ranges])


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
