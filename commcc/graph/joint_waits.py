"""Waits for several tensors in one call, as PyTorch 2.15 writes them behind coalesced collectives.

    wait_tensors = wait_tensors([a, b])     ->     getitem = wait_tensor(a)
    getitem = wait_tensors[0]                      getitem_1 = wait_tensor(b)
    getitem_1 = wait_tensors[1]

Both say the same, and everything else knows the second form. Limits: a call stays as it is, and counts as unknown
communication, where its list is the result of another op, or is used as a whole.
"""

from __future__ import annotations

import torch
from torch import fx

from commcc.graph.ops import is_getitem, op_name

WAITS = "_c10d_functional.wait_tensors"


def take_apart(graph: fx.Graph) -> bool:
    """Put a wait for each tensor in place of every wait for a list of them, in place; whether there was any."""
    joint = [node for node in graph.nodes if node.op == "call_function" and op_name(node.target) == WAITS]
    names = {node.name for node in graph.nodes} if joint else set()
    return sum(_one(node, names) for node in joint) > 0


def _one(node: fx.Node, names: set[str]) -> bool:
    """Take one call apart if its tensors and all that reads its results can be seen. names: of all nodes."""
    tensors, *more = (*node.args, *node.kwargs.values()) or (None,)
    if more or not isinstance(tensors, (list, tuple)) or not all(isinstance(tensor, fx.Node) for tensor in tensors):
        return False
    if not all(_is_part(user, node, len(tensors)) for user in node.users):
        return False
    for place, tensor in enumerate(tensors):
        parts = [user for user in node.users if user.args[1] == place]
        with node.graph.inserting_before(node):
            wait = node.graph.call_function(torch.ops._c10d_functional.wait_tensor.default, (tensor,))
        if parts:
            wait.name, wait.meta = parts[0].name, dict(parts[0].meta)
        else:  # nobody reads the tensor afterwards
            name = f"{node.name}_{place}"
            while name in names:
                name += "_"
            names.add(name)
            wait.name, wait.meta = name, {key: value for key, value in node.meta.items() if key != "val"}
            if "val" in tensor.meta:
                wait.meta["val"] = tensor.meta["val"]
        for part in parts:
            part.replace_all_uses_with(wait)
            node.graph.erase_node(part)
    node.graph.erase_node(node)
    return True


def _is_part(user: fx.Node, node: fx.Node, count: int) -> bool:
    """Whether a node takes one result of another one by its number."""
    if user.op != "call_function" or not is_getitem(user.target) or user.args[0] is not node:
        return False
    place = user.args[1]
    return type(place) is int and 0 <= place < count
