"""Bytes that every node of a graph reads and writes when each op runs as kernels of its own.

    traffic = Traffic(index)
    traffic.reads(i)               # [(3, 8192), (7, 16384)]: node that is read, bytes
    traffic.writes(i)              # 8192

Rules, where the tensors' bytes alone would be wrong:

1. an expanded view has no more bytes than what it was expanded from;
2. a lookup (``embedding``, ``index``, ``gather``) reads of its table what it writes, not all of it;
3. ``full_like`` and the like look at a shape and read nothing; ``copy_`` and ``_out`` ops do not read
   what they overwrite; an in-place scatter touches what it is given, not the whole target;
4. where a graph runs on a device, tensors in host memory cost the device nothing; what crosses is counted apart.

Limits: a mask that selects nothing counts like one that selects all; sizes without a number count 0.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from commcc.graph.ops.constants import OVERWRITES, UNREAD
from commcc.graph.ops.indexing import IN_PLACE, LOOKUPS
from commcc.graph.ops.kernels import Work
from commcc.graph.ops.libraries import UNDERSCORED

if TYPE_CHECKING:
    from commcc.graph.index import GraphIndex, Tensor


class Traffic:
    """Reads and writes of the nodes of one index; every answer takes time linear in the node's arguments."""

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        #: Results of a kind are the same tensors; few differ.
        self.kinds, self._held = _results(index)
        self.results = tuple([self._held[kind] for kind in self.kinds])
        self.producer = list(range(len(index)))
        self.origin = list(range(len(index)))
        sizes = [sum(tensor.bytes for tensor in held) for held in self._held]
        self.bytes = [sizes[kind] for kind in self.kinds]
        self._inputs: dict[int, tuple[Tensor, ...]] = {}
        hosted = {kind for kind, held in enumerate(self._held) if any(map(on_host, held))}
        self._hosted = frozenset(i for i, kind in enumerate(self.kinds) if kind in hosted) if hosted else frozenset()
        self._look_through_views()

    @cached_property
    def has_device(self) -> bool:
        """Whether the graph runs on a device, so that the CPU is only its host."""
        return any(not on_host(tensor) for held in self._held for tensor in held)

    def _look_through_views(self) -> None:
        """producer: the node that made the data of a node. origin: the same, but one element of a tuple
        result stands for itself. bytes: those that are really there.
        """
        buffers, data_preds, results = self._index.estimates.buffers, self._index.data_preds, self.results
        producer, origin = self.producer, self.origin
        for i, work in enumerate(self._index.estimates.work):
            if work is not Work.FREE or not results[i] or not buffers[i]:
                continue
            first = buffers[i][0]
            for source in data_preds[i]:
                if results[source] and first in buffers[source]:
                    producer[i] = producer[source]
                    element = len(results[source]) > 1 and producer[source] == source
                    origin[i] = i if element else origin[source]
                    self.bytes[i] = min(self.bytes[i], self.bytes[source])
                    break

    @cached_property
    def elements(self) -> list[int]:
        """Elements of every node's result, as many as are really there."""
        itemsizes = [held[0].itemsize if held else 1 for held in self._held]
        return [size // itemsizes[kind] for size, kind in zip(self.bytes, self.kinds, strict=True)]

    def is_constant(self, node: int) -> bool:
        """Whether the node makes values that a compiler would not load from memory."""
        return self._index.ops[node] in UNREAD

    def inputs(self, node: int) -> tuple[Tensor, ...]:
        """Tensors among the arguments, in their order."""
        known = self._inputs.get(node)
        if known is None:
            known = tuple(tensor for p in self._index.data_preds[node] for tensor in self.results[p])
            self._inputs[node] = known
        return known

    def _meets_host(self, node: int) -> bool:
        """Whether any tensor of the node is in host memory."""
        return node in self._hosted or not self._hosted.isdisjoint(self._index.data_preds[node])

    def hosted(self, node: int) -> bool:
        """Whether all the tensors of the node are in host memory, of a graph that runs on a device."""
        if not self._hosted or not self.has_device or not self._meets_host(node):
            return False
        seen = (*self.inputs(node), *self.results[node])
        return bool(seen) and all(map(on_host, seen))

    def on_device(self, node: int) -> bool:
        """Whether the node runs on the device and hands nothing to or from the host."""
        if not self._hosted:
            return node not in self._index.host_syncs
        return node not in self._index.host_syncs and not self.hosted(node) and not self.crossing(node)

    def crossing(self, node: int) -> int:
        """Bytes between host and device; a single number goes along with the launch and counts nothing."""
        if not (node in self._index.host_syncs or (self._hosted and self._meets_host(node))) or not self.has_device:
            return 0
        inputs, outputs = self.inputs(node), self.results[node]
        sent = sum(t.bytes for t in inputs if on_host(t) and t.numel != 1)
        # A host sync without a tensor result brings what it reads to the host (``item``).
        if not outputs and node in self._index.host_syncs:
            return sum(t.bytes for t in inputs if not on_host(t))
        return sent + sum(t.bytes for t in outputs if on_host(t))

    def reads(self, node: int) -> list[tuple[int, int]]:
        """Arguments that are read, with the bytes that are read of each."""
        index, op = self._index, self._index.ops[node]
        if op in UNREAD:
            return []
        read = [(p, self.bytes[p]) for p in index.data_preds[node] if self.results[p]]
        written = index.writes.get(node, ())
        if written:
            read = self._read_in_place(op, written, read)
        elif op in LOOKUPS and read:
            table, size = read[0]
            read[0] = (table, min(size, self.bytes[node]))
        return read

    def _read_in_place(self, op: str, written: tuple[int, ...], read: list[tuple[int, int]]) -> list[tuple[int, int]]:
        if op in IN_PLACE:
            given = self._given(written, read)
            return [(p, min(size, given) if p in written else size) for p, size in read]
        # In these libraries only what ends in an underscore also reads the buffer that it writes.
        if op in OVERWRITES or (op.partition(".")[0] in UNDERSCORED and not op.endswith("_")):
            return [(p, size) for p, size in read if p not in written]
        return read

    def _given(self, written: tuple[int, ...], read: list[tuple[int, int]]) -> int:
        """Bytes of what a scatter puts into its target: its last other argument."""
        return next((size for p, size in reversed(read) if p not in written), 0)

    def writes(self, node: int) -> int:
        """Bytes of the results and of the buffers written in place, each buffer once."""
        index, buffers = self._index, self._index.estimates.buffers
        written = index.writes.get(node, ())
        if not written:
            return self.bytes[node]
        if index.ops[node] in IN_PLACE:
            read = [(p, self.bytes[p]) for p in index.data_preds[node] if self.results[p]]
            return min(self._given(written, read), sum(self.bytes[w] for w in written))
        own = set(buffers[node]) if self.results[node] else set()
        return self.bytes[node] + sum(self.bytes[w] for w in written if own.isdisjoint(buffers[w]))


def on_host(tensor: Tensor) -> bool:
    return tensor.device.startswith("cpu")


def _results(index: GraphIndex) -> tuple[list[int], list[tuple[Tensor, ...]]]:
    """For every node a number, and by number the tensors that it gives."""
    kinds: list[int] = []
    held: list[tuple[Tensor, ...]] = []
    known: dict[int | tuple[int, ...], int] = {}
    parts = index.estimates.parts
    for node, one in enumerate(index.tensors):
        # Nodes with equal facts share them, so that they are told apart without a look inside.
        several = () if one is not None else tuple([part for part in parts.get(node, ()) if part is not None])
        key = tuple(map(id, several)) if one is None else id(one)
        kind = known.setdefault(key, len(held))
        if kind == len(held):
            held.append(several if one is None else (one,))
        kinds.append(kind)
    return kinds, held
