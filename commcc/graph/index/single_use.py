"""Values that fusable ops make for one reader alone, as casts for a concatenation: see :func:`made_for`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.graph.ops.kernels import Work

if TYPE_CHECKING:
    from commcc.graph.index.graph import GraphIndex


def made_for(index: GraphIndex, value: int, reader: int) -> bool:
    """Whether a fusable op makes all of ``value``, which may be a view of what it makes, for ``reader`` alone."""
    work, users, tensors, returned = index.estimates.work, index.users, index.tensors, index.output_slots
    maker = value
    while work[maker] is Work.FREE and len(index.data_preds[maker]) == 1:
        (maker,) = index.data_preds[maker]
    own, whole = tensors[value], tensors[maker]
    if work[maker] is not Work.FUSABLE or own is None or whole is None:
        return False
    if (own.bytes, own.dtype) != (whole.bytes, whole.dtype):
        return False
    views = [maker]
    for node in views:  # grows
        others = [user for user in users[node] if user != reader]
        if node in returned or any(work[user] is not Work.FREE or user in index.wait_of for user in others):
            return False
        views += others
    return True
