"""Writes the new graph, unit by unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx

from commcc.apply.merge import MERGERS, Builder
from commcc.apply.order import LAUNCH, NODE, WAIT, Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.apply.merge import Merger
    from commcc.index import GraphIndex
    from commcc.plan import Bucket


def emit(old: fx.Graph, index: GraphIndex, buckets: Sequence[Bucket], order: Sequence[Unit]) -> fx.Graph:
    """A new graph with the units in this order."""
    nodes = list(old.nodes)
    builder = Builder(fx.Graph(), taken={node.name for node in nodes})
    env: dict[fx.Node, fx.Node] = {}
    mergers: dict[int, Merger] = {}
    for unit in order:
        if unit.sort == NODE:
            env[nodes[unit.number]] = copy_node(builder.graph, nodes[unit.number], env)
        elif unit.sort == LAUNCH:
            bucket = buckets[unit.number]
            members = [nodes[m] for m in bucket.members]
            mergers[unit.number] = MERGERS[bucket.kind](builder, bucket, members, env)
            mergers[unit.number].launch()
        elif unit.sort == WAIT:
            mergers[unit.number].wait()
        else:
            bucket = buckets[unit.number]
            wait = nodes[index.launches[bucket.members[unit.member]].waits[0]]
            env[wait] = mergers[unit.number].result(unit.member, wait)
    return builder.graph


def copy_node(graph: fx.Graph, node: fx.Node, env: dict[fx.Node, fx.Node]) -> fx.Node:
    """The node in the new graph: same name, target, metadata; operands looked up in ``env``."""

    def renamed(operand: fx.Node) -> Any:
        return env[operand]

    args = fx.node.map_arg(node.args, renamed)
    kwargs = fx.node.map_arg(node.kwargs, renamed)
    made = graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
    # FX invents another name where it takes this one for a builtin; the file's name is kept.
    made.name = node.name
    made.meta = dict(node.meta)
    return made
