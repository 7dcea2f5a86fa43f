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
4. memory has room for it (:mod:`commcc.planning.headroom`), and
5. its copies take no longer on the compute stream than the launch and the latency that it saves, the latter
   as far as it is exposed (:mod:`commcc.planning.merge_cost`).

Such buckets are then kept a few at a time, each time with a simulation of the merged step
(:mod:`commcc.passes.strategies.trial`), so that what is kept never exposes what was hidden, never passes the
memory budget (by default, the graph's own peak) and never makes the step longer. Hidden collectives, and
which compute hides them, come from the simulated order, or from a file (``hiding``). Launches and waits of a
group that are in no bucket keep their order, where the merges of others allow it.

Limits: members are looked for within ``max_topo_span`` nodes of the first, so that time grows with
this window and not with the graph. Caps bound the bytes that a bucket holds in flight.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from commcc.base.errors import OptionError
from commcc.base.reasons import Reason
from commcc.passes.budget import budget_bytes
from commcc.passes.strategies.formed import Formed, bucket_of, launches_early, placed
from commcc.passes.strategies.trial import Trial
from commcc.plan import Before, LeftOut, Merging
from commcc.planning.eligibility import eligible, select_groups
from commcc.planning.greedy import MIB, key_of, size_of
from commcc.planning.headroom import Room
from commcc.planning.hiding import Hiding, hidden_by_order, read_hiding
from commcc.planning.merge_cost import Relief, Worth
from commcc.planning.mergeorder import MergeOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.base.terms import Json
    from commcc.graph.collectives import Collective, Identification
    from commcc.graph.index import GraphIndex
    from commcc.passes.bucket import Bucket
    from commcc.plan import Bucket as PlannedBucket
    from commcc.planning.greedy import Key
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


@dataclass
class Open:
    """A bucket while it grows. number: of its key. exposed_ns: of its members, before. relief: what it counts on."""

    number: int
    members: list[Collective]
    bytes: int
    exposed_ns: int
    relief: dict[int, int] = field(default_factory=dict)


def form(options: Bucket, index: GraphIndex, ident: Identification, model: CostModel | None) -> Formed:
    """Buckets that keep hidden collectives hidden."""
    if model is None:
        raise OptionError("strategy overlap needs a cost model", where="pass 'bucket'", hint="name one: --cost h100")
    taken, left = eligible(index, ident, select_groups(ident, options.groups_given))
    return _Overlap(options, index, model, taken).formed(left)


class _Overlap:
    def __init__(self, options: Bucket, index: GraphIndex, model: CostModel, taken: list[Collective]) -> None:
        from commcc.timing.simulate import Simulator

        self.options, self.index, self.model, self.taken = options, index, model, taken
        self.costs: Costs = model.price(index)
        self.timeline: Timeline = Simulator(index, self.costs).run()
        given = options.hiding
        hiding = read_hiding(index, given) if given else hidden_by_order(index, self.timeline)
        # Nodes that go where a merged launch goes cannot hide anything.
        casts = {n for c in taken for n in index.launches[c.launch].inputs if n in index.casts}
        moving = casts.union(n for c in taken for n in c.chain)
        self.hiding: Hiding = hiding.without(moving)
        self.worth, self.relief = Worth(index, model, self.costs), Relief(self.timeline)
        self.budget = self._budget()
        self.room = Room(index, self.budget)
        self.refused: dict[str, int] = dict.fromkeys(_REFUSED, 0)
        self.why: dict[int, Reason] = {}

    def formed(self, left: list[LeftOut]) -> Formed:
        grown = [b for b in self._grow() if len(b.members) > 1]
        trial = Trial(self.index, self.model, self.timeline, self.budget, self._plan)
        kept = trial.keep([b for b in grown if self._pays(b)])
        for bucket, reason in trial.refused:
            self.why.update((c.launch, reason) for c in bucket.members)
        merged = {c.launch for b in kept for c in b.members}
        left += [LeftOut(c.launch, self._reason(c)) for c in self.taken if c.launch not in merged]
        report: dict[str, Json] = {
            "cost_model": {"name": self.costs.model, "hash": self.costs.hash},
            "hidden": len(self.hiding.by_launch),
            "refused": dict(self.refused),
            "not_kept": dict(Counter(str(reason) for _, reason in trial.refused)),
            "copies_ms": sum(self.worth.copies(b.members) for b in kept) / 1e6,
            "latency_ms": sum(self.worth.latency(b.members) for b in kept) / 1e6,
            "step_ms": {"before": self.timeline.step_ns / 1e6, "merged": trial.step_ns / 1e6},
        }
        plan = self._plan(kept)
        return Formed(plan.buckets, tuple(left), report, (), (), plan.before)

    def _budget(self) -> int | None:
        from commcc.graph.memory import live_bytes

        peak = live_bytes(self.index).peak_bytes
        given = self.options.memory_budget
        limit = peak if given == "auto" else budget_bytes(given, peak)
        return None if limit is None else max(limit, peak)

    def _reason(self, collective: Collective) -> Reason:
        return self.why.get(collective.launch, Reason.of("no_partner"))

    def _grow(self) -> list[Open]:
        """Greedy: every candidate joins the first open bucket of its key that takes it."""
        order = MergeOrder(self.index, self.hiding.edges(), self.options.hiding or "pass 'bucket'")
        buckets: dict[Key, list[Open]] = {}
        made: list[Open] = []
        for candidate in self._candidates():
            own = buckets.setdefault(key_of(candidate, self.options.multi_dtype), [])
            near = [b for b in own if self._near(b, candidate)]
            if any(self._join(order, bucket, candidate) for bucket in near):
                continue
            exposed = self.timeline.exposed.get(candidate.launch, 0)
            made.append(Open(len(own), [candidate], size_of(candidate), exposed))
            own.append(made[-1])
        return made

    def _candidates(self) -> list[Collective]:
        """In graph order; exposed ones first or last."""
        first = self.options.exposed_first
        exposed = self.timeline.exposed
        return sorted(self.taken, key=lambda c: ((exposed.get(c.launch, 0) == 0) is first, c.launch))

    def _near(self, bucket: Open, candidate: Collective) -> bool:
        span = self.options.max_topo_span
        return span is None or abs(candidate.launch - bucket.members[0].launch) <= span

    def _join(self, order: MergeOrder, bucket: Open, candidate: Collective) -> bool:
        """Merge the candidate into the bucket, if nothing speaks against it."""
        obstacle = self._obstacle(order, bucket, candidate)
        if obstacle is not None:
            self.refused[obstacle] += 1
            for each in (candidate, *(bucket.members if len(bucket.members) == 1 else ())):
                self.why[each.launch] = _REFUSED[obstacle]
            return False
        order.merge_both(bucket.members[0], candidate)
        self.room.take((bucket.members, [candidate]), [*bucket.members, candidate])
        bucket.members = sorted([*bucket.members, candidate], key=lambda c: c.launch)
        bucket.bytes += size_of(candidate)
        bucket.exposed_ns += self.timeline.exposed.get(candidate.launch, 0)
        self._count_on(bucket, bucket.members)
        return True

    def _obstacle(self, order: MergeOrder, bucket: Open, candidate: Collective) -> str | None:
        """What speaks against a merge, a key of ``_REFUSED``; None if nothing does."""
        caps = self.options.bucket_cap_mb
        cap = caps[min(bucket.number, len(caps) - 1)] if isinstance(caps, tuple) else caps
        if cap is not None and bucket.bytes + size_of(candidate) > cap * MIB:
            return "bytes"
        members = [*bucket.members, candidate]
        if not self._has_place(members):
            return "place"
        if not order.may_merge_both(bucket.members[0], candidate):
            return "cycle"
        if not self._stays_hidden(bucket, members):
            return "exposed"
        if not self.room.fits((bucket.members, [candidate]), members):
            return "memory"
        return None if self._is_worth_it(bucket, members) else "copies"

    def _has_place(self, members: Sequence[Collective]) -> bool:
        """Whether launch and wait can stand between inputs, hiding compute and users, none of which moves."""
        index = self.index
        inputs, hiding_begins, hiding_ends, users = -1, len(index), -1, len(index)
        for each in members:
            if not launches_early((each,)):
                inputs = max(inputs, *index.preds(each.launch))
            users = min((users, *index.users[each.waits[0]]))
            hiding = self.hiding.by_launch.get(each.launch)
            if hiding:
                hiding_begins, hiding_ends = min(hiding_begins, hiding[0]), max(hiding_ends, hiding[-1])
        return inputs < min(hiding_begins, users) and hiding_ends < users

    def _stays_hidden(self, bucket: Open, members: Sequence[Collective]) -> bool:
        """Whether what hides the members, a bucket's and one more, is enough for the merged collective."""
        hiding = {node for c in members for node in self.hiding.by_launch.get(c.launch, ())}
        if not hiding:
            return True
        cover = sum(self.costs.ns[node] for node in hiding) + bucket.exposed_ns
        cover += self.timeline.exposed.get(members[-1].launch, 0)
        return self.worth.transfer(members) <= max(cover, sum(self.costs.ns[c.launch] for c in members))

    def _is_worth_it(self, bucket: Open, members: Sequence[Collective]) -> bool:
        """Whether what one more member adds to the copies takes no longer than what it saves."""
        more = self.worth.copies(members) - self.worth.copies(bucket.members)
        return more <= self._saved(bucket, members) - self._saved(bucket, bucket.members)

    def _saved(self, bucket: Open, members: Sequence[Collective]) -> int:
        """What these members save the step in one bucket, at most."""
        relief = self.relief.take(members, self.worth.latency(members), bucket.relief)
        return self.worth.launches(members) + sum(relief.values())

    def _count_on(self, bucket: Open, members: Sequence[Collective]) -> None:
        now = self.relief.take(members, self.worth.latency(members), bucket.relief) if members else {}
        self.relief.settle(now, bucket.relief)
        bucket.relief = now

    def _pays(self, bucket: Open) -> bool:
        """Whether the bucket saves what its copies take, the first member's too."""
        if self.worth.copies(bucket.members) <= self._saved(bucket, bucket.members):
            return True
        self._count_on(bucket, ())
        self.why.update((c.launch, _REFUSED["copies"]) for c in bucket.members)
        self.refused["copies"] += len(bucket.members) - 1
        return False

    def _plan(self, buckets: Sequence[Open]) -> Merging:
        """The plan of these buckets, numbered by their first members."""
        planned = tuple(self._planned(b) for b in sorted(buckets, key=lambda b: b.members[0].launch))
        before = (*self.hiding.kept(self.index), *self._queues(buckets)) if planned else ()
        return Merging(planned, before=before)

    def _queues(self, buckets: Sequence[Open]) -> list[Before]:
        """Launches, and waits, of one group that are in no bucket stay in their order, where merging lets them."""
        order = MergeOrder(self.index, self.hiding.edges())
        merged = {c.launch for b in buckets for c in b.members}
        for bucket in buckets:
            for other in bucket.members[1:]:
                order.merge_both(bucket.members[0], other)
        queues: dict[tuple[str, bool], list[int]] = {}
        for launch, facts in self.index.launches.items():
            if launch not in merged and facts.waits:
                queues.setdefault((facts.group, False), []).append(launch)
                queues.setdefault((facts.group, True), []).append(min(facts.waits))
        pairs = [pair for queue in queues.values() for pair in pairwise(sorted(queue))]
        return [Before(first, then) for first, then in pairs if order.keep(first, then)]

    def _planned(self, bucket: Open) -> PlannedBucket:
        members = bucket.members
        hidden = sum(c.launch in self.hiding.by_launch for c in members)
        reason = Reason.of("stay_hidden", members=len(members), bytes=bucket.bytes, hidden=hidden)
        made = bucket_of(self.index, members, reason, param_order=self.options.param_order)
        # As early as inputs and hiding compute allow; what hides a member waits for the launch.
        return made if launches_early(members) else placed(made, members, min(c.launch for c in members))
