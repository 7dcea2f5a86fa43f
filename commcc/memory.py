"""Live bytes over any order of a graph's nodes, storage and alias aware.

    memory = live_bytes(index)
    memory.peak_bytes, index.names[memory.peak_at], memory.live[position]

Graph inputs and constants are never freed. Any other buffer lives from the node that makes it to the
last node that touches it or a view of it; graph outputs live to the end. A collective reads its
input and writes its result until it is waited for, so both live at least until the last wait, to
the end where nobody waits.

Limits: bytes as tensors state them, without an allocator's rounding and fragmentation and without
what kernels use inside; what a compiler fuses away still counts; host memory does not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.index import GraphIndex


@dataclass(frozen=True)
class Memory:
    """Live device bytes. live: at each position of the order, while that node runs (its results are
    there, nothing it reads is freed yet). peak_at: the first node at which the peak is reached.
    input_bytes: graph inputs and constants, which are in every figure.
    """

    peak_bytes: int
    peak_at: int | None
    input_bytes: int
    live: tuple[int, ...]


def live_bytes(index: GraphIndex, order: Sequence[int] | None = None) -> Memory:
    """Memory of the graph run in ``order`` (node numbers; graph order by default)."""
    order = range(len(index)) if order is None else order
    change, inputs = _changes(index, order)
    live: list[int] = []
    now = inputs
    peak, peak_at = inputs, None
    for position, node in enumerate(order):
        allocated, freed = change[position]
        now += allocated
        live.append(now)
        if now > peak or peak_at is None:
            peak, peak_at = now, node
        now -= freed
    return Memory(peak, peak_at, inputs, tuple(live))


def _changes(index: GraphIndex, order: Sequence[int]) -> tuple[list[tuple[int, int]], int]:
    raise NotImplementedError
