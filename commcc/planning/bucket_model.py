"""What a merged bucket is, before any of it is made: its form, its bytes, its copies, and what it holds in memory.

    model = BucketModel.of([Member.of(index, c.launch) for c in collectives])
    model.shared_cast, model.as_bytes, model.copies     # the form; commcc.plan.Bucket holds it
    model.kernels(fused=True), model.kernels_of(0)      # copies in and out, to be priced
    model.held(last_use)                                # stretches of the graph before, with bytes

All-gathers of W ranks, member i has n_i elements; :class:`Wire` has the numbers::

    all = cat(flat(x_i));  [all = cast(all)];  wait(launch(all)).view(W, sum n).split(n, 1)[i] -> reshape

reduce-scatter: ``cat(x_i.reshape(W, n_i / W), 1)``, flattened, launched, waited for, split, reshaped.
all-reduce: flat, cat, launch, wait, split, reshape.

A coalesced bucket has no copies: ``y_1, ..., y_n = launch_coalesced([x_1, ..., x_n])``, and a wait for each ``y_i``.

Planners weigh it, :mod:`commcc.schedule.merged` simulates it, :mod:`commcc.apply.merge` makes it: plain data, no torch.

Limits: strides are not known here. What is not contiguous counts as copied where a view might do, and memory is an
estimate in positions of the graph before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from commcc.base.terms import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from commcc.graph.collectives import Collective
    from commcc.graph.index import GraphIndex
    from commcc.graph.index.graph import Tensor
    from commcc.plan import Bucket
    from commcc.timing.cost.types import Operation

#: What members of a bucket have in common: kind, group, reduction, dtype.
Key = tuple[str, str, str, str]
#: Forms of buckets as options name them: members side by side in one tensor, one call that launches each by itself,
#: whichever takes less.
COPY, COALESCED, AUTO = FORMS = ("copy", "coalesced", "auto")
#: Side by side, where the members' own casts put them: less traffic than one cast behind where a compiler fuses, and
#: more memory, as the uncast members and the cast ones are there at once. Strategy ``auto`` weighs it.
CASTS_FIRST = "casts_first"
#: First position, last position, bytes; one that ends before it begins holds nothing.
Stretch = tuple[int, int, int]


def key_of(collective: Collective, multi_dtype: bool) -> Key:
    """What members of one bucket have in common."""
    mixed = multi_dtype and collective.kind is Kind.ALL_GATHER
    dtype = "any" if mixed else collective.dtype
    return collective.kind._value_, collective.group, collective.reduction or "", dtype


def size_of(collective: Collective) -> int:
    """Bytes that count against the cap: the larger of input and output."""
    return max(collective.input_bytes, collective.output_bytes)


@dataclass(frozen=True)
class Wire:
    """How members lie side by side in merged tensors. ranks: of the group. sent: elements of each member's input."""

    kind: Kind
    ranks: int
    sent: tuple[int, ...]

    @property
    def by_rank(self) -> bool:
        """Whether inputs are cut in one row for each rank, and put together row by row."""
        return self.kind is Kind.REDUCE_SCATTER

    @property
    def received(self) -> int:
        """Elements of the merged launch's result."""
        whole = sum(self.sent)
        if self.kind is Kind.ALL_GATHER:
            return whole * self.ranks
        return whole // self.ranks if self.by_rank else whole

    @property
    def slices(self) -> list[int]:
        """Elements of each member's slice of the result; in each rank's row of it, of an all-gather."""
        return [count // self.ranks for count in self.sent] if self.by_rank else list(self.sent)


class Form(NamedTuple):
    """How members are launched together. coalesced: in one call of each as it is. casts_first: not with one cast in
    place of the members' own.
    """

    coalesced: bool = False
    casts_first: bool = False


SIDE_BY_SIDE = Form()


class Kernel(NamedTuple):
    """A copy: its op, the tensor that it gives, the bytes that it reads and writes; none where all is there already."""

    op: str
    to: Tensor
    read: int
    written: int

    @classmethod
    def copy(cls, op: str, tensor: Tensor) -> Kernel:
        """One that reads as much as it writes."""
        return cls(op, tensor, tensor.bytes, tensor.bytes)

    @property
    def operation(self) -> Operation:
        """What a cost model is asked about."""
        from commcc.timing.cost.types import Operation

        kernels = int(self.read > 0 or self.written > 0)
        return Operation(self.op, (self.to,), (self.to,), None, False, self.read, self.written, kernels)


class Member(NamedTuple):
    """One collective of a bucket; a tuple, since planners make one for every collective of a graph.

    sends: what its launch takes, the node ``input``; source: the same before ``cast``, which is made for it alone.
    result: of its wait. scattered: its slice of the merged result lies in pieces, and is copied together. returned:
    its slice would share its storage with another output, and is copied. direct, source_direct: whether a compiler
    that fuses writes ``sends``, or ``source``, straight to its place beside others. rewritten: the first node behind
    the cast that writes where ``source`` is, -1 for none. disturbed: something writes where ``sends`` is before the
    wait, as may be where nobody needs the result.
    """

    launch: int
    input: int
    source_node: int
    wait: int
    kind: Kind
    source: Tensor
    sends: Tensor
    cast: str | None
    result: Tensor
    scattered: bool
    returned: bool
    direct: bool
    source_direct: bool
    rewritten: int
    disturbed: bool

    @classmethod
    def of(cls, index: GraphIndex, launch: int) -> Member:
        """The collective at ``launch``, which has one input, one wait and sizes that are known."""
        from commcc.graph.index.single_use import made_for

        known: dict[int, Member] = index.notes.setdefault(cls, {})
        if launch in known:
            return known[launch]
        facts = index.launches[launch]
        node, wait = facts.inputs[0], facts.waits[0]
        # A cast with other users has to be made anyway, before the launch.
        cast = index.casts.get(node) if len(index.users[node]) == 1 else None
        source_node = node if cast is None else index.data_preds[node][0]
        sends, source, result = index.tensors[node], index.tensors[source_node], index.tensors[wait]
        assert sends is not None
        assert source is not None
        assert result is not None
        scattered = facts.kind is Kind.ALL_GATHER and (facts.group_size or 0) > 1
        shown = not index.output_storages.isdisjoint(index.storages[wait])
        returned = shown and not scattered  # what is scattered is copied anyway
        direct = not strided(sends) and made_for(index, node, launch)
        source_direct = direct if cast is None else not strided(source) and made_for(index, source_node, node)
        rewritten = -1 if cast is None else _rewritten(index, source_node, node)
        form = scattered, returned, direct, source_direct, rewritten, launch < _rewritten(index, node, launch) < wait
        member = cls(launch, node, source_node, wait, facts.kind, source, sends, cast, result, *form)
        known[launch] = member
        return member


def _rewritten(index: GraphIndex, operand: int, reader: int) -> int:
    """The first node behind a reader of an operand that writes where that is, -1 for none."""
    if not index.writes:
        return -1
    known: dict[int, list[int]] = index.notes.setdefault(_rewritten, {})
    if not known:
        for writer, targets in sorted(index.writes.items()):
            for storage in {s for target in targets for s in index.storages[target]}:
                known.setdefault(storage, []).append(writer)
    later = (writer for s in index.storages[operand] for writer in known.get(s, ()) if writer > reader)
    return min(later, default=-1)


@dataclass(frozen=True)
class BucketModel:
    """Members in order of concatenation, and the form: see :class:`commcc.plan.Bucket`."""

    members: tuple[Member, ...]
    shared_cast: bool
    as_bytes: bool
    copies: tuple[bool, ...]
    coalesced: bool = False

    @classmethod
    def of(cls, members: Sequence[Member], form: Form = SIDE_BY_SIDE) -> BucketModel:
        """What these members are in one bucket; side by side where not all can be sent as they are."""
        # One call is in flight until all of its members are waited for, and what one of them sends is written before.
        if form.coalesced and not any(member.disturbed for member in members):
            return cls(tuple(members), False, False, (False,) * len(members), coalesced=True)
        casts, last = {member.cast for member in members}, max(member.launch for member in members)
        # A cast behind all members would read what was written meanwhile.
        kept = all(member.rewritten < 0 or member.rewritten > last for member in members)
        return cls(
            members=tuple(members),
            shared_cast=len(casts) == 1 and None not in casts and kept and not form.casts_first,
            as_bytes=len({member.sends.dtype for member in members}) > 1,
            copies=tuple(member.returned for member in members),
        )

    @classmethod
    def planned(cls, index: GraphIndex, bucket: Bucket) -> BucketModel:
        """A bucket as a plan has it."""
        members = tuple(Member.of(index, launch) for launch in bucket.members)
        return cls(members, bucket.shared_cast, bucket.as_bytes, bucket.copies, bucket.coalesced)

    @property
    def nodes(self) -> list[int]:
        """The nodes of :attr:`parts`."""
        return [member.source_node if self.shared_cast else member.input for member in self.members]

    @cached_property
    def parts(self) -> list[Tensor]:
        """What is put together: inputs of launches, or of the cast that they share."""
        return [member.source if self.shared_cast else member.sends for member in self.members]

    @property
    def joined(self) -> Tensor:
        """All parts in one row."""
        return flat(self.parts, self.as_bytes)

    @property
    def sent(self) -> Tensor:
        """What the merged launch takes."""
        return flat([member.sends for member in self.members], self.as_bytes)

    @property
    def received(self) -> Tensor:
        """What the merged launch gives."""
        return flat([member.result for member in self.members], self.as_bytes)

    def result_copies(self, place: int) -> tuple[str, ...]:
        """Ops that copy one member's slice out of the merged result, one after the other; without any it is a view."""
        owned = ("aten.clone",) if self.copies[place] else ()
        if self.as_bytes:  # a slice may start where the dtype's alignment does not allow a view
            return ("aten.clone", *owned)
        return owned or (("aten.reshape",) if self.members[place].scattered else ())

    def kernels(self, *, fused: bool) -> Iterator[Kernel]:
        """Kernels on all members at once, besides the collective itself. fused: whether a compiler fuses ops."""
        if self.coalesced:
            return
        joined = self.joined
        copied = joined.bytes - (self._placed if fused else 0)
        yield Kernel("aten.cat", joined, copied, copied)
        if self.shared_cast:
            yield Kernel("aten._to_copy", self.sent, joined.bytes, self.sent.bytes)

    @property
    def _placed(self) -> int:
        """Bytes of the parts that are written to their places by what computes them."""
        if self.as_bytes:  # read as bytes, they are no longer what was computed
            return 0
        direct = [member.source_direct if self.shared_cast else member.direct for member in self.members]
        return sum(part.bytes for part, placed in zip(self.parts, direct, strict=True) if placed)

    def kernels_of(self, place: int) -> Iterator[Kernel]:
        """Kernels that copy one member in and out."""
        if self.coalesced:
            return
        part, result = self.parts[place], self.members[place].result
        if strided(part):
            yield Kernel.copy("aten.reshape", part)
        yield from (Kernel.copy(op, result) for op in self.result_copies(place))

    def held(self, last_use: Callable[[int], int]) -> list[Stretch]:
        """What it holds in memory where it would stand. last_use: the last position at which a wait's result is used.

        A lone collective holds its input until its wait and its result until the last use. A bucket of all-gathers
        holds its inputs side by side until the merged wait and its whole result until the last member is copied out
        of it; a bucket of reductions holds every input until the last one is there, then all of them once more until
        the wait, and its result until the last use. A coalesced bucket holds what its members would, all from its
        launch to its wait.
        """
        members = [(m.launch, m.wait, m.sends.bytes, m.result.bytes) for m in self.members]
        if len(members) == 1:
            launch, wait, sent, got = members[0]
            return [(launch, wait, sent), (launch, last_use(wait), got)]
        sent, got = sum(m[2] for m in members), sum(m[3] for m in members)
        waits = [m[1] for m in members]
        if self.coalesced:
            early = self.members[0].kind is Kind.ALL_GATHER
            launch = min(m[0] for m in members) if early else max(m[0] for m in members)
            at = max(launch, min(waits))
            inputs = [(launch if early else own, at, size) for own, _, size, _ in members]
            return [*inputs, *((launch, max(at, last_use(wait)), size) for _, wait, _, size in members)]
        if self.members[0].kind is Kind.ALL_GATHER:
            launch = min(m[0] for m in members)
            copies = [(wait, last_use(wait), size) for _, wait, _, size in members]
            return [(launch, min(waits), sent), (launch, max(waits), got), *copies]
        launch = max(m[0] for m in members)
        wait = max(launch, min(waits))  # a wait that stands before the merged launch cannot be the merged one
        inputs = [(own, launch, size) for own, _, size, _ in members]
        return [*inputs, (launch, wait, sent), (launch, max(map(last_use, waits)), got)]


def strided(part: Tensor) -> bool:
    """Whether a part has to be copied into a row before it is put next to others."""
    return not part.contiguous and len(part.shape) > 1


def flat(parts: Sequence[Tensor], as_bytes: bool = False) -> Tensor:
    """One tensor in one row with the elements of all."""
    first = parts[0]
    if as_bytes:  # members differ in dtype
        count = sum(part.bytes for part in parts)
        return replace(first, dtype="uint8", itemsize=1, shape=(count,), numel=count, contiguous=True)
    count = sum(part.numel or 0 for part in parts)
    return replace(first, shape=(count,), numel=count, contiguous=True)
