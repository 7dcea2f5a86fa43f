"""Which storages each node's result lives in.

A storage is an int. Views share the storage of what they look at, a wait that of its launch, an
``_out`` or in-place op that of the buffer it writes, a constant that of the same constant fetched before;
everything else makes a new one. ``reshape``
may copy or not; it counts as a view here, which can only add order edges.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from commcc.graph import ops


def assign_storages(
    nodes: list[fx.Node], number: dict[fx.Node, int], copies: frozenset[int] = frozenset()
) -> tuple[tuple[int, ...], ...]:
    """Storage ids of every node: one for each element of a tuple result, () for non-tensors.

    ``copies``: nodes whose result is new although the op could have returned a view.
    """
    storages: list[tuple[int, ...]] = []
    constants: dict[object, tuple[int, ...]] = {}
    fresh = 0
    for i, node in enumerate(nodes):
        shares = node.op == "call_function" and i not in copies
        shared = _shared(node, number, storages) if shares else None
        if node.op == "get_attr":
            shared = constants.get(node.target)
        if shared is None:
            count = _elements(node.meta.get("val"))
            shared = tuple(range(fresh, fresh + count))
            fresh += count
        if node.op == "get_attr":
            constants[node.target] = shared
        storages.append(shared)
    return tuple(storages)


def _elements(val: Any) -> int:
    if isinstance(val, (tuple, list)):
        return len(val)
    return 1 if isinstance(val, torch.Tensor) or val is None else 0


def _shared(node: fx.Node, number: dict[fx.Node, int], storages: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Storages of a view or in-place result; None when the result is new."""
    if ops.is_getitem(node.target):
        return _element(node, number, storages)
    views = ops.aliasing(node.target).views
    if not views:
        return None
    found: list[int] = []
    for name in views:
        argument = ops.argument(node, name)
        for source in argument if isinstance(argument, (list, tuple)) else (argument,):
            if isinstance(source, fx.Node):  # a size known at run time can be no key
                found.extend(storages[number[source]])
    if not found:
        return None
    val = node.meta.get("val")
    one_source = len(set(found)) == 1
    return tuple(found[:1]) * max(1, _elements(val)) if one_source else tuple(found)


def _element(node: fx.Node, number: dict[fx.Node, int], storages: list[tuple[int, ...]]) -> tuple[int, ...]:
    source, which = node.args[0], node.args[1]
    held = storages[number[source]] if isinstance(source, fx.Node) else ()
    if isinstance(which, int) and -len(held) <= which < len(held):
        return (held[which],)
    return tuple(dict.fromkeys(held))
