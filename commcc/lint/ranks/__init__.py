"""Whether all ranks launch the same collectives, in an order in which none of them hangs.

    agree({0: load("rank0.fx.txt"), 1: load("rank1.fx.txt")}).status        # Status.AGREE

Checked, and proved where the answer is ``agree``:

1. every process group sees one sequence of kinds, sizes, dtypes, reductions and other arguments on all its ranks.
   Names of groups differ between ranks; ranks tell which name is which (:mod:`commcc.lint.ranks.groups`);
2. in an all-to-all every rank sends what its peers expect, where split sizes are numbers
   (:mod:`commcc.lint.ranks.sequences`);
3. no launches on groups that share ranks can block one another (:mod:`commcc.lint.ranks.order`).

Names of nodes, device numbers and metadata do not matter. Besides, launches of one kind and size that are not the
same launch on two ranks are found where one sends what the other sends elsewhere.

What a file does not tell is said: ranks without file and groups without ranks, sizes known only at run time,
communication that is not understood, and sub-graphs. Time grows with the launches of all ranks, and with the
number of different programs for the order; ranks given one and the same graph cost next to nothing.

Limits: loops and branches are not followed. That all ranks run the graph equally often is taken for granted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from commcc.lint.ranks.agreeing import agree_on
from commcc.lint.ranks.show import text
from commcc.lint.ranks.types import Agreement, Difference, DifferenceKind, Status, Trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.graph.program import Program

__all__ = ["Agreement", "Difference", "DifferenceKind", "Status", "Trace", "agree", "agree_on", "text"]


def agree(ranks: Mapping[int, Program], around: int = 3) -> Agreement:
    """Compare the programs of all ranks, by rank.

    around: launches to show before and after the first difference. Raises OptionError for fewer than two ranks,
    GraphError for a graph that is illegal in itself.
    """
    from commcc.lint.ranks.trace import trace_of

    by_graph: dict[int, Trace] = {}
    traces: dict[int, Trace] = {}
    for rank, program in ranks.items():
        known = by_graph.get(id(program.graph))
        if known is None:
            known = by_graph[id(program.graph)] = trace_of(program)
        traces[rank] = replace(known, groups=dict(program.groups))
    return agree_on(traces, around)
