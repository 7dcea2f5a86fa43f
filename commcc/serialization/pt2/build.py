"""Graph specs to FX graphs, and back to specs.

Usage::

    graph, root = build(spec)           # fx.Graph, and a module that holds the sub-graphs
    spec_of(graph, root)                # the same spec again

Names are given to FX as they are; where FX would change one (``input`` hides a Python built-in) it is
set afterwards. Names, keywords and module paths must have been checked: FX puts them into Python code.
Limits: a sub-graph used under two names becomes two modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.base.errors import InputError
from commcc.serialization.pt2.inputs import attribute
from commcc.serialization.pt2.schema import NO_VAL, GraphSpec, Ref, Spec

if TYPE_CHECKING:
    from collections.abc import Callable

_PLAIN = (str, int, float, type(None))


def build(spec: GraphSpec) -> tuple[fx.Graph, torch.nn.Module]:
    """The FX graph of a spec; sub-graphs are attributes of the module beside it."""
    root = torch.nn.Module()
    for name, child in spec.subgraphs.items():
        graph, owner = build(child)
        try:
            root.add_module(name, fx.GraphModule(owner, graph))
        except (SyntaxError, KeyError, RuntimeError, NotImplementedError) as error:
            raise InputError(f"sub-graph {name!r} cannot be made: {str(error)[:80]}") from None
    for path, tensor in spec.attributes.items():
        _hold(root, path, tensor)
    return _build_nodes(spec.nodes), root


def _hold(root: torch.nn.Module, path: str, tensor: Any) -> None:
    *folders, last = path.split(".")
    for folder in folders:
        child = getattr(root, folder, None)
        if child is None:
            child = torch.nn.Module()
            root.add_module(folder, child)
        root = child
    if not isinstance(root, torch.nn.Module) or hasattr(root, last):
        raise InputError(f"{path[:60]!r} cannot hold a tensor")
    setattr(root, last, tensor)


def _build_nodes(specs: list[Spec]) -> fx.Graph:
    graph = fx.Graph()
    made: dict[str, fx.Node] = {}
    for spec in specs:
        args = tuple([_to_fx(arg, made) for arg in spec.args])
        kwargs = {key: _to_fx(value, made) for key, value in spec.kwargs.items()}
        node = graph.create_node(spec.op, spec.target, args, kwargs, spec.name)
        if node.name != spec.name:
            node.name = spec.name
        node.meta = spec.meta
        if spec.val is not NO_VAL:
            node.meta["val"] = spec.val
        made[spec.name] = node
    # Names that FX makes up later must not clash with those that it would not have chosen.
    graph._graph_namespace._used_names.update(made)
    return graph


def _to_fx(arg: Any, made: dict[str, fx.Node]) -> Any:
    if isinstance(arg, Ref):
        return made[arg.name]
    return arg if isinstance(arg, _PLAIN) else map_arguments(arg, lambda item: _to_fx(item, made))


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
            child = attribute(root, str(node.target))
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
    if isinstance(left, float):
        return repr(left) == repr(right)
    return bool(left == right)
