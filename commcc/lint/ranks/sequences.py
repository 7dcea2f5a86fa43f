"""Whether all members of a group launch the same things on it, one after the other.

Members with equal sequences are put together first, so that each different sequence is compared once, with the
one that most members have. Where sequences agree, what ranks send to their peers in an all-to-all is compared.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from commcc.base.text import plural
from commcc.lint.ranks.show import argument_text, ranks_text, sent_text
from commcc.lint.ranks.types import Difference, DifferenceKind, Launch, Sent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from commcc.lint.ranks.groups import Group
    from commcc.lint.ranks.types import Splits, Trace

Member = tuple[int, str]
#: What one rank sends to, and what it expects from, every rank of the group.
Row = tuple[tuple[int, ...], tuple[int, ...]]
#: Stands for a rank's name of a group that it does not have.
NOBODY = "\0"
_NAMES = {
    "kind": "kind",
    "reduction": "reduction",
    "dtypes": "dtype",
    "counts": "number of elements",
    "row": "number of elements in a row",
    "device": "device",
    "group_size": "group size",
    "others": "other arguments",
}


class Own(NamedTuple):
    """The launches of one rank on one group, by their numbers in its trace; ``same`` and ``means`` are equal where
    what they agree on, and what they send, is equal."""

    launches: tuple[int, ...]
    same: int
    means: int


@dataclass
class Sequences:
    """The sequences of all ranks, made once for every trace."""

    traces: Mapping[int, Trace]
    _of: dict[int, dict[str, Own]] = field(default_factory=dict)
    _same: dict[tuple[Sent, ...], int] = field(default_factory=dict)
    _means: dict[tuple[str, ...], int] = field(default_factory=dict)
    _names: dict[tuple[str, ...], int] = field(default_factory=dict)
    _names_of: dict[int, int] = field(default_factory=dict)

    def of(self, rank: int, name: str) -> Own:
        """What a rank launches on the group that it calls ``name``."""
        trace = self.traces[rank]
        # Ranks of one file, or of equal files, share the list of launches.
        known = self._of.get(id(trace.launches))
        if known is None:
            known = self._of[id(trace.launches)] = self._sorted(trace)
        return known.get(name) or self._sequence(trace, ())

    def names(self, rank: int) -> int:
        """Equal for ranks whose launches are on groups of the same names, one after the other."""
        trace = self.traces[rank]
        if id(trace.launches) not in self._names_of:
            names = tuple(launch.group for launch in trace.launches)
            self._names_of[id(trace.launches)] = self._names.setdefault(names, len(self._names))
        return self._names_of[id(trace.launches)]

    def launch(self, rank: int, name: str, place: int) -> Launch:
        return self.traces[rank].launches[self.of(rank, name).launches[place]]

    def _sorted(self, trace: Trace) -> dict[str, Own]:
        numbers: dict[str, list[int]] = {}
        for i, launch in enumerate(trace.launches):
            numbers.setdefault(launch.group, []).append(i)
        return {name: self._sequence(trace, tuple(own)) for name, own in numbers.items()}

    def _sequence(self, trace: Trace, numbers: tuple[int, ...]) -> Own:
        same = tuple(trace.launches[i].sent for i in numbers)
        means = tuple(trace.launches[i].meaning for i in numbers)
        return Own(
            numbers, self._same.setdefault(same, len(self._same)), self._means.setdefault(means, len(self._means))
        )


class GroupDifference(NamedTuple):
    """A difference of a group; ``ranks``: one that has it as most have, and one that has not, with where."""

    difference: Difference
    ranks: tuple[tuple[int, str, int], tuple[int, str, int]]


def compare(group: Group, sequences: Sequences) -> tuple[list[GroupDifference], list[str]]:
    """What is wrong on a group, and what of it cannot be known from the files."""
    members = [*group.members, *((rank, NOBODY) for rank in group.lacking)]
    kinds = _alike(members, lambda member: sequences.of(*member).same)
    first, *others = kinds
    mismatches = [mismatch for other in others if (mismatch := _differs(group, sequences, first[0], other)) is not None]
    if not mismatches:
        mismatches = _mixed(group, sequences, members)
    for alike in kinds:  # one member of each kind is asked
        unknown = [launch for launch in _launches(sequences, alike[0]) if not launch.sent.whole]
        if unknown:
            what = f"{plural(len(unknown), 'launch')} of a size or dtype known only at run time"
            return mismatches, [f"{what} ('{unknown[0].node}' first)"]
    return mismatches, []


def _alike(members: Sequence[Member], key: Callable[[Member], int]) -> list[list[Member]]:
    """Members put together by key: the largest kind first, the others in the order of their first members."""
    kinds: dict[int, list[Member]] = {}
    for member in members:
        kinds.setdefault(key(member), []).append(member)
    most = max(kinds.values(), key=len)  # the first of equals
    return [most, *(alike for alike in kinds.values() if alike is not most)]


def _differs(group: Group, sequences: Sequences, first: Member, alike: list[Member]) -> GroupDifference | None:
    """The first difference between two sequences, None where sizes that are not known may be equal."""
    other = alike[0]
    left, right = (_launches(sequences, member) for member in (first, other))
    at = _first(left, right)
    # Unequal, but only by what is known at run time.
    if at is None:
        return None
    # A launch that was left out shows where sizes differ, which may be long after its place.
    at = min(at, _shifted(left, right))
    what = f"{group.label}: {_what(left, right, at, first[0], other[0])}"
    details = tuple(filter(None, [_change(left, right, at, other[0]), _others(alike)]))
    ranks = tuple(sorted({first[0], *(rank for rank, _ in alike)}))
    difference = Difference(DifferenceKind.SEQUENCE, what, group.label, ranks, at, details)
    return GroupDifference(difference, ((*first, at), (*other, at)))


def _launches(sequences: Sequences, member: Member) -> list[Launch]:
    launches = sequences.traces[member[0]].launches
    return [launches[i] for i in sequences.of(*member).launches]


def _first(left: Sequence[Launch], right: Sequence[Launch]) -> int | None:
    """Where the two cannot be the same any more; None where they can be to the end."""
    for at, (one, other) in enumerate(zip(left, right, strict=False)):
        if one.sent != other.sent and unlike(one.sent, other.sent):
            return at
    return None if len(left) == len(right) else min(len(left), len(right))


def unlike(one: Sent, other: Sent) -> tuple[str, ...]:
    """Names of the arguments that differ, those left out that are not known on both sides."""
    return tuple(name for name in Sent._fields if _conflict(getattr(one, name), getattr(other, name), name))


def _conflict(one: object, other: object, name: str) -> bool:
    # An unknown size or dtype may be equal; a reduction that is None is no reduction.
    if one == other or (name != "reduction" and (one is None or other is None)):
        return False
    if isinstance(one, tuple) and isinstance(other, tuple) and name in ("dtypes", "counts") and len(one) == len(other):
        return any(a is not None and b is not None and a != b for a, b in zip(one, other, strict=True))
    return True


def _shifted(left: Sequence[Launch], right: Sequence[Launch]) -> int:
    """Where one begins to send what the other one sends elsewhere: among launches of one size, the place where a
    launch was left out is before the first one that differs in size."""
    sent = [{launch.meaning for launch in side} for side in (left, right)]
    for at, (one, other) in enumerate(zip(left, right, strict=False)):
        if one.meaning != other.meaning and (one.meaning in sent[1] or other.meaning in sent[0]):
            return at
    return min(len(left), len(right))


def _what(left: Sequence[Launch], right: Sequence[Launch], at: int, rank: int, other: int) -> str:
    if at >= len(right) or at >= len(left):
        ended, goes_on, side = (other, rank, left) if at >= len(right) else (rank, other, right)
        return (
            f"rank {ended} launches nothing more after {plural(at, 'launch')}, "
            f"where rank {goes_on} launches {sent_text(side[at])}"
        )
    names = unlike(left[at].sent, right[at].sent)
    place = f"launch {at + 1} of {len(left)}"
    if not names:
        return f"{place} is not the same on rank {rank} and on rank {other}, though of one kind and size"
    if "kind" in names:
        return f"{place} is {sent_text(left[at])} on rank {rank} and {sent_text(right[at])} on rank {other}"
    sides = ((left[at].sent, rank), (right[at].sent, other))
    told = " and ".join(
        f"{_NAMES[name]} " + ", ".join(f"{argument_text(sent, name)} on rank {owner}" for sent, owner in sides)
        for name in names
    )
    return f"{place} ({left[at].sent.kind}) has {told}"


def _change(left: Sequence[Launch], right: Sequence[Launch], at: int, other: int) -> str:
    """What would make the sequences equal, where it is simple."""
    one, two = ([launch.sent for launch in side] for side in (left, right))
    # Comparing the rests is enough: up to here they can be the same.
    if one[at + 1 :] == two[at:]:
        return f"rank {other} leaves out '{left[at].node}'; all the rest is the same"
    if one[at:] == two[at + 1 :]:
        return f"rank {other} has '{right[at].node}' besides; all the rest is the same"
    if one[at + 1 :] == two[at + 1 :]:
        return "all other launches on the group are the same"
    if at < len(two) and Counter(one) == Counter(two):
        wanted = (two[at], right[at].meaning)
        later = next((i for i in range(at + 1, len(one)) if (one[i], left[i].meaning) == wanted), None)
        return (
            "" if later is None else f"rank {other} makes the same launches in another order: here launch {later + 1}"
        )
    return ""


def _others(alike: list[Member]) -> str:
    return f"the same holds for {ranks_text([rank for rank, _ in alike[1:]])}" if len(alike) > 1 else ""


def _mixed(group: Group, sequences: Sequences, members: list[Member]) -> list[GroupDifference]:
    """Launches of the same kind and size that are not the same launch."""
    (first, *_), *others = _alike(members, lambda member: sequences.of(*member).means)
    left = _launches(sequences, first)
    for alike in others:
        right = _launches(sequences, alike[0])
        at = _exchanged(left, right)
        if at is not None:
            later = next(i for i, launch in enumerate(left) if launch.meaning == right[at].meaning)
            what = (
                f"{group.label}: in launch {at + 1} of {len(left)} rank {alike[0][0]} sends what rank {first[0]} sends "
                f"in launch {later + 1}; kind and size are the same, so that nothing hangs, but values are mixed up"
            )
            ranks = tuple(sorted({first[0], *(rank for rank, _ in alike)}))
            details = tuple(filter(None, [_others(alike)]))
            difference = Difference(DifferenceKind.MIXED, what, group.label, ranks, at, details)
            return [GroupDifference(difference, ((*first, at), (*alike[0], at)))]
    return []


def _exchanged(left: Sequence[Launch], right: Sequence[Launch]) -> int | None:
    """The first place where both send what the other one sends elsewhere."""
    sent = [{launch.meaning for launch in side} for side in (left, right)]
    for at, (one, other) in enumerate(zip(left, right, strict=False)):
        if one.meaning != other.meaning and one.meaning in sent[1] and other.meaning in sent[0]:
            return at
    return None


def compare_splits(group: Group, sequences: Sequences) -> tuple[list[GroupDifference], list[str]]:
    """The first difference in what ranks send and expect in all-to-alls, and what is open; sequences have to agree.

        rank 0 sends [4, 2], rank 1 expects [2, 3]      rank 0 sends 2 to rank 1, which expects 2: fine

    Limits: only split sizes that are numbers in the graph; all others are said to be open.
    """
    unknown = []
    rank, name = group.members[0]
    for at in range(len(sequences.of(rank, name).launches)):
        launch = sequences.launch(rank, name, at)
        if launch.splits is None:
            continue
        # Without ranks nobody knows who the peers are.
        rows = None if group.ranks is None else _rows(group, sequences, at)
        if rows is None:
            unknown.append(launch.node)
            continue
        mismatch = _left_over(group, sequences, rows, at) or _unexpected(group, rows, at)
        if mismatch is not None:
            return [mismatch], []
    if not unknown:
        return [], []
    return [], [
        f"split sizes of {plural(len(unknown), 'all-to-all')} are known only at run time ('{unknown[0]}' first)"
    ]


def _rows(group: Group, sequences: Sequences, at: int) -> dict[int, Row] | None:
    """By rank; None when some split sizes are not known."""
    size = len(group.ranks or ())
    rows: dict[int, Row] = {}
    known: dict[int, Row | None] = {}
    for rank, name in group.members:
        splits = sequences.launch(rank, name, at).splits
        if splits is None:
            return None
        if id(splits) not in known:
            known[id(splits)] = _row(splits, size)
        row = known[id(splits)]
        if row is None:
            return None
        rows[rank] = row
    return rows


def _row(splits: Splits, size: int) -> Row | None:
    """Split sizes as numbers, equal parts spelt out."""
    if not splits.known:
        return None
    # Without a list the parts are equal, so what is sent must divide.
    if None in (splits.sent, splits.expected) and (splits.total is None or splits.total % size):
        return None
    even = (0,) if splits.total is None else (splits.total // size,)
    return splits.sent or even * size, splits.expected or even * size


def _left_over(group: Group, sequences: Sequences, rows: dict[int, Row], at: int) -> GroupDifference | None:
    """The first rank whose parts are not all that it has to send, which PyTorch refuses when it runs."""
    for rank, name in group.members:
        splits, sent = sequences.launch(rank, name, at).splits, sum(rows[rank][0])
        if splits is not None and splits.total not in (None, sent):
            parts = f"sends {plural(sent, 'element')} in parts, and has {splits.total:,}"
            return _pair(group, f"{group.label}: in launch {at + 1} rank {rank} {parts}", at, ((rank, name),) * 2)
    return None


def _unexpected(group: Group, rows: dict[int, Row], at: int) -> GroupDifference | None:
    """The first pair of ranks that do not agree."""
    ranks = group.ranks or ()
    names = dict(group.members)
    for rank, row in rows.items():
        if len(row[0]) != len(ranks) or len(row[1]) != len(ranks):
            parts = f"parts for {plural(len(row[0]), 'rank')}, and from {len(row[1])}"
            what = f"{group.label}: launch {at + 1} on rank {rank} has {parts}, in a group of {len(ranks)}"
            return _pair(group, what, at, ((rank, names[rank]), (rank, names[rank])))
    present = [place for place, rank in enumerate(ranks) if rank in rows]
    expected = list(zip(*(rows[ranks[place]][1] for place in present), strict=True))
    for sender in present:
        sent = rows[ranks[sender]][0]
        pair = tuple(sent[place] for place in present), expected[sender]
        if pair[0] != pair[1]:
            wrong = next(i for i, (one, other) in enumerate(zip(*pair, strict=True)) if one != other)
            here, there = ranks[sender], ranks[present[wrong]]
            what = (
                f"{group.label}: in launch {at + 1} rank {here} sends {plural(pair[0][wrong], 'element')} to rank "
                f"{there}, which expects {pair[1][wrong]:,}"
            )
            return _pair(group, what, at, ((here, names[here]), (there, names[there])))
    return None


def _pair(group: Group, what: str, at: int, pair: tuple[tuple[int, str], tuple[int, str]]) -> GroupDifference:
    ranks = tuple(dict.fromkeys(rank for rank, _ in pair))
    difference = Difference(DifferenceKind.SPLITS, what, group.label, ranks, at)
    return GroupDifference(difference, ((*pair[0], at), (*pair[1], at)))
