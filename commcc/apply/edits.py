"""Writes a plan's edits on the nodes that its rewrite has left, one function for each kind of edit.

1. roles of launches go into their records;
2. launches move to other process groups, and the program's table gets the new groups:
   ``a2a = all_to_all_single(x, s, s, '0')``  ->  ``a2a = all_to_all_single(x, s, s, 'ep_extra')``;
3. copies to the host become blocking or non-blocking:
   ``b = _to_copy(y, device=cpu)``  ->  ``b = _to_copy(y, device=cpu, non_blocking=True)``;
4. waits for token exchanges are annotated as such. A trace gives a launch and its wait the same annotation; afterwards
   only launches carry it: ``EP_token_exchange: dispatch``  ->  ``EP_token_exchange_wait: dispatch``;
5. nodes that must not run before others are held back (:mod:`commcc.apply.control`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from commcc.apply.control import hold
from commcc.base.errors import InternalError
from commcc.graph import ops
from commcc.graph.annotations import EXCHANGE, EXCHANGE_WAIT, EXCHANGES
from commcc.graph.program import META_KEY, NodeRecord, ProcessGroup, record_of
from commcc.plan import ControlEdge, HostCopy, NewGroup, Regroup, TagEntry, WaitLabel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from commcc.graph.index import GraphIndex
    from commcc.graph.program import Program
    from commcc.plan import Plan


def edited(program: Program, index: GraphIndex, plan: Plan) -> Program:
    """The program with edits written on its graph, which nobody else has yet. index: of the graph before the rewrite.

    Raises :class:`InternalError` for an edit of a node that is gone or of another kind, and for a group that is not
    in the table, or is there already.
    """
    if not plan.edits:
        return program
    nodes = _ByName((node.name, node) for node in program.graph.nodes)
    groups = _table(program.groups, index, plan.of(NewGroup))
    for edit in plan.edits:
        match edit:
            case TagEntry():
                node = nodes[index.names[edit.launch]]
                node.meta[META_KEY] = NodeRecord(edit.role.value, edit.evidence, record_of(node).merged_from)
            case Regroup():
                node = nodes[index.names[edit.launch]]
                if edit.launch not in index.launches or ops.collective_of(node.target) is None:
                    raise InternalError(f"'{node.name}' launches no collective")
                if edit.group not in groups:
                    raise InternalError(f"there is no process group '{edit.group}'")
                ops.set_argument(node, "group_name", edit.group)
            case HostCopy():
                node = nodes[index.names[edit.node]]
                if edit.node not in index.host_copies:
                    raise InternalError(f"'{node.name}' is no copy from a device to the host")
                kwargs = {name: value for name, value in node.kwargs.items() if name != "non_blocking"}
                node.kwargs = {**kwargs, "non_blocking": True} if edit.non_blocking else kwargs
            case WaitLabel():
                _label(nodes[index.names[edit.wait]], index, edit)
    # Last, since a node that is held back is another node: one that wraps it, with all that was written on it.
    edges = plan.of(ControlEdge)
    root = hold(program.graph, program.root, index, edges) if edges else program.root
    return replace(program, root=root, groups=groups)


class _ByName(dict[str, "fx.Node"]):
    def __missing__(self, name: str) -> fx.Node:
        raise InternalError(f"'{name}' is not there any more")


def _table(known: Mapping[str, ProcessGroup], index: GraphIndex, new: tuple[NewGroup, ...]) -> dict[str, ProcessGroup]:
    """The table of process groups with the new ones: copies of their origins under another name."""
    table = dict(known)
    for group in new:
        if group.name in table or group.name in index.groups:
            raise InternalError(f"there is a process group '{group.name}' already")
        origin, used = table.get(group.origin), index.groups.get(group.origin)
        if origin is None and used is None:
            raise InternalError(f"there is no process group '{group.origin}'")
        if used is not None and (origin is None or origin.size is None):
            # The table says nothing of a group that the graph names, or not its size, which its launches tell.
            origin = table[group.origin] = ProcessGroup(used.name, used.size, used.ranks, used.description)
        assert origin is not None
        table[group.name] = replace(origin, name=group.name, origin=group.origin, high_priority=group.high_priority)
    return table


def _label(node: fx.Node, index: GraphIndex, label: WaitLabel) -> None:
    """Numbers do not depend on annotations. The key is written where it was read: at the top level of the metadata
    or in ``custom``, and to ``custom`` where it is new.
    """
    if label.wait not in index.wait_of or label.exchange not in EXCHANGES:
        raise InternalError(f"'{node.name}' is no wait for a '{label.exchange}'")
    own = (EXCHANGE, EXCHANGE_WAIT)
    at_top = any(key in node.meta for key in own)
    custom = {key: value for key, value in (node.meta.get("custom") or {}).items() if key not in own}
    kept = {key: value for key, value in node.meta.items() if key not in own}
    said = {EXCHANGE_WAIT: label.exchange}
    node.meta = {**kept, **(said if at_top else {}), "custom": {**custom, **({} if at_top else said)}}
