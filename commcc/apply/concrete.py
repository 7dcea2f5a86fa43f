"""Puts numbers for symbols in sizes: in arguments and values, in sub-graphs too.

    s = sym_size(x, 0)      x: f32[u0, 8]       ->      (gone)                  x: f32[160, 8]
    h = floordiv(s, 2)      v = view(y, [h, 8])         v = view(y, [80, 8])

Nodes that only compute with sizes and whose value is known now are gone, and so are the guards that hold. What
the graph returns stays a node. The program's header says which sizes were fixed, under ``fixed``.

Limits: sub-graphs at dotted paths are refused where they hold such a symbol.
"""

from __future__ import annotations

from collections import ChainMap
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.base.errors import InternalError
from commcc.ep.concrete import Sizes, holds, is_guard, only_sizes, told
from commcc.graph.annotations import HINTS
from commcc.graph.copying import copy_node, with_modules
from commcc.serialization.shapes import symbols_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.base.terms import Json
    from commcc.plan import FixedSize

#: Key of the header: what was fixed, by symbol.
FIXED = "fixed"
_SCALARS = (torch.SymInt, torch.SymFloat, torch.SymBool)
#: Metadata that holds values of the node, and what is derived from them.
_VALUES = ("val", "example_value")
_DERIVED = ("tensor_meta", "eager_input_vals", "unbacked_bindings")


def fix_sizes(graph: fx.Graph, root: torch.nn.Module, fixed: Sequence[FixedSize]) -> tuple[fx.Graph, torch.nn.Module]:
    """A new graph, and a root with the sub-graphs that changed; :class:`InternalError` when a symbol is left."""
    sizes = Sizes(graph, {size.symbol: size.value for size in fixed})
    fixed_graph, modules = _Graph(sizes, root).rewrite(graph)
    return fixed_graph, with_modules(root, modules) if modules else root


def fixed_header(header: Mapping[str, Json], fixed: Sequence[FixedSize]) -> dict[str, Json]:
    """The program's header with the symbols gone, and said to be fixed."""
    numbers: dict[str, Json] = {size.symbol: size.value for size in fixed}
    declared, before = header.get("symbols"), header.get(FIXED)
    result = {**header, FIXED: {**(before if isinstance(before, dict) else {}), **numbers}}
    if isinstance(declared, dict):
        result["symbols"] = {name: entry for name, entry in declared.items() if name not in numbers}
        if not result["symbols"]:
            del result["symbols"]
    return result


class _Graph:
    """One graph, and through its root those below."""

    def __init__(self, sizes: Sizes, root: torch.nn.Module) -> None:
        self.sizes = sizes
        self.root = root
        self.modules: dict[str, fx.GraphModule] = {}
        self.constants: dict[fx.Node, Any] = {}

    def rewrite(self, old: fx.Graph) -> tuple[fx.Graph, dict[str, fx.GraphModule]]:
        """The graph with numbers for symbols; what is gone leaves no dead arithmetic behind."""
        graph = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}
        lost: list[fx.Node] = []
        for node in old.nodes:
            val = node.meta.get("val")
            number = self.sizes.value(val) if isinstance(val, _SCALARS) else None
            if number is not None and not isinstance(number, _SCALARS):
                self.constants[node] = number
                returned = any(user.op == "output" for user in node.users)
                if node.op == "call_function" and not returned and only_sizes(node.target):
                    lost += node.all_input_nodes
                    continue
            if node.op == "call_function" and is_guard(node.target) and self._holds(node):
                lost += node.all_input_nodes
                continue
            env[node] = self._copied(graph, node, env)
        self._sweep(graph, [env[node] for node in lost if node in env])
        return graph, self.modules

    def _holds(self, guard: fx.Node) -> bool:
        """Whether a guard says something of a number, which then holds."""

        def value_of(operand: Any) -> Any:
            if isinstance(operand, fx.Node):
                return self.constants.get(operand, operand.meta.get("val"))
            return self.sizes.value(operand)

        if self.constants.keys().isdisjoint(guard.all_input_nodes):
            return False
        said = holds(guard, value_of)
        if said is False:
            raise InternalError(f"'{guard.name}' does not hold for {told(self.sizes.numbers)}")
        return said is True

    def _copied(self, graph: fx.Graph, node: fx.Node, env: dict[fx.Node, fx.Node]) -> fx.Node:
        if node.op == "output":
            return copy_node(graph, node, env)  # what the graph returns stays a node
        copy = copy_node(graph, node, ChainMap[fx.Node, Any](self.constants, env))
        copy.args = fx.node.map_aggregate(copy.args, self._argument)
        copy.kwargs = fx.node.map_aggregate(copy.kwargs, self._argument)
        copy.meta = self._meta(node.meta)
        if node.op == "get_attr":
            self._attribute(str(node.target))
        held = symbols_of([*(copy.meta.get(key) for key in _VALUES), copy.args, copy.kwargs])
        left = sorted(held & self.sizes.numbers.keys())
        if left:
            raise InternalError(f"'{copy.name}' still holds '{left[0]}'")
        return copy

    def _argument(self, leaf: Any) -> Any:
        return self.sizes.value(leaf) if isinstance(leaf, _SCALARS) else leaf

    def _meta(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        kept = dict(meta)
        for key in _VALUES:
            if key in kept:
                kept[key] = self.sizes.value(kept[key])
        if any(kept[key] is not meta[key] for key in _VALUES if key in kept):
            for key in _DERIVED:
                kept.pop(key, None)
        kept.pop(HINTS, None)
        custom = kept.get("custom")
        if isinstance(custom, dict) and HINTS in custom:
            kept["custom"] = {key: value for key, value in custom.items() if key != HINTS}
        return kept

    def _attribute(self, path: str) -> None:
        inner = getattr(self.root, path, None) if "." not in path else self.root.get_submodule(path)
        if not isinstance(inner, fx.GraphModule) or path in self.modules or not self._inside(inner):
            return
        if "." in path:
            raise InternalError(f"sub-graph '{path}' holds sizes that are to be fixed")
        graph, modules = _Graph(self.sizes, inner).rewrite(inner.graph)
        self.modules[path] = fx.GraphModule(with_modules(inner, modules), graph)

    def _inside(self, module: fx.GraphModule) -> bool:
        """Whether a sub-graph, or one below it, holds one of the symbols."""
        for node in module.graph.nodes:
            if any(self.sizes.concerns(node.meta.get(key)) for key in _VALUES):
                return True
            below = getattr(module, str(node.target), None) if node.op == "get_attr" else None
            if isinstance(below, fx.GraphModule) and self._inside(below):
                return True
        return False

    def _sweep(self, graph: fx.Graph, nodes: list[fx.Node]) -> None:
        """Remove arithmetic on sizes that nothing uses any more."""
        gone: set[fx.Node] = set()
        while nodes:
            node = nodes.pop()
            if node.op == "call_function" and only_sizes(node.target) and not node.users and node not in gone:
                nodes += node.all_input_nodes
                graph.erase_node(node)
                gone.add(node)
