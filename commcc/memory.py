"""Live bytes over any order of a graph's nodes, storage and alias aware.

    memory = live_bytes(index)
    memory.peak_bytes, index.names[memory.peak_at], memory.live[position]

Graph inputs and constants are never freed; only a resize of their storage changes what they take,
and one that is first resized to its full size begins with nothing. Any other buffer lives from the
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

    from commcc.index import GraphIndex


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
    order = range(len(index)) if order is None else order
    inputs, allocated, freed = _changes(index, order)
    live: list[int] = []
    now = peak = inputs
    peak_at: int | None = None
    for position, node in enumerate(order):
        now += allocated[position]
        live.append(now)
        if now > peak or peak_at is None:
            peak, peak_at = now, node
        now -= freed[position]
    return Memory(peak, peak_at, inputs, tuple(live))


def _changes(index: GraphIndex, order: Sequence[int]) -> tuple[int, list[int], list[int]]:
    """Bytes of graph inputs, then bytes made and bytes freed at each position."""
    buffers = index.estimates.buffers
    count = len(order)
    last = _last_touches(index, order)
    made, freed = [0] * count, [0] * count
    inputs = input_buffers(index)
    size = _first_sizes(index, inputs)
    at_start = sum(size[b] for b in inputs)
    known = set(inputs)
    for position, node in enumerate(order):
        for buffer in buffers[node]:
            if buffer not in known:
                known.add(buffer)
                made[position] += size[buffer]
        for buffer, resized in _resized(index, node):
            grown = resized - size[buffer]
            made[position] += max(0, grown)
            freed[position] += max(0, -grown)
            size[buffer] = resized
        for buffer in last[position]:
            if buffer not in inputs:
                freed[position] += size[buffer]
    return at_start, made, freed


def _resized(index: GraphIndex, node: int) -> list[tuple[int, int]]:
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
        for buffer, new in _resized(index, node):
            if buffer in inputs and buffer not in seen and new >= size[buffer]:
                size[buffer] = 0
            seen.add(buffer)
    return size


def input_buffers(index: GraphIndex) -> frozenset[int]:
    """Buffers of graph inputs and constants."""
    return frozenset(
        b for i, op in enumerate(index.ops) if op in ("placeholder", "get_attr") for b in index.estimates.buffers[i]
    )


def kept_buffers(index: GraphIndex) -> frozenset[int]:
    """Buffers that live to the end: graph outputs, and those of collectives that nobody waits for."""
    buffers = index.estimates.buffers
    kept = {b for node in index.output_slots for b in buffers[node]}
    for node, launch in index.launches.items():
        if launch.asynchronous and not launch.waits:
            kept.update(_both(index, node))
    return frozenset(kept)


def touched_buffers(index: GraphIndex) -> list[tuple[int, ...]]:
    """For each node the buffers that have to live while it runs: what it makes and reads, and for a
    wait what its collective reads and writes.
    """
    buffers = index.estimates.buffers
    found: list[tuple[int, ...]] = []
    for node in range(len(index)):
        touched = [b for near in (node, *index.data_preds[node]) for b in buffers[near]]
        launch = index.wait_of.get(node)
        found.append(tuple(dict.fromkeys(touched if launch is None else (*touched, *_both(index, launch)))))
    return found


def _last_touches(index: GraphIndex, order: Sequence[int]) -> list[list[int]]:
    """Buffers to free after each position, those that live to the end left out."""
    seen = set(kept_buffers(index))
    touched = touched_buffers(index)
    last: list[list[int]] = [[] for _ in order]
    for position in range(len(order) - 1, -1, -1):
        for buffer in touched[order[position]]:
            if buffer not in seen:
                seen.add(buffer)
                last[position].append(buffer)
    return last


def _both(index: GraphIndex, launch: int) -> tuple[int, ...]:
    buffers = index.estimates.buffers
    return tuple(b for near in (launch, *index.data_preds[launch]) for b in buffers[near])
