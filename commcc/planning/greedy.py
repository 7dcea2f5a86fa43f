"""The greedy bucketing walk: eligible launches of one key in graph order, closed at the caps.

Numbered cases that a candidate can meet, in the order in which they are tested:

1. the open bucket's bytes and the candidate's would pass the byte cap: close for bytes;
2. the candidate lies further from the bucket's first member than the span cap: close for span;
3. the candidate depends on a member, directly or through other buckets: close for dependence;
4. delaying the reduce-scatter to the candidate would make a run of compute nodes longer than
   ``max_consecutive``: close for that.

A bucket of one member is no bucket: its launch stays as it is. A launch that is a bucket already
closes the open bucket of its kind and group, and is waited for as one, so that running the pass
twice under a byte cap changes nothing. The other two caps count positions, which merging changes: a
second run may find nearer what the first left apart.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from commcc.base.terms import Kind
from commcc.planning.bucket_model import Key, key_of, size_of
from commcc.planning.merge_order import cycles

if TYPE_CHECKING:
    from commcc.graph.collectives import Collective, Identification
    from commcc.graph.index import GraphIndex
    from commcc.planning.caps import ByteCaps

Vector = tuple[int, ...]


@dataclass(frozen=True)
class Limits:
    """Caps of the walk; None switches one off."""

    caps: ByteCaps
    span: int | None
    max_consecutive: int | None


@dataclass
class OpenBucket:
    """A bucket while the walk fills it. ordinal: of its key, counted from 0."""

    key: Key
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
    existing = {c.launch: key_of(c, multi_dtype) for c in ident.collectives if c.stands_for > 1}
    return _untangled(index, _Walker(index, taken, existing, limits, multi_dtype).run())


def _untangled(index: GraphIndex, walked: Walk) -> Walk:
    """The walk, with buckets cut in two whose waits depend on each other, though their launches do not.

    A barrier stands between two waits, or a control edge leads from one to the other: of a wait without such edges
    there is nothing that the launches do not say. A cut is where the waits of the largest bucket on a cycle are
    farthest apart.
    """
    held = any(index.order_preds[c.waits[0]] for bucket in walked.buckets for c in bucket.members)
    while held and (cyclic := cycles(index, [[c.launch for c in b.members] for b in walked.buckets], ())):
        for bucket in {max(cycle.groups, key=lambda at: len(walked.buckets[at].members)) for cycle in cyclic}:
            whole = walked.buckets[bucket]
            waits = sorted(c.waits[0] for c in whole.members)
            last = max(pairwise(waits), key=lambda pair: pair[1] - pair[0])[0]
            late = [c for c in whole.members if c.waits[0] > last]
            whole.members = [c for c in whole.members if c.waits[0] <= last]
            whole.bytes, whole.closed_by = sum(map(size_of, whole.members)), "dependence"
            walked.buckets.append(OpenBucket(whole.key, whole.ordinal, late, sum(map(size_of, late)), "dependence"))
            walked.closed["dependence"] += 1
        walked.buckets.sort(key=lambda b: b.first)
    return walked


class _Walker:
    """One walk. last_scatter: the reduce-scatter launched last, as far as is known."""

    def __init__(
        self,
        index: GraphIndex,
        taken: list[Collective],
        existing: dict[int, Key],
        limits: Limits,
        multi_dtype: bool,
    ) -> None:
        self.index, self.existing, self.limits = index, existing, limits
        self.keys = {c.launch: key_of(c, multi_dtype) for c in taken}
        self.candidates = {c.launch: c for c in taken}
        # Queues of buckets that exist already count even where nothing more may join them.
        keys = dict.fromkeys([*self.keys.values(), *existing.values()])
        self.numbers = {key: number for number, key in enumerate(keys)}
        self.quotient = Quotient(len(self.numbers))
        self.open: dict[Key, OpenBucket] = {}
        self.result = Walk()
        self.compute_before = [] if limits.max_consecutive is None else [0, *accumulate(map(int, index.compute))]
        self.last_scatter = -1

    def run(self) -> Walk:
        index, candidates, quotient = self.index, self.candidates, self.quotient
        for node in sorted(index.launches):
            label = quotient.add_up_to(index, node)
            if node in candidates:
                self._place(candidates[node], label)
                continue
            launch = index.launches[node]
            if launch.kind is Kind.REDUCE_SCATTER:
                self.last_scatter = node
            if node in self.existing:
                self._pass_bucket(self.existing[node], label)
        return self.result

    def _pass_bucket(self, existing: Key, label: Vector) -> None:
        """A launch that is a bucket already: launches on both sides of it share no bucket, and its queue counts."""
        for key in [key for key in self.open if key[:2] == existing[:2]]:
            del self.open[key]
        number = self.numbers[existing]
        self.quotient.open_bucket(number)
        self.quotient.join(number, label)

    def _place(self, candidate: Collective, label: Vector) -> None:
        """Put the candidate in the open bucket of its key, or in a new one."""
        key = self.keys[candidate.launch]
        number = self.numbers[key]
        bucket = self.open.get(key)
        size = size_of(candidate)
        reason = None if bucket is None else self._reason_to_close(bucket, candidate, size, label)
        if bucket is not None and reason is not None:
            bucket.closed_by = reason
            self.result.closed[reason] += 1
            if candidate.kind is Kind.REDUCE_SCATTER:
                self.last_scatter = max(self.last_scatter, bucket.last)
        if bucket is None or reason is not None:
            bucket = OpenBucket(key, self.quotient.open_bucket(number) - 1, [], 0)
            self.open[key] = bucket
            self.result.buckets.append(bucket)
        bucket.members.append(candidate)
        bucket.bytes += size
        self.quotient.join(number, label)

    def _reason_to_close(self, bucket: OpenBucket, candidate: Collective, size: int, label: Vector) -> str | None:
        if bucket.bytes + size > self.limits.caps.of(bucket.key, bucket.ordinal):
            return "bytes"
        if self.limits.span is not None and candidate.launch - bucket.first > self.limits.span:
            return "span"
        if self.quotient.would_wait_for_itself(label, self.numbers[bucket.key]):
            return "dependence"
        limit = self.limits.max_consecutive
        if limit is not None and candidate.kind is Kind.REDUCE_SCATTER:
            run = self.compute_before[candidate.launch] - self.compute_before[self.last_scatter + 1]
            return "max_consecutive" if run > limit else None
        return None


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

    def add_up_to(self, index: GraphIndex, node: int) -> Vector:
        """Go on in graph order, up to this node; returns the buckets it descends from.

        Nodes that descend from the same launches carry one label: see :attr:`GraphIndex.meetings`.
        """
        none, labels, (own, before) = self._none, self._labels, index.meetings
        # Most of the time of a walk is spent here.
        for at in range(len(labels), own[node] + 1):
            label = none
            for pred in before[at]:
                other = labels[pred]
                if other is not label and other != label:
                    label = other if label is none else tuple(map(max, label, other))
            labels.append(label)
        return labels[own[node]]

    def would_wait_for_itself(self, label: Vector, key: int) -> bool:
        """Whether a launch descending from ``label`` depends on the newest bucket of ``key``."""
        newest = len(self._waits_for[key]) - 1
        if newest == 0:
            return False
        return label[key] >= newest or self._closure(label)[key] >= newest

    def open_bucket(self, key: int) -> int:
        """Start a bucket of ``key``; returns its number, counted from 1."""
        waits = self._waits_for[key]
        waits.append(waits[-1])
        return len(waits) - 1

    def join(self, key: int, label: Vector) -> None:
        """Make the launch added last a member of the newest bucket of ``key``."""
        waits = self._waits_for[key]
        if label is not self._none:
            waits[-1] = tuple(map(max, waits[-1], label))
        member = list(self._labels[-1])
        member[key] = len(waits) - 1
        self._labels[-1] = tuple(member)

    def _closure(self, label: Vector) -> Vector:
        """Everything that ``label`` stands for once buckets are followed to what they wait for."""
        reached = label
        while True:
            grown = reached
            for waits, number in zip(self._waits_for, reached, strict=True):
                if waits[number] is not self._none:
                    grown = tuple(map(max, grown, waits[number]))
            if grown == reached:
                return reached
            reached = grown
