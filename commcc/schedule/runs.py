"""Cuts long runs of compute nodes by launching a reduce-scatter that was put off sooner, with what brings its input.

    cutter = Cutter(problem, limits, order)
    shorter, shortest = cutter.cut(8), cutter.cut(4)

A scheduler that has nothing to gain from a reduce-scatter leaves it behind all compute, as where a network that is busy
for longer than compute holds it back. At the place where a run becomes too long, the next reduce-scatters of the order
are looked at; one whose missing inputs take no compute and no other launch is moved there, waits among them included.
Whether the step bears the stalls is for the caller to judge.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from commcc.schedule.arrays import Ints
    from commcc.schedule.problem import Limits, Problem

#: So many reduce-scatters ahead are looked at, with at most so many nodes to bring along.
_AHEAD, _WITH = 4, 40


class Cutter:
    """Cuts the runs of one order. place: of each node in the order. computed: compute nodes before each place. later:
    reduce-scatters in order, those that ran too. sooner: what runs ahead of its place, so far.
    """

    def __init__(self, problem: Problem, limits: Limits, order: Ints) -> None:
        self.problem, self.limits, self.order = problem, limits, order.tolist()
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        self.place: list[int] = place.tolist()
        compute = problem.graph.nodes.compute[order]
        self.computed: list[int] = [0, *np.cumsum(compute).tolist()]
        self.later = sorted(problem.feeding, key=self.place.__getitem__)
        self.stops = sorted({*np.flatnonzero(compute).tolist(), *(self.place[node] for node in self.later)})

    def cut(self, most: int) -> Ints:
        """The order with runs of at most so many compute nodes, as far as that can be; any legal order stays legal."""
        order, compute, feeding = self.order, self.problem.index.compute, self.problem.feeding
        self.sooner: set[int] = set()
        self.blocked: dict[int, int] = {}  # what keeps a reduce-scatter from coming sooner, until it has run
        self.first = 0
        new_order: list[int] = []
        run = begin = 0
        for at in self.stops:
            node = order[at]
            if node in self.sooner:
                continue
            if compute[node] and run >= most and (sooner := self._sooner(at)):
                run = 0
                new_order += [other for other in order[begin:at] if other not in self.sooner] + sooner
                self.sooner.update(sooner)
                begin = at
            if node in feeding:
                run = 0
            run += compute[node]
        new_order += [other for other in order[begin:] if other not in self.sooner]
        return np.array(new_order, np.int64)

    def _sooner(self, at: int) -> list[int]:
        """What has to run for one of the next reduce-scatters, itself last; nothing where none can come to ``at``."""
        while self.first < len(self.later) and self._ran(self.later[self.first], at):
            self.first += 1
        waiting = (node for node in islice(self.later, self.first, None) if not self._ran(node, at))
        for launch in islice(waiting, _AHEAD):
            missing = self._missing(launch, at)
            if missing and not self._too_far(launch, at):
                return missing
        return []

    def _ran(self, node: int, at: int) -> bool:
        return self.place[node] < at or node in self.sooner

    def _missing(self, launch: int, at: int) -> list[int]:
        """The launch and all it needs that has not run, in order; nothing where that takes compute or a launch."""
        index, missing, stack = self.problem.index, {launch}, [launch]
        if launch in self.blocked and not self._ran(self.blocked[launch], at):
            return []
        while stack:
            for node in self.problem.preds[stack.pop()]:
                if self._ran(node, at) or node in missing:
                    continue
                if index.compute[node] or node in index.launches:
                    self.blocked[launch] = node
                    return []
                if len(missing) >= _WITH:
                    return []
                missing.add(node)
                stack.append(node)
        return sorted(missing, key=self.place.__getitem__)

    def _too_far(self, launch: int, at: int) -> bool:
        """Whether more compute than the limit allows would lie between the launch and its first wait."""
        waits = self.problem.index.launches[launch].waits
        if self.limits.prefetch is None or not waits:
            return False
        between = self.computed[min(self.place[wait] for wait in waits)] - self.computed[at]
        return between > max(self.limits.prefetch, self.problem.own_prefetch[launch])
