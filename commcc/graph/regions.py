"""Calls of regions: sub-graphs that are compiled once and called at several places, as ``nested_compile_region`` makes.

    called = invoke_subgraph(self.body, 'key', x, w)        y = called[0]

What a call computes is what its sub-graph computes of the operands, so its nodes may stand in its place
(:mod:`commcc.apply.inline`) where nothing speaks against it::

    region = region_of(node, root)
    why = obstacle(node, region)            # None, or a Reason
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from commcc.base.reasons import Reason
from commcc.graph.ops import op_name
from commcc.graph.program import attribute
from commcc.graph.structure import SYMBOL

if TYPE_CHECKING:
    from collections.abc import Iterator

CALL = "higher_order.invoke_subgraph"
_UNKNOWN = object()
_SCALARS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Region(NamedTuple):
    """One call. source: the node that fetches the sub-graph. operands: of the call, in order of its inputs."""

    body: fx.GraphModule
    source: fx.Node
    operands: tuple[Any, ...]

    @property
    def inputs(self) -> list[fx.Node]:
        """Inputs of the sub-graph."""
        return list(self.body.graph.find_nodes(op="placeholder"))

    @property
    def results(self) -> tuple[Any, ...] | None:
        """What it returns: nodes and numbers; None where that is no sequence."""
        output = next(iter(self.body.graph.find_nodes(op="output")), None)
        returned = output.args[0] if output is not None and output.args else None
        return tuple(returned) if isinstance(returned, (tuple, list)) else None


def region_of(node: fx.Node, root: torch.nn.Module) -> Region | None:
    """The region that a node calls; None where it is no such call, or nothing is known of its sub-graph."""
    if node.op != "call_function" or op_name(node.target) != CALL or node.kwargs or len(node.args) < 2:
        return None
    source = node.args[0]
    if not isinstance(source, fx.Node) or source.op != "get_attr":
        return None
    body = attribute(root, source)
    return Region(body, source, tuple(node.args[2:])) if isinstance(body, fx.GraphModule) else None


def obstacle(node: fx.Node, region: Region) -> Reason | None:
    """Why the nodes of a region cannot stand in the place of a call; None where they can.

    Sizes, strides and devices on record are those of the sub-graph: they hold outside only where operands and results
    are said to be the same there. A number that is found only when it runs may be another one in each call.
    """
    inputs, results = region.inputs, region.results
    if results is None or len(inputs) != len(region.operands):
        return Reason.of("region_unlike")
    for user in node.users:
        place = user.args[1] if user.target is operator.getitem and len(user.args) == 2 else None
        if user.args[:1] != (node,) or type(place) is not int or not 0 <= place < len(results):
            return Reason.of("region_whole")
    pairs: list[tuple[Any, Any]] = list(zip(region.operands, inputs, strict=True))
    pairs += [(user, results[user.args[1]]) for user in node.users]  # type: ignore[index]
    for outside, inside in pairs:
        values = [n.meta.get("val", _UNKNOWN) if isinstance(n, fx.Node) else n for n in (outside, inside)]
        if any(value is _UNKNOWN for value in values) or _told(values[0]) != _told(values[1]):
            return Reason.of("region_layout", node=getattr(outside, "name", str(outside)))
    for inner in region.body.graph.nodes:
        if inner.op == "get_attr" and not isinstance(attribute(region.body, inner), fx.GraphModule):
            return Reason.of("region_constant", node=inner.name)
        if inner.op not in ("placeholder", "call_function", "get_attr", "output"):
            return Reason.of("region_unlike")
    own = set(_symbols(region.body.graph.nodes)) - set(_symbols(inputs))
    return Reason.of("region_symbols", symbols=", ".join(sorted(own))) if own else None


def _told(value: Any) -> object:
    """A value as what can be compared; sizes may be symbols."""
    if isinstance(value, torch.Tensor):
        return "tensor", tuple(_sizes(value)), str(value.dtype), str(value.device), str(value.layout)
    if isinstance(value, (tuple, list)):
        return tuple(map(_told, value))
    # A number that is known is the same whether it is handed over as one or as a symbol with that value.
    return str(value) if isinstance(value, _SCALARS) else (type(value).__name__, str(value))


def _sizes(value: Any) -> Iterator[str]:
    """Sizes in a value, as text."""
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided:
            yield from map(str, (*value.shape, "|", *value.stride(), "|", value.storage_offset()))
        else:
            yield from map(str, value.shape)
    elif isinstance(value, _SCALARS):
        yield str(value)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _sizes(part)


def _symbols(nodes: Any) -> Iterator[str]:
    """Symbols in values and arguments of nodes."""
    for node in nodes:
        arguments: list[Any] = []
        fx.node.map_aggregate((node.args, node.kwargs), arguments.append)
        for text in _sizes([node.meta.get("val"), *arguments]):
            yield from SYMBOL.findall(text)
