"""Files to programs and back: one format a module, all of them safe to read.

from commcc.serialization import load, save
program = load("run.log::0_0/aot_forward_graph")
notes = save(program, "forward.fx.txt.gz")
"""

from __future__ import annotations

from commcc.serialization.loading import file_and_lines, list_graphs, load, node_lines, split_spec
from commcc.serialization.logs.graph_text import GraphEntry
from commcc.serialization.propagate import propagate
from commcc.serialization.saving import EXTENSIONS, default_output, save

__all__ = [
    "EXTENSIONS",
    "GraphEntry",
    "default_output",
    "file_and_lines",
    "list_graphs",
    "load",
    "node_lines",
    "propagate",
    "save",
    "split_spec",
]
