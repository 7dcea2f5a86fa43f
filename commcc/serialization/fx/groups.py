"""The process groups that a graph's collectives name.

::

    with_used_groups(graph, {"0": ProcessGroup("0", None, description="mesh_fsdp")})
    # {"0": ProcessGroup("0", 64, None, "mesh_fsdp"), "7": ProcessGroup("7", 8)}

Limits: an all-reduce does not say how many ranks its group has.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from commcc.base.errors import GraphError
from commcc.graph.ops import argument, collective_of
from commcc.graph.program import ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import fx


def with_used_groups(graph: fx.Graph, told: Mapping[str, ProcessGroup]) -> dict[str, ProcessGroup]:
    """``told``, completed by the groups and sizes that collectives in ``graph`` name.

    Two sizes for one group raise :class:`GraphError`.
    """
    found = dict(told)
    for node, name, size in _uses(graph):
        known = found.get(name)
        if known is None:
            found[name] = ProcessGroup(name, size)
        elif known.size is None:
            found[name] = replace(known, size=size)
        elif size not in (None, known.size):
            raise GraphError(
                f"group {name!r} has {known.size} ranks, but node {node.name!r} says {size}",
                hint="the ranks of a group are the same for all its collectives",
            )
    return found


def _uses(graph: fx.Graph) -> Iterator[tuple[fx.Node, str, int | None]]:
    for node in graph.nodes:
        fact = collective_of(node.target) if node.op == "call_function" else None
        if fact is None:
            continue
        name = argument(node, "group_name")
        size = argument(node, "group_size") if fact.has_group_size else None
        if isinstance(name, str):
            yield node, name, size if type(size) is int else None
