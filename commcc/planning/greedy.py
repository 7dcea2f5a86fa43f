"""The greedy bucketing walk: eligible launches of one key in graph order, closed at the caps.

Numbered cases that a candidate can meet, in the order in which they are tested:

1. the open bucket's bytes and the candidate's would pass the byte cap: close for bytes;
2. the candidate lies further from the bucket's first member than the span cap: close for span;
3. the candidate depends on a member, directly or through other buckets: close for dependence;
4. delaying the reduce-scatter to the candidate would make a run of compute nodes longer than
   ``max_consecutive``: close for that.

A bucket of one member is no bucket: its launch stays as it is. A launch that is a bucket already
closes the open bucket of its kind and group, so that running the pass twice changes nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from commcc.base.terms import Kind
from commcc.planning.bucket_model import Key, key_of, size_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.graph.collectives import Collective, Identification
    from commcc.graph.index import GraphIndex

Vector = tuple[int, ...]


@dataclass(frozen=True)
class Limits:
    """Caps of the walk; None switches one off.

    bytes: cap by bucket number, the last one repeats. by_key: another cap for the buckets of some keys.
    """

    bytes: tuple[float, ...]
    span: int | None
    max_consecutive: int | None
    by_key: Mapping[Key, float] = field(default_factory=dict)

    def cap(self, key: Key, bucket: int) -> float:
        """Byte cap of the ``bucket``-th bucket of a key, counted from 0."""
        return self.by_key.get(key, self.bytes[min(bucket, len(self.bytes) - 1)])


@dataclass
class OpenBucket:
    """A bucket while the walk fills it."""

    key: int
    ordinal: int
    members: list[Collective]
    bytes: int
    closed_by: str = "end"

    @property
    def first(self) -> int:
        return self.members[0].launch

    @property
    def last(self) -> int:
        return self.members[-1].launch

    @property
    def span(self) -> int:
        return self.last - self.first


@dataclass
class Walk:
    """Result of the walk: all buckets in the order they were opened, singles included."""

    buckets: list[OpenBucket] = field(default_factory=list)
    closed: Counter[str] = field(default_factory=Counter)


def walk(index: GraphIndex, ident: Identification, taken: list[Collective], limits: Limits, multi_dtype: bool) -> Walk:
    """Form buckets from ``taken``; deterministic, linear in nodes and edges."""
    existing = frozenset(c.launch for c in ident.collectives if c.stands_for > 1)
    return _Walker(index, {c.launch: c for c in taken}, limits, multi_dtype, existing).run()


class _Walker:
    def __init__(
        self,
        index: GraphIndex,
        candidates: dict[int, Collective],
        limits: Limits,
        multi_dtype: bool,
        existing: frozenset[int],
    ) -> None:
        self.index = index
        self.existing = existing
        self.limits = limits
        keys = list(dict.fromkeys(key_of(c, multi_dtype) for c in candidates.values()))
        self.names = keys
        self.keys = {key: number for number, key in enumerate(keys)}
        self.candidates = candidates
        self.multi_dtype = multi_dtype
        self.quotient = Quotient(len(keys))
        self.open: dict[int, OpenBucket] = {}
        self.result = Walk()
        self.compute_before = [0, *accumulate(map(int, index.compute))]
        self.last_scatter = -1

    def run(self) -> Walk:
        for node in range(len(self.index)):
            label = self.quotient.add_node(self.index.preds(node))
            candidate = self.candidates.get(node)
            if candidate is not None:
                self._place(candidate, label)
            else:
                self._pass_by(node)
        return self.result

    def _place(self, candidate: Collective, label: Vector) -> None:
        key = self.keys[key_of(candidate, self.multi_dtype)]
        bucket = self.open.get(key)
        reason = self._reason_to_close(bucket, candidate, label) if bucket is not None else None
        if bucket is not None and reason is not None:
            bucket.closed_by = reason
            self.result.closed[reason] += 1
            self._launched(bucket)
        if bucket is None or reason is not None:
            ordinal = self.quotient.open_bucket(key) - 1
            bucket = OpenBucket(key, ordinal, [], 0)
            self.open[key] = bucket
            self.result.buckets.append(bucket)
        bucket.members.append(candidate)
        bucket.bytes += size_of(candidate)
        self.quotient.join(key, label)

    def _reason_to_close(self, bucket: OpenBucket, candidate: Collective, label: Vector) -> str | None:
        if bucket.bytes + size_of(candidate) > self.limits.cap(self.names[bucket.key], bucket.ordinal):
            return "bytes"
        if self.limits.span is not None and candidate.launch - bucket.first > self.limits.span:
            return "span"
        if self.quotient.would_wait_for_itself(label, bucket.key):
            return "dependence"
        if self._runs_too_long(candidate):
            return "max_consecutive"
        return None

    def _runs_too_long(self, candidate: Collective) -> bool:
        limit = self.limits.max_consecutive
        if limit is None or candidate.kind is not Kind.REDUCE_SCATTER:
            return False
        return self.compute_before[candidate.launch] - self.compute_before[self.last_scatter + 1] > limit

    def _launched(self, bucket: OpenBucket) -> None:
        if bucket.members[0].kind is Kind.REDUCE_SCATTER:
            self.last_scatter = max(self.last_scatter, bucket.last)

    def _pass_by(self, node: int) -> None:
        """A node that is no candidate: note its reduce-scatter, and close what an old bucket ends."""
        launch = self.index.launches.get(node)
        if launch is None:
            return
        if launch.kind is Kind.REDUCE_SCATTER:
            self.last_scatter = node
        if node in self.existing:
            same = [k for key, k in self.keys.items() if key[:2] == (launch.kind.value, launch.group)]
            for key in same:
                self.open.pop(key, None)


class Quotient:
    """Dependences between nodes and buckets while one walk in graph order forms the buckets; linear in the graph.

    Merging launches makes one node of several, so a dependence of any member becomes a dependence of
    all. Two buckets can then wait for each other although no member is an ancestor of another in its
    own bucket: with a1 -> b1 and b2 -> a2, merging {a1, a2} and {b1, b2} makes a cycle.

    Every node carries, for each key, the number of the latest bucket of that key it descends from.
    Buckets of one key keep their order (they share a queue), so descending from bucket 4 stands for
    descending from 1 to 3 as well, and one number for each key is enough: no N x N matrix. Buckets
    carry the same vector for what they depend on, and following it to a fixpoint answers whether a
    new member would wait for its own bucket.

    :class:`commcc.planning.merge_order.MergeOrder` answers the same for buckets formed in any order, and for the
    data alone; here the order of a queue counts as well, so that a merge may be refused that it would allow. It
    takes 3 to 1000 times as long for a walk, since a question there looks at all that a bucket spans.
    """

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
