"""Strategy auto: merge what makes the scheduled step shorter under the cost model, copies included.

    bucket{strategy=auto},reorder

Merging saves latency and raises bandwidth; it costs a copy in and a copy out on the compute stream, and memory. Which
of them weighs more depends on the costs, so bucketings are tried: each is merged in arrays
(:mod:`commcc.schedule.sketch`), scheduled as ``reorder`` begins with its default limits, and simulated. A bucketing is
a cap on the bytes of a bucket for every key (kind, group, reduction, dtype):

1. no merging at all, which everything else has to beat;
2. a bucket for each transformer block, as strategy ``module`` forms them, where blocks are found;
3. the same cap for all keys, from small to large;
4. from the best of these, key by key, the keys whose collectives take longest first: no merging, buckets by block, then
   larger and smaller caps than the present one, among them enough for two of the largest members and for all, until no
   key gains or ``effort`` bucketings have been tried;
5. where copies and launches fill the compute stream, the same again without copies (form ``coalesced``): in each bucket
   what takes less, no copies where nothing was merged, no copies at all, either form for each key;
6. other, unequal sizes along the step for the buckets of the busiest stream (:mod:`commcc.passes.strategies.uneven`):
   up to twice ``effort`` of them, or 16 times where compute fills less than 97 % of the step. Where that stream is idle
   for more than a quarter of the step none, or ``effort`` of them, and the others if these gain something. Then
   ``effort`` for the buckets of each further stream, and three times as many if these gain something;
7. casts before members are put side by side, in place of one cast behind, in all buckets or in the last ones;
8. a quarter of ``effort`` with smaller buckets of other reduce-scatters, where merging made the longest run of compute
   between two of them longer: what shortens it at no more than 0.1 % of the step is taken, of what was tried before
   too (:mod:`commcc.passes.strategies.spread`).

Peak memory within the budget comes first, then the step; a bucketing has to be 0.1 % shorter than one with fewer
merges. What ranks them is their first schedules, one from an order in which only collectives moved; the few near the
best one get some more. The best of these, merged in numbers (:mod:`commcc.schedule.merged`), on small graphs others
with unequal sizes, and no merging then get the full effort of ``reorder``, on large graphs other unequal sizes where
the best ones do not come to what few schedules said of them. The better is the result, on small graphs after a look at
the real one (:mod:`commcc.passes.strategies.written`). Where ``reorder`` alone does not meet the budget, what it
reaches is the budget, on large graphs what its first schedules do. Deterministic.

Limits: members of one bucket are neighbours in graph order or of one block; other groupings are not tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from commcc.base.errors import OptionError
from commcc.base.gc_pause import no_collection
from commcc.base.progress import detail
from commcc.base.terms import MIB
from commcc.passes.reorder import Reorder
from commcc.passes.strategies.choices import BY_BLOCK, CAPS, Choice, Rung, ladder, with_rung
from commcc.passes.strategies.making import Making
from commcc.passes.strategies.results import AutoReport, BucketResult, unmerged
from commcc.passes.strategies.spread import calmer, shorter_runs, spread
from commcc.passes.strategies.uneven import (
    BEGIN_WITHIN,
    GAIN,
    NEVER,
    UNEVEN,
    gained,
    improved,
    improved_from_several,
    on_further_streams,
    rank,
)
from commcc.passes.strategies.written import never_worse
from commcc.plan import Bucket as PlannedBucket
from commcc.plan import Merging
from commcc.planning.bucket_model import AUTO, CASTS_FIRST, COALESCED, COPY, key_of, size_of
from commcc.planning.eligibility import eligible, select_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.collectives import Collective
    from commcc.passes.base import PlanContext
    from commcc.passes.bucket import Bucket
    from commcc.planning.bucket_model import Key
    from commcc.schedule import Limits, Problem, SearchResult
    from commcc.schedule.problem import Schedulable
    from commcc.schedule.sketch import Sketches
    from commcc.timing.cost import CostModel, Costs

_IN_WORDS = {BY_BLOCK: "by block", UNEVEN: "unequal"}
# Shares below are in permille.

#: Schedules of each bucketing in the first look, which ranks them.
_SCHEDULES = 4
#: A bucketing whose first two schedules are longer than the best step by more than this share gets no further ones.
_HOPELESS = 40
#: The second look: at most _FINALISTS bucketings and the best one, no longer than that by more than the share _FINAL,
#: get the schedules from number _SCHEDULES to _MORE_SCHEDULES as well.
_FINALISTS, _FINAL, _MORE_SCHEDULES = 4, 5, 8
#: On graphs of at least _LARGE nodes merging has won, without a full search of no merging, where the first schedules
#: are shorter by the share _CERTAIN than any order without merging. On smaller graphs prices of fused chains, which a
#: sketch does not know, weigh more, and a search is cheap.
_CERTAIN, _LARGE = 50, 3000
#: Unequal sizes are tried, _SHAPES times ``effort`` of them, where a stream is busy for at least the share _BUSY of the
#: step. The best equal sizes get the full effort too, unless unequal ones are shorter by more than the share _SURE.
_BUSY, _SHAPES, _SURE = 750, 2, 20
#: Where compute leaves more than the share _IDLE of the step, unequal sizes begin from several bucketings, and
#: _FROM_STARTS times ``effort`` of them are tried; if no stream is busy for _BUSY, only where ``effort`` of them gain
#: something: the first or the last bucket may be what compute waits for.
_IDLE, _FROM_STARTS = 30, 16
#: Other forms are tried where copies and launches take at least the share _SPENT of the step, and either compute leaves
#: less than the share _WAITING of it, or no stream is busy for _BUSY of it.
_SPENT, _WAITING = 5, 100
#: On large graphs, other unequal sizes that get the full effort where the best ones do not keep with real prices what
#: few schedules promised.
_SPARE = 2
#: Quarters of the buckets, in graph order, that keep one cast for all while the others are cast first.
_WITHOUT = (0, 2, 3)
#: Bucketings whose first schedules are longer than those of no merging, or of the best one in another form, by at most
#: _NEAR may still win; and so may no merging, which auto must not be worse than, where moves may bring it within _LEFT.
_NEAR, _LEFT = 5, 40


@dataclass(frozen=True)
class Tried:
    """One bucketing. choice: by key. over: bytes above the memory budget. run: most compute between reduce-scatters.

    One whose lower bound is above the best step is not scheduled, and has that as its step; a cyclic one never ends.
    """

    choice: Choice
    buckets: tuple[PlannedBucket, ...]
    members: int
    step_ns: int
    peak_bytes: int
    over: int
    run: int = 0


def form(options: Bucket, context: PlanContext) -> BucketResult:
    """The buckets of the best bucketing tried; none where merging does not pay."""
    if context.model is None:
        raise OptionError("strategy auto needs a cost model", where="pass 'bucket'", hint="name one: --cost h100")
    taken, left = eligible(context.index, context.ident, select_groups(context.ident, options.groups_given))
    search = asked = Search(options, context, context.model, taken)
    with no_collection():
        first, alone = search.alone()
        if alone.over:  # as everything is then, a few bytes less would count for more than any step
            reached = first if len(context.index) >= _LARGE else alone
            search = Search(options, context, context.model, taken, budget=max(reached.peak_bytes, alone.peak_bytes))
        none, best = search.run()
        best = never_worse(context, asked, alone if alone.over else none, best)
    left += unmerged(context.index, taken, best.buckets, options.multi_dtype)
    why = "no merge tried makes the step shorter under this cost model" if taken else "no collective can be merged"
    return BucketResult(best.buckets, tuple(left), search.report(none, best), () if best.buckets else (why,))


class Search:
    """All that was tried. judged: bucketings of caps, of at most ``effort``; unequal: those of unequal sizes.

    seen: both, and others that were scheduled. budget: in bytes, in place of the one that the options give.
    """

    def __init__(
        self,
        options: Bucket,
        context: PlanContext,
        model: CostModel,
        taken: list[Collective],
        budget: int | None = None,
    ) -> None:
        index = context.index
        self.options, self.index, self.model, self.taken = options, index, model, taken
        self.costs: Costs = context.costs or model.price(index)
        self._known = context.prediction
        duration: dict[Key, int] = {}
        largest: dict[Key, int] = {}
        whole: dict[Key, int] = {}
        for collective in taken:
            key = key_of(collective, options.multi_dtype)
            duration[key] = duration.get(key, 0) + self.costs.ns[collective.launch]
            largest[key] = max(largest.get(key, 0), size_of(collective))
            whole[key] = whole.get(key, 0) + size_of(collective)
        self.keys = sorted(duration, key=lambda key: (-duration[key], key))
        self.ladders = [ladder(largest[key], whole[key]) for key in self.keys]
        self.limits = Reorder().limits(budget or context.budget(options.memory_budget, ordered_by=options.name))
        self.tried: dict[Choice, Tried] = {}
        self.seen: list[Tried] = []
        # With form auto copies come first, as without it, so that what comes after can only be better.
        self.forms = (COPY, COALESCED) if options.form_given == AUTO else (options.form_given,)
        self.making = Making(options, context, model, self.costs, taken)
        self.best_ns: int | None = None
        self.judged, self.unequal, self.effort = 0, 0, 0

    def alone(self) -> tuple[Tried, Tried]:
        """No merging in its first schedules, and, where they pass the budget, with the full effort of ``reorder``."""
        none = self._try(self._all(0, self.forms[0]))
        return none, self._with_effort(none) if none.over else none

    def run(self) -> tuple[Tried, Tried]:
        """No merging, and the best bucketing, which may be the same."""
        none = best = self._try(self._all(0, self.forms[0]))
        winners: list[Tried] = []
        for number, form in enumerate(self.forms, 1):
            if number > 1 and not self._other_forms_pay(best):
                break
            self.effort += self.options.effort
            for choice in self._starts(best.choice, form):
                best = self._better(best, choice)
            best = self._climbed(best, self.forms[:number])
            winners.append(self._looked_at_again(best) if best.buckets else best)
        if len(self.forms) > 1:  # what two schedules say of copies and calls is not the last word
            calls = [t for t in self._near(best, _NEAR) if any(bucket.coalesced for bucket in t.buckets)]
            winners += sorted(calls, key=rank)[:1]
        winners.sort(key=rank)
        uneven, *others = self._uneven(winners[0])
        uneven = on_further_streams(self, uneven)
        # What a few schedules gain, more of them may give the other.
        sure = uneven.over < winners[0].over or uneven.step_ns * 1000 < winners[0].step_ns * (1000 - _SURE)
        large = len(self.index) >= _LARGE
        winners = [*winners[sure:], *(() if large else others)]
        spare = others[:_SPARE] if large else []
        best = self._casts_first(uneven)
        calm = spread(self, none, best)
        winners = [calm, *shorter_runs(self.seen, calm), best, uneven, *winners]
        return self._settled(none, list(dict.fromkeys(winners)), spare)

    def _other_forms_pay(self, best: Tried) -> bool:
        """Whether buckets without copies may make the step shorter: not where copies and launches take next to nothing
        of the compute stream, nor, on large graphs, where it waits for collectives, which take as long or longer then.
        """
        if self.options.effort == 1:  # which is no merging
            return False
        if best.over:
            return True
        least = sum(self.unmerged.stream_ns)
        full = self.sketches.merged(best.buckets).compute_ns if best.buckets else least
        spent = full - least + len(self.taken) * self.costs.launch_ns
        if spent * 1000 < best.step_ns * _SPENT:
            return False
        busy = self._busiest(best)[1] * 1000 >= best.step_ns * _BUSY
        return len(self.index) < _LARGE or not busy or full * 1000 > best.step_ns * (1000 - _WAITING)

    def _casts_first(self, best: Tried) -> Tried:
        """The same buckets, with casts in front of what is put side by side where that takes less and the step becomes
        shorter: in all of them, or in the last ones, as it takes memory, which gradients free towards the end.
        """
        cheaper = {b.members: first for b in best.buckets if (first := self.making.casts_first(b)) is not b}
        rows = sorted(cheaper, key=lambda members: cheaper[members].launch_at)
        choice = tuple(rung._replace(form=CASTS_FIRST) if rung.form == COPY else rung for rung in best.choice)
        for rest in _WITHOUT if rows else ():
            chosen = rows[len(rows) * rest // 4 :]
            buckets = tuple(cheaper[b.members] if b.members in chosen else b for b in best.buckets)
            tried = replace(best, choice=choice, buckets=buckets)
            tried = self.first_look(tried, self.sketches.merged(buckets))
            if gained(tried, best):
                best = tried
        return best

    def _uneven(self, best: Tried) -> list[Tried]:
        """Bucketings like this one with other sizes on its busiest stream, best first; the same one alone where that
        stream is idle for some of the step and either compute is not or a few other sizes gain nothing.
        """
        effort = self.options.effort
        if effort == 1 or not self.taken:  # an effort of 1 is no merging
            return [best]
        stream, busy = self._busiest(best)
        filled = busy * 1000 >= best.step_ns * _BUSY
        if best.step_ns * (1000 - _IDLE) < sum(self.unmerged.stream_ns) * 1000:
            return improved(self, [best], stream, _SHAPES * effort) if filled else [best]
        if not filled:
            few, *_ = improved(self, [best], stream, effort, saving=False)
            if not gained(few, best):
                return [few]
        return improved_from_several(self, best, self._near(best, BEGIN_WITHIN), stream, _FROM_STARTS * effort)

    def _busiest(self, best: Tried) -> tuple[str, int]:
        """The stream that is busy for longest with what may be merged, and for how many ns."""
        return max(self.busy(best).items(), key=lambda item: item[1], default=("", 0))

    def busy(self, best: Tried) -> dict[str, int]:
        """For how many ns streams are busy with what may be merged."""
        single = {collective.launch for collective in self.taken}.difference(
            *(bucket.members for bucket in best.buckets)
        )
        busy: dict[str, int] = {}
        for node, ns in (
            *((bucket.members[0], self.sketches.piece(bucket).transfer) for bucket in best.buckets),
            *((launch, self.costs.ns[launch]) for launch in sorted(single)),
        ):
            stream = self.unmerged.stream[node]
            busy[stream] = busy.get(stream, 0) + ns
        return busy

    def _starts(self, best: Choice, form: str) -> list[Choice]:
        """What to try first in this form, in turn: in a form behind the first one what takes less for each bucket;
        each cap for the keys that are not merged so far; the caps of the best; each cap for all keys.
        """
        caps = (*((BY_BLOCK,) if self.making.by_block(form) else ()), *CAPS)
        filled = [tuple(rung if rung.cap else Rung(cap, form) for rung in best) for cap in caps]
        same = tuple(Rung(rung.cap, form) for rung in best)
        either = [tuple(Rung(rung.cap or caps[0], AUTO) for rung in best)] if form != self.forms[0] else []
        return list(dict.fromkeys([*either, *filled, same, *(self._all(cap, form) for cap in caps)]))

    def _all(self, cap: int, form: str) -> Choice:
        return (Rung(cap, form),) * len(self.keys)

    def _climbed(self, best: Tried, forms: Sequence[str]) -> Tried:
        gained = True
        while gained:
            begun = best
            for place in range(len(self.keys)):
                best = self._climb(best, place, forms)
            gained = best is not begun
        return best

    def _looked_at_again(self, best: Tried) -> Tried:
        """The best of the bucketings that are no longer than this one by much, after some more schedules of each."""
        from commcc.schedule.first_looks import GLANCED, glance

        near = sorted(self._near(best, _FINAL), key=rank)
        others = list({(t.over, t.step_ns): t for t in [*reversed(near), best]}.values())
        if len(others) < 2:
            return best
        again = list(others)
        for t in sorted(others, key=rank)[: _FINALISTS + 1]:
            sketch = self.sketches.merged(t.buckets)
            again.append(self.result(t, glance(sketch, self.preferred, GLANCED[_SCHEDULES:_MORE_SCHEDULES])))
        return min(again, key=rank)

    def _settled(self, none: Tried, winners: list[Tried], spare: Sequence[Tried]) -> tuple[Tried, Tried]:
        """No merging, and the better of it and of the bucketings that won, all with the full effort of ``reorder``.

        spare: others, which get it where none of the first comes to what a few schedules say of these.
        """
        winners = [t for t in winners if t.buckets]
        large, bound = len(self.index) >= _LARGE, self.unmerged.bound
        if not winners:  # in few schedules; with more another one may win
            winners = sorted(self._near(none, _NEAR), key=rank)[:1]
            enough = none.step_ns * (1000 - GAIN)
            sure = large and not none.over
            if all(sure and self.sketches.merged(t.buckets).bound * 1000 > enough for t in winners):
                return none, none
        if large and not winners[0].over and winners[0].step_ns * 1000 <= bound * (1000 - _CERTAIN):
            return none, self._calmest(winners, spare)
        # No merging comes last: where it wins, that search is what ``reorder`` asks for next.
        best = self._calmest(list(dict.fromkeys(winners)), spare)
        certain = large and not best.over and best.step_ns * 1000 <= bound * (1000 - GAIN)
        none = none if certain else self._with_effort(none, best)
        better = best.over < none.over or best.step_ns * 1000 <= none.step_ns * (1000 - GAIN)
        return none, best if better and best.over <= none.over else none

    def _near(self, best: Tried, permille: int) -> list[Tried]:
        """Bucketings whose first schedules are longer than those of this one by no more than so much."""
        within = [t for t in self.tried.values() if t.buckets and t.over <= best.over]
        return [t for t in within if t.step_ns * 1000 <= best.step_ns * (1000 + permille)]

    def _calmest(self, winners: Sequence[Tried], spare: Sequence[Tried]) -> Tried:
        """See :func:`calmer`, with the full effort of ``reorder``."""
        settled: list[Tried] = []
        for tried in (*winners, *spare):
            best = min(settled, key=lambda t: (t.over, t.step_ns), default=None)
            shorter = best is None or tried.step_ns * 1000 <= best.step_ns * (1000 - GAIN)
            if tried in winners or shorter:
                settled.append(self._with_effort(tried, best))
        return calmer(settled)

    def _with_effort(self, tried: Tried, best: Tried | None = None) -> Tried:
        """The same bucketing as ``reorder`` will schedule it, as far as it may be better than the best one."""
        from commcc.schedule import Problem, search_once
        from commcc.schedule.merged import merge

        problem = self.unmerged
        if tried.buckets:
            problem = Problem(*merge(self.index, self.model, Merging(tried.buckets)))
        margin = 2 * GAIN if tried.buckets else _LEFT
        hopeless = None if best is None or best.over else best.step_ns * (1000 + margin) // 1000
        return self.result(tried, search_once(problem, self.limits, Reorder().effort, hopeless))

    def _climb(self, best: Tried, place: int, forms: Sequence[str]) -> Tried:
        """Other caps for one key: none, then up and down from the present one for as long as that helps; and its other
        forms.
        """
        best = self._better(best, with_rung(best.choice, place, cap=0))
        for form in forms:
            best = self._better(best, with_rung(best.choice, place, form=form))
        if self.keys[place] in self.making.by_block(best.choice[place].form):
            best = self._better(best, with_rung(best.choice, place, cap=BY_BLOCK))
        for up in (True, False):
            before: Tried | None = None
            while before is not best and self.judged < self.effort:
                before, cap = best, self.mib(best, place)
                rungs = [rung for rung in self.ladders[place] if (rung > cap if up else rung < cap)]
                best = self._first_other(best, place, rungs if up else rungs[::-1])
        return best

    def mib(self, tried: Tried, place: int) -> float:
        """The cap of one key, in MiB; of buckets by block their mean size, 0 where blocks have none of this key."""
        rung = tried.choice[place]
        if rung.cap != BY_BLOCK:
            return rung.cap
        buckets = self.making.by_block(rung.form).get(self.keys[place])
        if not buckets:
            return 0
        return sum(self.making.size[launch] for bucket in buckets for launch in bucket.members) / MIB / len(buckets)

    def _first_other(self, best: Tried, place: int, caps: Sequence[int]) -> Tried:
        """Try the first cap that makes other buckets than the best bucketing has."""
        for cap in caps:
            choice = with_rung(best.choice, place, cap=cap)
            if self.making.of(self.keys, choice) != best.buckets:
                return self._better(best, choice)
        return best

    def _better(self, best: Tried, choice: Choice) -> Tried:
        """The better of the best so far and a bucketing that is tried now, if any effort is left."""
        if self.judged >= self.effort and choice not in self.tried:
            return best
        candidate = self._try(choice)
        if candidate.buckets == best.buckets:
            return best
        if candidate.over != best.over:
            return min(candidate, best, key=lambda t: t.over)
        gain = best.step_ns * GAIN // 1000 if candidate.members > best.members else 0
        return candidate if (candidate.step_ns + gain, candidate.members) < (best.step_ns, best.members) else best

    def _try(self, choice: Choice) -> Tried:
        if choice not in self.tried:
            self.tried[choice] = self._judge(choice)
        return self.tried[choice]

    def _judge(self, choice: Choice) -> Tried:
        buckets = self.making.of(self.keys, choice)
        known = next((t for t in self.tried.values() if t.buckets == buckets), None)
        if known is not None:
            return replace(known, choice=choice)
        self.judged += 1
        if self.effort:  # no merging is judged before
            detail(f"bucketing {self.judged} of at most {self.effort}")
        members = sum(len(b.members) for b in buckets)
        problem, judged = self.sketch(buckets), Tried(choice, buckets, members, NEVER, 0, 0)
        if problem is None:
            return judged
        # Where a stream is never idle, many bucketings have the best step for their bound, and far longer steps.
        if self.best_ns is not None and problem.bound > self.best_ns:
            return replace(judged, step_ns=problem.bound)
        hopeless = None if self.best_ns is None else self.best_ns * (1000 + _HOPELESS) // 1000
        judged = self.first_look(judged, problem, hopeless)
        if not judged.over:
            self.best_ns = min(judged.step_ns, self.best_ns or judged.step_ns)
        return judged

    def sketch(self, buckets: Sequence[PlannedBucket]) -> Schedulable | None:
        """The graph with these buckets; None where it is cyclic, as buckets that are legal each can be together."""
        from commcc.apply.order import WaitsForItself

        try:
            return self.sketches.merged(buckets) if buckets else self.unmerged.units
        except WaitsForItself:
            return None

    def first_look(self, tried: Tried, problem: Schedulable, hopeless: int | None = None) -> Tried:
        """What its first schedules say of a bucketing; problem: the graph with it. hopeless: see :func:`glance`."""
        from commcc.schedule.first_looks import GLANCED, glance

        return self.result(tried, glance(problem, self.preferred, GLANCED[:_SCHEDULES], hopeless=hopeless))

    @cached_property
    def unmerged(self) -> Problem:
        """The graph without buckets."""
        from commcc.schedule import Problem

        return Problem(self.index, self.costs, known=self._known)

    @cached_property
    def preferred(self) -> Limits:
        """The limits of first schedules."""
        from commcc.schedule.first_looks import preferred

        return preferred(self.unmerged.units, self.limits).limits

    @cached_property
    def sketches(self) -> Sketches:
        """Buckets merged in arrays."""
        from commcc.schedule.sketch import Sketches

        return Sketches(self.unmerged, self.model, self.making.size)

    def result(self, tried: Tried, schedule: SearchResult) -> Tried:
        step, peak, run = schedule.step_ns, schedule.peak_bytes, schedule.longest_run
        over = 0 if self.limits.budget is None else max(0, peak - self.limits.budget)
        judged = replace(tried, step_ns=step, peak_bytes=peak, over=over, run=run)
        self.seen.append(judged)
        return judged

    def report(self, none: Tried, best: Tried) -> AutoReport:
        return AutoReport(
            cost_model={"name": self.costs.model, "hash": self.costs.hash},
            caps_mb={
                " ".join(filter(None, key)): _IN_WORDS.get(rung.cap, rung.cap)
                for key, rung in zip(self.keys, best.choice, strict=True)
            },
            bucketings_tried=self.judged,
            unequal_tried=self.unequal,
            scheduled_step_ms={"unmerged": none.step_ns / 1e6, "merged": best.step_ns / 1e6},
        )
