"""Strategy overlap: merge without giving up what the order hides already.

    reorder,bucket{strategy=overlap}

The order of the graph is taken for a schedule. What runs on the compute stream while a hidden
collective moves its bytes hides it, and is kept between its launch and its wait::

    launch a, launch b, mm_1, mm_2, wait a, wait b        a is hidden by mm_1, b by mm_2
    launch a+b, mm_1, mm_2, wait a+b                      so both stay between

Merging treats the launches as one node and the waits as one, each with the needs of all members. A merge
is made if

1. the merged launch and wait can stand where no compute has to move for them,
2. the graph with these constraints stays free of cycles,
3. the merged collective takes no longer than what runs between its launch and its wait,
4. memory has headroom for it (:mod:`commcc.planning.headroom`), and
5. its copies take no longer on the compute stream than the launch and the latency that it saves, the latter
   as far as it is exposed (:mod:`commcc.planning.merge_cost`).

Such buckets are then kept a few at a time, each time with a simulation of the merged step (:class:`Trial`), so that
what is kept never exposes what was hidden, never passes the memory budget and never
makes the step longer. Hidden collectives, and
which compute hides them, come from the simulated order, or from a file (``hiding``). Launches and waits of a
group that are in no bucket keep their order, where the merges of others allow it.

Limits: members are looked for within ``max_topo_span`` nodes of the first, so that time grows with
this window and not with the graph. Caps bound the bytes that a bucket holds in flight.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

from commcc.base.errors import OptionError
from commcc.base.reasons import Reason
from commcc.base.record import Record, left_out
from commcc.passes.strategies.results import BucketResult, bucket_of, launches_early, placed
from commcc.plan import Before, LeftOut, Merging
from commcc.planning.bucket_model import key_of, size_of
from commcc.planning.caps import byte_caps
from commcc.planning.eligibility import eligible, select_groups
from commcc.planning.headroom import Headroom
from commcc.planning.hiding import Hiding, hidden_by_order, read_hiding
from commcc.planning.merge_cost import MergeCost, Relief
from commcc.planning.merge_order import MergeOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from commcc.graph.collectives import Collective
    from commcc.graph.index import GraphIndex
    from commcc.passes.base import PlanContext
    from commcc.passes.bucket import Bucket
    from commcc.plan import Bucket as PlannedBucket
    from commcc.planning.bucket_model import BucketModel, Key
    from commcc.planning.headroom import Change
    from commcc.timing.cost import CostModel, Costs
    from commcc.timing.simulate import Timeline

#: Why a pair was not merged, in the order in which it is asked; what a collective that is left out is told.
_REFUSED = {
    "bytes": Reason("no_room"),
    "place": Reason("no_place"),
    "cycle": Reason("cycle"),
    "exposed": Reason("too_long"),
    "memory": Reason("memory"),
    "copies": Reason("copies"),
}

#: Simulations of one graph.
TRIALS = 32
#: A merged collective may be exposed for this much longer than its members were, in permille of its time.
TOLERANCE = 10
#: Batches in which those at fault get their second chance.
_PARTS = 4


@dataclass(frozen=True, kw_only=True)
class OverlapReport(Record):
    """caps_mb: by key, where they differ. hidden: collectives that compute hides. refused: pairs, by what stood against
    them. not_kept: buckets by reason. step_ms: ``before`` and ``merged``, simulated.
    """

    cost_model: Mapping[str, str]
    caps_mb: Mapping[str, float] | None = left_out()
    hidden: int
    refused: Mapping[str, int]
    not_kept: Mapping[str, int]
    copies_ms: float
    latency_ms: float
    step_ms: Mapping[str, float]


@dataclass
class OpenBucket:
    """A bucket while it grows. number: of its key. exposed_ns: of its members, before. relief: what it counts on."""

    number: int
    members: list[Collective]
    model: BucketModel
    bytes: int
    exposed_ns: int
    relief: dict[int, int] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """The first member's launch."""
        return self.members[0].launch


#: A bucket that was not kept, and why.
Refused = tuple[OpenBucket, Reason]


def form(options: Bucket, context: PlanContext) -> BucketResult:
    """Buckets that keep hidden collectives hidden."""
    if context.model is None:
        raise OptionError("strategy overlap needs a cost model", where="pass 'bucket'", hint="name one: --cost h100")
    taken, left = eligible(context.index, context.ident, select_groups(context.ident, options.groups_given))
    return _Overlap(options, context, context.model, taken).result(left)


class _Overlap:
    def __init__(self, options: Bucket, context: PlanContext, model: CostModel, taken: list[Collective]) -> None:
        from commcc.timing.simulate import Simulator

        index = context.index
        self.options, self.index, self.model, self.taken = options, index, model, taken
        self.costs: Costs = model.price(index)
        self.timeline: Timeline = Simulator(index, self.costs).run()
        hiding = read_hiding(index, options.hiding) if options.hiding else hidden_by_order(index, self.timeline)
        # Nodes that go where a merged launch goes cannot hide anything.
        casts = {n for c in taken for n in index.launches[c.launch].inputs if n in index.casts}
        moving = casts.union(n for c in taken for n in c.chain)
        self.hiding: Hiding = hiding.without(moving)
        self.cost, self.relief = MergeCost(index, model, self.costs, options.form_given), Relief(self.timeline)
        self.headroom = Headroom.within(index, context.budget(options.memory_budget))
        self.caps = byte_caps(options.bucket_cap_mb, index, model, taken, multi_dtype=options.multi_dtype)
        self.refused: dict[str, int] = dict.fromkeys(_REFUSED, 0)
        self.why: dict[int, Reason] = {}

    def result(self, left: list[LeftOut]) -> BucketResult:
        grown = [b for b in self._grow() if len(b.members) > 1]
        trial = Trial(self.index, self.model, self.timeline, self.headroom.budget, self._plan)
        kept = trial.keep([b for b in grown if self._pays(b)])
        for bucket, reason in trial.refused:
            self.why.update((c.launch, reason) for c in bucket.members)
        merged = {c.launch for b in kept for c in b.members}
        apart = [c.launch for c in self.taken if c.launch not in merged]
        left += [LeftOut(launch, self.why.get(launch, Reason.of("no_partner"))) for launch in apart]
        report = OverlapReport(
            cost_model={"name": self.costs.model, "hash": self.costs.hash},
            caps_mb=self.caps.in_words,
            hidden=len(self.hiding.by_launch),
            refused=dict(self.refused),
            not_kept=dict(Counter(str(reason) for _, reason in trial.refused)),
            copies_ms=sum(self.cost.copies(b.model) for b in kept) / 1e6,
            latency_ms=sum(self.cost.latency(b.members) for b in kept) / 1e6,
            step_ms={"before": self.timeline.step_ns / 1e6, "merged": trial.step_ns / 1e6},
        )
        plan = self._plan(kept)
        return BucketResult(plan.buckets, tuple(left), report, (), (), plan.before)

    def _grow(self) -> list[OpenBucket]:
        """Greedy: every candidate joins the first open bucket of its key that takes it."""
        options, exposed = self.options, self.timeline.exposed
        order = MergeOrder(self.index, self.hiding.edges(), options.hiding or "pass 'bucket'")
        buckets: list[OpenBucket] = []
        by_key: dict[Key, list[OpenBucket]] = {}
        # In graph order; exposed ones first or last.
        for candidate in sorted(
            self.taken, key=lambda c: ((exposed.get(c.launch, 0) == 0) is options.exposed_first, c.launch)
        ):
            own = by_key.setdefault(key_of(candidate, options.multi_dtype), [])
            span = float("inf") if options.max_topo_span is None else options.max_topo_span
            near = [b for b in own if abs(candidate.launch - b.first) <= span]
            if any(self._join(order, bucket, candidate) for bucket in near):
                continue
            alone = self.cost.bucket([candidate])
            size, exposed_ns = size_of(candidate), exposed.get(candidate.launch, 0)
            buckets.append(OpenBucket(len(own), [candidate], alone, size, exposed_ns))
            own.append(buckets[-1])
        return buckets

    def _join(self, order: MergeOrder, bucket: OpenBucket, candidate: Collective) -> bool:
        """Merge the candidate into the bucket, if nothing speaks against it."""
        members = [*bucket.members, candidate]
        obstacle = self._obstacle(order, bucket, members)
        if obstacle is not None:
            self.refused[obstacle] += 1
            for collective in (candidate, *(bucket.members if len(bucket.members) == 1 else ())):
                self.why[collective.launch] = _REFUSED[obstacle]
            return False
        order.merge_all((bucket.members[0], candidate))
        if self.headroom.budget is not None:
            self.headroom.take(self._memory_changes(bucket, members))
        bucket.members = sorted(members, key=lambda c: c.launch)
        bucket.model = self.cost.bucket(bucket.members)
        bucket.bytes += size_of(candidate)
        bucket.exposed_ns += self.timeline.exposed.get(candidate.launch, 0)
        self._count_on(bucket, bucket.members)
        return True

    def _obstacle(self, order: MergeOrder, bucket: OpenBucket, members: Sequence[Collective]) -> str | None:
        """What speaks against one more member, the last of these, a key of ``_REFUSED``; None if nothing does.

        What is quick to answer is asked first.
        """
        candidate = members[-1]
        key = key_of(candidate, self.options.multi_dtype)
        if bucket.bytes + size_of(candidate) > self.caps.of(key, bucket.number):
            return "bytes"
        if not self._has_place(members):
            return "place"
        if not order.may_merge_both(bucket.members[0], candidate):
            return "cycle"
        if not self._stays_hidden(bucket, members):
            return "exposed"
        if self.headroom.budget is not None and not self.headroom.fits(self._memory_changes(bucket, members)):
            return "memory"
        copies = self.cost.copies(self.cost.bucket(members)) - self.cost.copies(bucket.model)
        saved = self._saved(bucket, members) - self._saved(bucket, bucket.members)
        return "copies" if copies > saved else None

    def _memory_changes(self, bucket: OpenBucket, members: Sequence[Collective]) -> list[Change]:
        """What one more member, the last of these, changes in memory."""
        alone = self.cost.bucket(members[-1:])
        return self.headroom.changes([bucket.model, alone], self.cost.bucket(members))

    def _has_place(self, members: Sequence[Collective]) -> bool:
        """Whether launch and wait can stand between inputs, hiding compute and users, none of which moves."""
        index = self.index
        inputs, hiding_begins, hiding_ends, users = -1, len(index), -1, len(index)
        for member in members:
            if not launches_early((member,)):
                inputs = max(inputs, *index.preds(member.launch))
            users = min((users, *index.users[member.waits[0]]))
            hiding = self.hiding.by_launch.get(member.launch)
            if hiding:
                hiding_begins, hiding_ends = min(hiding_begins, hiding[0]), max(hiding_ends, hiding[-1])
        return inputs < min(hiding_begins, users) and hiding_ends < users

    def _stays_hidden(self, bucket: OpenBucket, members: Sequence[Collective]) -> bool:
        """Whether what hides the members, a bucket's and one more, is enough for the merged collective."""
        hiding = {node for c in members for node in self.hiding.by_launch.get(c.launch, ())}
        if not hiding:
            return True
        cover = sum(self.costs.ns[node] for node in hiding) + bucket.exposed_ns
        cover += self.timeline.exposed.get(members[-1].launch, 0)
        return self.cost.transfer(members) <= max(cover, sum(self.costs.ns[c.launch] for c in members))

    def _saved(self, bucket: OpenBucket, members: Sequence[Collective]) -> int:
        """What these members save the step in one bucket, at most."""
        relief = self.relief.take(members, self.cost.latency(members), bucket.relief)
        return self.cost.launches(members) + sum(relief.values())

    def _count_on(self, bucket: OpenBucket, members: Sequence[Collective]) -> None:
        now = self.relief.take(members, self.cost.latency(members), bucket.relief) if members else {}
        self.relief.settle(now, bucket.relief)
        bucket.relief = now

    def _pays(self, bucket: OpenBucket) -> bool:
        """Whether the bucket saves what its copies take, the first member's too."""
        if self.cost.copies(bucket.model) <= self._saved(bucket, bucket.members):
            return True
        self._count_on(bucket, ())
        self.why.update((c.launch, _REFUSED["copies"]) for c in bucket.members)
        self.refused["copies"] += len(bucket.members) - 1
        return False

    def _plan(self, buckets: Sequence[OpenBucket]) -> Merging:
        """The plan of these buckets, numbered by their first members."""
        planned = tuple(self._planned(b) for b in sorted(buckets, key=attrgetter("first")))
        before = (*self.hiding.kept(self.index), *self._queues(buckets)) if planned else ()
        return Merging(planned, before=before)

    def _queues(self, buckets: Sequence[OpenBucket]) -> list[Before]:
        """Launches, and waits, of one group that are in no bucket stay in their order, where merging lets them."""
        order = MergeOrder(self.index, self.hiding.edges())
        merged = {c.launch for b in buckets for c in b.members}
        for bucket in buckets:
            order.merge_all(bucket.members)
        queues: dict[tuple[str, bool], list[int]] = {}
        for launch, facts in self.index.launches.items():
            if launch not in merged and facts.waits:
                queues.setdefault((facts.group, False), []).append(launch)
                queues.setdefault((facts.group, True), []).append(min(facts.waits))
        pairs = [pair for queue in queues.values() for pair in pairwise(sorted(queue))]
        return [Before(first, then) for first, then in pairs if order.keep(first, then)]

    def _planned(self, bucket: OpenBucket) -> PlannedBucket:
        members = bucket.members
        hidden = sum(c.launch in self.hiding.by_launch for c in members)
        reason = Reason.of("stay_hidden", members=len(members), bytes=bucket.bytes, hidden=hidden)
        form = self.cost.form_of(members)
        planned = bucket_of(self.index, members, reason, param_order=self.options.param_order, form=form)
        # As early as inputs and hiding compute allow; what hides a member waits for the launch.
        return planned if launches_early(members) else placed(planned, members, min(c.launch for c in members))


@dataclass(frozen=True)
class _Verdict:
    """What is wrong with some buckets; None if nothing is. at_fault: numbers of those that stand out, if any do."""

    reason: Reason | None
    at_fault: frozenset[int] = frozenset()


_FINE = _Verdict(None)


class Trial:
    """Keeps buckets a few at a time, each time with a simulation of the merged step.

    step_ns: simulated, with what is kept. refused: the others, each with its reason. plan_of: numbers buckets by first
    member.

    What is kept holds at every moment: with these buckets nothing that was hidden is exposed, memory is within
    the budget, and the step is no longer than without them. A batch is added if that is still so with it. Else

    1. buckets that are at fault themselves (exposed for longer than their members were, or the largest ones where
       memory passes the budget) are set aside, and the rest is tried again;
    2. where none is, the batch is halved, the earlier half first; a batch of one is refused.

    What was set aside is tried once more at the end, since others may have been the cause. Every trial sets a
    bucket aside, halves a batch or ends one, and there are no more than ``TRIALS``; what has not been tried by
    then is refused too. So it always ends, in time linear in the graph.
    """

    def __init__(
        self,
        index: GraphIndex,
        model: CostModel,
        timeline: Timeline,
        budget: int | None,
        plan_of: Callable[[Sequence[OpenBucket]], Merging],
    ) -> None:
        self._index, self._model, self._before = index, model, timeline
        self._budget, self._plan_of = budget, plan_of
        self._exposed_ns = timeline.exposed_ns
        self.step_ns = timeline.step_ns
        self.refused: list[Refused] = []
        self._left = TRIALS

    def keep(self, buckets: Sequence[OpenBucket]) -> list[OpenBucket]:
        """The buckets that can be kept together, in graph order."""
        kept, at_fault = self._add([], [sorted(buckets, key=attrgetter("first"))])
        again = sorted((bucket for bucket, _ in at_fault), key=attrgetter("first"))
        kept, at_fault = self._add(kept, [again[n::_PARTS] for n in range(_PARTS)])
        self.refused += at_fault
        return kept

    def _add(self, kept: list[OpenBucket], batches: list[list[OpenBucket]]) -> tuple[list[OpenBucket], list[Refused]]:
        """What is kept with as much of the batches as can be, and what was at fault in a batch of several."""
        faulty: list[Refused] = []
        while batches and self._left:
            batch, *batches = batches
            both = sorted([*kept, *batch], key=attrgetter("first"))
            verdict = self._judge(both) if batch else _FINE
            if verdict.reason is None:
                kept = both
                continue
            at_fault = [b for n, b in enumerate(both) if n in verdict.at_fault and b in batch]
            if len(batch) == 1:
                self.refused.append((batch[0], verdict.reason))
                continue
            faulty += [(bucket, verdict.reason) for bucket in at_fault]
            rest = [b for b in batch if b not in at_fault]
            half = len(rest) if at_fault else len(rest) // 2
            batches = [rest[:half], rest[half:], *batches]
        self.refused += [(bucket, Reason.of("not_tried", simulations=TRIALS)) for batch in batches for bucket in batch]
        return kept, faulty

    def _judge(self, buckets: Sequence[OpenBucket]) -> _Verdict:
        from commcc.schedule.merged import merge
        from commcc.timing.simulate import Simulator

        self._left -= 1
        index, costs = merge(self._index, self._model, self._plan_of(buckets))
        timeline = Simulator(index, costs).run()
        merged = [index.position[f"{b.members[0].kind}_bucket_{n}"] for n, b in enumerate(buckets)]
        exposed = frozenset(
            n
            for n, node in enumerate(merged)
            if timeline.exposed.get(node, 0) > buckets[n].exposed_ns + costs.ns[node] * TOLERANCE // 1000
        )
        if exposed:
            return _Verdict(Reason.of("exposed"), exposed)
        if self._exposes_others(index, costs, timeline):
            return _Verdict(Reason.of("exposes_others"))
        over = self._over_budget(index, buckets, merged)
        if over is not None:
            return over
        if timeline.step_ns > self.step_ns:
            return _Verdict(Reason.of("longer_step"))
        self.step_ns = timeline.step_ns
        return _FINE

    def _exposes_others(self, index: GraphIndex, costs: Costs, timeline: Timeline) -> bool:
        """Whether a collective that is in no bucket was hidden and is exposed now.

        Not while less is exposed in all: then what hid it was in part a stall that merging has removed.
        """
        if timeline.exposed_ns <= self._exposed_ns:
            return False
        for launch in self._index.launches:
            node = index.position.get(self._index.names[launch])
            if node is None or self._before.exposed.get(launch, 0):
                continue
            if timeline.exposed.get(node, 0) > costs.ns[node] * TOLERANCE // 1000:
                return True
        return False

    def _over_budget(self, index: GraphIndex, buckets: Sequence[OpenBucket], merged: Sequence[int]) -> _Verdict | None:
        """None within the budget; else the largest of the buckets at the peak, as many as hold the excess together."""
        from commcc.graph.memory import live_bytes

        memory = live_bytes(index)
        if self._budget is None or memory.peak_bytes <= self._budget or memory.peak_at is None:
            return None
        stretches = [self._stretch(index, bucket, node) for bucket, node in zip(buckets, merged, strict=True)]
        largest = sorted(range(len(buckets)), key=lambda n: (-buckets[n].bytes, n))
        chosen = set[int]()
        for at in [at for at, live in enumerate(memory.live) if live > self._budget]:
            there = [n for n in largest if stretches[n][0] <= at <= stretches[n][1]]
            excess = memory.live[at] - self._budget - sum(buckets[n].bytes for n in there if n in chosen)
            for n in [n for n in there if n not in chosen]:
                if excess <= 0:
                    break
                chosen.add(n)
                excess -= buckets[n].bytes
        return _Verdict(Reason.of("memory"), frozenset(chosen))

    def _stretch(self, index: GraphIndex, bucket: OpenBucket, node: int) -> tuple[int, int]:
        """From what the merged launch sends to the last member's result, which has the name of the member's wait."""
        old, at = self._index, index.position
        sends = [p for c in bucket.members for p in old.launches[c.launch].inputs if old.ops[p] != "placeholder"]
        first = min([node, *(at[old.names[p]] for p in sends if old.names[p] in at)])
        return first, max(at[old.names[wait]] for c in bucket.members for wait in c.waits)
