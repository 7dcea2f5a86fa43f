"""Copies to the host and host syncs: what has to hold of their order.

A copy that does not block is there when the host has next waited for the device: at a copy that blocks, or
where it asks for a number on the device::

    a = _to_copy(x, device=cpu, non_blocking=True)
    b = _to_copy(y, device=cpu)         waits, so that a is there too
    n = item(a)                         legal here, and not ahead of b

Nothing else has to hold among host syncs. Most passes keep their order all the same (``order_preds``); a pass
that does not names the nodes whose order is kept by :meth:`GraphIndex.needs` alone.

Limits: the device is taken to run one stream of copies.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commcc.graph.index.graph import GraphIndex


def early_reads(
    index: GraphIndex, order: Iterable[int], changed: Mapping[int, bool] | None = None
) -> set[tuple[int, int]]:
    """Nodes that read a copy to the host before the host has waited for it, with that copy.

    changed: copies that are to be made non-blocking, or blocking, by node.
    """
    unblocked = {**index.host_copies, **(changed or {})}
    if not any(unblocked.values()):
        return set()
    early: set[tuple[int, int]] = set()
    coming: dict[int, int] = {}
    for node in order:
        if coming and not is_view(index, node):
            early.update((node, coming[s]) for p in index.data_preds[node] for s in index.storages[p] if s in coming)
        if unblocked.get(node, False):
            coming.update(dict.fromkeys(index.storages[node], node))
        elif node in index.host_syncs and (awaited := devices_awaited(index, node)):
            coming = {s: copy for s, copy in coming.items() if not _may_meet(awaited, devices_awaited(index, copy))}
    return early


def same_device(one: str, other: str) -> bool:
    """Whether two names may be of one device; one without a number is any of its kind."""
    (kind, _, number), (other_kind, _, other_number) = one.partition(":"), other.partition(":")
    return kind == other_kind and (number == other_number or not number or not other_number)


def with_copies(index: GraphIndex, changed: Mapping[int, bool]) -> GraphIndex:
    """The index with copies that are to be made non-blocking, or blocking, for prices of the graph as it will be."""
    return replace(index, host_copies={**index.host_copies, **changed}) if changed else index


def devices_awaited(index: GraphIndex, node: int) -> set[str]:
    """The devices that a host sync waits for: those that it reads from, none where that is on the host already."""
    read = (index.tensors[p] for p in index.data_preds[node])
    return {t.device for t in read if t is not None and not t.device.startswith("cpu")}


def _may_meet(some: Iterable[str], others: Iterable[str]) -> bool:
    return any(same_device(one, other) for one in some for other in others)


def is_view(index: GraphIndex, node: int) -> bool:
    """Whether a node only looks at its operand in another way."""
    storages = index.storages[node]
    return (
        bool(storages)
        and node not in index.writes
        and set(storages) <= {s for p in index.data_preds[node] for s in index.storages[p]}
    )
