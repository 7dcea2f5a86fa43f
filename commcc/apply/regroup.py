"""Moves launches to other process groups, and adds groups to the program's table.

a2a = all_to_all_single(x, s, s, '0')   ->   a2a = all_to_all_single(x, s, s, 'ep_extra')
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from commcc.base.errors import InternalError
from commcc.graph import ops
from commcc.graph.program import ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from commcc.graph.index import GraphIndex
    from commcc.plan import Plan


def rename_groups(nodes: Mapping[str, fx.Node], index: GraphIndex, plan: Plan) -> None:
    """Change the group of launches in a graph that nobody else has yet; ``nodes`` by name."""
    for move in plan.regroups:
        node = nodes[index.names[move.launch]]
        if move.launch not in index.launches or ops.collective_of(node.target) is None:
            raise InternalError(f"'{node.name}' launches no collective", where="apply")
        ops.set_argument(node, "group_name", move.group)


def new_table(program_groups: Mapping[str, ProcessGroup], index: GraphIndex, plan: Plan) -> dict[str, ProcessGroup]:
    """The table of process groups with the new ones added: copies of their origins under another name."""
    table = dict(program_groups)
    for group in plan.groups:
        if group.name in table or group.name in index.groups:
            raise InternalError(f"there is a process group '{group.name}' already", where="apply")
        known, used = table.get(group.origin), index.groups.get(group.origin)
        if known is None and used is None:
            raise InternalError(f"there is no process group '{group.origin}'", where="apply")
        if known is None or (known.size is None and used is not None):
            assert used is not None
            known = table[group.origin] = ProcessGroup(used.name, used.size, used.ranks, used.description)
        table[group.name] = replace(known, name=group.name, origin=group.origin, high_priority=group.high_priority)
    unknown = [move.group for move in plan.regroups if move.group not in table]
    if unknown:
        raise InternalError(f"there is no process group '{unknown[0]}'", where="apply")
    return table
