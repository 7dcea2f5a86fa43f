"""Copies of whole graphs, in any legal order of their nodes.

    graph = copied(program.graph.nodes)

``fx.Graph.create_node`` takes twice as long as all else that a copy needs: for each node it looks for a free name, and
through all operands for symbolic sizes. A copy has the names and operands of the graph before, so the nodes are made
without it, and what a graph keeps beside its nodes is written as ``create_node`` leaves it. That is private to PyTorch:
where a release keeps anything else there, nodes are made one by one. A test compares the two.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx.graph import _Namespace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: What a graph, its names and its table of ops consist of in the releases whose ``create_node`` is known.
_KNOWN = (
    *("_co_fields", "_codegen", "_find_nodes_lookup_table", "_graph_namespace", "_insert", "_len", "_owning_module"),
    *("_root", "_tracer_cls", "_tracer_extras", "_used_names"),
    *("_base_count", "_obj_to_name", "_used_names", "table"),
)


def copied(nodes: Iterable[fx.Node]) -> fx.Graph:
    """A graph of copies of all nodes of another one, in this order: the same names, targets and metadata."""
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    if not _known():
        for node in nodes:
            env[node] = copy_node(graph, node, env)
        return graph
    renamed, operands = env.__getitem__, fx.node.map_arg
    end, table, named = graph._root, graph._find_nodes_lookup_table.table, dict[object, str]()
    # By the identity of targets, since hashing an op takes long.
    rows: dict[int, dict[fx.Node, None]] = {}
    for node in nodes:
        op, target, name, args, kwargs = node.op, node.target, node.name, node.args, node.kwargs
        args = operands(args, renamed) if args else args
        kwargs = operands(kwargs, renamed) if kwargs else kwargs
        copy = env[node] = fx.Node(graph, name, op, target, args, kwargs, node.type)
        end.prepend(copy)
        row = rows.get(id(target))
        if row is None:
            row = rows[id(target)] = table[op, target if op == "call_function" else None]
        row[copy] = None
        named[copy] = name
        copy.meta.update(node.meta)
    graph._len, graph._graph_namespace = len(env), _Names(named)
    return graph


def copy_node(graph: fx.Graph, node: fx.Node, env: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """Append a copy of ``node`` to ``graph``: same name, target and metadata; operands from ``env``."""
    renamed = env.__getitem__
    # Operands are set afterwards: while a node is made, FX looks through them once more, for symbolic sizes. They are
    # set past ``Node.__setattr__``, which takes the node out of the graph's table of ops and puts it in again.
    copy = graph.create_node(node.op, node.target, name=node.name, type_expr=node.type)
    if node.args:
        object.__setattr__(copy, "args", fx.node.map_arg(node.args, renamed))
    if node.kwargs:
        object.__setattr__(copy, "kwargs", fx.node.map_arg(node.kwargs, renamed))
    # FX invents another name where it takes this one for a builtin; the file's name is kept.
    if copy.name != node.name:
        copy.name = node.name
    copy.meta.update(node.meta)
    return copy


class _Names(_Namespace):
    """The names of a copy. Which ones are free is found out when the first new one is asked for."""

    def __init__(self, names: dict[object, str]) -> None:
        self._obj_to_name = names
        self._given = tuple(names.values())

    def __getattr__(self, name: str) -> Any:
        if name not in ("_used_names", "_base_count"):
            raise AttributeError(name)
        self._used_names, self._base_count = set[str](), dict[str, int]()
        for given in self._given:
            self.create_name(given, None)
        # FX invents another name where it takes one for a builtin; the file's name is kept.
        self._used_names.update(self._given)
        return getattr(self, name)


@cache
def _known() -> bool:
    """Whether a graph consists of what is written here."""
    graph = fx.Graph()
    parts = graph, graph._graph_namespace, graph._find_nodes_lookup_table
    return tuple(name for part in parts for name in sorted(vars(part))) == _KNOWN


def with_modules(root: torch.nn.Module, modules: Mapping[str, torch.nn.Module]) -> torch.nn.Module:
    """A module that has all that ``root`` has, and more; ``root`` is not touched."""
    copy: Any = torch.nn.Module()
    for key, value in root.__dict__.items():
        if not key.startswith("_"):
            copy.__dict__[key] = value
    for table in ("_parameters", "_buffers", "_modules"):
        copy.__dict__[table] = dict(root.__dict__[table])
    copy._non_persistent_buffers_set = set(root._non_persistent_buffers_set)
    copy._modules.update(modules)
    result: torch.nn.Module = copy
    return result
