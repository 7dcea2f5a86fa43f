"""What a numeric comparison says: data only.

::

    numeric.status                # 'equal', 'within tolerance', 'inconclusive' or 'different'
    numeric.values[0].gap         # where the worst value differs, and by how much
    numeric.to_json()

One output is ``within tolerance`` when its largest difference is one that another order of sums makes in its
dtype, and a sum on the way to it did change; or when it is within the tolerance that was asked for. It is
``inconclusive`` when BEFORE itself gives something that is no number: equal to it proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.replay.numeric.compare import ValueGap, worst

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from commcc.base.terms import Json
    from commcc.replay.numeric.compare import RankGaps

EQUAL, WITHIN, INCONCLUSIVE, DIFFERENT = "equal", "within tolerance", "inconclusive", "different"
#: From the best to the worst.
STATUSES = (EQUAL, WITHIN, INCONCLUSIVE, DIFFERENT)


@dataclass(frozen=True)
class ValueVerdict:
    """One output, or one input that is written.

    node: what makes it in AFTER. gap: the worst of all ranks, None when it is the same to the bit.
    tolerance: what was compared with. reasons: sums on the way to it that AFTER makes of other parts.
    producers: nodes that lead to it in AFTER, nearest first, up to the nearest collective. nan: elements that are no
    number in BEFORE.
    """

    name: str
    node: str
    status: str
    gap: ValueGap | None = None
    tolerance: float | None = None
    reasons: tuple[str, ...] = ()
    producers: tuple[str, ...] = ()
    nan: int = 0

    def to_json(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "node": self.node,
            "status": self.status,
            "tolerance": self.tolerance,
            "reasons": list(self.reasons),
            "producers": list(self.producers),
            "not_a_number": self.nan,
            "difference": None if self.gap is None else self.gap.to_json(),
        }


@dataclass(frozen=True)
class Numeric:
    """The whole comparison.

    values: what is not simply equal, worst first. compared: how many values there are, of each rank.
    failure: why AFTER could not be run to its end; None when it could. first: where values part. seconds: of both runs.
    """

    status: str
    ranks: int
    real: bool
    seed: int
    wide: bool
    compared: int
    values: tuple[ValueVerdict, ...] = ()
    failure: str | None = None
    first: str | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def fine(self) -> bool:
        """Whether the two agree as far as can be asked."""
        return self.status in (EQUAL, WITHIN)

    def to_json(self) -> dict[str, Json]:
        counts = {status: sum(value.status == status for value in self.values) for status in STATUSES[1:]}
        return {
            "status": self.status,
            "ranks": self.ranks,
            "backend": "gloo" if self.real else "virtual",
            "seed": self.seed,
            "precision": "float64" if self.wide else "as written",
            "compared": self.compared,
            "counts": {EQUAL: self.compared - len(self.values), **counts},
            "failure": self.failure,
            "first_difference": self.first,
            "values": [value.to_json() for value in self.values[:LIMIT]],
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class About:
    """What is known about a value before its numbers are looked at; as in :class:`ValueVerdict`.

    tolerance: what its reasons explain, None without any.
    """

    node: str = ""
    reasons: tuple[str, ...] = ()
    producers: tuple[str, ...] = ()
    tolerance: float | None = None


#: Values that are listed one by one.
LIMIT = 50


@dataclass(frozen=True)
class Judge:
    """Decides about values.

    tolerance: as asked for, or None. explain: what is known about a value, by its name.
    """

    tolerance: float | None
    explain: Callable[[str], About]

    def values(self, ranks: Sequence[RankGaps]) -> tuple[ValueVerdict, ...]:
        """Verdicts on everything that is not equal and a number, worst first."""
        gaps: dict[str, list[ValueGap]] = {}
        nan: dict[str, int] = {}
        for rank in ranks:
            for gap in rank.gaps:
                gaps.setdefault(gap.name, []).append(gap)
            for name, count in rank.nan.items():
                nan[name] = nan.get(name, 0) + count
        names = [name for name in ranks[0].compared if name in gaps or name in nan] if ranks else []
        verdicts = [self._value(name, worst(gaps[name]) if name in gaps else None, nan.get(name, 0)) for name in names]
        return tuple(sorted(verdicts, key=lambda value: -STATUSES.index(value.status)))

    def _value(self, name: str, gap: ValueGap | None, nan: int) -> ValueVerdict:
        about = self.explain(name)
        if gap is None:
            return ValueVerdict(name, about.node, INCONCLUSIVE, nan=nan)
        limit = self.tolerance if self.tolerance is not None else about.tolerance
        status = DIFFERENT
        if not gap.mismatch and not gap.nan and gap.absolute is not None:
            # Zeros of another sign differ by nothing, and need no tolerance.
            small = gap.absolute == 0 or (limit is not None and gap.relative is not None and gap.relative <= limit)
            status = DIFFERENT if not small else INCONCLUSIVE if nan else WITHIN
        return ValueVerdict(name, about.node, status, gap, limit, about.reasons, about.producers, nan)
