"""What rank agreement works on and what it returns. Plain data; no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.base.terms import Kind
    from commcc.graph.program import ProcessGroup


class Status(str, Enum):
    """AGREE is a proof, under what :attr:`Agreement.assumed` says. UNDECIDED: nothing wrong found, not all known."""

    AGREE = "agree"
    DISAGREE = "disagree"
    UNDECIDED = "not decidable"

    def __str__(self) -> str:
        return self.value


class DifferenceKind(str, Enum):
    """What is wrong.

    GROUP: ranks do not agree about who is in a group. SEQUENCE: a group's launches differ in number, kind, size,
    dtype, reduction or another argument. SPLITS: a rank sends another number of elements than its peer expects.
    MIXED: the sequences agree, but a rank sends in one launch what another one sends in a later one.
    DEADLOCK: ranks wait for one another in a circle, whatever runs the launches. HAZARD: they do so where a
    device runs its launches one after the other, as NCCL may.
    """

    GROUP = "group"
    SEQUENCE = "sequence"
    SPLITS = "splits"
    MIXED = "mixed"
    DEADLOCK = "deadlock"
    HAZARD = "hazard"

    def __str__(self) -> str:
        return self.value


class Sent(NamedTuple):
    """What all ranks of a group must agree on in one launch; None stands where a value is known only at run time.

    counts: elements of each tensor that is sent, nothing for an all-to-all by rows. row: elements of a row of
    such an all-to-all whose split sizes are not known. device: its type. others: further arguments, as
    ``("src", "0")``.
    """

    kind: Kind
    reduction: str | None
    dtypes: tuple[str | None, ...]
    counts: tuple[int | None, ...]
    row: int | None
    device: str | None
    group_size: int | None
    others: tuple[tuple[str, str], ...] = ()

    @property
    def whole(self) -> bool:
        """Whether the file tells everything but split sizes."""
        return None not in (*self.dtypes, *self.counts, self.device)


class Splits(NamedTuple):
    """Elements that an all-to-all sends to, and expects from, each peer. None: equal parts of ``total``.

    total: elements in all; None when known only at run time. known: False where the split sizes are not either.
    """

    sent: tuple[int, ...] | None
    expected: tuple[int, ...] | None
    total: int | None
    known: bool = True


@dataclass(frozen=True)
class Launch:
    """One launch of one rank. group: as this rank names it. meaning: equal where two launches send the same
    expression over the inputs of their graphs. module, source: None where nothing tells.
    """

    node: str
    group: str
    sent: Sent
    splits: Splits | None
    meaning: str
    module: str | None = None
    source: str | None = None


@dataclass(frozen=True)
class Opaque:
    """A node that communicates, or may, in a way that is not looked into. why: in a few words."""

    node: str
    op: str
    why: str


@dataclass(frozen=True)
class Trace:
    """What one rank launches and waits for, in order.

    steps: ``i`` where launch ``i`` is made, ``~i`` where it is waited for. groups: the process groups as this
    rank's file has them.
    """

    launches: tuple[Launch, ...]
    steps: tuple[int, ...]
    opaque: tuple[Opaque, ...] = ()
    groups: Mapping[str, ProcessGroup] = field(default_factory=dict)


@dataclass(frozen=True)
class Neighbourhood:
    """Launches of one rank around where it differs. lines: ``(marked, text)``, in graph order.

    launch: the number of the one that differs among all launches of the rank, None where the rank has none; node,
    module, source: of that launch.
    """

    rank: int
    title: str
    launch: int | None
    node: str | None
    lines: tuple[tuple[bool, str], ...]
    module: str | None = None
    source: str | None = None


@dataclass(frozen=True)
class Difference:
    """One thing that ranks do not agree about.

    what: in one sentence. details: further sentences. ranks: those that it was found on. at: where in the
    group's sequence, from 0. around: the two neighbourhoods.
    """

    kind: DifferenceKind
    what: str
    group: str
    ranks: tuple[int, ...]
    at: int | None = None
    details: tuple[str, ...] = ()
    around: tuple[Neighbourhood, ...] = ()


@dataclass(frozen=True)
class Agreement:
    """The verdict on all ranks.

    differences: the first one first. possible: the same, where the files do not tell who is in whose group.
    reasons: why nothing more can be said, unless all is known. assumed: what was taken for granted. ranks, programs:
    how many were given, and how many different ones are among them. launches: of all ranks together; groups: process
    groups that were compared.
    """

    status: Status
    differences: tuple[Difference, ...]
    reasons: tuple[str, ...]
    assumed: tuple[str, ...]
    ranks: int
    programs: int
    groups: int
    launches: int
    possible: tuple[Difference, ...] = ()

    @property
    def first(self) -> Difference | None:
        return self.differences[0] if self.differences else None
