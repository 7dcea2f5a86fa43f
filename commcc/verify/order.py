"""Whether a graph can run at all: every operand made before it is used, one output, at the end.

Limits: says nothing about values; nothing else is checked in a graph that fails here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import fx

    from commcc.verify.verdict import Report

_OPS = frozenset({"placeholder", "get_attr", "call_function", "output"})


def check_order(graph: fx.Graph, report: Report, which: str) -> bool:
    """Report every use before its definition; whether there was none. ``which`` is added to the texts."""
    seen: set[fx.Node] = set()
    finished = False
    fine = True
    for node in graph.nodes:
        problems = [f"uses '{used.name}' before it is computed" for used in node.all_input_nodes if used not in seen]
        if finished:
            problems.append("comes after the output")
        if node.op not in _OPS:
            report.gap("value", node.name, f"is a {node.op} node: only op calls can be compared{which}")
        finished = finished or node.op == "output"
        seen.add(node)
        for problem in problems:
            report.differs("order", node.name, f"{problem}{which}")
            fine = False
    if not finished:
        report.differs("order", "", f"the graph returns nothing: it has no output node{which}")
    return fine and finished
