"""What came out of a sweep, and which settings no other beats."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.run.sweep.grid import Grid, Point
    from commcc.timing.snapshot import Snapshot

#: Kinds of collective between which runs of compute are counted, the first that the graph has.
_RUNS = ("reduce_scatter", "all_gather", "all_to_all")


@dataclass(frozen=True)
class Outcome:
    """One setting and what it gives. metrics: of the graph that came out; empty when ``error`` says why there is none.

    changed: whether any pass changed anything. verified: ``proved`` or ``unproved``. seconds: it took.
    """

    metrics: Mapping[str, Any]
    verified: str = ""
    changed: bool = False
    seconds: float = 0.0
    error: str | None = None


@dataclass(frozen=True)
class SweepResult:
    """All settings with their outcomes, in order. first: the input graph, priced."""

    grid: Grid
    outcomes: tuple[Outcome, ...]
    first: Snapshot

    @cached_property
    def before(self) -> Mapping[str, Any]:
        """Metrics of the input graph."""
        return self.first.to_json()

    @property
    def run_kind(self) -> str | None:
        """Between which collectives the longest run of compute nodes is counted; None without any."""
        launches = self.before["collectives"]
        return next((kind for kind in _RUNS if launches.get(kind)), None)

    def aims(self, number: int) -> tuple[float, ...] | None:
        """Step in ms, peak in bytes and longest run of a setting, less is better; None when it failed."""
        metrics = self.outcomes[number].metrics
        if self.outcomes[number].error is not None:
            return None
        runs = (metrics["max_consecutive_compute"][self.run_kind],) if self.run_kind else ()
        return (metrics["step_ms"], metrics["peak_bytes"], *runs)

    @cached_property
    def same_as(self) -> tuple[int | None, ...]:
        """For each setting the first that gives the same figures, where one before it does."""
        first: dict[str, int] = {}
        numbers = [
            number if outcome.error is not None else first.setdefault(repr(outcome.metrics), number)
            for number, outcome in enumerate(self.outcomes)
        ]
        return tuple(None if of == number else of for number, of in enumerate(numbers))

    @property
    def front(self) -> tuple[int, ...]:
        """Numbers of the settings that no other beats, in order."""
        return pareto([self.aims(number) for number in range(len(self.outcomes))])

    @property
    def best(self) -> int | None:
        """Number of the setting with the shortest step; None when all failed."""
        done = [(aims, number) for number in range(len(self.outcomes)) if (aims := self.aims(number)) is not None]
        return min(done)[1] if done else None

    def point(self, number: int) -> Point:
        return self.grid.points[number]


def pareto(aims: Sequence[tuple[float, ...] | None]) -> tuple[int, ...]:
    """Positions of the tuples that no other is at most equal to everywhere and below somewhere."""
    distinct = sorted({point for point in aims if point is not None})
    front: list[tuple[float, ...]] = []
    for point in distinct:  # in order of the first aim: only what is on the front already can beat it
        if not any(all(a <= b for a, b in zip(other, point, strict=True)) for other in front):
            front.append(point)
    kept = set(front)
    return tuple(number for number, point in enumerate(aims) if point in kept)
