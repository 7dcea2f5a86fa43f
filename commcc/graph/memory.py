"""Live bytes over any order of a graph's nodes, storage and alias aware.

    memory = live_bytes(index)
    memory.peak_bytes, index.names[memory.peak_at], memory.live[position]

Graph inputs and constants are never freed, save those of which the index knows that nobody else holds them (what a
forward saves for its backward); only a resize of their storage changes what they take, and one that is first resized
to its full size begins with nothing. Any other buffer lives from the
node that makes it to the last node that touches it or a view of it; graph outputs live to the end.
A collective reads its input and writes its result until it is waited for, so both live at least
until the last wait, to the end where nobody waits.

Limits: bytes as tensors state them, without an allocator's rounding and fragmentation and without
what kernels use inside; what a compiler fuses away still counts; host memory does not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.index import GraphIndex


@dataclass(frozen=True)
class Memory:
    """Live device bytes. live: at each position of the order, while that node runs (its results are
    there, nothing it reads is freed yet). peak_at: the first node at which the peak is reached.
    input_bytes: graph inputs and constants as the step begins; they are in every figure.
    """

    peak_bytes: int
    peak_at: int | None
    input_bytes: int
    live: tuple[int, ...]


def live_bytes(index: GraphIndex, order: Sequence[int] | None = None) -> Memory:
    """Memory of the graph run in ``order`` (all node numbers; graph order by default)."""
    return MemoryModel(index).live(range(len(index)) if order is None else order)


class MemoryModel:
    """What does not depend on the order, for those who try many.

    inputs: buffers of graph inputs and constants. kept: buffers that live to the end, as graph outputs do.
    touched: see :attr:`commcc.graph.index.GraphIndex.touched`.
    """

    def __init__(self, index: GraphIndex) -> None:
        self.index = index
        # Inputs that end with their last use are there from their placeholder on: that is from the start, too.
        self.inputs = frozenset(
            b
            for i, op in enumerate(index.ops)
            if op in ("placeholder", "get_attr") and i not in index.estimates.freed
            for b in index.estimates.buffers[i]
        )
        kept = {b for node in index.output_slots for b in index.estimates.buffers[node]}
        for node, launch in index.launches.items():
            # Nobody waits for this one, so nothing tells when it no longer reads and writes.
            if launch.asynchronous and not launch.waits:
                kept.update(_both(index, node))
        self.kept = frozenset(kept)
        self.touched = index.touched
        self.size = _first_sizes(index, self.inputs)

    def live(self, order: Sequence[int]) -> Memory:
        """Memory of the graph run in ``order``."""
        at_start = sum(self.size[b] for b in self.inputs)
        allocated, freed = self._changes(order)
        live: list[int] = []
        now = peak = at_start
        peak_at: int | None = None
        for position, node in enumerate(order):
            now += allocated[position]
            live.append(now)
            if now > peak or peak_at is None:
                peak, peak_at = now, node
            now -= freed[position]
        return Memory(peak, peak_at, at_start, tuple(live))

    def _changes(self, order: Sequence[int]) -> tuple[list[int], list[int]]:
        """Bytes made and bytes freed at each position."""
        buffers, size = self.index.estimates.buffers, list(self.size)
        last = self._last_touches(order)
        allocated, freed = [0] * len(order), [0] * len(order)
        known = set(self.inputs)
        resizes = self.index.estimates.resizes
        for position, node in enumerate(order):
            for buffer in buffers[node]:
                if buffer not in known:
                    known.add(buffer)
                    allocated[position] += size[buffer]
            for buffer, new in resized(self.index, node) if node in resizes else ():
                grown = new - size[buffer]
                allocated[position] += max(0, grown)
                freed[position] += max(0, -grown)
                size[buffer] = new
            for buffer in last[position]:
                freed[position] += size[buffer]
        return allocated, freed

    def _last_touches(self, order: Sequence[int]) -> list[list[int]]:
        """Buffers to free after each position, those that live to the end left out."""
        seen = bytearray(len(self.size))
        for buffer in (*self.kept, *self.inputs):
            seen[buffer] = 1
        last: list[list[int]] = [[] for _ in order]
        for position in range(len(order) - 1, -1, -1):
            for buffer in self.touched[order[position]]:
                if not seen[buffer]:
                    seen[buffer] = 1
                    last[position].append(buffer)
        return last


def resized(index: GraphIndex, node: int) -> list[tuple[int, int]]:
    """Buffers that the node resizes, with their new size; buffers that do not count are left out."""
    new = index.estimates.resizes.get(node)
    if new is None:
        return []
    buffers = dict.fromkeys(b for target in index.writes.get(node, ()) for b in index.estimates.buffers[target])
    return [(buffer, new) for buffer in buffers if index.estimates.buffer_bytes[buffer]]


def _first_sizes(index: GraphIndex, inputs: frozenset[int]) -> list[int]:
    """Bytes of every buffer when it is made; an input whose first resize gives it all it needs begins empty."""
    size = list(index.estimates.buffer_bytes)
    seen: set[int] = set()
    for node in sorted(index.estimates.resizes):
        for buffer, new in resized(index, node):
            if buffer in inputs and buffer not in seen and new >= size[buffer]:
                size[buffer] = 0
            seen.add(buffer)
    return size


def _both(index: GraphIndex, launch: int) -> tuple[int, ...]:
    buffers = index.estimates.buffers
    return tuple(b for near in (launch, *index.data_preds[launch]) for b in buffers[near])
