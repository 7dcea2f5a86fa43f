"""What one merged bucket consists of, in arrays that do not depend on what stands around it.

    piece = Pieces(problem, model).of(bucket)

A piece has *units*, which keep together when the graph is put in order: its launch with what makes the launch's input,
its wait, and a result for each member; a coalesced one has a launch and waits. In graphs that are folded, results that
are views are none of their own, and all waits are one. Its nodes are counted from 0, in whatever order; those of the
graph before keep their numbers. :mod:`commcc.schedule.drawing` puts pieces in their place.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import accumulate, chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commcc.planning.bucket_model import BucketModel, Kernel, Member, flat, strided

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from commcc.plan import Bucket
    from commcc.schedule.arrays import Ints
    from commcc.schedule.problem import Problem
    from commcc.timing.cost import CostModel
    from commcc.timing.cost.types import Operation, Transfer

#: What comes first among units that want the same position, as in :mod:`commcc.apply.order`.
LAUNCHES, WAITS, RESULTS, STAYS = range(4)
#: Kinds of a node that is needed: of the piece, of the graph before.
INNER, OUTER = range(2)
#: Kinds of buffers: of the graph before, by number; new, by place in ``sizes``; the one that the launch writes.
OLD, NEW, RECEIVED = range(3)
_LAUNCH, _WAIT = range(2)


#: Tables of a piece, rows of numbers; units are counted from 0.
#: units: nodes in it; where it wants to stand, first by position and then by a second number, to which the third times
#: the number of the bucket is added. members: a node of the graph before, the unit that stands for it for what needs
#: it, the unit that needs what it needs, and which of the former's nodes stands for it. hoist: nodes that move with
#: the launch. nodes: unit, place in it, ns. edges: node, kind and number of what it needs. buffers: node, whether it
#: makes it, kind and number of what it touches. views: buffers that come to be the one that the launch writes. sizes:
#: of new buffers. waits: by node. Rows of edges and buffers are in order of their nodes.
TABLES_OF_PIECES = ("units", "members", "hoist", "nodes", "edges", "buffers", "views", "sizes", "waits")
#: Where each table begins, and where the last one ends. launch: by node. transfer, flight: ns and bytes of the launch.
#: copied: whether what puts it together takes kernels. received: bytes that the launch writes. first: of the launches
#: that are merged. count: of nodes.
HEAD = (*TABLES_OF_PIECES, "end", "launch", "transfer", "flight", "copied", "received", "first", "count")


class Piece(NamedTuple):
    """words: all tables, one after another. head: see :data:`HEAD`. transfer: ns of the launch."""

    words: Ints
    head: tuple[int, ...]
    transfer: int


class Numbers(NamedTuple):
    """Units of the graph before, where it is folded. unit: of each node. first: the next one from each position on."""

    unit: Sequence[int]
    first: Sequence[int]


class Pieces:
    """Pieces of buckets of one graph, each made once, and their prices. numbers: None where it is not folded. tight:
    whether what takes no time goes along with its neighbours, as in :mod:`commcc.schedule.folding`.
    """

    def __init__(self, problem: Problem, model: CostModel, numbers: Numbers | None = None) -> None:
        self.problem, self.model = problem, model
        own = range(len(problem.index) + 1)
        self.numbers = numbers or Numbers(own, own)
        self.free_ns = round(1000 * model.settings.free_us)
        self.tight = numbers is not None and not self.free_ns
        self._members: dict[int, Member] = {}
        self._pieces: dict[tuple[tuple[int, ...], int, int, bool, bool], Piece] = {}
        self._prices: dict[Operation, int] = {}
        self._transfers: dict[int, Transfer] = {}
        self._copies: dict[tuple[int, tuple[str, ...]], list[int]] = {}

    def of(self, bucket: Bucket) -> Piece:
        """What a bucket consists of. All else that a bucket says follows from its members and its place."""
        key = bucket.members, bucket.launch_at, bucket.wait_at, bucket.coalesced, bucket.shared_cast
        if key not in self._pieces:
            self._pieces[key] = self._piece(bucket)
        return self._pieces[key]

    def _piece(self, bucket: Bucket) -> Piece:
        members = tuple(map(self._member, bucket.members))
        model = BucketModel(members, bucket.shared_cast, bucket.as_bytes, bucket.copies, bucket.coalesced)
        sent, got = sum(m.sends.bytes for m in members), sum(m.result.bytes for m in members)
        ns = self.transfer_ns(bucket.members, coalesced=bucket.coalesced)
        return _Making(self, bucket, model).piece(ns, max(sent, got), got)

    def _member(self, launch: int) -> Member:
        if launch not in self._members:
            self._members[launch] = Member.of(self.problem.index, launch)
        return self._members[launch]

    def transfer_ns(self, launches: tuple[int, ...], *, coalesced: bool) -> int:
        """What the merged launch of these takes, in ns; without its piece, as most bucketings are not drawn."""
        if coalesced:
            return self.model.group_call(list(map(self._transfer, launches))).ns
        members = tuple(map(self._member, launches))
        sent, got = sum(m.sends.bytes for m in members), sum(m.result.bytes for m in members)
        return self.model.transfer(replace(self._transfer(launches[0]), input_bytes=sent, output_bytes=got)).ns

    def _transfer(self, launch: int) -> Transfer:
        if launch not in self._transfers:
            self._transfers[launch] = self.model.transfer_of(self.problem.index, launch)[0]
        return self._transfers[launch]

    def copies_ns(self, member: Member, copies: tuple[str, ...]) -> list[int]:
        """What each copy of a member's result takes."""
        key = member.launch, copies
        if key not in self._copies:
            self._copies[key] = [self.price(Kernel.copy(op, member.result)) for op in copies]
        return self._copies[key]

    def price(self, kernel: Kernel) -> int:
        """What a kernel takes that copies all of a bucket or one member, in ns."""
        asked = kernel.operation
        if asked not in self._prices:
            self._prices[asked] = self.model.operation(asked).ns
        return self._prices[asked]


class _Making:
    """One piece while it is made; tables are rows of numbers, one after another. launch, waits: the numbers of these
    nodes.
    """

    def __init__(self, pieces: Pieces, bucket: Bucket, model: BucketModel) -> None:
        self.pieces, self.index, self.bucket, self.model = pieces, pieces.problem.index, bucket, model
        self.number = pieces.numbers.unit
        self.nodes: list[int] = []
        self.edges: list[int] = []
        self.buffers: list[int] = []
        self.sizes: list[int] = []
        self.launch = 0
        self.waits: list[int] = []
        #: How many nodes each unit has: the launch, the wait, and results in the order of their members.
        self.units = [0, 0]
        #: By member: the unit, and which of its nodes, that stands for its wait.
        self.stands: list[tuple[int, int]] = []

    def piece(self, transfer: int, flight: int, received: int) -> Piece:
        """The piece; received: bytes that the launch writes."""
        copied, hoisted = not self.bucket.coalesced, map(self.number.__getitem__, self.bucket.hoist)
        (self._copied if copied else self._call)()
        viewed = [m.wait for at, m in enumerate(self.model.members) if copied and not self.model.result_copies(at)]
        views = [buffer for wait in viewed for buffer in self.index.estimates.buffers[wait]]
        tables = (
            *(self._places(), self._merged(), list(dict.fromkeys(hoisted)), self.nodes, self.edges, self.buffers),
            *(views, self.sizes, self.waits),
        )
        begins = accumulate(map(len, tables), initial=0)
        first, count = self.number[self.bucket.members[0]], len(self.nodes) // 3
        rest = self.launch, transfer, flight, copied, received, first, count
        return Piece(np.array(list(chain.from_iterable(tables)), np.int64), (*begins, *rest), transfer)

    def _places(self) -> list[int]:
        """The units."""
        bucket, first, sizes = self.bucket, self.pieces.numbers.first, self.units
        rows = [sizes[_LAUNCH], (first[bucket.launch_at] + 1) * 4 + LAUNCHES, 1, 2]
        rows += sizes[_WAIT], (first[bucket.wait_at] + 1) * 4 + WAITS, 0, 1
        results = [place for place, (unit, _) in enumerate(self.stands) if unit > _WAIT]
        for place, size in zip(results, sizes[_WAIT + 1 :], strict=True):
            rows += size, (first[self.model.members[place].wait] + 1) * 4 + RESULTS, place, 0
        return rows

    def _merged(self) -> list[int]:
        """What stands for the nodes that are merged."""
        number, shared, rows = self.number, self.bucket.shared_cast, list[int]()
        last = self.units[_LAUNCH] - 1
        for member, (unit, within) in zip(self.model.members, self.stands, strict=True):
            rows += number[member.launch], _LAUNCH, _LAUNCH, last
            if shared:
                rows += number[member.input], _LAUNCH, _LAUNCH, last
            rows += number[member.wait], unit, _WAIT, within
        return rows

    def _node(
        self,
        unit: int,
        needs: Sequence[tuple[int, int]],
        writes: Sequence[tuple[int, int]],
        reads: Iterable[tuple[int, int]] = (),
        ns: int = 0,
    ) -> int:
        """The next node of a unit: what it needs, the buffers of its result, and of what it reads."""
        node = len(self.nodes) // 3
        self.nodes += unit, self.units[unit], ns
        self.units[unit] += 1
        for kind, need in needs:
            self.edges += node, kind, need
        for kind, buffer in writes:
            self.buffers += node, 1, kind, buffer
        for kind, buffer in reads:
            self.buffers += node, 0, kind, buffer
        return node

    def _buffer(self, size: int) -> tuple[int, int]:
        self.sizes.append(size)
        return NEW, len(self.sizes) - 1

    def _old(self, node: int) -> list[tuple[int, int]]:
        return [(OLD, buffer) for buffer in self.index.estimates.buffers[node]]

    def _after(self, nodes: Iterable[int]) -> list[tuple[int, int]]:
        """What order edges of merged nodes lead to, outside the bucket."""
        preds = {p for node in nodes for p in self.index.order_preds[node]}
        return [(OUTER, self.number[p]) for p in preds - self.own] if preds else []

    @cached_property
    def own(self) -> set[int]:
        """Nodes that the bucket replaces."""
        casts = {m.input for m in self.model.members} if self.bucket.shared_cast else set()
        return {*self.bucket.members, *(m.wait for m in self.model.members)} | casts

    def _copied(self) -> None:
        """Members side by side: what is put together, one launch, one wait, and each member's slice."""
        model, price, free_ns = self.model, self.pieces.price, self.pieces.free_ns
        parts: list[tuple[int, int]] = []
        read: list[tuple[int, int]] = []
        seen: set[int] = set()
        for source, part in zip(model.nodes, model.parts, strict=True):
            needed, buffers = (OUTER, self.number[source]), self._old(source)
            if strided(part):
                row = self._buffer(part.bytes)
                ns = price(Kernel.copy("aten.reshape", flat([part])))
                needed = INNER, self._node(_LAUNCH, [needed], [row], buffers, ns)
                buffers = [row]
            elif source in seen and len(part.shape) > 1 and not self.pieces.tight:
                # Read once more, through a view of its own.
                needed = INNER, self._node(_LAUNCH, [needed], buffers, (), free_ns)
            parts.append(needed)
            read += buffers
            seen.add(source)
        parts += self._after(self.bucket.members)
        for kernel in model.kernels(fused=self.pieces.model.settings.fused):
            sent = self._buffer(kernel.to.bytes)
            node = self._node(_LAUNCH, parts, [sent], read, price(kernel))
            parts, read = [(INNER, node)], [sent]
        received = RECEIVED, 0
        self.launch = self._node(_LAUNCH, parts, [received], read)
        after = self._after(member.wait for member in model.members)
        wait = self._node(_WAIT, [(INNER, self.launch), *after], [received], read)
        self.waits = [wait]
        for place, member in enumerate(model.members):
            self._result(place, member, wait)

    def _result(self, place: int, member: Member, wait: int) -> None:
        """A member's slice of what the launch writes, and its copies."""
        copies, received = self.model.result_copies(place), (RECEIVED, 0)
        if self.pieces.tight and not copies:
            self.stands.append((_WAIT, 0))
            return
        unit, last, before = len(self.units), wait, [received]
        self.units.append(0)
        if not self.pieces.tight:
            last = self._node(unit, [(INNER, wait)], [received], (), self.pieces.free_ns)
        for step, ns in enumerate(self.pieces.copies_ns(member, copies), 1):
            own = self._old(member.wait) if step == len(copies) else [self._buffer(member.result.bytes)]
            last = self._node(unit, [(INNER, last)], own, before, ns)
            before = own
        if not copies:
            self._node(unit, [(INNER, last)], [received], (), self.pieces.free_ns)
        self.stands.append((unit, self.units[unit] - 1))

    def _call(self) -> None:
        """One call on all members as they are, and a wait for each; where what takes no time goes along, one for all:
        they arrive together, and what is read and written is there until the last wait, so that the row of each would
        be as long as there are members.
        """
        members, free_ns = self.model.members, self.pieces.free_ns
        results = [buffer for member in members for buffer in self._old(member.launch)]
        read = [buffer for member in members for buffer in self._old(member.input)]
        sent = [(OUTER, self.number[member.input]) for member in members]
        self.launch = self._node(_LAUNCH, [*sent, *self._after(self.bucket.members)], results, read)
        if self.pieces.tight:
            after = self._after(member.wait for member in members)
            self.waits = [self._node(_WAIT, [(INNER, self.launch), *after], results, read)]
            self.stands = [(_WAIT, 0)] * len(members)
            return
        for member in members:
            own = self._old(member.launch)
            part = self._node(_WAIT, [(INNER, self.launch)], own, results, free_ns)
            needs = [(INNER, part), (INNER, self.launch), *self._after([member.wait])]
            self.waits.append(self._node(_WAIT, needs, own, [*results, *read]))
            self.stands.append((_WAIT, self.units[_WAIT] - 1))
