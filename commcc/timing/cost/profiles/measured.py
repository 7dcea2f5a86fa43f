"""What was measured, and how many measurements of one thing become one time.

    pool = Pool()
    pool.op(OpKey("aten.mm", (("bfloat16", (8, 8)), ("bfloat16", (8, 8)))), 5_200)
    profile = pool.profile()            # Profile(ops={...: OpTime(ns=5200, count=1)}, ...)

An op's time is the median over all its calls, those of all ranks and files in one pool. A collective
ends on every rank together, but a rank that came early has waited, so one occurrence takes the
shortest time that any rank saw; the time is the median over occurrences. All times are whole
nanoseconds; the middle of two is rounded up.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commcc.base.terms import Kind

TensorKey: TypeAlias = "tuple[str, tuple[int, ...]]"

#: Two kinds of calls under one key differ when their medians are further apart than this.
_NOTABLE_PERCENT = 150
_LONGEST_NS = (1 << 63) - 1


class OpKey(NamedTuple):
    """An op by what it reads: ``aten.mm``, and dtype and shape of each tensor, those without dimensions left out.

    Those are left out because eager PyTorch wraps Python numbers in such tensors, and graphs do not.
    """

    op: str
    inputs: tuple[TensorKey, ...]


class CollectiveKey(NamedTuple):
    """A collective by what decides its time. size: ranks in the group. input_bytes: of one rank, any dtype."""

    kind: Kind
    size: int
    input_bytes: int


class Occurrence(NamedTuple):
    """One collective as one rank saw it. group: name and ranks of its process group, as far as they are known."""

    group: str
    key: CollectiveKey
    ns: int


@dataclass(frozen=True)
class OpTime:
    """Median of ``count`` calls. varied: calls with other scalar arguments took clearly different times."""

    ns: int
    count: int
    varied: bool = False


@dataclass(frozen=True)
class CollectiveTime:
    """Median of ``count`` occurrences. ranks: how many ranks each was seen by at most; 0 when nothing tells."""

    ns: int
    count: int
    ranks: int = 0


@dataclass(frozen=True)
class Profile:
    """Every time that the files give, and what had to be left out of them."""

    ops: Mapping[OpKey, OpTime]
    collectives: Mapping[CollectiveKey, CollectiveTime]
    warnings: tuple[str, ...] = ()


@dataclass
class Pool:
    """Collects measurements.

    ops: per key and per scalar arguments, times of single calls. medians: of calls that are not known
    one by one, with their number. collectives: times with how often each was seen. ranks: how many saw them.
    """

    ops: dict[OpKey, dict[str, array[int]]] = field(default_factory=dict)
    medians: dict[OpKey, list[tuple[int, int]]] = field(default_factory=dict)
    collectives: dict[CollectiveKey, list[tuple[int, int]]] = field(default_factory=dict)
    ranks: dict[CollectiveKey, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def op(self, key: OpKey, ns: int, *, arguments: str = "") -> None:
        """Add one call. arguments: its scalar arguments, in any text."""
        kinds = self.ops.setdefault(key, {})
        times = kinds.get(arguments)
        if times is None:
            times = kinds[arguments] = array("q")
        times.append(min(ns, _LONGEST_NS))

    def median(self, key: OpKey, ns: int, count: int) -> None:
        """Add the median of ``count`` calls."""
        self.medians.setdefault(key, []).append((ns, count))

    def collective(self, key: CollectiveKey, ns: int, *, count: int = 1, ranks: int = 0) -> None:
        """Add one occurrence, its minimum over ranks already taken."""
        self.collectives.setdefault(key, []).append((ns, count))
        self.ranks[key] = max(self.ranks.get(key, 0), ranks)

    def occurrences(self, by_rank: Iterable[Iterable[Occurrence]]) -> None:
        """Add what several ranks saw of the same run, each in order of time.

        Ranks that saw a collective of one process group equally often saw the same ones: the n-th
        occurrence of one is the n-th of the others. Where the numbers differ, only the shortest of
        all is taken, once.
        """
        seen: dict[tuple[str, CollectiveKey], list[list[int]]] = defaultdict(list)
        for rank in by_rank:
            own: dict[tuple[str, CollectiveKey], list[int]] = defaultdict(list)
            for occurrence in rank:
                own[occurrence.group, occurrence.key].append(occurrence.ns)
            for which, times in own.items():
                seen[which].append(times)
        for (_, key), lists in seen.items():
            if len({len(times) for times in lists}) == 1:
                shortest = [min(together) for together in zip(*lists, strict=True)]
            else:
                shortest = [min(map(min, lists))]
            for ns in shortest:
                self.collective(key, ns, ranks=len(lists))

    def profile(self) -> Profile:
        """Medians of everything, in a fixed order."""
        keys = sorted({**self.ops, **self.medians})
        ops = {key: _op_time(self.ops.get(key, {}), self.medians.get(key, [])) for key in keys}
        collectives = {
            key: CollectiveTime(median(times), sum(count for _, count in times), self.ranks[key])
            for key, times in sorted(self.collectives.items())
        }
        return Profile(ops, collectives, tuple(self.warnings))


def _op_time(kinds: Mapping[str, array[int]], medians: list[tuple[int, int]]) -> OpTime:
    together = [(ns, 1) for times in kinds.values() for ns in times] + medians
    of_kinds = [median((ns, 1) for ns in times) for times in kinds.values()] or [0]
    # Calls with the same inputs but other arguments (a dim, a mode) may be other work.
    varied = 100 * max(of_kinds) > _NOTABLE_PERCENT * min(of_kinds)
    return OpTime(median(together), sum(count for _, count in together), varied)


def median(times: Iterable[tuple[int, int]]) -> int:
    """Median of times that were seen ``count`` times each; half up between the middle two."""
    ordered = sorted(times)
    total = sum(count for _, count in ordered)
    low, high = (total - 1) // 2, total // 2
    lower: list[int] = []
    passed = 0
    for ns, count in ordered:
        passed += count
        lower += [ns] * (len(lower) == 0 and low < passed)
        if high < passed:
            return (lower[0] + ns + 1) // 2
    raise ValueError("no times")
