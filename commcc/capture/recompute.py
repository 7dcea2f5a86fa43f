"""Selective activation checkpointing of a training step, written out in the graph.

::

    tag(graph, policy)           # meta["recompute"] and meta["ac_graph_id"] on the forward
    materialise(graph)           # forward nodes that the backward needs again follow as <name>_recomputed

Inside a layer the results of matrix multiplications, attention, topk, sorts and all that travels between
experts are saved, everything else is computed again; gathers of parameters are gathered again wherever they
stand. Nodes that are computed again have ``autograd_backward``. Limits: no random ops in a layer; the
graph has one forward and then one backward.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torch.utils.checkpoint import CheckpointPolicy

from commcc.capture.tracing import parameter_gathers
from commcc.graph.index.modules import module_path
from commcc.graph.ops import aliasing, is_getitem, is_wait, op_name
from commcc.graph.ops.products import KEPT

if TYPE_CHECKING:
    from torch import fx

_LAYER = re.compile(r"^layers\.(\d+)(\.|$)")
#: Region of gathers outside of layers; must be larger than any layer's.
_OUTSIDE = 100_000
_AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def tag(graph: fx.Graph) -> None:
    """Say of every forward node of a layer, and of every gather of a parameter, whether it is computed again."""
    gathers = set(parameter_gathers(graph))
    kept: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op != "call_function" or node.meta.get("autograd_backward"):
            continue
        found = _LAYER.match(module_path(node.meta) or "")
        if found is None and node not in gathers:
            continue
        node.meta["ac_graph_id"] = int(found[1]) if found else _OUTSIDE
        if node in gathers:
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
            continue
        # What only passes on a saved result is saved with it: members of a tuple, the wait of a launch.
        save = op_name(node.target) in KEPT or (_passes_on(node) and node.all_input_nodes[0] in kept)
        if save:
            kept.add(node)
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE


def _passes_on(node: fx.Node) -> bool:
    return is_getitem(node.target) or is_wait(node.target)


def materialise(graph: fx.Graph) -> None:
    """Add the recomputation that the tags ask for, in place, and remove what nothing needs any more."""
    again = _recomputed(graph)
    position = {node: place for place, node in enumerate(graph.nodes)}
    copies: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if not node.meta.get("autograd_backward"):
            continue
        with graph.inserting_before(node):
            for source in sorted(_needed(node, again, copies), key=position.__getitem__):
                copy = graph.node_copy(source, lambda operand: copies.get(operand, operand))
                copy.name = f"{source.name}_recomputed"
                copy.meta["autograd_backward"] = True
                copies[source] = copy
        for operand in node.all_input_nodes:
            if operand in copies:
                node.replace_input_with(operand, copies[operand])
    graph.eliminate_dead_code(_is_effect)


def _recomputed(graph: fx.Graph) -> set[fx.Node]:
    """Nodes to be computed again; what a layer hands to the next is kept, and tagged so."""
    again = {node for node in graph.nodes if node.meta.get("recompute") in _AGAIN}
    for node in list(graph.nodes):
        later = (user for user in node.users if user in again)
        if node in again and any(user.meta["ac_graph_id"] > node.meta["ac_graph_id"] for user in later):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            again.remove(node)
    return again


def _needed(node: fx.Node, again: set[fx.Node], copies: dict[fx.Node, fx.Node]) -> set[fx.Node]:
    """What has to be computed again before ``node``, and is not yet."""
    found: set[fx.Node] = set()
    stack = [node]
    while stack:
        for operand in stack.pop().all_input_nodes:
            if operand in again and operand not in copies and operand not in found:
                found.add(operand)
                stack.append(operand)
    return found


def _is_effect(node: fx.Node) -> bool:
    return node.op in ("placeholder", "output") or not aliasing(node.target).pure
