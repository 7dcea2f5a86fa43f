"""Triton kernels, which a graph names by numbers of the process that compiled it.

    BEFORE: triton_kernel_wrapper_functional(kernel_idx = 0, ...)      its file: kernel 0 is x * 2
    AFTER:  triton_kernel_wrapper_functional(kernel_idx = 0, ...)      its file: kernel 0 is x * 3      not proved

Compared where both files tell what the numbers stand for, as repro files do. Elsewhere both graphs are taken to come
from one process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.graph.ops import op_name
from commcc.graph.program import all_graphs
from commcc.serialization.logs.triton_kernels import KERNELS

if TYPE_CHECKING:
    from commcc.graph.program import Program
    from commcc.verify.verdict import Report

#: The first two arguments of a call, in their order.
_WHAT = {
    "kernel_idx": "Triton kernel {} is another one",
    "constant_args_idx": "constants of Triton kernels, number {}, are others",
}


def compare_kernels(before: Program, after: Program, report: Report) -> None:
    """A kernel of AFTER, or its constants, that is another one in BEFORE's file is not proved to compute the same."""
    old, new = before.header.get(KERNELS), after.header.get(KERNELS)
    if not isinstance(old, dict) or not isinstance(new, dict) or old == new:
        return
    for node in (node for graph in all_graphs(after.graph, after.root) for node in graph.nodes):
        if node.op != "call_function" or not op_name(node.target).startswith("higher_order.triton_kernel_wrapper"):
            continue
        for place, (argument, what) in enumerate(_WHAT.items()):
            tables = [table.get(argument) for table in (old, new)]
            number = str(node.kwargs.get(argument, node.args[place] if place < len(node.args) else None))
            one, other = (table.get(number) if isinstance(table, dict) else None for table in tables)
            if one != other:
                report.gap("value", node.name, f"{what.format(number)} in BEFORE's file")
