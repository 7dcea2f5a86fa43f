"""Which settings a round of the search tries, and when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.schedule.result import Rank, SearchResult, Setting, Start

#: Schedules made before the best one is improved for the first time. A further round ends with them where none is
#: within _NEAR permille of the best step of all, or all have much the same one: longer by one part in _SAME at most.
FIRST, _NEAR, _SAME = 2, 5, 10_000


class Round:
    """The best order of a round, and what is left to try. ties: schedules in a row that had its very step.

    before: for a round behind the first on a large graph the best step of all before it.
    """

    def __init__(self, grid: Sequence[Start], best: SearchResult, rank: Rank, before: int | None) -> None:
        self.fresh, self.best, self.rank, self.before = list(grid), best, rank, before
        self.ties = self._idle = 0
        self._steps: list[int] = []
        self._ranks: dict[Setting, Rank] = {}
        self._unused: list[Setting] = []

    def following(self, patience: int) -> tuple[int | None, Setting] | None:
        """What to begin from, None for the best order, and with which setting; None at the end of the round.

        patience: it ends after so many schedules in a row without a gain.
        """
        tried = len(self._steps)
        if self._idle >= patience or not (self.fresh or self._unused) or (tried == FIRST and self.leads_nowhere()):
            return None
        self._idle += 1
        if self.fresh and (tried < FIRST or tried % 2 == 0 or not self._unused):
            return self.fresh.pop(0)
        return None, self._unused.pop(0)

    def leads_nowhere(self) -> bool:
        """Whether schedules of a further round all have the best step, or none comes near it."""
        far = self.before is not None and min(self._steps) * 1000 > self.before * (1000 + _NEAR)
        return far or self.ended_as_before()

    def ended_as_before(self) -> bool:
        """Whether all schedules of a further round have the step that was the best one before."""
        best = self.before
        return best is not None and all(best <= step <= best + best // _SAME for step in self._steps)

    def note(self, explored: Setting | None, result: SearchResult, rank: Rank, *, gained: bool) -> None:
        """What a schedule came to. explored: a setting that was tried on what the round begins from. gained: whether
        it is better by so much that the round goes on.
        """
        self._steps.append(result.step_ns)
        if explored is not None:
            self._ranks[explored] = min(rank, self._ranks.get(explored, rank))
        step = self.best.step_ns
        self.ties = self.ties + (result.step_ns == step) if result.step_ns >= step else 0
        if rank < self.rank:
            self._idle = 0 if gained else self._idle
            self.best, self.rank = result, rank
            self._unused = sorted(self._ranks, key=self._ranks.__getitem__)
        elif explored is not None and self.best.settings and explored not in self._unused:
            self._unused.append(explored)
