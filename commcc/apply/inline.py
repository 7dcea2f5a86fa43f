"""Puts the nodes of regions in the place of their calls.

    called = invoke_subgraph(self.body, 'key', x, w)              called_mm = mm(x, w)
    y = called[0]                                       ->        called_relu = relu(called_mm)
    z = relu(y)                                                   z = relu(called_relu)

A node of a region is called after the call that it comes from. Its metadata is that of the region's node, but for the
module: regions say that of the call which was traced first, and the call's own takes its place. Regions called within
one are treated alike, where nothing speaks against it; other sub-graphs that a region calls move to the root.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.base.errors import InternalError
from commcc.graph.copying import copy_node, with_modules
from commcc.graph.index.modules import MODULE, MODULE_STACKS, clean_path, module_path
from commcc.graph.program import DEEPEST, attribute
from commcc.graph.regions import Region, obstacle, region_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.graph.program import Program


def inlined(program: Program, calls: Sequence[int]) -> Program:
    """The program without these calls, by number; :class:`InternalError` where a node is none, or cannot go."""
    nodes = list(program.graph.nodes)
    regions: dict[fx.Node, Region] = {}
    for number in calls:
        node = nodes[number]
        region = region_of(node, program.root)
        if region is None:
            raise InternalError(f"'{node.name}' calls no region")
        if (why := obstacle(node, region)) is not None:
            raise InternalError(f"'{node.name}' has to stay: {why}")
        regions[node] = region
    making = _Inlining(program.root, {node.name for node in nodes})
    making.copy(program.graph, {}, regions)
    unused = {str(region.source.target) for region in regions.values()}
    unused -= {str(node.target) for node in making.graph.find_nodes(op="get_attr")}
    root = with_modules(program.root, making.modules)
    for name in unused & root._modules.keys():
        del root._modules[name]
    return replace(program, graph=making.graph, root=root)


def _placed(meta: Mapping[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of a region's node, in the module of the call; without a module where the call says none."""
    outer = next((stack for key in MODULE_STACKS if isinstance(stack := call.get(key), dict) and stack), None)
    result, moved = dict(meta), None
    for key in MODULE_STACKS:
        inner = result.pop(key, None)
        if isinstance(inner, dict) and inner and outer is not None:
            result[key], moved = _stack(inner, outer)
    custom = result.get("custom")
    if isinstance(custom, dict) and MODULE in custom:
        result["custom"] = {name: value for name, value in custom.items() if name != MODULE}
        said, own = clean_path(str(custom[MODULE])), module_path(call)
        before = clean_path(moved[0]) if moved is not None else None
        if own is not None and before is not None and f"{said}.".startswith(f"{before}."):
            result["custom"][MODULE] = own + said[len(before) :]
    return result


def _stack(inner: Mapping[str, Any], outer: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, str] | None]:
    """The modules of a call, and those of a region's node below them; and the path that stood for the call's.

    A region has the modules of the call that was traced first: as many, and of the same classes. Where that is not so,
    nothing is known of what is below.
    """
    entries, mine = list(inner.items()), list(outer.values())[-1]
    rows = [entry for _, entry in entries[len(outer) - 1 :]]
    if not rows or not all(isinstance(row, (tuple, list)) and len(row) == 2 for row in (*rows, mine)):
        return dict(outer), None
    if rows[0][1] != mine[1]:
        return dict(outer), None
    before, after = str(rows[0][0]), str(mine[0])
    below = {
        name.replace(before, after, 1): type(row)((str(row[0]).replace(before, after, 1), row[1]))
        for name, row in entries[len(outer) :]
    }
    return {**outer, **below}, (before, after)


class _Inlining:
    """The new graph. taken: names of its nodes. modules: sub-graphs that regions call, by their names in the root."""

    def __init__(self, root: torch.nn.Module, taken: set[str]) -> None:
        self.root, self.taken = root, taken
        self.graph = fx.Graph()
        self.modules: dict[str, torch.nn.Module] = {}
        self.depth = 0

    def copy(
        self,
        old: fx.Graph,
        env: dict[fx.Node, Any],
        regions: Mapping[fx.Node, Region],
        within: str = "",
        place: Mapping[str, Any] | None = None,
    ) -> None:
        """Copy a graph, or with ``within``, the name of its call, the nodes of a region behind its inputs.

        env: what stands for nodes, inputs of a region first. place: metadata of the call.
        """
        sources = {region.source for region in regions.values()}
        unused = {source for source in sources if regions.keys() >= source.users.keys()}
        results: dict[fx.Node, tuple[Any, ...]] = {}
        for node in old.nodes:
            if node in env or node in unused or (within and node.op == "output"):
                continue
            if node in regions:
                called = node.meta if place is None else _placed(node.meta, place)
                results[node] = self._region(node, regions[node], env, within, called)
            elif node.target is operator.getitem and isinstance(call := node.args[0], fx.Node) and call in results:
                env[node] = results[call][node.args[1]]
            elif place is not None:
                env[node] = self._within(node, env, within, old.owning_module)
                env[node].meta.update(_placed(node.meta, place))
            else:
                env[node] = copy_node(self.graph, node, env)

    def _region(
        self, call: fx.Node, region: Region, env: Mapping[fx.Node, Any], within: str, place: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """The nodes of a region; what stands for its results. place: metadata of the call."""
        operands = fx.node.map_arg(region.operands, env.__getitem__)
        inner: dict[fx.Node, Any] = dict(zip(region.inputs, operands, strict=True))
        self.depth += 1
        calls: dict[fx.Node, Region] = {}
        for node in region.body.graph.nodes if self.depth <= DEEPEST else ():
            found = region_of(node, region.body)
            if found is not None and obstacle(node, found) is None:
                calls[node] = found
        self.copy(region.body.graph, inner, calls, f"{within}{call.name}_", place)
        self.depth -= 1
        results = region.results
        assert results is not None  # or there would be an obstacle
        return tuple(fx.node.map_arg(results, inner.__getitem__))

    def _within(self, node: fx.Node, env: Mapping[fx.Node, Any], within: str, owner: Any) -> fx.Node:
        """A node of a region, under a name of its own."""
        target = node.target
        if node.op == "get_attr":
            target = f"{within}{str(target).replace('.', '_')}"
            while target in self.modules or hasattr(self.root, target):
                target += "_"
            self.modules[target] = attribute(owner, node)
        name = f"{within}{node.name}"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        args: Any = fx.node.map_arg(node.args, env.__getitem__)
        kwargs: Any = fx.node.map_arg(node.kwargs, env.__getitem__)
        copy = self.graph.create_node(node.op, target, args, kwargs, name, node.type)
        copy.name = name
        return copy
