"""An order that a search has found: what it comes to, and how it ranks among others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from commcc.schedule.judge import judge
from commcc.schedule.moves import SHORT

if TYPE_CHECKING:
    from commcc.schedule.arrays import Ints
    from commcc.schedule.problem import Limits, Schedulable

#: Target in permille of the lower bound, 0 for the best step so far; lead in permille of a launch's duration; how much
#: of its own time makes a node urgent, in permille; the longest run of compute aimed at, -1 for any. Then, where it is
#: not the usual, what goes along with launches, how much memory they leave to others, and how long they may have to
#: wait on their streams (:class:`Policy`).
Setting = tuple[int, ...]
#: What a schedule begins from, and the setting.
Start = tuple[int, Setting]
Rank = tuple[int, bool, int, int, int, int]

#: Orders to begin from: the graph's own, one in which everything is late, one in which only collectives moved, and in
#: :func:`glance` the best one so far.
OWN, LATE, LINE, BEST = range(4)
#: A step at most this much above the lower bound, in permille, ends the search.
CLOSE = 1
#: The share of the budget, in permille, above which a peak counts as at its edge.
_EDGE = 980


@dataclass(frozen=True)
class SearchResult:
    """The best order (packed: its numbers as bytes), its simulated step, peak memory and longest run of compute nodes
    between two reduce-scatters. tried: schedules made. settings: what led to it, (target, lead, own time in permille,
    run) for each round; of a glance the first one; empty when the graph's own order is best. lined: whether it began
    from an order in which only collectives moved.
    """

    packed: bytes
    step_ns: int
    peak_bytes: int
    longest_run: int
    tried: int
    settings: tuple[Setting, ...]
    lined: bool = False

    @property
    def start(self) -> Start | None:
        """What a glance that found this began from, and the setting; None for the graph's own order."""
        return (LINE if self.lined else OWN, self.settings[0]) if self.settings else None

    @property
    def order(self) -> tuple[int, ...]:
        """The nodes, by number."""
        return tuple(self.nodes.tolist())

    @property
    def nodes(self) -> Ints:
        """The order for kernels."""
        return np.frombuffer(self.packed, np.int64)

    def close(self, problem: Schedulable, limits: Limits) -> bool:
        """Whether there is next to nothing left to gain."""
        near = self.step_ns * 1000 <= problem.bound * (1000 + CLOSE)
        short = self.longest_run <= SHORT or not problem.feeding
        return near and short and (limits.budget is None or self.peak_bytes <= limits.budget)

    def at_the_edge(self, limits: Limits) -> bool:
        """Whether it takes nearly all of the memory budget."""
        return limits.budget is not None and self.peak_bytes * 1000 > limits.budget * _EDGE

    def beaten_by(self, problem: Schedulable, limits: Limits) -> int | None:
        """The longest step with which another order can still rank before this one, in ns; None where any can."""
        if limits.budget is not None and self.peak_bytes > limits.budget:
            return None
        unit = unit_of(problem)
        return (self.step_ns // unit + 1) * unit - 1

    def rank(self, problem: Schedulable, own: SearchResult, limits: Limits) -> Rank:
        """Smaller is better; see the module docstring. own: the graph's own order."""
        over = max(0, self.peak_bytes - limits.budget) if limits.budget is not None else 0
        return (
            over,
            self.step_ns > own.step_ns,
            self.step_ns // unit_of(problem),
            self.longest_run,
            self.step_ns,
            self.peak_bytes,
        )


def unit_of(problem: Schedulable) -> int:
    """Steps are compared to so many ns."""
    return max(1, problem.bound * CLOSE // 1000)


def result_of(problem: Schedulable, order: Ints, tried: int, settings: tuple[Setting, ...]) -> SearchResult:
    """Under the prices of the graph's own order, which is quick; see :func:`priced`."""
    step, peak, run = judge(problem.graph, order)
    return SearchResult(order.tobytes(), step, peak, run, tried, settings)


def priced(problem: Schedulable, result: SearchResult) -> SearchResult:
    """With the step of the graph that comes out: in another order others pay for fused chains."""
    return replace(result, step_ns=problem.own_step(result.nodes, result.step_ns))
