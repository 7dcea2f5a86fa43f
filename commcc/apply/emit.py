"""Writes the new graph, unit by unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import fx

from commcc.apply.merge import Builder, Merger
from commcc.apply.order import LAUNCH, NODE, WAIT, Unit
from commcc.graph.program import copy_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.index import GraphIndex
    from commcc.plan import Bucket


def emit(old: fx.Graph, index: GraphIndex, buckets: Sequence[Bucket], order: Sequence[Unit]) -> fx.Graph:
    """A new graph with the units in this order."""
    nodes = list(old.nodes)
    builder = Builder(fx.Graph(), taken={node.name for node in nodes})
    env: dict[fx.Node, fx.Node] = {}
    mergers: dict[int, Merger] = {}
    for unit in order:
        if unit.kind == NODE:
            env[nodes[unit.number]] = copy_node(builder.graph, nodes[unit.number], env)
        elif unit.kind == LAUNCH:
            bucket = buckets[unit.number]
            members = [nodes[m] for m in bucket.members]
            mergers[unit.number] = Merger(builder, bucket, members, env)
            mergers[unit.number].launch()
        elif unit.kind == WAIT:
            mergers[unit.number].wait()
        else:
            bucket = buckets[unit.number]
            wait = nodes[index.launches[bucket.members[unit.member]].waits[0]]
            env[wait] = mergers[unit.number].result(unit.member, wait)
    return builder.graph
