"""What a file of commcc's says about a program in addition to its graph, as JSON: process groups, notes.

::

    group_json(ProcessGroup("0", 64, description="mesh_fsdp"))      # {"size": 64, "description": "mesh_fsdp"}
    group_of("0", {"size": 64, "description": "mesh_fsdp"})         # ProcessGroup("0", 64, None, "mesh_fsdp")
    with_used_groups(graph, root, groups)                           # and the groups that only collectives name

What is read comes from a file: wrong types raise :class:`InputError`.
Limits: an all-reduce does not say how many ranks its group has.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from commcc.base.errors import GraphError, InputError
from commcc.graph.ops import argument, collective_of
from commcc.graph.program import Note, ProcessGroup, all_graphs

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import fx

    from commcc.base.terms import Json


def group_json(group: ProcessGroup) -> dict[str, Json]:
    """A group without its name; what is not known is left out."""
    out: dict[str, Json] = {"size": group.size}
    if group.ranks is not None:
        out["ranks"] = list(group.ranks)
    if group.description:
        out["description"] = group.description
    if group.origin is not None:
        out["origin"] = group.origin
    if group.high_priority:
        out["high_priority"] = True
    return out


def group_of(name: Any, data: Any) -> ProcessGroup:
    """What :func:`group_json` wrote."""
    if not isinstance(data, dict) or not isinstance(name, str):
        raise InputError(f"group {str(name)[:40]!r} is not a name and an object")
    size, ranks = data.get("size"), data.get("ranks")
    if not (size is None or (type(size) is int and size > 0)):
        raise InputError(f"group {name[:40]!r} has size {str(size)[:40]}")
    if ranks is not None and not (isinstance(ranks, list) and all(type(rank) is int and rank >= 0 for rank in ranks)):
        raise InputError(f"the ranks of group {name[:40]!r} are no list of numbers")
    text, origin, high = data.get("description", ""), data.get("origin"), data.get("high_priority", False)
    if not isinstance(text, str) or not isinstance(origin, (str, type(None))) or type(high) is not bool:
        raise InputError(f"the description, origin or priority of group {name[:40]!r} has the wrong type")
    return ProcessGroup(name, size, None if ranks is None else tuple(ranks), text, origin, high)


def note_of(data: Any) -> Note:
    """A note from ``[text, node]``; ``node`` may be None."""
    if isinstance(data, list) and len(data) == 2:
        text, node = data
        if isinstance(text, str) and isinstance(node, (str, type(None))):
            return Note(text, node)
    raise InputError("a note is not [text, node]")


def with_used_groups(
    graph: fx.Graph, root: torch.nn.Module, named: Mapping[str, ProcessGroup]
) -> dict[str, ProcessGroup]:
    """``named``, completed by the groups and sizes that collectives in ``graph`` and in its sub-graphs name.

    Two sizes for one group raise :class:`GraphError`.
    """
    groups = dict(named)
    for node in (node for each in all_graphs(graph, root) for node in each.nodes):
        fact = collective_of(node.target) if node.op == "call_function" else None
        name = argument(node, "group_name") if fact is not None else None
        if fact is None or not isinstance(name, str):
            continue
        size = argument(node, "group_size") if fact.has_group_size else None
        # It may be a node, or a symbol.
        size = size if type(size) is int else None
        known = groups.get(name)
        if known is None:
            groups[name] = ProcessGroup(name, size)
        elif known.size is None:
            groups[name] = replace(known, size=size)
        elif size not in (None, known.size):
            raise GraphError(
                f"group {name!r} has {known.size} ranks, but node {node.name!r} says {size}",
                hint="the ranks of a group are the same for all its collectives",
            )
    return groups
