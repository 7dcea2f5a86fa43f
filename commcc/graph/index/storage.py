"""Which storages each node's result lives in.

A storage is an int. Views share the storage of what they look at, a wait that of its launch, an
``_out`` or in-place op that of the buffer it writes, a constant that of one in the same memory fetched before;
everything else has a new one. Where an op puts one argument into the storage of another (``set_``), both storages
are one in the whole graph. ``reshape`` may copy or not; it counts as a view here, which can only add order edges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.graph import ops
from commcc.graph.ops.operands import sources
from commcc.graph.program import attribute, is_plain

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

Storages = tuple[tuple[int, ...], ...]


def assign_storages(
    nodes: list[fx.Node],
    number: dict[fx.Node, int],
    mixed: Collection[int] = (),
    copies: Collection[int] = (),
    root: torch.nn.Module | None = None,
) -> Storages:
    """Storage ids of every node: one for each element of a tuple result, () for non-tensors.

    ``mixed``: nodes of which any result may be in the storage of any operand; all of these are listed then.
    ``copies``: nodes whose result is new although the op could have returned a view.
    ``root``: what holds constants, of which those in one memory are told apart by name alone without it.
    """
    storages: list[tuple[int, ...]] = []
    constants: dict[object, tuple[int, ...]] = {}
    joined: list[tuple[int, ...]] = []
    fresh = 0
    # Found by the object: hashing an op takes longer than all the rest.
    targets = {id(node.target): node.target for node in nodes if node.op == "call_function"}
    facts = {at: ops.facts(target) for at, target in targets.items()}
    for i, node in enumerate(nodes):
        shared = None
        if node.op == "get_attr":
            shared = constants.get(constant := _constant(node, root))
        elif node.op != "call_function" or i in copies:
            pass  # new
        elif facts[id(node.target)].views or ops.is_getitem(node.target) or i in mixed:
            shared = _shared(node, number, storages, mixed)
        if shared is None:
            count = _elements(node.meta.get("val"))
            shared = tuple(range(fresh, fresh + count))
            fresh += count
        if node.op == "get_attr":
            constants[constant] = shared
        elif node.op == "call_function" and (names := facts[id(node.target)].joins) is not None:
            unsaid = facts[id(node.target)].views == ops.ALL
            both = node._input_nodes if unsaid else [ops.argument(node, name) for name in names]
            joined.append(tuple(s for held in both if isinstance(held, fx.Node) for s in storages[number[held]]))
        storages.append(shared)
    return united(storages, joined) if joined else tuple(storages)


def _constant(node: fx.Node, root: torch.nn.Module | None) -> object:
    """What tells the constant of a ``get_attr`` node from others: where its values lie, else its name."""
    held: Any = None if root is None else attribute(root, node)
    if is_plain(held) and held.numel():
        return held.untyped_storage().data_ptr()
    return str(node.target)


def _elements(val: Any) -> int:
    if isinstance(val, (tuple, list)):
        return len(val)
    return 1 if isinstance(val, torch.Tensor) or val is None else 0


def _shared(
    node: fx.Node, number: dict[fx.Node, int], storages: list[tuple[int, ...]], mixed: Collection[int]
) -> tuple[int, ...] | None:
    """Storages of a view or in-place result; None when the result is new."""
    if ops.is_getitem(node.target):
        source, which = (*node.args, None, None)[:2]
        held = storages[number[source]] if isinstance(source, fx.Node) else ()
        known = isinstance(source, fx.Node) and number[source] not in mixed
        if known and isinstance(which, int) and -len(held) <= which < len(held):
            return (held[which],)
        return tuple(dict.fromkeys(held))
    looked_at = node._input_nodes if number[node] in mixed else sources(node)
    shared = [storage for source in looked_at for storage in storages[number[source]]]
    if not shared:
        return None
    if len(set(shared)) == 1:
        return tuple(shared[:1]) * max(1, _elements(node.meta.get("val")))
    return tuple(shared)


def united(storages: Sequence[tuple[int, ...]], joined: Sequence[tuple[int, ...]]) -> Storages:
    """The same with one number for storages that become one."""
    lowest: dict[int, int] = {}

    def root(storage: int) -> int:
        while storage in lowest:
            storage = lowest[storage]
        return storage

    for group in joined:
        roots = sorted({root(storage) for storage in group})
        lowest.update(dict.fromkeys(roots[1:], roots[0]))
    return tuple(tuple(map(root, held)) for held in storages)
