"""A ``.pt2`` graph as records, before any FX node exists, since the sidecar may still change order and names.

Usage::

    Spec("mm", "call_function", torch.ops.aten.mm.default, (Ref("x"), Ref("w")), {}, val, metadata)
    graph, root = build(spec)           # fx.Graph, and a module that holds the sub-graphs and constants
    spec_of(graph, root)                # the same spec again

Names, keywords and module paths must have been checked: FX puts them into Python code.
Limits: a sub-graph used under two names becomes two modules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.serialization.attributes import find, put, sub_graph
from commcc.serialization.metadata import NO_VAL
from commcc.serialization.targets import check_call

if TYPE_CHECKING:
    from collections.abc import Callable

_PLAIN = (str, int, float, type(None))


@dataclass(frozen=True)
class Ref:
    """A use of the node called ``name``."""

    __slots__ = ("name",)
    name: str


@dataclass
class Spec:
    """One node to be made; ``args`` and ``kwargs`` hold :class:`Ref` where FX holds nodes."""

    name: str
    op: str
    target: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    val: Any = NO_VAL
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass
class GraphSpec:
    """One graph to be made: its nodes in order, its sub-graphs, and tensors that ``get_attr`` nodes hold."""

    nodes: list[Spec]
    subgraphs: dict[str, GraphSpec] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)


def build(spec: GraphSpec) -> tuple[fx.Graph, torch.nn.Module]:
    """The FX graph of a spec; sub-graphs are attributes of the module that is returned with it."""
    root = torch.nn.Module()
    # Sub-graphs first: nodes refer to them.
    for name, child in spec.subgraphs.items():
        graph, owner = build(child)
        put(root, name, sub_graph(owner, graph, name))
    for path, tensor in spec.attributes.items():
        put(root, path, tensor)
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}
    for node in spec.nodes:
        args = tuple([_to_fx(arg, nodes) for arg in node.args])
        kwargs = {key: _to_fx(value, nodes) for key, value in node.kwargs.items()}
        check_call(node.target, args, kwargs)
        created = graph.create_node(node.op, node.target, args, kwargs, node.name)
        if created.name != node.name:  # FX renames what hides a Python built-in
            created.name = node.name
        created.meta = node.meta
        if node.val is not NO_VAL:
            created.meta["val"] = node.val
        nodes[node.name] = created
    # Names that FX makes up later must not clash with those that it would not have chosen.
    graph._graph_namespace._used_names.update(nodes)
    return graph, root


def _to_fx(arg: Any, nodes: dict[str, fx.Node]) -> Any:
    if isinstance(arg, Ref):
        return nodes[arg.name]
    return arg if isinstance(arg, _PLAIN) else map_arguments(arg, lambda item: _to_fx(item, nodes))


def map_arguments(arg: Any, function: Callable[[Any], Any]) -> Any:
    """``arg`` with ``function`` applied to what it holds directly; plain lists, tuples and dictionaries."""
    if isinstance(arg, tuple):
        return tuple([function(item) for item in arg])
    if isinstance(arg, list):
        return [function(item) for item in arg]
    if isinstance(arg, dict):
        return {key: function(item) for key, item in arg.items()}
    if isinstance(arg, slice):
        return slice(function(arg.start), function(arg.stop), function(arg.step))
    return arg


def spec_of(graph: fx.Graph, root: torch.nn.Module) -> GraphSpec:
    """The spec that builds ``graph``; metadata is shared with it, not copied."""
    out = GraphSpec([])
    for node in graph.nodes:
        args = tuple([_from_fx(arg) for arg in node.args])
        kwargs = {key: _from_fx(value) for key, value in node.kwargs.items()}
        val = node.meta.get("val", NO_VAL)
        out.nodes.append(Spec(node.name, node.op, node.target, args, kwargs, val, node.meta))
        if node.op == "get_attr" and str(node.target) not in out.subgraphs:
            child = find(root, str(node.target))
            if isinstance(child, fx.GraphModule):
                out.subgraphs[str(node.target)] = spec_of(child.graph, child)
    return out


def _from_fx(arg: Any) -> Any:
    if isinstance(arg, fx.Node):
        return Ref(arg.name)
    return arg if isinstance(arg, _PLAIN) else map_arguments(arg, _from_fx)


def same_argument(left: Any, right: Any) -> bool:
    """Whether two arguments of specs are equal, lists and tuples, 1 and 1.0 and True told apart."""
    if type(left) is not type(right):
        return False
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same_argument, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(map(same_argument, left.values(), right.values()))
    if isinstance(left, slice):
        return same_argument((left.start, left.stop, left.step), (right.start, right.stop, right.step))
    # NaN equals nothing, and 0.0 equals -0.0.
    if isinstance(left, float):
        return repr(left) == repr(right)
    return bool(left == right)
