"""Sizes in a traced training step: each is asked for once, and of what has arrived.

::

    n = sym_size(all_to_all_single_1, 0)      ->      n = sym_size(wait_tensor_3, 0)     once for all its uses

Limits: made for graphs in which each launch has one wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from commcc.graph.ops import is_wait, op_name
from commcc.graph.ops.sizes import ASKING

if TYPE_CHECKING:
    from torch import fx


def settle_sizes(graph: fx.Graph) -> None:
    """Ask for each symbolic size once, and of a tensor that has arrived.

    The tracer takes a size from the first tensor that has it, which may still be in flight, and asks again
    for equal sizes of other tensors, which would keep these alive.
    """
    first: dict[Any, fx.Node] = {}
    arrived: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if is_wait(node.target):
            arrived.setdefault(node.all_input_nodes[0], node)
        value = node.meta.get("val")
        if not isinstance(value, torch.SymInt):
            continue
        known = first.setdefault(value.node.expr, node)
        if op_name(node.target) not in ASKING:
            continue
        if known is not node:
            node.replace_all_uses_with(known)
            graph.erase_node(node)
        else:
            (source,) = node.all_input_nodes
            node.replace_input_with(source, arrived.get(source, source))
