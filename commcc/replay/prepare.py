"""A program made ready to run: steps with their operands, in order, and what each one frees.

    prepared = prepare(program)                    # on the CPU; device="cuda" for the current CUDA device
    for step in prepared.steps: ...          # step.call(*args, **kwargs)

Ops held by ``control_deps`` and fused ops of tensor parallelism stand for the plain ones. On the CPU all devices
become the CPU, memory is not pinned, and ops that have no CPU kernel get a stand-in (:mod:`commcc.replay.kernels`).
On a CUDA device accelerators become that one, and what the graph has on the CPU stays there, unless it has
everything there. In wide mode everything in floating point is float64, so that what is left of a difference is not
rounding. A constant whose value is not in the file is an input, of the name of its node, and equal on all ranks.

Limits: an op that cannot run here is an :class:`InputError` that names all such ops of the graph.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from commcc.base.errors import InputError
from commcc.graph.copying import copy_node
from commcc.graph.index import build_index
from commcc.graph.index.control import unwrapped
from commcc.graph.index.host import devices_awaited
from commcc.graph.ops import (
    OpaqueOp,
    aliasing,
    argument,
    collective_of,
    facts,
    is_unknown_communication,
    is_wait,
    op_name,
)
from commcc.graph.ops.allowed import refusal
from commcc.graph.ops.libraries import NATIVE
from commcc.graph.program import all_calls, attribute
from commcc.replay.calls import Body, CallSettings, Homes, communicates_inside, draws_random, inner_graphs
from commcc.replay.kernels import stand_in
from commcc.replay.values import tensors_in
from commcc.verify.normalise import unfolded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from commcc.graph.index import GraphIndex
    from commcc.graph.ops.collective_table import CollectiveOp
    from commcc.graph.program import Program
    from commcc.replay.calls import Network

#: Ops that read the bytes of a number, which are others in another precision.
_BYTES = frozenset({"view.dtype"})
_SHOWN = {"cpu": "the CPU", "cuda": "a CUDA device"}
_SPARSE = "works on sparse tensors, for which no values are made"
#: What no file holds; the process that compiled the graph has it.
_KERNEL = "a Triton kernel, which is not in the graph"
_HINTS = {
    "cpu": "a graph captured on the CPU, or with its own ops imported (--import MODULE), can",
    "cuda": "a graph captured for CUDA, or with its own ops imported (--import MODULE), can",
}


@dataclass(frozen=True)
class Step:
    """One node to run. fact: of a launch. host_copy: None, or whether the host does not wait for the copy.

    frees: nodes whose values nobody needs after this one. looks: it only looks at its operands in another way.
    asks: for nothing but their sizes. host_wait: the host waits for the device there. meets: its sub-graphs launch
    collectives or wait for some.
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
    asks: bool = False
    host_copy: bool | None = None
    host_wait: bool = False
    meets: bool = False

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(frozen=True)
class Prepared:
    """A program's steps. output: what it returns. written: names of the inputs that it writes.

    unfolded: whether fused ops were replaced by what they stand for. settings: how its nodes are called. network: of
    what its sub-graphs launch, None for process groups. given: inputs that are constants of the program.
    """

    program: Program
    index: GraphIndex
    nodes: tuple[fx.Node, ...]
    steps: tuple[Step, ...]
    output: Any
    written: frozenset[str]
    unfolded: bool = False
    settings: CallSettings = field(default_factory=lambda: CallSettings(Homes("cpu", accelerated=True)))
    network: Network | None = None
    given: tuple[str, ...] = ()

    @property
    def wide(self) -> bool:
        """Whether everything in floating point is float64."""
        return self.settings.wide

    @property
    def homes(self) -> Homes:
        """Where things of the graph's devices are."""
        return self.settings.homes

    @cached_property
    def inputs(self) -> tuple[fx.Node, ...]:
        return tuple(node for node in self.nodes if node.op == "placeholder")

    @cached_property
    def constants(self) -> tuple[fx.Node, ...]:
        return tuple(node for node in self.nodes if node.op == "get_attr")

    @cached_property
    def _bodies(self) -> dict[fx.Node, Body]:
        owners = {node: attribute(self.program.root, node) for node in self.constants}
        graphs = {node: own for node, own in owners.items() if isinstance(own, GraphModule)}
        return {node: Body(own, self.settings, self.network) for node, own in graphs.items()}

    def constant(self, node: fx.Node) -> Any:
        """What a ``get_attr`` node refers to: a tensor in the precision of this run, or a sub-graph as a function."""
        body = self._bodies.get(node)
        return self.settings.constant(attribute(self.program.root, node)) if body is None else body

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
    whole = unfolded(program, program)
    plain, given = _given_constants(whole)
    index = build_index(plain, hints=hints)
    nodes = tuple(unwrapped(plain).nodes)
    vals = (leaf for node in nodes for leaf in tensors_in(node.meta.get("val")))
    settings = CallSettings(Homes(device, accelerated=any(val.device.type != "cpu" for val in vals)), wide)
    _refuse(program, nodes, wide=wide, device=device)
    last = _last_uses(nodes)
    steps = tuple(
        _step(node, number, last.get(node, ()), index, settings, plain.root)
        for number, node in enumerate(nodes)
        if node.op == "call_function"
    )
    output = next(node for node in nodes if node.op == "output").args[0]
    storages = {storage for written in index.writes.values() for storage in written}
    written = frozenset(index.names[i] for i in index.placeholders if storages & set(index.storages[i]))
    return Prepared(plain, index, nodes, steps, output, written, whole is not program, settings, given=given)


def _given_constants(program: Program) -> tuple[Program, tuple[str, ...]]:
    """The program with an input for each constant that only has a shape, and what these are called."""
    lacking = [
        node
        for node in program.graph.nodes
        if node.op == "get_attr" and isinstance(attribute(program.root, node), FakeTensor)
    ]
    if not lacking:
        return program, ()
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    given: dict[Any, fx.Node] = {}
    inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
    for node in inputs:
        env[node] = copy_node(graph, node, env)
    for node in lacking:
        if node.target not in given:
            given[node.target] = graph.create_node("placeholder", node.name, name=node.name)
            # Ranks have the same constants, as they have the same buffers.
            given[node.target].meta = {**node.meta, "desc": f"BufferAOTInput(target={str(node.target)!r})"}
        env[node] = given[node.target]
    for node in program.graph.nodes:
        if node not in env:
            env[node] = copy_node(graph, node, env)
    return replace(program, graph=graph), tuple(node.name for node in given.values())


def _step(
    node: fx.Node, number: int, frees: tuple[fx.Node, ...], index: GraphIndex, settings: CallSettings, root: nn.Module
) -> Step:
    target: Any = node.target
    seen = aliasing(target)
    # One of several results, which is most of them: nothing to check.
    plain = target is operator.getitem and isinstance(node.args[1], int)
    args, kwargs = settings.operands(node)
    copy = index.host_copies.get(number)
    return Step(
        node,
        target if plain else settings.call(node),
        args,
        kwargs,
        collective_of(target),
        frees,
        waits=is_wait(target),
        random=draws_random(root, node),
        looks=facts(target).looks,
        asks=not facts(target).reads,
        host_copy=copy if seen.pure else None,
        host_wait=number in index.host_syncs and not copy and bool(devices_awaited(index, number)),
        meets=communicates_inside(root, node),
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


def _refuse(program: Program, nodes: Sequence[fx.Node], *, wide: bool, device: str) -> None:
    """Raise for everything that cannot run, all of it in one message."""
    problems: dict[str, str] = {}
    inner = inner_graphs(program.root, nodes)
    held = [(program.root, node) for node in nodes] + [(module, node) for module, body in inner for node in body]
    for module, node in held:
        problem = _reason(module, node, device, wide=wide)
        if problem is not None:
            problems.setdefault(problem, node.name)
    if not problems:
        return
    first, name = next(iter(problems.items()))
    more = f", and {len(problems) - 1} more: {', '.join(list(problems)[1:6])}" if len(problems) > 1 else ""
    raise InputError(
        f"node '{name}' cannot be run on {_SHOWN[device]}: {first}{more}",
        where=str(program.source) if program.source else None,
        hint=None if first.endswith((_SPARSE, _KERNEL)) else _HINTS[device],
    )


def _reason(module: nn.Module, node: fx.Node, device: str, *, wide: bool) -> str | None:
    """Why a node of a graph of ``module`` cannot run; None when it can."""
    if node.op == "call_function":
        return _problem(node, device, wide=wide)
    if node.op == "get_attr":
        constant = attribute(module, node)
        if isinstance(constant, FakeTensor):
            return "a constant of a sub-graph whose value is not in the file"
        is_known = isinstance(constant, torch.Tensor) or hasattr(constant, "graph")
        return None if is_known else "a constant that is no tensor"
    return None if node.op in ("placeholder", "output") else f"a {node.op} node"


def _refuse_unsafe(program: Program, imported: frozenset[str]) -> None:
    """Raise for an op that could do something besides computing, in the graph and in its sub-graphs."""
    for node in all_calls(program):
        for target in (node.target, *_called(node)):
            nothing = isinstance(target, OpaqueOp) and target.described is None
            reason = None if nothing or isinstance(target, HigherOrderOperator) else refusal(target, imported)
            if reason is not None:
                # PyTorch's own ops are there before any module.
                own = op_name(target).partition(".")[0] in NATIVE
                raise InputError(
                    f"op {op_name(target)} of node '{node.name}' is not run: {reason}",
                    where=str(program.source) if program.source else None,
                    hint=None if own else "--import MODULE, with the module that registers it, runs it nevertheless",
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


def _problem_of_unknown(name: str, target: OpaqueOp) -> str | None:
    described = target.described
    if described is not None and described.communicates:
        return f"{name} communicates through channels of its own"
    runs = described is not None and (described.like is not None or described.runs is not None)
    return None if runs else f"{name} is not registered with this PyTorch"


def _problem(node: fx.Node, device: str, *, wide: bool) -> str | None:
    """Why a call cannot run here; None when it can."""
    target: Any = node.target
    name = op_name(target)
    if isinstance(target, OpaqueOp):
        return _problem_of_unknown(name, target)
    if is_unknown_communication(target):
        return f"{name} communicates in a way that is not known"
    if collective_of(target) is not None and not isinstance(argument(node, "group_name"), str):
        return f"{name} is given its process group as an object"
    if isinstance(target, HigherOrderOperator):
        if name.startswith("higher_order.triton_kernel_wrapper"):
            from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

            known = node.kwargs.get("kernel_idx") in kernel_side_table.id_to_kernel
            return None if known else f"{name} calls {_KERNEL}"
        handed = next((op for op in _called(node) if isinstance(op, OpaqueOp) and op.described is None), None)
        if handed is not None:
            return f"{op_name(handed)} is not registered with this PyTorch"
        met = next((op for op in _called(node) if collective_of(op) is not None or is_unknown_communication(op)), None)
        if met is not None:
            return f"{op_name(met)} is handed to {name}, which communicates in a way that is not known"
        return None if facts(target).body else f"what {name} does is not known"
    if wide and str(target).removeprefix("aten.") in _BYTES:
        return f"{name} reads bytes, which are others in float64"
    stood_for = device == "cpu" and stand_in(target, wide=wide) is not None
    if stood_for or not isinstance(target, OpOverload):
        return None
    schema_name = target._schema.name + (f".{target._overloadname}" if target._overloadname != "default" else "")
    # mypy: the dispatcher's functions have no annotations in every version.
    runs: Any = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    if runs(schema_name, device.upper()):
        return None
    sparse = runs(schema_name, f"Sparse{device.upper()}")
    return f"{name} {_SPARSE}" if sparse else f"{name} has no {device.upper()} kernel"
