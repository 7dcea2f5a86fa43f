"""The graph as ints and tuples: what planners read.

A :class:`GraphIndex` is a snapshot of one graph. Node ``i`` is the i-th node in graph order; every
other fact refers to nodes by that number::

    index = build_index(program)
    index.names[i], index.ops[i]            # 'mm_3', 'aten.mm'
    index.preds(i)                          # complete: data, alias, random, effect, barrier
    index.launches[i].group                 # facts of a collective launch
    index.fingerprint                       # sha256; a plan made from another graph is refused

It is rebuilt after every edit, never patched. Importing this module does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.errors import GraphError
from commcc.base.gc_pause import no_collection
from commcc.graph.index.graph import Estimates, GraphIndex, Launch, Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.graph.index.outside import Outside
    from commcc.graph.program import Program

__all__ = ["Estimates", "GraphIndex", "Launch", "Tensor", "build_index"]


@no_collection()
def build_index(program: Program, hints: Mapping[str, int] | None = None, outside: Outside | None = None) -> GraphIndex:
    """Index the program's graph; raises :class:`commcc.base.errors.GraphError` on an illegal graph.

    hints: numbers for symbolic sizes, by name or pattern (``{"u*": 512}``); they change estimates
    only, see :mod:`commcc.graph.index.hints`; a name of an input that is in flight at the start gets the microseconds
    until its collective has ended. outside: what the rest of the step does to this graph, estimates too.
    """
    from commcc.graph.index.build import build
    from commcc.graph.program import check_size

    try:
        check_size(program)
        return build(program, hints or {}, outside)
    except GraphError as error:
        if error.where is not None or program.source is None:
            raise
        raise GraphError(error.what, where=str(program.source), hint=error.hint) from error
