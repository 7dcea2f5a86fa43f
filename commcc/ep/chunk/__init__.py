"""Cutting the tokens of a module in chunks: the planner.

    found = plan_chunks(program, index, ("layers.*.moe",), chunks=2, policy="batch")
    found.regions[0].body         # numbers of the nodes that every chunk gets a clone of
    found.regions[0].joins        # what leaves them, and how it becomes whole

Reads only. A graph is taken as it was dumped, with sizes as plain numbers; :mod:`commcc.apply.chunk` makes the edits.
"""

from __future__ import annotations

from commcc.ep.chunk.planner import Chunks, plan_chunks

__all__ = ["Chunks", "plan_chunks"]
