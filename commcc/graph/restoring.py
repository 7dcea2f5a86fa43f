"""A module's graph as it was, whatever has been done to it since.

    original = Original(gm)
    ...                          # nodes made, moved, renamed and erased; attributes added; code made anew
    original.restore()           # the same nodes with their operands, names and metadata, in their order; the same code

Nothing that may have failed is called again: hooks of the module are not, and its code is not made once more. What a
graph keeps beside its nodes is private to PyTorch; :mod:`commcc.graph.copying` names it. Limits: metadata is kept one
level deep, and names that new nodes had stay taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import fx

#: Tables of a module that are edited in place when attributes are set.
_TABLES = ("_modules", "_parameters", "_buffers")
_METHODS = ("forward", "__call__")


class _Node(NamedTuple):
    node: fx.Node
    name: str
    target: Any
    args: Any
    kwargs: Any
    users: tuple[fx.Node, ...]
    meta: dict[str, Any]
    entries: dict[str, Any]

    @staticmethod
    def of(node: fx.Node) -> _Node:
        return _Node(
            node, node.name, node.target, node.args, node.kwargs, tuple(node.users), node.meta, dict(node.meta)
        )


class Original:
    """Of a module before it is edited; takes no copies of what is in it."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self._class, self._graph = type(gm), gm.graph
        self._nodes = [_Node.of(node) for node in gm.graph.nodes]
        self._fields = [(module, dict(vars(module))) for module in gm.modules()]
        self._tables = [
            (fields[name], dict(fields[name])) for _, fields in self._fields for name in _TABLES if name in fields
        ]
        # Each module of a graph has a class of its own.
        self._methods = {name: vars(self._class)[name] for name in _METHODS if name in vars(self._class)}

    def restore(self) -> None:
        """Put everything back; nodes that were made since are in no graph."""
        self._put_back_nodes()
        # Nothing is compared: equality of sizes is a guard, and that of tensors a tensor.
        for table, entries in self._tables:
            table.clear()
            table.update(entries)
        for module, fields in self._fields:
            vars(module).clear()
            vars(module).update(fields)
        for name, method in self._methods.items():
            setattr(self._class, name, method)

    def _put_back_nodes(self) -> None:
        graph: Any = self._graph
        own, table = {kept.node for kept in self._nodes}, graph._find_nodes_lookup_table
        for made in list(graph.nodes):
            made.args, made.kwargs = (), {}
            if made in table:
                table.remove(made)
            made._remove_from_list()
            made._erased = made not in own
        for kept in self._nodes:
            node: Any = kept.node
            node._erased, node._prev, node._next = False, node, node
            # Past ``Node.__setattr__``, which calls hooks.
            object.__setattr__(node, "name", kept.name)
            object.__setattr__(node, "target", kept.target)
            object.__setattr__(node, "meta", kept.meta)
            kept.meta.clear()
            kept.meta.update(kept.entries)
            graph._root.prepend(node)
            table.insert(node)
        graph._len = len(self._nodes)
        for kept in self._nodes:
            kept.node.args, kept.node.kwargs = kept.args, kept.kwargs
        for kept in self._nodes:
            kept.node.users.clear()
            kept.node.users.update(dict.fromkeys(kept.users))
