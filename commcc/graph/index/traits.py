"""What one node does besides computing its result: writes, random numbers, effects, barriers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from commcc.graph import ops


@dataclass(frozen=True)
class Traits:
    """Facts that decide a node's ordering.

    writes: argument nodes whose storage it writes. effect: keeps its place among effects and host
    syncs. barrier: nothing moves across it. cast: a key equal for casts of the same sort, None
    when the node is no cast. host_copy: copies from a device to the host; unblocked: and the host
    does not wait for it. opaque: does, or may do, more than its arguments and writes tell (random
    numbers, effects and barriers among them).
    """

    writes: tuple[fx.Node, ...] = ()
    compute: bool = False
    random: bool = False
    host_sync: bool = False
    effect: bool = False
    barrier: bool = False
    cast: str | None = None
    opaque: bool = False
    host_copy: bool = False
    unblocked: bool = False

    @property
    def stays(self) -> bool:
        """Whether the node does, or may do, more than compute its result."""
        return bool(self.writes) or self.host_sync or self.opaque


_PLAIN = Traits()
_CASTS = frozenset({"aten._to_copy", "prims.convert_element_type"})


def traits_of(node: fx.Node, root: torch.nn.Module) -> Traits:
    """Traits of one node; sub-graphs of higher-order ops count as part of the node."""
    if node.op != "call_function":
        return _PLAIN
    target = node.target
    copies = _copies_to_host(node)
    sync = ops.is_host_sync(target) or copies
    inner = [_inner_traits(graph) for graph in _subgraphs(node, root)]
    writes = _written(node)
    effect = ops.is_effect(target) or sync or any(t.effect for t in inner)
    random = ops.is_random(target) or any(t.random for t in inner)
    barrier = ops.is_unknown_communication(target) or any(t.barrier for t in inner)
    cast = _cast_key(node)
    compute = ops.is_compute(target) or any(t.compute for t in inner)
    opaque = not ops.only_computes(target)
    if not (opaque or writes or effect or random or barrier or cast or compute):
        return _PLAIN
    unblocked = copies and bool(node.kwargs.get("non_blocking"))
    return Traits(writes, compute, random, sync, effect, barrier, cast, opaque, copies, unblocked)


def _written(node: fx.Node) -> tuple[fx.Node, ...]:
    facts = ops.aliasing(node.target)
    if facts.pure:
        return ()
    arguments: list[Any] = [ops.argument(node, name) for name in facts.writes]
    if facts.writes_keywords:
        arguments.append(node.kwargs)
    found: list[fx.Node] = []
    fx.node.map_arg(arguments, found.append)
    return tuple(dict.fromkeys(found))


def _copies_to_host(node: fx.Node) -> bool:
    """A copy from a device to the CPU: the host waits for it, or somebody after it does."""
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor) or val.device.type != "cpu" or not node._input_nodes:
        return False
    sources = (n.meta.get("val") for n in node._input_nodes)
    return any(isinstance(s, torch.Tensor) and s.device.type not in ("cpu", "meta") for s in sources)


def _cast_key(node: fx.Node) -> str | None:
    name = ops.op_name(node.target)
    if name not in _CASTS or len(node._input_nodes) != 1:
        return None
    source, val = next(iter(node._input_nodes)).meta.get("val"), node.meta.get("val")
    if not isinstance(source, torch.Tensor) or not isinstance(val, torch.Tensor) or source.device != val.device:
        return None
    return f"{name} {source.dtype} {node.args[1:]} {sorted(node.kwargs.items())}"


def _subgraphs(node: fx.Node, root: torch.nn.Module) -> list[fx.Graph]:
    """Graphs handed to a higher-order op by ``get_attr``."""
    if not ops.op_name(node.target).startswith("higher_order."):
        return []
    graphs = []
    for source in node._input_nodes:
        module = getattr(root, str(source.target), None) if source.op == "get_attr" else None
        if isinstance(module, fx.GraphModule):
            graphs.append(module.graph)
    return graphs


def _inner_traits(graph: fx.Graph) -> Traits:
    """Traits of a whole sub-graph; collectives inside it make it a barrier."""
    random = effect = barrier = compute = False
    owner = graph.owning_module or torch.nn.Module()
    for node in graph.nodes:
        inner = traits_of(node, owner)
        random |= inner.random
        effect |= inner.effect
        compute |= inner.compute
        barrier |= inner.barrier or (node.op == "call_function" and ops.collective_of(node.target) is not None)
    return Traits(compute=compute, random=random, effect=effect, barrier=barrier)
