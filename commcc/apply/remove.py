"""Removes nodes from a graph: duplicates and views of all, whose users are handed another node, and dead ones.

    g2 = all_gather(p)   w2 = wait(g2)   mm(y, w2)    ->    mm(y, w1)

Everything else keeps its place, name and metadata, but for the keys of metadata that are dropped everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import fx

from commcc.base.errors import InternalError
from commcc.graph.copying import copy_node
from commcc.graph.program import META_KEY

if TYPE_CHECKING:
    from commcc.graph.index import GraphIndex
    from commcc.plan import Removal


def without(old: fx.Graph, index: GraphIndex, removal: Removal) -> fx.Graph:
    """The graph without what is removed; :class:`InternalError` when something still needs it."""
    if not {"val", META_KEY}.isdisjoint(removal.metadata):
        raise InternalError("values and commcc's own record have to stay")
    # Every node that goes, and the node that its users get instead.
    gone: dict[int, int | None] = {view.node: view.source for view in removal.same}
    gone.update((node, None) for entry in removal.dead for node in entry.nodes)
    for duplicate in removal.duplicates:
        gone.update(dict.fromkeys(duplicate.dead))
        gone.update(dict.fromkeys(duplicate.drop, duplicate.keep))
        gone.update(dict.fromkeys(duplicate.waits, duplicate.wait))
    nodes = list(old.nodes)
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for number, node in enumerate(nodes):
        if number not in gone:
            missing = [used.name for used in node._input_nodes if used not in env]
            if missing:
                raise InternalError(f"'{node.name}' still needs '{missing[0]}'")
            env[node] = copy_node(graph, node, env)
            for key in removal.metadata:
                env[node].meta.pop(key, None)
            continue
        stand_in = gone[number]
        if stand_in is not None:
            if nodes[stand_in] not in env:
                raise InternalError(f"'{nodes[stand_in].name}' comes too late")
            env[node] = env[nodes[stand_in]]
        elif node.op in ("placeholder", "output") or number in index.stays:
            raise InternalError(f"'{node.name}' has to stay")
    return graph
