"""Cuts long runs of compute nodes by launching a reduce-scatter that was put off sooner, with what brings its input.

    shorter = cut_runs(problem, limits, order, most=4)

A scheduler that has nothing to gain from a reduce-scatter leaves it behind all compute, as where a network that is busy
for longer than compute holds it back. At the place where a run becomes too long, the next reduce-scatters of the order
are looked at; one whose missing inputs take no compute and no other launch is moved there, waits among them included.
Whether the step bears the stalls is for the caller to judge.
"""

from __future__ import annotations

from itertools import accumulate, islice
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commcc.schedule.arrays import Ints
    from commcc.schedule.problem import Limits, Problem

#: So many reduce-scatters ahead are looked at, with at most so many nodes to bring along.
_AHEAD, _WITH = 4, 40


def cut_runs(problem: Problem, limits: Limits, order: Iterable[int], most: int) -> Ints:
    """The order with runs of at most so many compute nodes, as far as that can be; any legal order stays legal."""
    return np.array(_Cutter(problem, limits, list(order)).cut(most), np.int64)


class _Cutter:
    """computed: compute nodes before each place of the order. later: reduce-scatters in order, those that ran too."""

    def __init__(self, problem: Problem, limits: Limits, order: list[int]) -> None:
        self.problem, self.limits, self.order = problem, limits, order
        self.place = {node: at for at, node in enumerate(order)}
        self.computed = [0, *accumulate(int(problem.index.compute[node]) for node in order)]
        self.later = [node for node in order if node in problem.feeding]
        self.ran = bytearray(len(order))
        self.first = 0

    def cut(self, most: int) -> list[int]:
        """See :func:`cut_runs`."""
        compute, feeding = self.problem.index.compute, self.problem.feeding
        made: list[int] = []
        run = 0
        for at, node in enumerate(self.order):
            if self.ran[node]:
                continue
            if compute[node] and run >= most:
                sooner = self._sooner(at)
                run = 0 if sooner else run
                for each in sooner:
                    self.ran[each] = 1
                made += sooner
            if node in feeding:
                run = 0
            run += compute[node]
            self.ran[node] = 1
            made.append(node)
        return made

    def _sooner(self, at: int) -> list[int]:
        """What has to run for one of the next reduce-scatters, itself last; nothing where none can come to ``at``."""
        while self.first < len(self.later) and self.ran[self.later[self.first]]:
            self.first += 1
        waiting = (node for node in self.later[self.first :] if not self.ran[node])
        for launch in islice(waiting, _AHEAD):
            missing = self._missing(launch)
            if missing and not self._too_far(launch, at):
                return missing
        return []

    def _missing(self, launch: int) -> list[int]:
        """The launch and all it needs that has not run, in order; nothing where that takes compute or a launch."""
        index, found, stack = self.problem.index, {launch}, [launch]
        while stack:
            for node in self.problem.preds[stack.pop()]:
                if self.ran[node] or node in found:
                    continue
                if index.compute[node] or node in index.launches or len(found) >= _WITH:
                    return []
                found.add(node)
                stack.append(node)
        return sorted(found, key=self.place.__getitem__)

    def _too_far(self, launch: int, at: int) -> bool:
        """Whether more compute than the limit allows would lie between the launch and its first wait."""
        waits = self.problem.index.launches[launch].waits
        if self.limits.prefetch is None or not waits:
            return False
        between = self.computed[min(self.place[wait] for wait in waits)] - self.computed[at]
        return between > max(self.limits.prefetch, self.problem.own_prefetch[launch])
