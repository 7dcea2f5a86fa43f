"""Small repairs of a traced training step, so that what it says about exchanges is exact.

::

    n = sym_size(all_to_all_single_1, 0)      ->      n = sym_size(wait_tensor_3, 0)     once for all its uses

Limits: made for graphs in which each launch has one wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from commcc.ops import collective_of, is_wait, op_name

if TYPE_CHECKING:
    from torch import fx

_SIZES = frozenset({"aten.sym_size", "aten.sym_numel", "aten.sym_stride"})
#: Said of a launch of rows and of its wait, of nothing else.
EXCHANGE = "EP_token_exchange"


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
        if op_name(node.target) not in _SIZES:
            continue
        if known is not node:
            node.replace_all_uses_with(known)
            graph.erase_node(node)
        else:
            (source,) = node.all_input_nodes
            node.replace_input_with(source, arrived.get(source, source))


def keep_marks(graph: fx.Graph) -> None:
    """Take the mark of an exchange off everything that was traced beside it, sizes for instance."""
    for node in graph.nodes:
        custom = node.meta.get("custom") or {}
        if EXCHANGE in custom and collective_of(node.target) is None and not is_wait(node.target):
            node.meta["custom"] = {key: value for key, value in custom.items() if key != EXCHANGE}
