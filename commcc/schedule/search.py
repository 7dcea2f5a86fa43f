"""Tries settings of the list scheduler and keeps the best order that meets the limits.

Schedules are made one after another, in a sequence that does not depend on how many there will be, so
more effort is never worse. They come in rounds. In a round, in turn

* the next of a list of settings (targets and leads), from the graph's own order, from one in which compute stays where
  it is and only collectives move (:mod:`commcc.schedule.in_order`), or from one in which everything stands as late as
  the longest path behind it allows;
* from the best order of the round, the setting that did best of those not yet used on it. An order that is
  better becomes the next base.

In most settings what soon leads to a launch goes first; a few differ in how much that counts. In one setting launches
ahead of their place leave a little of the memory budget to compute, in another one their streams to what becomes ready
later. Where copies could go along with launches, as what puts the members of a bucket
together, one leaves them where they are: what is launched early takes memory.

Schedules are made of units (:mod:`commcc.schedule.folding`), which stand for one or more nodes. One that is sure to
become longer than the best of its round is given up.

The first round aims at the lower bound or below. It is made under the limits that are asked for or, on graphs of 3000
nodes or more, where these have none on how far launches go ahead and the first schedules are better under one, with
launches closer to their waits. Where the best step is then more than 0.5 % above the bound, what planners of buckets
compare graphs by (:mod:`commcc.schedule.first_looks`) is made too, of units and, where the graph has merged
collectives, of nodes and under the other of these limits, as the step that they expect is to be kept. Where the best
order is at the edge of the budget and more than 1 % above the bound, rounds are made under the others of these limits
and with launches closer still, and on large graphs what led to that order is done once more with launches even closer,
with a round under these limits where it gains; on graphs of fewer than 3000 nodes, where the best step is more than 0.5
% above it, one that aims at the step that was reached: what need not be early then takes no memory early. Last, under
the first of these two conditions, come rounds with a little less memory, for as long as each gains: the scheduler
hoists what fits first, and what it could not hoist later may have gained more. Where the best order is within the
budget, a few schedules then begin from it with compute put behind its last collective, which is to hide that
(:mod:`commcc.schedule.behind`); again where that gains, with two thirds of it and with one where it does not. Then,
where the step still is more than 0.5 % above the bound, behind the one that compute waits for longest, for half or more
of that, and behind further ones for as long as that gains, each time as much. One that it waits for much longer cannot
be hidden: its stream is full.

An order that needs less memory above the budget wins, then the shorter simulated step: that of the graph that comes
out, in which others may pay for fused chains. Steps are compared to 0.1 % of the lower bound; among equal ones the
shorter longest run of compute between two reduce-scatters wins, then what is left of the step, then the lower peak,
then the one that came first. No step longer than the graph's own is taken unless it saves memory above the budget. The
search ends before its effort is used up where an order within the budget is at most 0.1 % above the lower bound and has
no long run, and a round where it gains nothing (:mod:`commcc.schedule.rounds`). Where the best order has a long run, it
is made once more with launches closer to their waits: gathers that go far ahead take the turn of reduce-scatters. Runs
of compute that are left then are cut where that does not make the step longer (:mod:`commcc.schedule.runs`), and
compute moves from the longest runs to others (:mod:`commcc.schedule.evened`). Last, nodes are moved together with what
they need or what needs them, at random, as far as that helps (:mod:`commcc.schedule.moves`): on graphs of fewer than
3000 nodes in all orders that were best, so that more effort stays no worse, by moves anywhere and then by moves that
each change a stretch (:mod:`commcc.schedule.stretches`); on larger ones, where it is more than 0.1 % above the bound,
by the latter in the best one. These end where six rounds of 500 trials together gain less than 0.05 %, far more of them
more than 4 % above the bound, where up to three times as many are made, or where the first three gain nothing.

On graphs of 3000 nodes or more, where each schedule takes milliseconds, less is tried. Where three other orders have
the step of the best one to the ns, something other than the order stands in front of a shorter one: planners' schedules
are not made then unless the graph has merged collectives, and further rounds only where the step is more than 2 % above
the bound.

Where no order of the first round meets the budget, further rounds are made with what was reached as the budget. Where
none meets it then, a few schedules are made under budgets that do not depend on it, and moves lower the peaks of all
these orders (of the graph's own and the best one on graphs of 3000 nodes or more) step by step before they make them
shorter. A smaller budget may still lead to another order.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from commcc.base.progress import detail
from commcc.schedule.behind import last_launch, most_exposed, put_behind
from commcc.schedule.evened import evened
from commcc.schedule.first_looks import ENOUGH, GLANCED, WEIGHED, Preferred, glance, lined, preferred
from commcc.schedule.grid import BEHIND, COPIES_STAY, EXPLORED, RELAXED
from commcc.schedule.judge import late as late_order
from commcc.schedule.moves import SHORT, improved
from commcc.schedule.result import (
    CLOSE,
    LATE,
    LINE,
    OWN,
    Rank,
    SearchResult,
    Setting,
    Start,
    priced,
    result_of,
    unit_of,
)
from commcc.schedule.rounds import FIRST, Round
from commcc.schedule.runs import Cutter
from commcc.schedule.scheduler import Policy, schedule
from commcc.schedule.stretches import TRIALS, farther, improved_in_rounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.schedule.arrays import Ints
    from commcc.schedule.problem import Limits, Problem
    from commcc.timing.cost.types import Costs

#: Of what is put behind a collective one part in _PARTS stays, then another one, where more gains nothing or takes too
#: much memory. How long compute has to wait for it at least and at most, in percent of what the step is above the
#: bound, which counts some of that wait.
_PARTS, _EXPOSED = 3, (50, 125)
#: How far the best step has to be above the lower bound, in permille, for the round RELAXED and for compute behind
#: other collectives than the last one, and for rounds under tight memory, which take more on large graphs where three
#: other orders have the very step of the best one.
_FAR, _FARTHER, _TIED = 5, 10, 20
#: The budgets of rounds under tight memory, in permille of the budget.
_TIGHTER = (990, 995, 980)
#: Runs of compute that the best order is cut to, the first of these that costs nothing.
_CUTS = (4, 6, 8, 12, 16, 24, 32)
#: Trials of moves from one order: at most _TRIALS, and no more than look at _TRIED_NODES nodes in all. Graphs of
#: _MOVED_NODES nodes or more get fewer.
_TRIALS, _TRIED_NODES, _MOVED_NODES = 16_000, 3_000_000, 3000
#: Then rounds of moves that each change a stretch, at most, from each of these orders.
_STRETCHES = 60
#: On larger graphs, for the best order alone: trials for each schedule of the effort, more far from the bound; with
#: more effort than the usual one all of them are made. Patience with rounds that gain little.
_TRIALS_OF_EFFORT, _USUAL, _PATIENCE = 400, 76, 3
#: Moves hardly ever make a step shorter by more than this, in permille.
_BY_MOVES = 40
#: A step counts as the same if it is longer by at most one part in this many: a wait that moves takes a few ns.
_SAME = 100_000
#: Where no order meets the budget: budgets that are tried besides, in permille of the graph's own peak, with so many
#: schedules each; what parts of the peak moves are to take off it at a time, one after the other.
_LADDER, _RUNGS, _DESCENTS = (985, 970, 940, 900, 850, 775, 700), 3, (4, 16, 64, 512)


def search(problem: Problem, limits: Limits, effort: int, hopeless: int | None = None) -> SearchResult:
    """The best order of ``effort`` schedules; never worse than the graph's own.

    hopeless: what comes last is not done where it cannot make the step shorter than this.
    """
    looking = _Search(problem, limits, effort)
    # Where copies could go along with launches there are settings under which they do not.
    copies = [(OWN, COPIES_STAY)] if (looking.units.graph.nodes.prepared > 1).any() else []
    explored = (*EXPLORED[:FIRST], *copies, *EXPLORED[FIRST:])
    made = looking.preferred()
    limits, first = looking.first_round(explored, made)
    for others in dict.fromkeys((first, limits, limits.closer, limits.narrower)):
        if others != made and looking.cramped():
            looking.round(explored, others)
    looking.just_in_time(explored)
    if not looking.large and looking.far(_FAR):
        looking.round(RELAXED, first)
    for permille in _TIGHTER:
        best = looking.best
        if limits.budget is not None and looking.cramped():
            looking.round(explored, replace(first, budget=limits.budget * permille // 1000))
        if looking.best is best:
            break
    looking.ladder(explored)
    looking.hide(first)
    moved = len(looking.bests)
    looking.narrow()
    looking.unfold()
    bests = looking.bests[:moved]
    if _unfinished(problem, looking.best, hopeless):
        return replace(looking.best, tried=looking.tried)
    looking.cut()
    looking.even()
    if looking.large:
        if looking.missed():
            looking.descend([looking.start, looking.best])
        looking.polish()
    else:
        looking.move([looking.start, *bests])
        looking.descend([looking.start, *looking.rungs, *bests])
    return replace(looking.best, tried=looking.tried)


def _unfinished(problem: Problem, best: SearchResult, hopeless: int | None) -> bool:
    """Whether an order is not to get more work: no moves make it as short as that. On small graphs they are tried."""
    if hopeless is None or len(best.nodes) < _MOVED_NODES:
        return False
    return problem.bound > hopeless or best.step_ns * 1000 > hopeless * (1000 + _BY_MOVES)


#: The last search of :func:`search_once`: of which costs, what was asked, and what it found.
_last: tuple[weakref.ref[Costs], tuple[int, Limits, int], SearchResult] | None = None


def search_once(problem: Problem, limits: Limits, effort: int, hopeless: int | None = None) -> SearchResult:
    """As :func:`search`, but not what was asked last: where no bucket pays, the next pass asks the same again."""
    global _last
    asked = problem.bound, limits, effort
    if _last is not None and _last[0]() is problem.costs and _last[1] == asked:
        return _last[2]
    result = search(problem, limits, effort, hopeless)
    if not _unfinished(problem, result, hopeless):
        _last = weakref.ref(problem.costs), asked, result
    return result


class _Search:
    """The best order so far, and what is left of the effort. Orders are those of units until :meth:`unfold`."""

    def __init__(self, problem: Problem, limits: Limits, effort: int) -> None:
        self.problem, self.units, self.limits, self.effort = problem, problem.units, limits, effort
        self.start = self.best = result_of(self.units, np.arange(len(self.units.graph.nodes)), 0, ())
        self.late: SearchResult | None = None
        self.tried = 0
        # Whether something other than the order stands in front of a shorter step.
        self.tied = False
        self.large, self.merged = len(problem.index) >= _MOVED_NODES, bool(problem.index.merged_from)
        self.bests: list[SearchResult] = []
        # The best orders under other budgets, where none meets the one that is asked for.
        self.rungs: list[SearchResult] = []
        # The limits of the first round, and the best glance of all nodes.
        self.first = Preferred(limits, None)
        self.whole: SearchResult | None = None

    def first_round(self, grid: Sequence[Start], limits: Limits) -> tuple[Limits, Limits]:
        """The first round, and planners' schedules; the limits of the search and of the round, where those are met."""
        going, asked, within = self.round(grid, limits), self.limits, limits
        if self.missed():
            self.go_on(going, limits)
        if self.missed():
            # Under a budget that nothing meets nothing is launched early. What was reached is one that something meets.
            asked, within = (replace(each, budget=self.best.peak_bytes) for each in (asked, limits))
        best = self.best
        # Planners chose the limits for each bucketing that they began from, not for the one that they ended with.
        either = (asked, asked.closer) if self.large and self.merged else ()
        for each in dict.fromkeys((within, *either)):
            self.glance(each, again=each != within)
        if self.best is best:
            self.go_on(going, limits)
        return asked, within

    def round(self, grid: Sequence[Start], limits: Limits, own: SearchResult | None = None) -> Round:
        """One round under these limits; its best order is kept under the limits of the search. own: what schedules
        begin from in place of the graph's own order.
        """
        start, best = self.start, self.best
        before = best.step_ns if self.large and best is not start else None
        going = Round(grid, start, start.rank(self.problem, start, limits), before, len(self.problem.index))
        self.go_on(going, limits, own, long=not self.large)
        return going

    def go_on(self, going: Round, limits: Limits, own: SearchResult | None = None, *, long: bool = True) -> None:
        """Go on with a round. long: where it is the first one and far from the bound, for as long again."""
        problem, start, further = self.problem, self.start, going.before is not None
        while not self._over():
            longer = long and not further and self.far(_FARTHER) and not (self.large and going.tied)
            following = going.following(twice=longer)
            if following is None:
                break
            base, setting = following
            reached = self._rank(self.best)[:3] if further else going.rank[:4]
            begun = going.best if base is None else self._base(base, limits, own)
            result = self._schedule(begun, setting, limits, going.best)
            rank = result.rank(problem, start, limits)
            # A gain in the rest of the step or in the peak only is kept, but does not keep the round going; rounds
            # behind the first are there for a shorter step than the best of all.
            now = self._rank(self.best)[:3] if further else rank[:4]
            going.note(None if base is None else setting, result, rank, gained=now < reached)
        self.tied = self.tied or going.tied

    def preferred(self) -> Limits:
        """The limits of the first round. On small graphs those that are asked for: moves find the others' orders."""
        if self.large and self.effort > WEIGHED:
            self.tried += WEIGHED
            self.first = preferred(self.units, self.limits)
        return self.first.limits

    def glance(self, limits: Limits, *, again: bool = False) -> None:
        """What planners of buckets go by; where there are buckets of all nodes too: what they expect is to be kept.
        again: what cannot become better than the best so far is given up.
        """
        all_nodes = self.merged or not self.large  # where schedules are quick
        if self.tied and not all_nodes:
            return
        for problem in (self.units, self.problem) if all_nodes else (self.units,):
            seen = self.first.seen if problem is self.units and self.first.limits == limits else None
            starts = GLANCED[ENOUGH if seen else 0 :][: self.effort - self.tried]
            begun = (self.best if problem is self.units else self.whole) if again else seen
            if not self.far(_FAR) or not starts:
                return
            self.tried += len(starts)
            result = replace(glance(problem, limits, starts, begun=begun), tried=self.tried)
            if problem is self.problem:
                self.whole = min(self.whole or result, result, key=self._rank)
            else:
                self._take(result)

    def hide(self, limits: Limits) -> None:
        """Schedules with compute behind the last collective, and then behind those that compute waits for longest."""
        graph, bound, seen = self.units.graph, self.problem.bound, set[int]()
        launch, exposed = last_launch(graph, self.best.nodes), self.best.step_ns - bound
        while launch >= 0 and launch not in seen:
            seen.add(launch)
            self._put_behind(limits, launch, exposed, 1 if len(seen) == 1 else _PARTS)
            if not self.far(_FAR):
                break
            least, most = ((self.best.step_ns - bound) * percent // 100 for percent in _EXPOSED)
            launch, exposed = most_exposed(graph, self.best.nodes, most)
            if exposed < least:
                break

    def _put_behind(self, limits: Limits, launch: int, exposed: int, least: int) -> None:
        """Schedules with compute behind a launch: all that would hide it, then fewer parts of that, ``least`` last."""
        parts = _PARTS
        while parts >= least and not self.missed() and not self._over():
            best = self.best
            order = put_behind(self.units.graph, best.nodes, launch, exposed * parts // _PARTS)
            if order is None:
                break
            behind = replace(result_of(self.units, order, best.tried, best.settings), lined=best.lined)
            settings = dict.fromkeys((*best.settings[-1:], *BEHIND))
            made = self.round([(OWN, setting) for setting in settings], limits, behind)
            if made.ended_as_before():  # what went behind came back
                break
            parts -= self.best.step_ns >= best.step_ns

    def just_in_time(self, grid: Sequence[Start]) -> None:
        """Under little memory what led to the best order, with launches closer to their waits, and closer still."""
        if not self.large:
            return
        for limits in (self.limits.narrower, self.limits.narrower.narrower):
            best = self.best
            if self.cramped():
                self._again(limits)
            if self.best is not best:
                self.round(grid, limits)

    def narrow(self) -> None:
        """Where runs of compute are long, what led to the best order once more, with launches closer to their waits."""
        if self.problem.feeding and self.best.longest_run > SHORT:
            self._again(self.limits.narrower)

    def _again(self, limits: Limits) -> None:
        """What led to the best order, under other limits."""
        base = self.start
        for setting in self.best.settings:
            if self.tried < self.effort:
                base = self._schedule(base, setting, limits)

    def unfold(self) -> None:
        """Orders of nodes in place of those of units."""
        start, best, unit = self.start, self.best, unit_of(self.problem)
        self.start = result_of(self.problem, np.arange(len(self.problem.index)), 0, ())
        if self.large:  # what follows looks at no others there
            self.bests = [result for result in self.bests if result.step_ns // unit == best.step_ns // unit]
        self.bests, self.rungs = ([self._unfolded(result) for result in each] for each in (self.bests, self.rungs))
        self.best = self.start if best is start else self._unfolded(best)
        if self.whole is not None:
            self._take(self.whole)

    def _unfolded(self, of: SearchResult) -> SearchResult:
        order = self.units.unfolded(of.nodes)
        return replace(result_of(self.problem, order, of.tried, of.settings), lined=of.lined, step_ns=of.step_ns)

    def cut(self) -> None:
        """Cut long runs of compute, as short as the step and the limits bear.

        Not only in the best order, but in all that were best before and have the same step: with more effort the last
        of them would be another one, and might be cut less well.
        """
        step = self._rank(self.best)[:3]
        for best in [candidate for candidate in self.bests if self._rank(candidate)[:3] == step]:
            cutter = Cutter(self.problem, self.limits, best.nodes)
            for most in _CUTS:
                if most >= min(best.longest_run, self.best.longest_run):
                    break
                order = cutter.cut(most)
                result = priced(self.problem, result_of(self.problem, order, best.tried, best.settings))
                same = result.step_ns * _SAME <= best.step_ns * (_SAME + 1)
                if same and self._rank(result) < self._rank(best) and self._in_flight(order):
                    self.best = min(self.best, result, key=self._rank)
                    break

    def even(self) -> None:
        """Make the longest runs of compute shorter where other runs have space."""
        if self.best.longest_run <= SHORT or not self.problem.feeding:
            return
        order = evened(self.problem, self.limits, self.best.nodes)
        result = priced(self.problem, result_of(self.problem, order, self.best.tried, self.best.settings))
        self.best = min(self.best, result, key=self._rank)

    def move(self, orders: Sequence[SearchResult]) -> None:
        """Improve orders by moves: all that were best, since with more effort the last of them would be another one."""
        if self.best.step_ns <= self.problem.bound and not self.missed():
            return
        for result in dict.fromkeys(orders):
            self.best = min(self.best, self._moved(result, self.limits), key=self._rank)

    def polish(self) -> None:
        """On a graph too large for moves in all orders, those of the best one that each change a stretch of it.

        Above the budget each of them costs a simulation of all nodes, and few of so many lower the peak.
        """
        if self.missed() or not self.far(CLOSE):
            return
        best, every = self.best, self.effort > _USUAL
        rounds = -(-self.effort * _TRIALS_OF_EFFORT // TRIALS) * (1 + farther(self.problem, best.step_ns))
        order = improved_in_rounds(self.problem, self.limits, best.nodes, rounds, patience=_PATIENCE, every=every)
        moved = priced(self.problem, result_of(self.problem, order, best.tried, best.settings))
        candidates = best, replace(moved, lined=best.lined)
        self.best = min(candidates, key=lambda result: (self._rank(result)[0], result.step_ns))

    def _moved(self, result: SearchResult, limits: Limits, *, lower: bool = False) -> SearchResult:
        trials = min(_TRIALS, _TRIED_NODES // max(1, len(self.problem.index)))
        order = improved(self.problem, limits, result.nodes, trials, lower=lower)
        moved = priced(self.problem, result_of(self.problem, order, result.tried, result.settings))
        if lower or moved.step_ns <= self.problem.bound:
            return moved
        order = improved_in_rounds(self.problem, limits, order, _STRETCHES)
        again = priced(self.problem, result_of(self.problem, order, result.tried, result.settings))
        return min(moved, again, key=self._rank)

    def ladder(self, grid: Sequence[Start]) -> None:
        """Where no order meets the budget, what others lead to: the same ones, whatever the budget."""
        if not self.missed():
            return
        own = self.start.peak_bytes
        for permille in _LADDER:
            self.rungs.append(self.round(grid[:_RUNGS], replace(self.limits, budget=own * permille // 1000)).best)

    def descend(self, orders: Sequence[SearchResult]) -> None:
        """Moves for orders above the budget: the peak becomes lower, a little at a time, and then the step shorter.

        What is aimed at does not depend on the budget, so that a smaller one leads at least as far down.
        """
        budget = self.limits.budget
        if budget is None:
            return
        # Not where the best order misses the budget: with more effort that may be another one.
        for result in dict.fromkeys(order for order in orders if order.peak_bytes > budget):
            low, failed = result, 0
            while low.peak_bytes > budget and failed < len(_DESCENTS):
                aim = low.peak_bytes - max(1, low.peak_bytes // _DESCENTS[failed])
                lower = self._moved(low, replace(self.limits, budget=aim), lower=True)
                failed += 1
                if lower.peak_bytes < low.peak_bytes:
                    low, failed = lower, 0
            again = self._moved(low, replace(self.limits, budget=max(budget, low.peak_bytes)))
            self.best = min(self.best, low, again, key=self._rank)

    def missed(self) -> bool:
        """Whether the best order takes more than the budget."""
        return self.limits.budget is not None and self.best.peak_bytes > self.limits.budget

    def _rank(self, result: SearchResult) -> Rank:
        return result.rank(self.problem, self.start, self.limits)

    def _in_flight(self, order: Ints) -> bool:
        """Whether no more is in flight than the limits allow."""
        if self.limits.in_flight is None:
            return True
        most = max(self.limits.in_flight, self.problem.own_in_flight)
        return self.problem.figures(order).in_flight_bytes <= most

    def far(self, permille: int) -> bool:
        """Whether the best step is more than this above the lower bound."""
        return self.best.step_ns * 1000 > self.problem.bound * (1000 + permille)

    def cramped(self) -> bool:
        """Whether memory may be what keeps the best step from the lower bound."""
        apart = _TIED if self.tied and self.large else _FARTHER
        return self.best.at_the_edge(self.limits) and self.far(apart)

    def _over(self) -> bool:
        return self.tried >= self.effort or self.best.close(self.problem, self.limits)

    def _base(self, which: int, limits: Limits, own: SearchResult | None = None) -> SearchResult:
        if which == LATE:
            self.late = self.late or result_of(self.units, late_order(self.units.graph), 0, ())
            return self.late
        if which == LINE:
            return lined(self.units, limits, self.start.peak_bytes)
        return own or self.start

    def _schedule(
        self, base: SearchResult, setting: Setting, limits: Limits, best: SearchResult | None = None
    ) -> SearchResult:
        """Make a schedule and judge it; it becomes the best where it is.

        best: of the round. What is sure to be no better is given up, and what is no better is not priced anew.
        """
        problem, (target, *rest) = self.units, setting
        aim = problem.bound * target // 1000 if target else self.best.step_ns
        until = best.beaten_by(problem, limits) if best is not None else None
        order = schedule(problem, base.nodes, Policy(aim, *rest), limits, until)
        self.tried += 1
        detail(f"schedule {self.tried} of at most {self.effort}")
        result = replace(result_of(problem, order, self.tried, (*base.settings, setting)), lined=base.lined)
        better = best is not None and result.rank(problem, self.start, limits) < best.rank(problem, self.start, limits)
        if better or self._rank(result) < self._rank(self.best):
            result = priced(problem, result)
            self._take(result)
        return result

    def _take(self, result: SearchResult) -> None:
        """It becomes the best where it is."""
        if self._rank(result) < self._rank(self.best):
            self.best = result
            self.bests.append(result)
