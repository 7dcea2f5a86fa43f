"""What is computed again in the backward: gathers of parameters, and layers (selective activation checkpointing).

::

    parameter_gathers(graph)     # the nodes that make whole parameters out of shards
    tag(graph)                   # meta["recompute"] and meta["ac_graph_id"] on the forward
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

from commcc.base.terms import Kind
from commcc.graph.index.modules import module_path
from commcc.graph.ops import aliasing, collective_of, is_getitem, is_wait, op_name
from commcc.graph.ops.products import KEPT

if TYPE_CHECKING:
    from torch import fx

_LAYER = re.compile(r"^layers\.(\d+)(\.|$)")
#: Region of gathers outside of layers; must be larger than any layer's, and than any that checkpointing hands out.
GATHER_REGION = 100_000
_AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def parameter_gathers(graph: fx.Graph) -> list[fx.Node]:
    """Forward gathers of graph inputs, with the casts before, and the waits and views behind them, in graph order.

    The views count, since the partitioner would otherwise keep one of them, and with it all the memory.
    """
    derived: set[fx.Node] = set()
    chosen: set[fx.Node] = set()
    for node in graph.nodes:
        sources = node.all_input_nodes
        if node.op == "placeholder":
            derived.add(node)
        in_forward = node.op == "call_function" and node.meta.get("partitioner_tag") != "is_backward"
        # What depends on more than one value is no longer the parameter.
        if not in_forward or len(sources) != 1 or sources[0] not in derived:
            continue
        derived.add(node)
        fact = collective_of(node.target)
        if fact is not None and fact.kind is Kind.ALL_GATHER:
            gathered = node
            while gathered.op != "placeholder":  # the casts before it too
                chosen.add(gathered)
                gathered = gathered.all_input_nodes[0]
        elif sources[0] in chosen and aliasing(node.target).views:
            chosen.add(node)
    return [node for node in graph.nodes if node in chosen]


def tag(graph: fx.Graph) -> None:
    """Say of every forward node of a layer, and of every gather of a parameter, whether it is computed again."""
    gathers = set(parameter_gathers(graph))
    kept: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op != "call_function" or node.meta.get("autograd_backward"):
            continue
        layer = _LAYER.match(module_path(node.meta) or "")
        # Outside of layers everything but gathers is kept.
        if layer is None and node not in gathers:
            continue
        node.meta["ac_graph_id"] = int(layer[1]) if layer else GATHER_REGION
        if node in gathers:
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
            continue
        # What only passes on a saved result is saved with it: members of a tuple, the wait of a launch.
        passed_on = is_getitem(node.target) or is_wait(node.target)
        save = op_name(node.target) in KEPT or (passed_on and node.all_input_nodes[0] in kept)
        if save:
            kept.add(node)
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE


def tag_gathers(graph: fx.Graph, parameters: set[fx.Node]) -> None:
    """Have the gathers of these inputs, and nothing else, computed again."""
    for node in graph.nodes:
        node.meta.pop("recompute", None)
    for node in parameter_gathers(graph):
        source = node
        while source.op != "placeholder":
            source = source.all_input_nodes[0]
        if source in parameters:
            node.meta["recompute"], node.meta["ac_graph_id"] = CheckpointPolicy.MUST_RECOMPUTE, GATHER_REGION


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
        # Once for all uses: a copy serves everything that follows.
        for operand in node.all_input_nodes:
            if operand in copies:
                node.replace_input_with(operand, copies[operand])
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output") or not aliasing(node.target).pure)


def _recomputed(graph: fx.Graph) -> set[fx.Node]:
    """Nodes to be computed again; what a layer hands to the next is kept, and tagged so."""
    again = {node for node in graph.nodes if node.meta.get("recompute") in _AGAIN}
    for node in list(graph.nodes):
        later = (user for user in node.users if user in again)
        # Computing the next layer again starts from it.
        if node in again and any(user.meta["ac_graph_id"] > node.meta["ac_graph_id"] for user in later):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            again.remove(node)
    return again


def _needed(node: fx.Node, again: set[fx.Node], copies: dict[fx.Node, fx.Node]) -> set[fx.Node]:
    """What has to be computed again before ``node``, and is not yet."""
    needed: set[fx.Node] = set()
    stack = [node]
    while stack:
        for operand in stack.pop().all_input_nodes:
            if operand in again and operand not in copies and operand not in needed:
                needed.add(operand)
                stack.append(operand)
    return needed
