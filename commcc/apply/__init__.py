"""apply: turns a plan into a new graph. The only code that makes ``torch.fx`` nodes for passes.

    after = apply_plan(before, index, plan)

The graph before is never touched: the plan's rewrite, or a copy where it has none, makes the new one, and the edits
are then written on that (:mod:`commcc.apply.edits`). Nodes that survive keep names, arguments and metadata; a merged
launch records in ``node.meta["commcc"]`` which launches it stands for. When launches are merged, the order of the new
graph is the old one with the moved nodes at the positions the plan names, delayed where an input is not there yet
(:mod:`commcc.apply.order`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from commcc.apply.chunk import chunked
from commcc.apply.concrete import fix_sizes, fixed_header
from commcc.apply.edits import edited
from commcc.apply.inline import inlined
from commcc.apply.merge import emit
from commcc.apply.order import arrange, check_host_copies, check_order
from commcc.apply.remove import without
from commcc.base.errors import InternalError
from commcc.base.gc_pause import no_collection
from commcc.graph.copying import copied
from commcc.plan import Chunking, Fixing, Fusing, Inlining, Merging, Removal, Reordering

if TYPE_CHECKING:
    from commcc.graph.index import GraphIndex
    from commcc.graph.program import Program
    from commcc.plan import Plan, Rewrite

__all__ = ["apply_plan"]


@no_collection()
def apply_plan(program: Program, index: GraphIndex, plan: Plan) -> Program:
    """The program with the plan's edits made.

    Raises :class:`InternalError` when the plan was made from another graph, has a cycle, or its order is not legal.
    """
    if plan.fingerprint != index.fingerprint:
        raise InternalError("the plan was made from another graph", where=plan.pass_text)
    check_host_copies(index, plan)
    try:
        return edited(_rewritten(program, index, plan.rewrite or Merging()), index, plan)
    except InternalError as error:
        if error.where is not None:
            raise
        raise InternalError(error.what, where=plan.pass_text) from error


def _rewritten(program: Program, index: GraphIndex, rewrite: Rewrite) -> Program:
    match rewrite:
        case Merging(buckets=buckets):
            return replace(program, graph=emit(program.graph, index, buckets, arrange(index, rewrite)))
        case Reordering(order=order):
            check_order(index, order)
            nodes = list(program.graph.nodes)
            return replace(program, graph=copied(map(nodes.__getitem__, order)))
        case Removal():
            return replace(program, graph=without(program.graph, index, rewrite))
        case Chunking(chunked=regions):
            return chunked(program, index, regions)
        case Fixing(sizes=sizes):
            graph, root = fix_sizes(program.graph, program.root, sizes)
            return replace(program, graph=graph, root=root, header=fixed_header(program.header, sizes))
        case Inlining(calls=calls):
            return inlined(program, calls)
        case Fusing(fusions=fusions):
            from commcc.apply.microtp import fuse  # PyTorch's compiler comes with it

            groups = {index.launches[fusion.launch].group for fusion in fusions}
            return replace(program, graph=fuse(program, groups, {index.names[fusion.launch] for fusion in fusions}))
