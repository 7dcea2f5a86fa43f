"""Runs a small graph on W ranks in one process, with every freedom that real communication has: the truth for attacks.

::

    first = World(program, inputs).run()                  # launches read their inputs at once
    other = World(program, inputs, late=True).run()       # or only when they are waited for

The memory that a launch fills is poisoned until its wait, and each wait waits for what overlaps with its tensor alone.
Shares no code with commcc. Limits: one process group of all ranks, and groups of one.
"""

from __future__ import annotations

import copy
import operator
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch import fx

if TYPE_CHECKING:
    from collections.abc import Callable

ALONE = "alone"
_REDUCTIONS: dict[str, Callable[[list[torch.Tensor]], torch.Tensor]] = {
    # Of one rank, what it sends: a sum that begins from nothing would make 0 of -0.
    "sum": partial(reduce, torch.add),
    "max": lambda ts: torch.stack(ts).amax(0),
    "avg": lambda ts: reduce(torch.add, ts) / len(ts),
}


@dataclass
class Flight:
    """A launch under way: targets and sources of every rank, by result."""

    targets: list[list[torch.Tensor]]
    finish: Callable[[], list[list[torch.Tensor]]]


@dataclass(frozen=True)
class Outcome:
    """What one run leaves, for every rank: outputs, inputs, constants; and how outputs lie in memory."""

    values: list[list[Any]]
    layout: list[Any]


def places(tensor: torch.Tensor) -> set[int]:
    """Addresses of all bytes of a tensor's elements."""
    start, size = tensor.untyped_storage().data_ptr(), tensor.element_size()
    count = tensor.untyped_storage().nbytes() // size
    where = torch.arange(count).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return {start + int(at) * size + byte for at in where.flatten() for byte in range(size)}


def symbols(graph: fx.Graph, inputs: list[Any]) -> dict[Any, int]:
    """What the symbols in the shapes of placeholders are in some inputs."""
    places = (node for node in graph.nodes if node.op == "placeholder")
    pairs = [(node.meta["val"].shape, value.shape) for node, value in zip(places, inputs, strict=False)]
    sizes = [pair for said, real in pairs for pair in zip(said, real, strict=True)]
    # The expression as it was made: PyTorch may have settled on one number since, which is then a guard.
    return {said.node._expr: real for said, real in sizes if isinstance(said, torch.SymInt)}


def number(value: Any, sizes: dict[Any, int]) -> Any:
    """A size that is written in place of the node that computes it, as a number."""
    return int(value.node._expr.subs(sizes)) if isinstance(value, torch.SymInt) else value


def fits(graph: fx.Graph, inputs: list[Any]) -> bool:
    """Whether inputs keep to what PyTorch assumed of sizes when it traced the graph."""
    sizes = symbols(graph, inputs)
    vals = (node.meta["val"] for node in graph.nodes if node.op == "placeholder")
    guards = (guard.expr for val in vals for guard in val.fake_mode.shape_env.guards)
    return not sizes or all(guard.subs(sizes) is sympy.true for guard in guards)


class World:
    """One run of a graph. late: launches read their inputs when they are waited for, not at once."""

    def __init__(self, program: Any, inputs: list[list[Any]], *, late: bool = False, seed: int = 0) -> None:
        self.graph, self.late, self.ranks = program.graph, late, len(inputs)
        self.inputs = [[_own(value) for value in one] for one in inputs]
        self.roots = [copy.deepcopy(program.root) for _ in inputs]
        self.flights: list[Flight] = []
        self.states = []
        for rank in range(self.ranks):
            torch.manual_seed(seed + rank)
            self.states.append(torch.get_rng_state())

    def run(self) -> Outcome:
        self.sizes = symbols(self.graph, self.inputs[0])
        with torch.no_grad():
            results = self.interpret(self.graph, self.roots, self.inputs)
        values, layout = [], []
        for rank, result in enumerate(results):
            constants = [t for _, t in sorted(_tensors(self.roots[rank]))]
            values.append([*_flat(result), *self.inputs[rank], *constants])
            layout.append(_layout(_flat(result), [*self.inputs[rank], *constants]))
        return Outcome(values, layout)

    def interpret(self, graph: fx.Graph, roots: list[Any], inputs: list[list[Any]]) -> list[Any]:
        """What a graph returns on every rank."""
        env: dict[fx.Node, list[Any]] = {}
        given = [iter(one) for one in inputs]
        for node in graph.nodes:
            if node.op == "placeholder":
                env[node] = [next(one) for one in given]
            elif node.op == "get_attr":
                env[node] = [operator.attrgetter(node.target)(root) for root in roots]
            elif node.op == "output":
                return [fx.node.map_arg(node.args[0], lambda n, r=rank: env[n][r]) for rank in range(self.ranks)]
            else:
                calls = [
                    fx.node.map_aggregate(
                        (node.args, node.kwargs),
                        lambda n, r=rank: env[n][r] if isinstance(n, fx.Node) else number(n, self.sizes),
                    )
                    for rank in range(self.ranks)
                ]
                env[node] = self.call(node.target, calls)
        raise AssertionError("a graph without output")

    def call(self, target: Any, calls: list[Any]) -> list[Any]:
        """One op on every rank."""
        name = str(target).rsplit(".", 1)[0]
        if name.startswith("_c10d_functional."):  # out is the one argument that is always named
            names = [a.name for a in target._schema.arguments if a.name != "out"]
            calls = [
                ((*args, *(kwargs[n] for n in names[len(args) :])), {n: v for n, v in kwargs.items() if n == "out"})
                for args, kwargs in calls
            ]
        if name == "_c10d_functional.wait_tensor":
            return [self.wait(args[0], rank) for rank, (args, _) in enumerate(calls)]
        if name.startswith("_c10d_functional."):
            return self.launch(name.split(".")[1], [{**dict(enumerate(args)), **kwargs} for args, kwargs in calls])
        if getattr(target, "_name", "") in ("cond", "invoke_subgraph"):
            return self.body(target._name, [args for args, _ in calls])
        random = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
        out = []
        for rank, (args, kwargs) in enumerate(calls):
            if random:
                torch.set_rng_state(self.states[rank])
            out.append(target(*args, **kwargs))
            if random:
                self.states[rank] = torch.get_rng_state()
        return out

    def body(self, kind: str, calls: list[Any]) -> list[Any]:
        chosen = [(args[1] if args[0] else args[2]) if kind == "cond" else args[0] for args in calls]
        given = [list(args[3]) if kind == "cond" else list(args[2:]) for args in calls]
        if kind == "cond" and len({bool(args[0]) for args in calls}) > 1:
            raise RuntimeError("ranks part ways")
        return self.interpret(chosen[0].graph, chosen, given)

    # Communication

    def launch(self, name: str, calls: list[dict[Any, Any]]) -> list[Any]:
        kind, many = name.replace("_coalesced", "").removesuffix("_out").rstrip("_"), "_coalesced" in name
        sources = [list(call[0]) if many else [call[0]] for call in calls]
        group = next(value for value in reversed(list(calls[0].values())) if isinstance(value, str))
        options = [value for key, value in calls[0].items() if key != 0 and key != "out"]

        def finish() -> list[list[torch.Tensor]]:
            sent = held if held is not None else sources
            parts = [_exchange(kind, [one[i] for one in sent], options, group) for i in range(len(sent[0]))]
            each = zip(*parts, strict=True)
            return [list(one) for one in each]

        held = None if self.late else [[t.clone() for t in one] for one in sources]
        shapes = finish()
        if name.endswith("_out"):
            targets = [[call["out"]] for call in calls]
        elif name.endswith("_"):
            targets = sources
            held = held or [[t.clone() for t in one] for one in sources]  # what it reads is what it fills
        else:
            targets = [[torch.empty_like(t) for t in one] for one in shapes]
        for one in targets:
            for tensor in one:
                tensor.fill_(float("nan") if tensor.is_floating_point() else -77)
        self.flights.append(Flight([list(one) for one in targets], finish))
        return [one if many else one[0] for one in targets]

    def wait(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """Every rank waits in its turn; the last one ends the launch."""
        here = places(tensor) if rank == 0 else set()
        parts = [(flight, i, target) for flight in self.flights for i, target in enumerate(flight.targets[0])]
        for flight, index, target in parts:
            if target is not None and here & places(target):
                self._land(flight, index)
        return tensor

    def _land(self, flight: Flight, index: int) -> None:
        for one, real in zip(flight.targets, flight.finish(), strict=True):
            one[index].copy_(real[index].reshape(one[index].shape))
        for one in flight.targets:
            one[index] = None  # type: ignore[call-overload]
        if all(target is None for target in flight.targets[0]):
            self.flights.remove(flight)


def _exchange(kind: str, sent: list[torch.Tensor], options: list[Any], group: str) -> list[torch.Tensor]:
    """What each rank receives."""
    if group == ALONE:
        return [_within(kind, [one], options)[0] for one in sent]
    return _within(kind, sent, options)


def _within(kind: str, sent: list[torch.Tensor], options: list[Any]) -> list[torch.Tensor]:
    ranks = len(sent)
    if kind == "all_gather_into_tensor":
        assert options[0] == ranks
        return [torch.cat(sent) for _ in sent]
    if kind == "all_to_all_single":
        parts = [one.chunk(ranks) for one in sent]
        return [torch.cat([part[rank] for part in parts]) for rank in range(ranks)]
    if kind == "broadcast":
        return [sent[options[0]].clone() for _ in sent]
    reduced = _REDUCTIONS[options[0].lower()](sent)
    if kind == "all_reduce":
        return [reduced.clone() for _ in sent]
    assert kind == "reduce_scatter_tensor", kind
    assert options[1] == ranks
    return [part.clone() for part in reduced.chunk(ranks)]


# Comparing


def _own(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _tensors(root: torch.nn.Module, prefix: str = "") -> list[tuple[str, torch.Tensor]]:
    """Constants of a module and of the graphs in it."""
    found = []
    for name, value in (*vars(root).items(), *root._buffers.items(), *root._parameters.items()):
        if isinstance(value, torch.Tensor):
            found.append((f"{prefix}{name}", value))
    for name, child in root._modules.items():
        found.extend(_tensors(child, f"{prefix}{name}."))
    return found


def _flat(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [leaf for part in result for leaf in _flat(part)]
    return [result]


def _layout(outputs: list[Any], held: list[Any]) -> list[Any]:
    """Strides of the outputs, where they are in inputs and constants, and which of them overlap."""
    found: list[Any] = []
    tensors = [value for value in outputs if isinstance(value, torch.Tensor)]
    spots = [places(tensor) for tensor in tensors]
    kept = [(i, value) for i, value in enumerate(held) if isinstance(value, torch.Tensor)]
    for i, tensor in enumerate(tensors):
        strides = tuple(step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size != 1)
        owner = next(
            (i for i, t in kept if t.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()), None
        )
        offset = tensor.storage_offset() if owner is not None else None
        overlaps = tuple(j for j in range(i) if spots[i] & spots[j])
        found.append((strides if tensor.numel() else (), owner, offset, overlaps))
    return found


def equal(one: Outcome, other: Outcome, *, rounded: bool = False) -> bool:
    """Bit for bit, or but for the last bits if ``rounded``; with shapes, dtypes, strides and sharing."""
    if one.layout != other.layout:
        return False
    pairs = [(a, b) for left, right in zip(one.values, other.values, strict=True) for a, b in _paired(left, right)]
    return all(_same(a, b, rounded) for a, b in pairs)


def _paired(left: list[Any], right: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(left, right, strict=True)) if len(left) == len(right) else [(None, 0)]


def _same(one: Any, other: Any, rounded: bool) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other) and bool(one == other)
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    a, b = one.contiguous().reshape(-1), other.contiguous().reshape(-1)
    if a.is_floating_point():  # every NaN is like every other: which bits it has is nobody's promise
        nan = a.isnan() & b.isnan()
        if rounded:
            bits = 4 * torch.finfo(a.dtype).eps
            return torch.allclose(a.double(), b.double(), rtol=bits, atol=bits, equal_nan=True)
        return bool((nan | ((a == b) & (a.signbit() == b.signbit()))).all())
    return bool(torch.equal(a, b))
