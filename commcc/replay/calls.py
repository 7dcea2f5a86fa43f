"""What a node calls when it is run, and with which operands.

::

    settings = CallSettings(Homes("cpu", accelerated=True), wide=False)
    call = settings.call(node)               # aten.mm; a stand-in or a check around it where it needs one
    args, kwargs = settings.operands(node)   # devices and dtypes are those of the run; nodes stay

    body = Body(module, settings)            # a sub-graph, node by node
    torch.ops.higher_order.cond(pred, body, other, operands)

Higher-order ops that do what their graphs do are run by PyTorch's own implementation for eager mode, with each graph as
a function; flex attention so by its reference. A region without gradients is its graph, since nothing here has
gradients; a region of autocast for an accelerator is one for the CPU when it runs there.

An op that has no kernel for numbers of 16 or 8 bits runs on float32 copies, and its results are rounded;
``CallSettings.raised`` has the names of such ops once they have run.

What a sub-graph launches and waits for is called as it is, on process groups; whoever runs a graph without those says
what to call instead (:data:`Network`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule
from torch.fx.node import map_aggregate, map_arg
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from commcc.base.text import listed
from commcc.graph.ops import argument, argument_names, collective_of, draws, facts, is_wait, op_name
from commcc.graph.ops.effects import CASTING
from commcc.graph.ops.guards import guarded
from commcc.graph.program import attribute
from commcc.replay.kernels import converted, stand_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import fx

#: What a launch or wait of a sub-graph calls, by its node and the op's own call.
Network: TypeAlias = "Callable[[fx.Node, Callable[..., Any]], Callable[..., Any]]"

_NO_GRADIENTS = "higher_order.wrap_with_set_grad_enabled"
#: What PyTorch's kernels say about a dtype that they do not have.
_NO_KERNEL = re.compile(r"not implemented for '(?:Half|BFloat16|Float8\w*|ComplexHalf)'")


def _giving_first(call: Callable[..., Any]) -> Callable[..., Any]:
    """What is written as the result, of which Inductor takes parts."""

    def called(*args: Any, **kwargs: Any) -> Any:
        call(*args, **kwargs)
        return args[0]

    return called


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
class CallSettings:
    """How nodes of one program are called. wide: everything in floating point is float64.

    raised: names of ops that had no kernel for their dtype and ran in float32; filled as they run.
    """

    homes: Homes
    wide: bool = False
    raised: dict[str, None] = field(default_factory=dict, compare=False)

    def call(self, node: fx.Node) -> Callable[..., Any]:
        """The function that does what a ``call_function`` node does."""
        target: Any = node.target
        on_cpu = self.homes.device == "cpu"
        call = stand_in(target, wide=self.wide) if on_cpu else None
        if call is not None:
            return call
        if target is torch.ops.prims.convert_element_type.default:
            return converted
        if isinstance(target, HigherOrderOperator):
            return self._higher_order(target)
        call = guarded(target)
        if node.users and isinstance(target, OpOverload) and not target._schema.returns and facts(target).views:
            call = _giving_first(call)
        if on_cpu and isinstance(target, OpOverload) and any(map(_is_short, _dtypes(node))):
            return self._raising(node, target, call)
        return call

    def operands(self, node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of the call, nodes among them."""
        left_out = "pin_memory" if self.homes.device == "cpu" else None
        kwargs = {key: map_aggregate(value, self._moved) for key, value in node.kwargs.items() if key != left_out}
        val = node.meta.get("val")
        unsaid = "dtype" in argument_names(node.target) and argument(node, "dtype") is None
        factory = not any(isinstance(used.meta.get("val"), torch.Tensor) for used in node.all_input_nodes)
        if self.wide and unsaid and factory and isinstance(val, torch.Tensor):
            kwargs["dtype"] = _retyped(val.dtype)  # else what a factory makes is float32
        return tuple(map_aggregate(node.args, self._moved)), kwargs

    def constant(self, owner: Any) -> Any:
        """What a ``get_attr`` node refers to: a tensor of its own, in the precision of the run."""
        if not isinstance(owner, torch.Tensor):
            return owner
        return widened(owner.detach().to(self.homes.of(owner.device), copy=True), self.wide)

    def _moved(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return self.homes.of(leaf)
        return _retyped(leaf) if self.wide and isinstance(leaf, torch.dtype) else leaf

    def _higher_order(self, op: HigherOrderOperator) -> Callable[..., Any]:
        name = op_name(op)
        if name == _NO_GRADIENTS:
            return lambda _enabled, body, *args, **kwargs: body(*args, **kwargs)
        if name in CASTING:
            return self._autocast

        def below_autograd(*args: Any, **kwargs: Any) -> Any:
            # Nothing has gradients, and what would prepare them asks for more than a function.
            with torch._C._AutoDispatchBelowAutograd():
                return op(*args, **kwargs)

        return below_autograd

    def _autocast(self, device: str, dtype: Any, enabled: bool, cached: Any, body: Any, *args: Any) -> Any:
        if self.wide:  # autocast leaves float64 alone
            return body(*args)
        where = self.homes.of(torch.device(device)).type
        with torch.autocast(where, dtype, enabled, cached):
            return body(*args)

    def _raising(self, node: fx.Node, op: OpOverload, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, and where it has no kernel for 16 or 8 bits the same on float32."""

        @wraps(call)
        def attempt(*args: Any, **kwargs: Any) -> Any:
            try:
                return call(*args, **kwargs)
            except RuntimeError as error:
                if _NO_KERNEL.search(str(error)) is None:
                    raise
            self.raised[op_name(op)] = None
            return _in_float32(call, op, node, args, kwargs)

        return attempt


class Body:
    """A sub-graph as a function of its placeholders; every call runs it node by node. network: of what it launches."""

    def __init__(self, module: GraphModule, settings: CallSettings, network: Network | None = None) -> None:
        self._settings = settings
        self._network = network
        self.module = module
        called = [node for node in module.graph.nodes if node.op == "call_function"]
        self._calls = {node: (self._call(node), *settings.operands(node)) for node in called}

    def _call(self, node: fx.Node) -> Callable[..., Any]:
        call = self._settings.call(node)
        return call if self._network is None or not communicates(node) else self._network(node, call)

    def _constant(self, owner: Any) -> Any:
        if isinstance(owner, GraphModule):
            return Body(owner, self._settings, self._network)
        return self._settings.constant(owner)

    def __call__(self, *given: Any) -> Any:
        values: dict[fx.Node, Any] = {}
        rest = iter(given)
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(rest)
            elif node.op == "get_attr":
                values[node] = self._constant(attribute(self.module, node))
            elif node.op == "output":
                results = map_arg(node.args[0], values.__getitem__)
                return list(results) if isinstance(results, list) else results  # vmap tells lists of fx from others
            else:
                call, args, kwargs = self._calls[node]
                values[node] = call(*map_arg(args, values.__getitem__), **map_arg(kwargs, values.__getitem__))
        raise ValueError("a sub-graph without an output")


def raised_remarks(names: Iterable[str]) -> list[str]:
    """What a report says of ops that ran in float32; nothing when there are none."""
    told = list(dict.fromkeys(names))
    return [f"no CPU kernel for 16 or 8 bits, run in float32 and rounded: {listed(told)}"] if told else []


def inner_graphs(module: torch.nn.Module, nodes: Sequence[fx.Node]) -> Iterator[tuple[GraphModule, list[fx.Node]]]:
    """Sub-graphs that these nodes of ``module`` hand to higher-order ops, those within them too."""
    for node in nodes:
        owner = attribute(module, node) if node.op == "get_attr" else None
        if isinstance(owner, GraphModule) and any(user.op == "call_function" for user in node.users):
            inner = list(owner.graph.nodes)
            yield owner, inner
            yield from inner_graphs(owner, inner)


def communicates(node: fx.Node) -> bool:
    """Whether a node launches a collective or waits for one."""
    return node.op == "call_function" and (collective_of(node.target) is not None or is_wait(node.target))


def communicates_inside(module: torch.nn.Module, node: fx.Node) -> bool:
    """Whether a graph that a call is handed launches a collective or waits for one."""
    held = [operand for operand in node.all_input_nodes if operand.op == "get_attr"]
    return any(communicates(inner_node) for _, inner in inner_graphs(module, held) for inner_node in inner)


def draws_random(module: torch.nn.Module, node: fx.Node) -> bool:
    """Whether a call needs the rank's random numbers: its op, or one in a graph that it is handed."""
    if draws(node):
        return True
    held = [operand for operand in node.all_input_nodes if operand.op == "get_attr"]
    return any(draws(inner_node) for _, inner in inner_graphs(module, held) for inner_node in inner)


def widened(tensor: torch.Tensor, wide: bool) -> torch.Tensor:
    """A tensor in the precision of the run."""
    return tensor.to(_retyped(tensor.dtype)) if wide else tensor


def _retyped(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def _is_short(dtype: torch.dtype) -> bool:
    return (dtype.is_floating_point and dtype.itemsize < 4) or dtype == torch.complex32


def _dtypes(node: fx.Node) -> Iterator[torch.dtype]:
    """Dtypes of a call's operands and results."""
    for source in (node, *node.all_input_nodes):
        val = source.meta.get("val")
        for leaf in val if isinstance(val, (tuple, list)) else (val,):
            if isinstance(leaf, torch.Tensor):
                yield leaf.dtype


def _in_float32(
    call: Callable[..., Any], op: OpOverload, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The call on float32 copies; what it writes is copied back, and results have the dtypes that the graph says."""
    copies: dict[int, torch.Tensor] = {}  # by their own address, the tensors that they are of

    def raised(leaf: Any) -> Any:
        dtype = leaf.dtype if isinstance(leaf, torch.Tensor) else leaf
        if not isinstance(dtype, torch.dtype) or not _is_short(dtype):
            return leaf
        wider = torch.complex64 if dtype.is_complex else torch.float32
        if not isinstance(leaf, torch.Tensor):
            return wider
        copy = leaf.to(wider)
        copies[id(copy)] = leaf
        held.append(copy)
        return copy

    held: list[torch.Tensor] = []
    wide_args, wide_kwargs = tree_map(raised, args), tree_map(raised, kwargs)
    result = call(*wide_args, **wide_kwargs)
    given = {**dict(zip((a.name for a in op._schema.arguments), wide_args, strict=False)), **wide_kwargs}
    written = [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    for leaf in tree_leaves([given.get(name) for name in written]):
        if id(leaf) in copies:
            copies[id(leaf)].copy_(leaf)
    vals = tree_leaves(node.meta.get("val"))
    results, spec = tree_flatten(result)
    known = len(vals) == len(results)
    return tree_unflatten(
        [
            copies[id(leaf)] if id(leaf) in copies else _rounded(leaf, vals[number] if known else held[0])
            for number, leaf in enumerate(results)
        ],
        spec,
    )


def _rounded(leaf: Any, like: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or not isinstance(like, torch.Tensor) or leaf.dtype == like.dtype:
        return leaf
    return leaf.to(like.dtype) if leaf.dtype.is_floating_point or leaf.dtype.is_complex else leaf
