"""Keeps merged graphs free of cycles, in time linear in the graph.

Merging launches makes one node of several, so a dependence of any member becomes a dependence of
all. Two buckets can then wait for each other although no member is an ancestor of another in its
own bucket: with a1 -> b1 and b2 -> a2, merging {a1, a2} and {b1, b2} makes a cycle.

Every node carries, for each key, the number of the latest bucket of that key it descends from.
Buckets of one key keep their order (they share a queue), so descending from bucket 4 stands for
descending from 1 to 3 as well, and one number for each key is enough: no N x N matrix. Buckets
carry the same vector for what they depend on, and following it to a fixpoint answers whether a
new member would wait for its own bucket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Vector = tuple[int, ...]


class Quotient:
    """Dependences between nodes and buckets while one walk in graph order forms the buckets."""

    def __init__(self, keys: int) -> None:
        self._none: Vector = (0,) * keys
        self._labels: list[Vector] = []
        # For key k, entry g: everything that buckets 1..g of the key wait for.
        self._waits_for: list[list[Vector]] = [[self._none] for _ in range(keys)]

    def add_node(self, preds: Sequence[int]) -> Vector:
        """Append the next node in graph order; returns the buckets it descends from."""
        label = self._none
        for pred in preds:
            other = self._labels[pred]
            if other is not label and other != label:
                label = tuple(map(max, label, other)) if label is not self._none else other
        self._labels.append(label)
        return label

    def would_wait_for_itself(self, label: Vector, key: int) -> bool:
        """Whether a launch descending from ``label`` depends on the newest bucket of ``key``."""
        newest = len(self._waits_for[key]) - 1
        if newest == 0:
            return False
        return self._closure(label)[key] >= newest

    def open_bucket(self, key: int) -> int:
        """Start a bucket of ``key``; returns its number, counted from 1."""
        waits = self._waits_for[key]
        waits.append(waits[-1])
        return len(waits) - 1

    def join(self, key: int, label: Vector) -> None:
        """Make the node added last a member of the newest bucket of ``key``."""
        waits = self._waits_for[key]
        waits[-1] = tuple(map(max, waits[-1], label))
        member = list(self._labels[-1])
        member[key] = len(waits) - 1
        self._labels[-1] = tuple(member)

    def _closure(self, label: Vector) -> Vector:
        """Everything that ``label`` stands for once buckets are followed to what they wait for."""
        found = label
        while True:
            grown = found
            for key, number in enumerate(found):
                if number:
                    grown = tuple(map(max, grown, self._waits_for[key][number]))
            if grown == found:
                return found
            found = grown
