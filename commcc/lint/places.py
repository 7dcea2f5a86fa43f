"""Where nodes are: the line of the model that made them, and their line in the graph's file.

    find = places(program, "bw.fx.txt.gz")
    find(412)                               # ('model.py:98', 1203)

Of a stack trace the innermost frame outside PyTorch counts. A launch that has no trace of its own is where
the node that feeds it comes from. Limits: ``.pt2`` files have no lines.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from commcc.errors import CommccError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from commcc.program import Program

_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')
_FOREIGN = re.compile(r"(^|[/\\])(torch|site-packages|dist-packages)[/\\]")


def places(program: Program, graph: str) -> Callable[[int], tuple[str | None, int | None]]:
    """The source and the line of a node by its number in the index; ``graph`` is the path it was read from."""
    from commcc.serialization import node_lines

    nodes = list(program.graph.nodes)
    try:
        lines = node_lines(graph)
    except CommccError:  # the file went away, or is another one by now
        lines = {}

    def find(node: int) -> tuple[str | None, int | None]:
        return _source(nodes[node]), lines.get(nodes[node].name)

    return find


def _source(node: fx.Node) -> str | None:
    for each in (node, *node.all_input_nodes[:1]):
        trace = each.meta.get("stack_trace")
        if isinstance(trace, str) and (found := innermost(trace)) is not None:
            return found
    return None


def innermost(trace: str) -> str | None:
    """``layers/attention.py:98`` of a stack trace: the last frame that is not PyTorch's own."""
    frames = _FRAME.findall(trace)
    own = [frame for frame in frames if not _FOREIGN.search(frame[0])]
    chosen = (own or frames)[-1:]
    return f"{chosen[0][0]}:{chosen[0][1]}" if chosen else None
