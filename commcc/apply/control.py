"""Writes control edges: a node that must not run before others is wrapped in ``control_deps`` with them.

    mm = aten.mm(x, w)     ->     subgraph_mm = self.subgraph_mm
                                  mm = control_deps((all_gather,), subgraph_mm, x, w)

The form is PyTorch's own, which its compiler reads: the first argument is the tuple of nodes to come after, the
second a sub-graph that holds the op, then follow the nodes among the op's arguments, each once. The wrapped
node keeps its name and its metadata. A node that is wrapped already gets more nodes to come after.

Limits: what is held back has to be a call of a registered op; what it is held behind, one that returns tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._ops import OpOverload

from commcc.base.errors import InternalError
from commcc.graph.copying import with_modules
from commcc.graph.program import META_KEY
from commcc.serialization.targets import resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.index import GraphIndex
    from commcc.plan import ControlEdge


def hold(graph: fx.Graph, root: torch.nn.Module, index: GraphIndex, edges: Sequence[ControlEdge]) -> torch.nn.Module:
    """Add control edges to a graph that nobody else has yet; the root with the sub-graphs added."""
    nodes = {node.name: node for node in graph.nodes}
    wanted: dict[str, list[str]] = {}
    for edge in edges:
        wanted.setdefault(index.names[edge.node], []).append(index.names[edge.after])
    position = {node.name: place for place, node in enumerate(graph.nodes)}
    modules: dict[str, fx.GraphModule] = {}
    taken = set(nodes)
    for name in sorted(wanted, key=position.__getitem__):
        node = nodes[name]
        after = tuple(nodes[dep] for dep in dict.fromkeys(wanted[name]))
        late = [dep.name for dep in after if position[dep.name] >= position[name]]
        if late:
            raise InternalError(f"'{name}' cannot be held behind '{late[0]}', which follows it")
        if any(not isinstance(dep.meta.get("val"), (torch.Tensor, tuple, list)) for dep in after):
            raise InternalError(f"'{name}' can be held behind tensors only")
        if index.position[name] in index.control:
            held, *rest = node.args
            assert isinstance(held, (tuple, list))
            node.args = (tuple(dict.fromkeys((*held, *after))), *rest)
            continue
        if not isinstance(node.target, OpOverload):
            raise InternalError(f"'{name}' is no call that can be held back")
        attribute, number = f"subgraph_{name}", 0
        while attribute in taken or hasattr(root, attribute):
            attribute, number = f"subgraph_{name}_{number}", number + 1
        taken.add(attribute)
        modules[attribute] = _body(node)
        nodes[name] = _wrap(graph, node, attribute, after)
    return with_modules(root, modules) if modules else root


def _operands(node: fx.Node) -> list[fx.Node]:
    """Nodes among the arguments, each once, in order of appearance."""
    operands: list[fx.Node] = []
    fx.node.map_arg((node.args, node.kwargs), operands.append)
    return list(dict.fromkeys(operands))


def _body(node: fx.Node) -> fx.GraphModule:
    """The node's call as a graph of its own."""
    graph = fx.Graph()
    places: dict[fx.Node, fx.Node] = {}
    for number, operand in enumerate(_operands(node)):
        places[operand] = graph.placeholder(f"arg_{number}")
        if "val" in operand.meta:
            places[operand].meta["val"] = operand.meta["val"]

    def inner(operand: fx.Node) -> fx.Node:
        return places[operand]

    args, kwargs = fx.node.map_arg(node.args, inner), fx.node.map_arg(node.kwargs, inner)
    call = graph.create_node("call_function", node.target, args, kwargs)
    call.meta = {key: value for key, value in node.meta.items() if key != META_KEY}
    graph.output(call)
    return fx.GraphModule(torch.nn.Module(), graph)


def _wrap(graph: fx.Graph, node: fx.Node, attribute: str, after: tuple[fx.Node, ...]) -> fx.Node:
    name = node.name
    with graph.inserting_before(node):
        fetched = graph.create_node("get_attr", attribute, (), {}, attribute)
        arguments: tuple[Any, ...] = (after, fetched, *_operands(node))
        wrapped = graph.create_node("call_function", resolve("torch.ops.higher_order.control_deps"), arguments, {})
    wrapped.meta = {key: value for key, value in node.meta.items() if key != "eager_input_vals"}
    node.replace_all_uses_with(wrapped)
    graph.erase_node(node)
    wrapped.name = name
    return wrapped
