"""Where nodes are: the line of the model that made them, and their line in the graph's file.

    find = places(program, "bw.fx.txt.gz")
    find(412)                               # Spot(node='mm_3', source='model.py:98', line=1203, ...)

Of a stack trace the innermost frame counts that was reached without going through PyTorch (calls of modules do
not count): the model's line, not that of the wrapper which shards its parameters. A node without a trace of its
own is where the node that feeds it comes from. Limits: ``.pt2`` files have no lines.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from commcc.base.errors import CommccError
from commcc.graph.source_lines import source_of
from commcc.lint.types import Spot

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.graph.program import Program


def places(program: Program, graph: str) -> Callable[[int], Spot]:
    """Where a node is, by its number in the index; its module is left out. graph: the path it was read from."""
    from commcc.serialization import file_and_lines

    nodes = list(program.graph.nodes)
    file: str | None = None
    lines: dict[str, int] = {}
    with suppress(CommccError):  # the file went away, or is another one by now
        file, lines = file_and_lines(graph)

    def find(node: int) -> Spot:
        name = nodes[node].name
        return Spot(graph, name, None, source_of(nodes[node]), lines.get(name), file)

    return find
