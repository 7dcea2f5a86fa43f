"""Products stay where they are computed while something is on its way that is added to them.

    with torch._inductor.config.patch(product_options()): ...

Inductor makes one op of a product and an addition, ``addmm``, where the addition stands: what is added may be the
result of an exchange that the product is to hide. So such an addition gets the product through a view, which costs
nothing and is not looked through. Limits: it is a hook of Inductor, taken only where the job does not use it.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from commcc.graph.ops import op_name
from commcc.graph.ops.products import WITH_ADDITION
from commcc.replay.calls import communicates
from commcc.replay.compiled.graph_hooks import hook_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

_PRODUCTS = frozenset(WITH_ADDITION.values())


def product_options() -> Mapping[str, Any]:
    """Settings that keep products ahead of the launches and waits behind them."""
    return hook_options("post_grad_custom_pre_pass", keep_whole)


def keep_whole(graph: fx.Graph) -> list[fx.Node]:
    """Put a view between products and additions that stand behind a launch or a wait; these products."""
    nodes = list(graph.nodes)
    place = {node: at for at, node in enumerate(nodes)}
    passed = list(accumulate(map(communicates, nodes)))
    whole = []
    for node in nodes:
        if node.op != "call_function" or op_name(node.target) not in _PRODUCTS:
            continue
        far = [
            user
            for user in node.users
            if user.op == "call_function"
            and op_name(user.target) == "aten.add"
            and passed[place[user]] > passed[place[node]]
        ]
        if far:
            _view(graph, node, far)
            whole.append(node)
    return whole


def _view(graph: fx.Graph, node: fx.Node, users: list[fx.Node]) -> None:
    same, permute = list(range(node.meta["val"].dim())), torch.ops.aten.permute.default
    with graph.inserting_after(node):
        view = graph.call_function(permute, (node, same))
    view.meta = {**node.meta, "val": permute(node.meta["val"], same)}
    for user in users:
        user.replace_input_with(node, view)
