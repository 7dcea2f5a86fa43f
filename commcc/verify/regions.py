"""Programs without calls of regions, which one of the two may have and the other one not.

A call computes what its sub-graph computes of the operands::

    called = invoke_subgraph(self.body, 'key', x, w)   y = called[0]      is      y = mm(x, wait(all_gather(w)))

Sub-graphs are compared whole first (:mod:`commcc.verify.subgraphs`). Where AFTER calls regions more or less often than
BEFORE, or that proves nothing, the nodes of each stand in the place of its call, in both programs, under names that no
file has. A call stays where :func:`commcc.graph.regions.obstacle` says so, such as sizes that mean something else in
each call.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import fx

from commcc.graph.ops import op_name
from commcc.graph.program import DEEPEST
from commcc.graph.regions import CALL, obstacle, region_of
from commcc.verify.normalise import check_order
from commcc.verify.verdict import Report

if TYPE_CHECKING:
    import torch

    from commcc.graph.program import Program
    from commcc.graph.regions import Region


class Calls(NamedTuple):
    """How often a program calls regions, and what it says nothing of."""

    regions: int
    others: int


def calls_of(program: Program) -> Calls:
    """Calls in the graph itself, not within regions."""
    nodes = [node for node in program.graph.nodes if node.op == "call_function" and op_name(node.target) == CALL]
    known = sum(region_of(node, program.root) is not None for node in nodes)
    return Calls(known, len(nodes) - known)


def without_calls(program: Program) -> Program:
    """The nodes of regions in the place of their calls; the program itself where it cannot run."""
    if not check_order(program.graph, Report(), ""):
        return program
    plain = _Plain({node.name for node in program.graph.nodes})
    plain.put(program.graph, program.root, {}, _Place())
    return replace(program, graph=plain.graph)


class _Place(NamedTuple):
    """Where a graph is called. name: of its call, and path: to its sub-graph; both end in what separates them from what
    is within. depth: 0 for the program's own graph.
    """

    name: str = ""
    path: str = ""
    depth: int = 0


class _Plain:
    """The graph without calls. taken: names that its nodes may not get, as others have them."""

    def __init__(self, taken: set[str]) -> None:
        self.graph = fx.Graph()
        self.taken = taken

    def put(self, graph: fx.Graph, root: torch.nn.Module, env: dict[fx.Node, Any], place: _Place) -> Any:
        """Append all nodes but those that ``env`` has something for; what a region returns."""
        returned: Any = None
        called: dict[fx.Node, Any] = {}
        regions: dict[fx.Node, Region] = {}
        for node in graph.nodes if place.depth < DEEPEST else ():
            found = region_of(node, root)
            if found is not None and obstacle(node, found) is None and check_order(found.body.graph, Report(), ""):
                regions[node] = found
        unused = {found.source for found in regions.values() if regions.keys() >= found.source.users.keys()}
        for node in graph.nodes:
            if node in env or node in unused:
                continue
            region, first = regions.get(node), next(iter(node.args), None)
            if region is not None:
                given = [fx.node.map_arg(operand, env.__getitem__) for operand in region.operands]
                inner = dict(zip(region.inputs, given, strict=True))
                within = _Place(f"{place.name}{node.name}/", f"{place.path}{region.source.target}.", place.depth + 1)
                called[node] = self.put(region.body.graph, region.body, inner, within)
            elif isinstance(first, fx.Node) and first in called:  # it takes one result, or there would be an obstacle
                env[node] = called[first][node.args[1]]
            elif node.op == "output" and place.depth:
                returned = fx.node.map_arg(first, env.__getitem__)
            else:
                env[node] = self._copy(node, env, place)
        return returned

    def _copy(self, node: fx.Node, env: dict[fx.Node, Any], place: _Place) -> fx.Node:
        target = f"{place.path}{node.target}" if node.op == "get_attr" else node.target
        args: Any = fx.node.map_arg(node.args, env.__getitem__)
        kwargs: Any = fx.node.map_arg(node.kwargs, env.__getitem__)
        copy = self.graph.create_node(node.op, target, args, kwargs, type_expr=node.type)
        name = f"{place.name}{node.name}"
        while place.depth and name in self.taken:
            name += "/"
        self.taken.add(name)
        copy.name, copy.meta = name, node.meta
        return copy
