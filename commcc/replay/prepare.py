"""A program made ready to run: steps with their operands, in order, and what each one frees.

    prepared = prepare(program)                    # on the CPU; device="cuda" for the current CUDA device
    for step in prepared.steps: ...          # step.call(*args, **kwargs)

Ops held by ``control_deps`` and fused ops of tensor parallelism stand for the plain ones. On the CPU all devices
become the CPU, memory is not pinned, and ops that have no CPU kernel get a stand-in (:mod:`commcc.replay.kernels`).
On a CUDA device accelerators become that one, and what the graph has on the CPU stays there, unless it has
everything there. In wide mode everything in floating point is float64, so that what is left of a difference is not
rounding.

Limits: an op that cannot run here is an :class:`InputError` that names all such ops of the graph.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from commcc.base.errors import InputError
from commcc.graph.index import build_index
from commcc.graph.index.control import unwrapped
from commcc.graph.index.host import waits
from commcc.graph.ops import (
    OpaqueOp,
    aliasing,
    argument,
    collective_of,
    facts,
    is_random,
    is_unknown_communication,
    is_wait,
    op_name,
)
from commcc.graph.ops.allowed import refusal
from commcc.graph.ops.guards import guarded
from commcc.replay.kernels import stand_in
from commcc.replay.values import tensors_in
from commcc.verify.normalise import unfolded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import fx

    from commcc.graph.index import GraphIndex
    from commcc.graph.ops.collective_table import CollectiveOp
    from commcc.graph.program import Program

#: Ops that read the bytes of a number, which are others in another precision.
_BYTES = frozenset({"view.dtype"})
_SHOWN = {"cpu": "the CPU", "cuda": "a CUDA device"}
_HINTS = {
    "cpu": "a graph captured on the CPU, or with its own ops imported (--import MODULE), can",
    "cuda": "a graph captured for CUDA, or with its own ops imported (--import MODULE), can",
}


@dataclass(frozen=True)
class Homes:
    """Where things are in a run on ``device``. accelerated: whether the graph has any elsewhere than on
    the CPU.
    """

    device: str
    accelerated: bool

    def of(self, device: torch.device) -> torch.device:
        """Where a run has what the graph has on this device."""
        stays = self.accelerated and device.type == "cpu"
        return torch.device("cpu" if stays else self.device)


@dataclass(frozen=True)
class Step:
    """One node to run. fact: of a launch. host_copy: None, or whether the host does not wait for the copy.

    frees: nodes whose values nobody needs after this one. looks: it only looks at its operands in another way.
    host_wait: the host waits for the device there.
    """

    node: fx.Node
    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    fact: CollectiveOp | None
    frees: tuple[fx.Node, ...]
    waits: bool = False
    random: bool = False
    looks: bool = False
    host_copy: bool | None = None
    host_wait: bool = False

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(frozen=True)
class Prepared:
    """A program's steps. output: what it returns. written: names of the inputs that it writes.

    unfolded: whether fused ops were replaced by what they stand for. homes: where things of the graph's devices are.
    """

    program: Program
    index: GraphIndex
    nodes: tuple[fx.Node, ...]
    steps: tuple[Step, ...]
    output: Any
    written: frozenset[str]
    wide: bool
    unfolded: bool = False
    homes: Homes = field(default_factory=lambda: Homes("cpu", accelerated=True))

    @cached_property
    def inputs(self) -> tuple[fx.Node, ...]:
        return tuple(node for node in self.nodes if node.op == "placeholder")

    @cached_property
    def constants(self) -> tuple[fx.Node, ...]:
        return tuple(node for node in self.nodes if node.op == "get_attr")

    def constant(self, node: fx.Node) -> Any:
        """What a ``get_attr`` node refers to, a tensor in the precision of this run."""
        owner = _constant(self.program, node)
        if not isinstance(owner, torch.Tensor):
            return owner
        return widened(owner.detach().to(self.homes.of(owner.device), copy=True), self.wide)

    def home(self, node: fx.Node) -> torch.device:
        """Where an input is given to the program."""
        val = node.meta.get("val")
        return self.homes.of(val.device) if isinstance(val, torch.Tensor) else torch.device("cpu")


def prepare(
    program: Program,
    *,
    wide: bool = False,
    hints: Mapping[str, int] | None = None,
    device: str = "cpu",
    imported: frozenset[str] = frozenset(),
) -> Prepared:
    """Make a program ready to run on ``cpu`` or ``cuda``; imported: ops of other libraries that may run.

    Raises :class:`InputError` for what cannot run there, or must not (:mod:`commcc.graph.ops.allowed`).
    """
    _refuse_unsafe(program, imported)
    plain = unfolded(program)
    index = build_index(plain, hints=hints)
    nodes = tuple(unwrapped(plain).nodes)
    vals = (leaf for node in nodes for leaf in tensors_in(node.meta.get("val")))
    homes = Homes(device, accelerated=any(val.device.type != "cpu" for val in vals))
    _refuse(program, nodes, wide=wide, device=device)
    last = _last_uses(nodes)
    steps = tuple(
        _step(node, number, last.get(node, ()), index, homes, wide=wide)
        for number, node in enumerate(nodes)
        if node.op == "call_function"
    )
    output = next(node for node in nodes if node.op == "output").args[0]
    storages = {storage for written in index.writes.values() for storage in written}
    written = frozenset(index.names[i] for i in index.placeholders if storages & set(index.storages[i]))
    return Prepared(plain, index, nodes, steps, output, written, wide, plain is not program, homes)


def widened(tensor: torch.Tensor, wide: bool) -> torch.Tensor:
    """A tensor in the precision of the run."""
    return tensor.to(_retyped(tensor.dtype)) if wide else tensor


def _retyped(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def _step(
    node: fx.Node, number: int, frees: tuple[fx.Node, ...], index: GraphIndex, homes: Homes, *, wide: bool
) -> Step:
    def moved(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return homes.of(leaf)
        return _retyped(leaf) if wide and isinstance(leaf, torch.dtype) else leaf

    left_out = "pin_memory" if homes.device == "cpu" else None
    kwargs = {key: map_aggregate(value, moved) for key, value in node.kwargs.items() if key != left_out}
    target: Any = node.target
    seen = aliasing(target)
    # One of several results, which is most of them: nothing to check.
    plain = target is operator.getitem and isinstance(node.args[1], int)
    copy = index.host_copies.get(number)
    return Step(
        node,
        (stand_in(target, wide=wide) if homes.device == "cpu" else None) or (target if plain else guarded(target)),
        tuple(map_aggregate(node.args, moved)),
        kwargs,
        collective_of(target),
        frees,
        waits=is_wait(target),
        random=is_random(target),
        looks=facts(target).looks,
        host_copy=copy if seen.pure else None,
        host_wait=number in index.host_syncs and not copy and waits(index, number),
    )


def _last_uses(nodes: tuple[fx.Node, ...]) -> dict[fx.Node, tuple[fx.Node, ...]]:
    """By node, what is used there for the last time; a result that nobody uses goes at once."""
    freed_at: dict[fx.Node, list[fx.Node]] = {}
    seen: set[fx.Node] = set()
    for node in reversed(nodes):
        fresh = [value for value in (node, *node.all_input_nodes) if value not in seen]
        seen.update(fresh)
        if fresh and node.op == "call_function":
            freed_at[node] = fresh
    return {node: tuple(dict.fromkeys(freed)) for node, freed in freed_at.items()}


def _refuse(program: Program, nodes: Iterable[fx.Node], *, wide: bool, device: str) -> None:
    """Raise for everything that cannot run, all of it in one message."""
    problems: dict[str, str] = {}
    for node in nodes:
        problem = None
        if node.op == "call_function":
            problem = _problem(node, device, wide=wide)
        elif node.op == "get_attr":
            constant = _constant(program, node)
            if isinstance(constant, FakeTensor):
                problem = "a constant whose value is not in the file"
            elif not isinstance(constant, torch.Tensor) and not hasattr(constant, "graph"):
                problem = "a constant that is no tensor"
        elif node.op not in ("placeholder", "output"):
            problem = f"a {node.op} node"
        if problem is not None:
            problems.setdefault(problem, node.name)
    if not problems:
        return
    first, name = next(iter(problems.items()))
    more = f", and {len(problems) - 1} more: {', '.join(list(problems)[1:6])}" if len(problems) > 1 else ""
    raise InputError(
        f"node '{name}' cannot be run on {_SHOWN[device]}: {first}{more}",
        where=str(program.source) if program.source else None,
        hint=_HINTS[device],
    )


def _refuse_unsafe(program: Program, imported: frozenset[str]) -> None:
    """Raise for an op that could do something besides computing, in the graph and in its sub-graphs."""
    graphs = [program.graph, *(m.graph for m in program.root.modules() if isinstance(m, GraphModule))]
    for node in (node for graph in graphs for node in graph.nodes if node.op == "call_function"):
        for target in (node.target, *_called(node)):
            nothing = isinstance(target, OpaqueOp) and target.described is None
            reason = None if nothing or isinstance(target, HigherOrderOperator) else refusal(target, imported)
            if reason is not None:
                raise InputError(
                    f"op {op_name(target)} of node '{node.name}' is not run: {reason}",
                    where=str(program.source) if program.source else None,
                    hint="--import MODULE, with the module that registers it, runs it nevertheless",
                )


def _called(node: fx.Node) -> list[Any]:
    """Ops and functions that are handed to a higher-order op."""
    called: list[Any] = []

    def seen(leaf: Any) -> Any:
        if callable(leaf) and not isinstance(leaf, Node):
            called.append(leaf)
        return leaf

    map_aggregate((node.args, node.kwargs), seen)
    return called


def _problem(node: fx.Node, device: str, *, wide: bool) -> str | None:
    """Why a call cannot run here; None when it can."""
    target: Any = node.target
    name = op_name(target)
    if (
        isinstance(target, OpaqueOp)
        and target.described is not None
        and (target.described.like or target.described.runs)
    ):
        return None
    if isinstance(target, OpaqueOp):
        return f"{name} is not registered with this PyTorch"
    if is_unknown_communication(target):
        return f"{name} communicates in a way that is not known"
    if collective_of(target) is not None and not isinstance(argument(node, "group_name"), str):
        return f"{name} is given its process group as an object"
    if isinstance(target, HigherOrderOperator):
        return f"{name} holds a graph of its own"
    if wide and str(target).removeprefix("aten.") in _BYTES:
        return f"{name} reads bytes, which are others in float64"
    stood_for = device == "cpu" and stand_in(target, wide=wide) is not None
    if stood_for or not isinstance(target, OpOverload):
        return None
    schema_name = target._schema.name + (f".{target._overloadname}" if target._overloadname != "default" else "")
    # mypy: the dispatcher's functions have no annotations in every version.
    runs: Any = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    return None if runs(schema_name, device.upper()) else f"{name} has no {device.upper()} kernel"


def _constant(program: Program, node: fx.Node) -> Any:
    """What a ``get_attr`` node refers to; None where there is nothing."""
    owner: Any = program.root
    for part in str(node.target).split("."):
        owner = getattr(owner, part, None)
    return owner
