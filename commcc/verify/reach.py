"""Calls of sub-graphs that reach memory which the call does not show: of these no other graph is proved to be the same.

    node = reaches_unseen(program)        # the name of the first such call; None where there is none

A sub-graph may write constants of its own, which others may read; read constants that the graph around it writes; read
around what it is given in its storage, or make one storage of two. What is moved across such a call, or done in place
of it, cannot be told by what the call is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import fx

from commcc.graph.index.storage import assign_storages
from commcc.graph.index.traits import mixed_nodes, traits_of_all, with_constants

if TYPE_CHECKING:
    from commcc.graph.program import Program


def reaches_unseen(program: Program) -> str | None:
    """The name of the first call of such a sub-graph; None where there is none."""
    if not any(isinstance(module, fx.GraphModule) for module in program.root.modules()):
        return None
    nodes = list(program.graph.nodes)
    traits = traits_of_all(nodes, program.root, program.groups, [None] * len(nodes))
    number = {node: i for i, node in enumerate(nodes)}
    storages = assign_storages(nodes, number, mixed_nodes(traits), root=program.root)
    every = with_constants(nodes, program.root, traits, storages)
    return next((node.name for node, trait in zip(nodes, every, strict=True) if trait.hidden), None)
