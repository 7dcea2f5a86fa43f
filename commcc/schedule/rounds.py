"""Which settings a round of the search tries, and when it ends.

A round ends where six schedules in a row made it no better; the first one, where the best step is far above the bound,
after twelve, on large graphs if planners' schedules are no better then and no three have the very step of the best one.
Rounds behind the first end on large graphs after four schedules that do not make the best step of all shorter, or after
the first two where none is near it or all have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.schedule.result import Rank, SearchResult, Setting, Start

#: Schedules made before the best one is improved for the first time. A further round ends with them where none is
#: within _NEAR permille of the best step of all, or all have much the same one: longer by one part in _SAME at most.
FIRST, _NEAR, _SAME = 2, 5, 10_000
#: Schedules in a row without a gain that end a round, and one behind the first on large graphs.
_PATIENCE, _FURTHER = 6, 4
#: On small graphs a round has more patience: until schedules of this many nodes in all brought no gain.
_PATIENT_NODES = 3000
#: So many orders with the very step of the best one: something other than the order stands in front of a shorter one.
_TIES = 3


class Round:
    """The best order of a round, and what is left to try."""

    def __init__(self, grid: Sequence[Start], best: SearchResult, rank: Rank, before: int | None, nodes: int) -> None:
        """before: for a round behind the first on a large graph the best step of all before it. nodes: of the graph."""
        self._fresh, self.best, self.rank, self.before = list(grid), best, rank, before
        self._patience = max(_PATIENCE, _PATIENT_NODES // max(1, nodes)) if before is None else _FURTHER
        self._ties = self._idle = 0
        self._steps: list[int] = []
        self._ranks: dict[Setting, Rank] = {}
        self._unused: list[Setting] = []

    @property
    def tied(self) -> bool:
        """Whether the last orders had the very step of the best one, so that others will hardly be shorter."""
        return self._ties >= _TIES

    def following(self, *, twice: bool) -> tuple[int | None, Setting] | None:
        """What to begin from, None for the best order, and with which setting; None at the end of the round.

        twice: whether it goes on for twice as long without a gain.
        """
        tried, patience = len(self._steps), self._patience * (1 + twice)
        if self._idle >= patience or not (self._fresh or self._unused) or (tried == FIRST and self._leads_nowhere()):
            return None
        self._idle += 1
        if self._fresh and (tried < FIRST or tried % 2 == 0 or not self._unused):
            return self._fresh.pop(0)
        return None, self._unused.pop(0)

    def _leads_nowhere(self) -> bool:
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
        self._ties = self._ties + (result.step_ns == step) if result.step_ns >= step else 0
        if rank < self.rank:
            self._idle = 0 if gained else self._idle
            self.best, self.rank = result, rank
            self._unused = sorted(self._ranks, key=self._ranks.__getitem__)
        elif explored is not None and self.best.settings and explored not in self._unused:
            self._unused.append(explored)
