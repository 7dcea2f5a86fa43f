"""Puts the nodes of regions in the place of their calls.

    called = invoke_subgraph(self.body, 'key', x, w)              called_mm = mm(x, w)
    y = called[0]                                       ->        called_relu = relu(called_mm)
    z = relu(y)                                                   z = relu(called_relu)

A node of a region is called after the call that it comes from; metadata is that of the region's node. Regions called
within one are treated alike, where nothing speaks against it; other sub-graphs that a region calls move to the root.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.base.errors import InternalError
from commcc.graph.copying import copy_node, with_modules
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
    making.copy(program.graph, {}, regions, "")
    unused = {str(region.source.target) for region in regions.values()}
    unused -= {str(node.target) for node in making.graph.find_nodes(op="get_attr")}
    root = with_modules(program.root, making.modules)
    for name in unused & root._modules.keys():
        del root._modules[name]
    return replace(program, graph=making.graph, root=root)


class _Inlining:
    """The new graph. taken: names of its nodes. modules: sub-graphs that regions call, by their names in the root."""

    def __init__(self, root: torch.nn.Module, taken: set[str]) -> None:
        self.root, self.taken = root, taken
        self.graph = fx.Graph()
        self.modules: dict[str, torch.nn.Module] = {}

    def copy(
        self, old: fx.Graph, env: dict[fx.Node, Any], regions: Mapping[fx.Node, Region], within: str, depth: int = 0
    ) -> None:
        """Copy a graph, or with ``within``, the name of its call, the nodes of a region behind its inputs.

        env: what stands for nodes, inputs of a region first.
        """
        sources = {region.source for region in regions.values()}
        unused = {source for source in sources if regions.keys() >= source.users.keys()}
        results: dict[fx.Node, tuple[Any, ...]] = {}
        for node in old.nodes:
            if node in env or node in unused or (within and node.op == "output"):
                continue
            if node in regions:
                results[node] = self._region(node, regions[node], env, within, depth)
            elif node.target is operator.getitem and isinstance(call := node.args[0], fx.Node) and call in results:
                env[node] = results[call][node.args[1]]
            elif within:
                env[node] = self._within(node, env, within, old.owning_module)
            else:
                env[node] = copy_node(self.graph, node, env)

    def _region(
        self, call: fx.Node, region: Region, env: Mapping[fx.Node, Any], within: str, depth: int
    ) -> tuple[Any, ...]:
        """The nodes of a region; what stands for its results."""
        operands = fx.node.map_arg(region.operands, env.__getitem__)
        inner: dict[fx.Node, Any] = dict(zip(region.inputs, operands, strict=True))
        calls = {node: found for node in region.body.graph.nodes if (found := region_of(node, region.body)) is not None}
        near = depth < DEEPEST
        calls = {node: found for node, found in calls.items() if near and obstacle(node, found) is None}
        self.copy(region.body.graph, inner, calls, f"{within}{call.name}_", depth + 1)
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
        copy.meta.update(node.meta)
        return copy
