"""Strategy overlap: merge without giving up what the order hides already.

    reorder,bucket{strategy=overlap}

The order of the graph is taken for a schedule. What runs on the compute stream while a hidden
collective moves its bytes hides it, and is kept between its launch and its wait::

    launch a, launch b, mm_1, mm_2, wait a, wait b        a is hidden by mm_1, b by mm_2
    launch a+b, mm_1, mm_2, wait a+b                      so both stay between

Merging treats the launches as one node and the waits as one, each with the needs of all members. It is
allowed if the graph with these constraints stays free of cycles, and if the merged collective takes no
longer than what runs between its launch and its wait. What is left exposed all the same in a simulation
of the merged step, beyond what its members were, is taken apart again. So is what stands ahead of a
collective that was hidden and is not any more, if communication is exposed for longer than before in all,
and so are the largest buckets at the peak of memory while that passes the budget (by default, the graph's
own peak). Hidden collectives, and which compute hides them, come from the simulated order, or from a file
(``hiding``). Launches and waits of a group that are in no bucket keep their order, where the merges of
others allow it.

Limits: members are looked for within ``max_topo_span`` nodes of the first, so that time grows with
this window and not with the graph. Caps bound the bytes that a bucket holds in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from commcc.errors import OptionError
from commcc.passes.budget import budget_bytes
from commcc.passes.eligibility import eligible, select_groups
from commcc.passes.greedy import MIB, key_of, size_of
from commcc.passes.hiding import Hiding, hidden_by_order, read_hiding
from commcc.passes.mergeorder import MergeOrder
from commcc.passes.strategies.formed import Formed, bucket_of, launches_early, placed, size_text
from commcc.plan import Before, LeftOut, Plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.collectives import Collective, Identification
    from commcc.cost import CostModel, Costs
    from commcc.index import GraphIndex
    from commcc.passes.bucket import Bucket
    from commcc.passes.greedy import Key
    from commcc.plan import Bucket as PlannedBucket
    from commcc.simulate import Timeline
    from commcc.terms import Json

#: A merged collective may be exposed for this much longer than its members were, in permille of its time.
_TOLERANCE = 10
#: How often buckets that come out exposed or too large are taken apart before none is made.
_ROUNDS = 20
#: After so many rounds all buckets at the peak of memory, or ahead of what was hidden, go at once.
_GENTLE = 5


@dataclass
class _Open:
    """A bucket while it grows. exposed_ns: of its members, before."""

    members: list[Collective]
    bytes: int
    exposed_ns: int


def form(options: Bucket, index: GraphIndex, ident: Identification, model: CostModel | None) -> Formed:
    """Buckets that keep hidden collectives hidden."""
    if model is None:
        raise OptionError("strategy overlap needs a cost model", where="pass 'bucket'", hint="name one: --cost h100")
    taken, left = eligible(index, ident, select_groups(ident, options.groups_given))
    return _Overlap(options, index, model, taken).formed(left)


class _Overlap:
    def __init__(self, options: Bucket, index: GraphIndex, model: CostModel, taken: list[Collective]) -> None:
        from commcc.memory import live_bytes
        from commcc.simulate import Simulator

        self.options, self.index, self.model, self.taken = options, index, model, taken
        self.costs: Costs = model.price(index)
        self.timeline: Timeline = Simulator(index, self.costs).run()
        given = options.hiding
        hiding = read_hiding(index, given) if given else hidden_by_order(index, self.costs, self.timeline)
        # Nodes that go where a merged launch goes cannot hide anything.
        casts = {n for c in taken for n in index.launches[c.launch].inputs if n in index.casts}
        moving = casts.union(n for c in taken for n in c.chain)
        self.hiding: Hiding = hiding.without(moving)
        peak = live_bytes(index).peak_bytes
        self.budget = peak if options.memory_budget == "auto" else budget_bytes(options.memory_budget, peak)
        self.refused = {"cycle": 0, "exposed": 0, "bytes": 0}
        self.apart = 0

    def formed(self, left: list[LeftOut]) -> Formed:
        open_buckets = [b for b in self._grow() if len(b.members) > 1]
        for attempt in range(_ROUNDS):
            worse = self._worse(open_buckets, gently=attempt < _GENTLE)
            if not worse:
                break
            self.apart += len(worse)
            open_buckets = [b for n, b in enumerate(open_buckets) if n not in worse]
        else:
            open_buckets = []
        merged = {c.launch for b in open_buckets for c in b.members}
        left += [LeftOut(c.launch, "no merge keeps what hides it") for c in self.taken if c.launch not in merged]
        report: dict[str, Json] = {
            "cost_model": {"name": self.costs.model, "hash": self.costs.hash},
            "hidden": len(self.hiding.by_launch),
            "refused": dict(self.refused),
            "taken_apart": self.apart,
        }
        plan = self._plan(open_buckets)
        return Formed(plan.buckets, tuple(left), report, (), (), plan.before)

    def _grow(self) -> list[_Open]:
        """Greedy: every candidate joins the first open bucket of its key that takes it."""
        order = MergeOrder(self.index, self.hiding.edges(), self.options.hiding or "pass 'bucket'")
        buckets: dict[Key, list[_Open]] = {}
        made: list[_Open] = []
        for candidate in self._candidates():
            key = key_of(candidate, self.options.multi_dtype)
            near = [b for b in buckets.get(key, []) if self._near(b, candidate)]
            if not any(self._join(order, bucket, candidate) for bucket in near):
                made.append(_Open([candidate], size_of(candidate), self.timeline.exposed.get(candidate.launch, 0)))
                buckets[key] = (
                    [*near, made[-1]] if not self.options.exposed_first else [*buckets.get(key, []), made[-1]]
                )
        return made

    def _candidates(self) -> list[Collective]:
        """In graph order; exposed ones first or last."""
        first = self.options.exposed_first
        exposed = self.timeline.exposed
        return sorted(self.taken, key=lambda c: ((exposed.get(c.launch, 0) == 0) is first, c.launch))

    def _near(self, bucket: _Open, candidate: Collective) -> bool:
        span = self.options.max_topo_span
        return span is None or abs(candidate.launch - bucket.members[0].launch) <= span

    def _join(self, order: MergeOrder, bucket: _Open, candidate: Collective) -> bool:
        cap = self.options.bucket_cap_mb
        limit = cap[0] if isinstance(cap, tuple) else cap
        if limit is not None and bucket.bytes + size_of(candidate) > limit * MIB:
            self.refused["bytes"] += 1
            return False
        launch, wait = bucket.members[0].launch, bucket.members[0].waits[0]
        own_launch, own_wait = candidate.launch, candidate.waits[0]
        if not (order.may_merge(launch, own_launch) and order.may_merge(wait, own_wait)):
            self.refused["cycle"] += 1
            return False
        if not self._stays_hidden(bucket, candidate):
            self.refused["exposed"] += 1
            return False
        order.merge(launch, own_launch)
        order.merge(wait, own_wait)
        bucket.members = sorted([*bucket.members, candidate], key=lambda c: c.launch)
        bucket.bytes += size_of(candidate)
        bucket.exposed_ns += self.timeline.exposed.get(candidate.launch, 0)
        return True

    def _stays_hidden(self, bucket: _Open, candidate: Collective) -> bool:
        """Whether what hides the members is enough for the merged collective."""
        members = [*bucket.members, candidate]
        hiding = {node for c in members for node in self.hiding.by_launch.get(c.launch, ())}
        if not hiding:
            return True
        cover = sum(self.costs.ns[node] for node in hiding) + bucket.exposed_ns
        cover += self.timeline.exposed.get(candidate.launch, 0)
        return self._price(members) <= max(cover, sum(self.costs.ns[c.launch] for c in members))

    def _price(self, members: list[Collective]) -> int:
        from dataclasses import replace

        transfer, _ = self.model.transfer_of(self.index, members[0].launch)
        sent = sum(c.input_bytes for c in members)
        got = sum(c.output_bytes for c in members)
        return self.model.transfer(replace(transfer, input_bytes=sent, output_bytes=got)).ns

    def _plan(self, buckets: list[_Open]) -> Plan:
        planned = tuple(self._planned(b) for b in sorted(buckets, key=lambda b: b.members[0].launch))
        before = (*self.hiding.kept(self.index), *self._queues(buckets)) if planned else ()
        return Plan("", self.index.fingerprint, planned, before=before)

    def _queues(self, buckets: list[_Open]) -> list[Before]:
        """Launches, and waits, of one group that are in no bucket stay in their order, where merging lets them."""
        order = MergeOrder(self.index, self.hiding.edges())
        merged = {c.launch for b in buckets for c in b.members}
        for bucket in buckets:
            for other in bucket.members[1:]:
                order.merge(bucket.members[0].launch, other.launch)
                order.merge(bucket.members[0].waits[0], other.waits[0])
        queues: dict[tuple[str, bool], list[int]] = {}
        for launch, facts in self.index.launches.items():
            if launch not in merged and facts.waits:
                queues.setdefault((facts.group, False), []).append(launch)
                queues.setdefault((facts.group, True), []).append(min(facts.waits))
        pairs = [pair for queue in queues.values() for pair in pairwise(sorted(queue))]
        return [Before(first, then) for first, then in pairs if order.keep(first, then)]

    def _planned(self, bucket: _Open) -> PlannedBucket:
        members = bucket.members
        hidden = sum(c.launch in self.hiding.by_launch for c in members)
        reason = f"{len(members)} members, {size_text(bucket.bytes)}, {hidden} of them hidden and kept so"
        made = bucket_of(self.index, members, reason, param_order=self.options.param_order)
        # As early as inputs and hiding compute allow; what hides a member waits for the launch.
        return made if launches_early(members) else placed(made, members, min(c.launch for c in members))

    def _worse(self, buckets: list[_Open], *, gently: bool) -> set[int]:
        """Numbers of buckets to take apart: exposed for longer than their members were, or exposing others; if
        there are none, too large.
        """
        from commcc.memory import live_bytes
        from commcc.schedule.merged import merge
        from commcc.simulate import Simulator

        if not buckets:
            return set()
        ordered = sorted(range(len(buckets)), key=lambda n: buckets[n].members[0].launch)
        index, costs = merge(self.index, self.model, self._plan(buckets))
        timeline = Simulator(index, costs).run()
        made = {index.position[f"{buckets[n].members[0].kind}_bucket_{number}"]: n for number, n in enumerate(ordered)}
        allowed = {node: buckets[n].exposed_ns + costs.ns[node] * _TOLERANCE // 1000 for node, n in made.items()}
        worse = {n for node, n in made.items() if timeline.exposed.get(node, 0) > allowed[node]}
        for node in self._not_hidden_now(index, costs, timeline):
            ahead = _ahead(node, made, timeline, index)
            worse.update(made[b] for b in (ahead[-1:] if gently else ahead))
        memory = live_bytes(index)
        if worse or self.budget is None or memory.peak_bytes <= self.budget or memory.peak_at is None:
            return worse
        stretch = {n: (node, max(_results(index, buckets[n], self.index))) for node, n in made.items()}
        there = [n for n, (first, last) in stretch.items() if first <= memory.peak_at <= last] or list(stretch)
        return set(there) if not gently else _largest(buckets, there, memory.peak_bytes - self.budget)

    def _not_hidden_now(self, index: GraphIndex, costs: Costs, timeline: Timeline) -> list[int]:
        """Launches of the merged graph that are in no bucket, were hidden and are exposed now.

        None while less is exposed in all: then what hid them was in part a stall that merging has removed.
        """
        found: list[int] = []
        if timeline.exposed_ns <= self.timeline.exposed_ns:
            return found
        for launch in self.hiding.by_launch:
            node = index.position.get(self.index.names[launch])
            if node is None or self.timeline.exposed.get(launch, 0):
                continue
            if timeline.exposed.get(node, 0) > costs.ns[node] * _TOLERANCE // 1000:
                found.append(node)
        return found


def _ahead(node: int, made: Mapping[int, int], timeline: Timeline, index: GraphIndex) -> list[int]:
    """Merged launches that may have delayed a collective, in graph order: those ahead of it in its queue; else those
    ahead of its wait; else all.
    """
    lane, wait = timeline.spans[node].lane, min(index.launches[node].waits)
    in_queue = sorted(b for b in made if b < node and timeline.spans[b].lane == lane)
    return in_queue or sorted(b for b in made if b < wait) or sorted(made)


def _results(index: GraphIndex, bucket: _Open, before: GraphIndex) -> list[int]:
    """Nodes of the merged graph that give the members' results: they have the names of the members' waits."""
    return [index.position[before.names[wait]] for c in bucket.members for wait in c.waits]


def _largest(buckets: list[_Open], among: list[int], excess: int) -> set[int]:
    """The largest of some buckets, as many as hold ``excess`` bytes together."""
    chosen: set[int] = set()
    for n in sorted(among, key=lambda n: (-buckets[n].bytes, n)):
        chosen.add(n)
        excess -= buckets[n].bytes
        if excess <= 0:
            break
    return chosen
