"""What one node does besides computing its result: writes, random numbers, effects, barriers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from commcc.graph import ops
from commcc.graph.index.storage import assign_storages
from commcc.graph.index.waits import waits_for_unknown
from commcc.graph.ops.constants import COPIES
from commcc.graph.ops.operands import called, handed_group, nodes_in, reaching, written
from commcc.graph.ops.views import CASTS
from commcc.graph.program import attribute

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from commcc.graph.index.graph import Tensor


@dataclass(frozen=True)
class Traits:
    """Facts that decide a node's ordering.

    writes: argument nodes whose storage it writes. effect: keeps its place among effects and host syncs. random: keeps
    its place among those that draw random numbers. barrier: nothing moves across it. cast: a key equal for casts of
    the same kind, None when the node is no cast. host_copy: copies from a device to the host; unblocked: and the host
    does not wait for it; sends: operands that the host copies to a device without waiting. device: the other end of a
    copy from or to the host. awaits: devices whose copies have arrived behind it. opaque: does, or may do, more than
    its arguments and writes tell (random numbers, effects and barriers among them). shares: a result may be in the
    storage of any operand. element: it is one of a list, and reads no other. constants: it has some of its own.
    hidden: it reaches memory that the call does not show.
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
    sends: tuple[fx.Node, ...] = ()
    device: str = ""
    awaits: frozenset[str] = frozenset()
    shares: bool = False
    element: bool = False
    constants: bool = False
    hidden: bool = False

    @property
    def stays(self) -> bool:
        """Whether the node does, or may do, more than compute its result."""
        return bool(self.writes) or self.host_sync or self.opaque


_PLAIN, _SHARING, _ELEMENT = Traits(), Traits(shares=True), Traits(element=True)
#: What says that the host does not wait for a copy; the host's kind of device.
_UNBLOCKED, _HOST = "non_blocking", "cpu"


def traits_of(node: fx.Node, root: torch.nn.Module, groups: Container[str] = ()) -> Traits:
    """Traits of one node; sub-graphs of higher-order ops count as part of the node, and so do ops handed to them.

    groups: names of process groups.
    """
    if node.op != "call_function":
        return _PLAIN
    copying = _copying(node)
    copies = copying is not None and copying.to == _HOST
    if copying is None and only_computes(node.target):
        return _ELEMENT if ops.is_getitem(node.target) else _PLAIN
    fenced = handed_group(node, groups)
    fact = ops.facts_of_call(node)
    if waits_for_unknown(node):
        return Traits(tuple(node._input_nodes), barrier=True, opaque=True)
    cast = _cast_key(node)
    compute = ops.is_compute(node.target)
    if fact.pure and not (copying or fenced or cast or compute):
        return _SHARING if _shares(fact, node) else _PLAIN
    held = [attribute(root, source) for source in node._input_nodes if fact.body and source.op == "get_attr"]
    if any(not isinstance(value, (torch.Tensor, fx.GraphModule)) for value in held):
        # What may be a sub-graph, of which the file says nothing.
        return Traits(tuple(node._input_nodes), random=True, effect=True, barrier=True, opaque=True, shares=True)
    inner = [_inner_traits(graph, groups) for graph in sub_graphs(node, root)] if fact.body or fact.effect else []
    handed = called(node) if fact.body or fact.effect else []
    hidden = any(part.hidden for part in inner) or any(map(reaching, handed))
    writes = written(node)
    if any(part.writes for part in inner):
        writes = tuple(dict.fromkeys((*writes, *node._input_nodes)))
    sync = fact.host_sync or copies
    parts: list[Traits | ops.OpFacts] = [*inner, *handed]
    effect = fact.effect or hidden or any(part.effect for part in parts)
    return Traits(
        writes,
        compute=compute or any(part.compute for part in inner),
        # What an op does of which nothing is known may be to draw.
        random=fact.random or effect or any(part.random for part in parts),
        host_sync=sync,
        effect=effect or fact.assertion or sync,
        barrier=fact.barrier or fenced or hidden or any(part.barrier for part in parts),
        cast=cast,
        opaque=fact.acts or fact.body,
        host_copy=copies,
        unblocked=copies and bool(copying and copying.unblocked),
        sends=copying.sources if copying is not None and copying.unblocked and not copies else (),
        device="" if copying is None else copying.device,
        awaits=_awaited(node, copying) if sync or copying is not None else frozenset(),
        shares=_shares(fact, node) or any(part.shares for part in inner) or any(op.views for op in handed),
        constants=any(part.constants for part in inner),
        hidden=hidden,
    )


def _shares(fact: ops.OpFacts, node: fx.Node) -> bool:
    """Whether a result may be in the storage of any operand, by what the op is."""
    return fact.views == ops.ALL and not (fact.lists and isinstance(node.meta.get("val"), torch.Tensor))


def traits_of_all(
    nodes: Sequence[fx.Node], root: torch.nn.Module, groups: Container[str], tensors: Sequence[Tensor | None]
) -> list[Traits]:
    """:func:`traits_of` every node; tensors: what each returns.

    Most ops have traits only where they copy to the host, or, of libraries that are not there, are handed a group.
    """
    # Found by the object: hashing an op takes longer than all the rest.
    targets = {id(node.target): node.target for node in nodes if node.op == "call_function"}
    plain = {at: _ELEMENT if ops.is_getitem(op) else _PLAIN for at, op in targets.items() if only_computes(op)}
    casting = {at for at, op in targets.items() if ops.op_name(op) in CASTS and ops.facts(op).pure}
    alike: dict[tuple[int, str], Traits] = {}
    traits: list[Traits] = []
    for node, tensor in zip(nodes, tensors, strict=True):
        at = id(node.target)
        if tensor is not None and tensor.device.startswith("cpu"):
            traits.append(traits_of(node, root, groups))
        elif at in plain:
            traits.append(plain[at])
        elif at in casting and (cast := _cast_key(node)) is not None:
            key = at, cast
            if key not in alike:
                alike[key] = traits_of(node, root, groups)
            traits.append(alike[key])
        else:
            traits.append(traits_of(node, root, groups))
    return traits


@lru_cache(maxsize=4096)
def only_computes(target: Any) -> bool:
    """Whether every node with this op has no traits, unless it copies to the host. What an op of a library that is not
    there does also depends on what it is handed.
    """
    if isinstance(target, ops.OpaqueOp) or ops.takes(target, _UNBLOCKED):
        return False
    if ops.facts(target).views == ops.ALL:
        return False
    if ops.is_compute(target) or ops.is_wait(target) or ops.op_name(target) in CASTS:
        return False
    return ops.facts(target).pure


def with_constants(
    nodes: Sequence[fx.Node], root: torch.nn.Module, traits: list[Traits], storages: Sequence[tuple[int, ...]]
) -> list[Traits]:
    """The same, where a graph writes constants: those of sub-graphs may be the same, so nothing moves across these."""
    if not any(trait.constants for trait in traits):
        return traits
    number = {node: i for i, node in enumerate(nodes)}
    kept = _constants(nodes, root, storages)
    changed = {s for trait in traits for node in trait.writes for s in storages[number[node]]}
    if kept.isdisjoint(changed):
        return traits
    return [replace(trait, barrier=True, opaque=True, hidden=True) if trait.constants else trait for trait in traits]


def _constants(nodes: Sequence[fx.Node], root: torch.nn.Module, storages: Sequence[tuple[int, ...]]) -> set[int]:
    """Storages of constants."""
    fetched = [i for i, node in enumerate(nodes) if node.op == "get_attr"]
    return {s for i in fetched if not isinstance(attribute(root, nodes[i]), fx.GraphModule) for s in storages[i]}


def mixed_nodes(traits: Sequence[Traits]) -> frozenset[int]:
    """Nodes of which a result may be in the storage of any operand."""
    return frozenset(i for i, trait in enumerate(traits) if trait.shares)


class _Copying(NamedTuple):
    """A copy between the host and a device. sources: the operands that it copies; to: the kind of device that these go
    to. device: which one they come from or go to, other than the host.
    """

    sources: tuple[fx.Node, ...]
    to: str
    device: str
    unblocked: bool


def _copying(node: fx.Node) -> _Copying | None:
    """What a node copies between the host and a device, either way; None where it does not."""
    into = ops.argument(node, "self") if ops.op_name(node.target) in COPIES else None
    given = [source.meta.get("val") for source in nodes_in(into)] if into is not None else [node.meta.get("val")]
    targets = {val.device.type for val in given if isinstance(val, torch.Tensor)}
    if len(targets) != 1 or not node._input_nodes:
        return None
    to, held = next(iter(targets)), set(nodes_in(into)) if into is not None else set()
    elsewhere = tuple(n for n in node._input_nodes if n not in held and _device_of(n) not in ("", "meta", to))
    named = ops.takes(node.target, _UNBLOCKED)
    if not elsewhere or not (to == _HOST or (named and all(_device_of(n) == _HOST for n in elsewhere))):
        return None
    device = (
        _device_of(elsewhere[0], index=True) if to == _HOST else str(next(v.device for v in given if v is not None))
    )
    return _Copying(elsewhere, to, device, named and bool(ops.argument(node, _UNBLOCKED)))


def _awaited(node: fx.Node, copying: _Copying | None) -> frozenset[str]:
    """The devices that the host has waited for behind a node."""
    if copying is not None and copying.unblocked:
        return frozenset()
    near = (*node._input_nodes, *((node,) if copying is not None else ()))
    return frozenset(name for n in near if (name := _device_of(n, index=True)) and not name.startswith(_HOST))


def _device_of(node: fx.Node, *, index: bool = False) -> str:
    """The kind of device that a tensor is on, or with index which one; empty for what is no tensor."""
    val = node.meta.get("val")
    return (str(val.device) if index else val.device.type) if isinstance(val, torch.Tensor) else ""


def _cast_key(node: fx.Node) -> str | None:
    name = ops.op_name(node.target)
    if name not in CASTS or len(node._input_nodes) != 1:
        return None
    source, val = next(iter(node._input_nodes)).meta.get("val"), node.meta.get("val")
    if not isinstance(source, torch.Tensor) or not isinstance(val, torch.Tensor) or source.device != val.device:
        return None
    return f"{name} {source.dtype} {node.args[1:]} {sorted(node.kwargs.items())}"


def sub_graphs(node: fx.Node, root: torch.nn.Module) -> list[fx.Graph]:
    """Graphs handed to a higher-order op by ``get_attr``."""
    graphs = []
    for source in node._input_nodes:
        module = attribute(root, source) if source.op == "get_attr" else None
        if isinstance(module, fx.GraphModule):
            graphs.append(module.graph)
    return graphs


def launches_inside(node: fx.Node, root: torch.nn.Module) -> bool:
    """Whether the sub-graphs of a node launch collectives."""
    return any(
        ops.collective_of(inner.target) is not None or launches_inside(inner, graph.owning_module or torch.nn.Module())
        for graph in sub_graphs(node, root)
        for inner in graph.nodes
    )


def _inner_traits(graph: fx.Graph, groups: Container[str]) -> Traits:
    """Traits of a whole sub-graph; collectives and waits inside it are a barrier. So is what reaches memory that the
    call does not show: writes to constants, which may be those of others, and what looks around its inputs or joins
    them.

    writes: inputs that it writes, as its own nodes. shares: a result may be in the storage of an input.
    """
    nodes = list(graph.nodes)
    owner = graph.owning_module or torch.nn.Module()
    every = [traits_of(node, owner, groups) for node in nodes]
    number = {node: i for i, node in enumerate(nodes)}
    storages = assign_storages(nodes, number, mixed_nodes(every), root=owner)
    inputs = {s for i, node in enumerate(nodes) if node.op == "placeholder" for s in storages[i]}
    kept = _constants(nodes, owner, storages)
    changed = {s: node for trait in every for node in trait.writes for s in storages[number[node]]}
    called = [node.target for node in nodes if node.op == "call_function"]
    meets = any(ops.collective_of(target) is not None or ops.is_wait(target) for target in called)
    returned = {
        s for node in nodes if node.op == "output" for leaf in nodes_in(node.args) for s in storages[number[leaf]]
    }
    hidden = not kept.isdisjoint(changed) or _looks_around(nodes, number, storages, inputs | kept)
    return Traits(
        writes=tuple(node for s, node in changed.items() if s in inputs),
        compute=any(trait.compute for trait in every),
        random=any(trait.random for trait in every),
        effect=any(trait.effect for trait in every) or hidden,
        barrier=meets or hidden or any(trait.barrier for trait in every),
        shares=not returned.isdisjoint(inputs | kept),
        constants=bool(kept) or any(trait.constants for trait in every),
        hidden=hidden or any(trait.hidden for trait in every),
    )


def _looks_around(
    nodes: Sequence[fx.Node], number: dict[fx.Node, int], storages: Sequence[tuple[int, ...]], given: set[int]
) -> bool:
    """Whether an op reads around what a sub-graph is given in its storage, or makes one storage of two."""
    for node in nodes:
        fact = ops.facts(node.target) if node.op == "call_function" else None
        reaches = fact is not None and ((fact.storage and fact.reads) or fact.joins is not None)
        if reaches and any(not given.isdisjoint(storages[number[operand]]) for operand in node._input_nodes):
            return True
    return False
