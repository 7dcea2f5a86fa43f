"""The canonical text: one node a line as PyTorch prints it, with metadata in comments.

::

    # commcc: {"fx_text": 1}
    class GraphModule(torch.nn.Module):
        def forward(
            self,
            # {"desc": "ParamAOTInput(target='w')"}
            primals_1: "f32[8, 8][8, 1]cuda:0",
        ):
            # {"seq_nr": 3, "stack_trace": 0}
            mm: "f32[8, 8][8, 1]cuda:0" = torch.ops.aten.mm.default(primals_1, primals_1)
            return (
                mm,
            )
        # commcc: meta ["stack_trace", 0, "..."]

Equal programs give equal bytes, and what is read from a text is written as that text again.
Limits: deletions (``x = None``) are not written, they follow from the graph; ``node.type`` is not kept.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from commcc.serialization.fx.groups import with_used_groups
from commcc.serialization.fx.header import header_lines
from commcc.serialization.fx.write_graph import GraphWriter, WrittenParts

if TYPE_CHECKING:
    from commcc.graph.program import Note, Program

_CLASS_NAME = re.compile(r"[^\s()#]{1,100}")


def write_text(program: Program) -> tuple[str, tuple[Note, ...]]:
    """The canonical text of ``program``, and notes on what it could not hold.

    What would make the text a different program (calls of modules, tensors among the arguments) raises
    :class:`OutputError`, collectives that disagree on the size of a group :class:`GraphError`.
    """
    parts = WrittenParts()
    name = program.header.get("class_name")
    if not isinstance(name, str) or not _CLASS_NAME.fullmatch(name):
        name = "GraphModule"
    body = GraphWriter(program.graph, program.root, parts).lines(name)
    new = tuple(note for note in parts.all_notes() if note not in program.notes)
    header = {key: value for key, value in program.header.items() if key != "symbols"}
    symbols = parts.sizes.symbols(program.header.get("symbols"))
    if symbols:
        header["symbols"] = symbols
    complete = replace(program, groups=with_used_groups(program.graph, program.groups))
    head = header_lines(complete, header, (*program.notes, *new))
    return "\n".join([*head, *body, *parts.tables.lines(), *parts.constants, ""]), new
