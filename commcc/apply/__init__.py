"""apply: turns a plan into a new graph. The only code that makes ``torch.fx`` nodes for passes.

    after = apply_plan(before, index, plan)

The graph before is never touched. Nodes that survive keep names, arguments and metadata; a merged
launch records in ``node.meta["commcc"]`` which launches it stands for. The order of the new graph
is the old one with the moved nodes at the positions the plan names, delayed where an input is not
there yet (:mod:`commcc.apply.order`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from commcc.apply.chunk import chunked
from commcc.apply.concrete import fix_sizes, fixed_header
from commcc.apply.control import hold
from commcc.apply.emit import emit
from commcc.apply.hosting import set_blocking
from commcc.apply.labels import label_waits
from commcc.apply.order import arrange, check_host_copies, in_order
from commcc.apply.regroup import new_table, rename_groups
from commcc.apply.remove import drop_metadata, removed, without
from commcc.base.errors import InternalError
from commcc.base.gc_pause import no_collection
from commcc.graph.program import META_KEY, NodeRecord, record_of

if TYPE_CHECKING:
    from torch import fx

    from commcc.graph.index import GraphIndex
    from commcc.graph.program import Program
    from commcc.plan import Plan

__all__ = ["apply_plan"]


@no_collection()
def apply_plan(program: Program, index: GraphIndex, plan: Plan) -> Program:
    """The program with the plan's edits made.

    Raises :class:`InternalError` when the plan was made from another graph, has a cycle, or its order is not legal.
    """
    if plan.fingerprint != index.fingerprint:
        raise InternalError("the plan was made from another graph", where=plan.pass_text)
    if plan.sizes:
        _nothing_else(plan)
        graph, root = fix_sizes(program.graph, program.root, plan.sizes)
        return replace(program, graph=graph, root=root, header=fixed_header(program.header, plan.sizes))
    if plan.chunked:
        return chunked(program, index, plan)
    check_host_copies(index, plan)
    if plan.fusions:
        return replace(program, graph=_fused(program, index, plan))
    if removed(plan):
        graph = without(program.graph, index, plan)
    else:
        units = arrange(index, plan) if plan.order is None else in_order(index, plan.order)
        graph = emit(program.graph, index, plan.buckets, units)
    by_name = {node.name: node for node in graph.nodes} if _by_name(plan) else {}
    for tag in plan.tags:
        node = by_name[index.names[tag.launch]]
        record = record_of(node)
        node.meta[META_KEY] = NodeRecord(tag.role.value, tag.evidence, record.merged_from)
    rename_groups(by_name, index, plan)
    set_blocking(by_name, index, plan)
    label_waits(by_name, index, plan)
    drop_metadata(graph, plan)
    root = hold(graph, program.root, index, plan) if plan.control else program.root
    groups = new_table(program.groups, index, plan) if plan.groups or plan.regroups else program.groups
    return replace(program, graph=graph, root=root, groups=groups)


def _by_name(plan: Plan) -> bool:
    return bool(plan.tags or plan.regroups or plan.host_copies or plan.wait_labels)


def _fused(program: Program, index: GraphIndex, plan: Plan) -> fx.Graph:
    from commcc.apply.microtp import fuse

    _nothing_else(plan)
    groups = {index.launches[each.launch].group for each in plan.fusions}
    return fuse(program, groups, {index.names[each.launch] for each in plan.fusions})


def _nothing_else(plan: Plan) -> None:
    others = plan.buckets or plan.moves or plan.control or _by_name(plan)
    if removed(plan) or others or plan.order is not None or (plan.sizes and plan.fusions):
        raise InternalError(
            "a plan that fixes sizes or fuses matmuls cannot change anything else", where=plan.pass_text
        )
