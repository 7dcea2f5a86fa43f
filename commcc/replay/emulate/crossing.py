"""What emulated communication took, beside what it was to take.

    about = crossings_json([Crossing.of(transport.settle()), ...])        # of each repetition
    about["launches"], about["modelled_ms"], about["took_ms"]             # 34, 8.42, 8.421

Limits: of runs that count only the sums are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.base.terms import Json

#: From which share on communication is late enough to be told.
_LATE = 1.1


class Took(NamedTuple):
    """One collective. took_ns: from start to end, as measured; more than modelled where writing its result took longer
    than the modelled time.
    """

    modelled_ns: int
    took_ns: int


@dataclass(frozen=True)
class Crossing:
    """The sums over all collectives of one run."""

    launches: int
    modelled_ns: int
    took_ns: int

    @staticmethod
    def of(run: Mapping[str, Took]) -> Crossing:
        """The sums of one run, given by node."""
        return Crossing(len(run), sum(each.modelled_ns for each in run.values()), sum(t.took_ns for t in run.values()))


def crossings_json(crossings: Sequence[Crossing]) -> dict[str, Json] | None:
    """Medians of all repetitions, milliseconds; None where nothing was emulated."""
    if not crossings:
        return None
    return {
        "launches": crossings[0].launches,
        "modelled_ms": round(median(each.modelled_ns for each in crossings) / 1e6, 6),
        "took_ms": round(median(each.took_ns for each in crossings) / 1e6, 6),
    }


def remarks(world: int, model: str, graphs: Sequence[Sequence[Crossing]]) -> tuple[str, ...]:
    """What the reader of an emulated bench must know."""
    told = [
        f"one process stands for {world} {'rank' if world == 1 else 'ranks'}: it receives what it would if all others"
        " sent what it sends",
        f"communication is emulated: its times are modelled ({model}), and only compute, copies and launches measured",
    ]
    for number, crossings in enumerate(graphs, 1):
        took = median([each.took_ns for each in crossings] or [0])
        modelled = median([each.modelled_ns for each in crossings] or [0])
        if took > _LATE * modelled:
            told.append(
                f"graph {number}: communication took {took / 1e6:,.3f} ms where {modelled / 1e6:,.3f} ms are modelled:"
                " results could not be written in that time here"
            )
    return tuple(told)
