"""What merging collectives costs and saves, before anything is simulated.

    cost = MergeCost(index, model, costs)
    cost.copies(bucket)         # ns on the compute stream: copies in and out of the bucket
    cost.latency(members)       # ns on the group's queue: what one transfer is shorter than several
    cost.form_of(members)       # how the bucket is launched: with copies, or in one call of many launches
    relief.take(members, ns)    # how much of that the step can gain at most

Copies are those of :mod:`commcc.planning.bucket_model`: one concatenation, a copy before it for each input that does
not lie in a row, one cast in place of the members' where they share it, and a copy of each slice that is in pieces or
returned. A launch less on the compute stream is counted with what is saved.

A shorter transfer makes the step shorter by no more than what is exposed of it and of the transfers that
queue behind it without a pause: that much relief there is, and it is given out once.

Limits: an estimate by which planners choose; neighbours that a compiler would fuse with the copies count as
if they were not fused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from commcc.planning.bucket_model import (
    AUTO,
    CASTS_FIRST,
    COALESCED,
    COPY,
    SIDE_BY_SIDE,
    BucketModel,
    Form,
    Kernel,
    Member,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from commcc.graph.collectives import Collective
    from commcc.graph.index import GraphIndex
    from commcc.timing.cost import CostModel, Costs
    from commcc.timing.simulate import Timeline


class MergeCost:
    """Prices of buckets of one graph. form: as in the pass's option."""

    def __init__(self, index: GraphIndex, model: CostModel, costs: Costs, form: str = COPY) -> None:
        self._index, self._model, self._costs, self._form = index, model, costs, form
        self._members: dict[int, Member] = {}
        # Of a member's own copies, by launch and form of the bucket: the same in every bucket of that form.
        self._own: dict[tuple[int, bool, bool], int] = {}

    def bucket(self, members: Sequence[Collective]) -> BucketModel:
        """What these would be in one bucket."""
        return self._in_form(members, self.form_of(members))

    def _in_form(self, members: Sequence[Collective], form: Form) -> BucketModel:
        launches = [c.launch for c in members]
        for launch in launches:
            if launch not in self._members:
                self._members[launch] = Member.of(self._index, launch)
        return BucketModel.of([self._members[launch] for launch in launches], form)

    def form_of(self, members: Sequence[Collective]) -> Form:
        """The form, or where it is ``auto`` that of the shortest sum of transfer and copies."""
        if len(members) == 1:
            return SIDE_BY_SIDE
        if self._form != AUTO:
            return Form(self._form == COALESCED, self._form == CASTS_FIRST)
        copies = {form: self.copies(self._in_form(members, form)) for form in (SIDE_BY_SIDE, Form(casts_first=True))}
        form = min(copies, key=copies.__getitem__)
        return Form(coalesced=True) if self._grouped(members) <= self._merged(members) + copies[form] else form

    def transfer(self, members: Sequence[Collective]) -> int:
        """Time of the merged transfer, in ns."""
        if len(members) == 1:  # as it stands, with what is assumed of its size
            return self._costs.ns[members[0].launch]
        return self._grouped(members) if self.form_of(members).coalesced else self._merged(members)

    def _grouped(self, members: Sequence[Collective]) -> int:
        return self._model.group_call([self._model.transfer_of(self._index, c.launch)[0] for c in members]).ns

    def _merged(self, members: Sequence[Collective]) -> int:
        transfer, _ = self._model.transfer_of(self._index, members[0].launch)
        sent = sum(c.input_bytes for c in members)
        got = sum(c.output_bytes for c in members)
        return self._model.transfer(replace(transfer, input_bytes=sent, output_bytes=got)).ns

    def latency(self, members: Sequence[Collective]) -> int:
        """What the merged transfer is shorter than the members' together, in ns; 0 if it is longer."""
        return max(0, sum(self._costs.ns[c.launch] for c in members) - self.transfer(members))

    def launches(self, members: Sequence[Collective]) -> int:
        """What launching takes less of the compute stream, in ns."""
        return (len(members) - 1) * self._costs.launch_ns

    def copies(self, bucket: BucketModel) -> int:
        """Time of copies into and out of a bucket, in ns, less the time of casts that it replaces."""
        form = bucket.shared_cast, bucket.as_bytes
        total = self._price(bucket.kernels(fused=self._model.settings.fused))
        for place, member in enumerate(bucket.members):
            own = (member.launch, *form)
            if own not in self._own:
                replaced = self._costs.ns[member.input] if bucket.shared_cast else 0
                self._own[own] = self._price(bucket.kernels_of(place)) - replaced
            total += self._own[own]
        return total

    def _price(self, kernels: Iterable[Kernel]) -> int:
        return sum(self._model.operation(kernel.operation).ns for kernel in kernels)


class Relief:
    """How much a step can gain from shorter transfers, by stretch in which a stream of collectives does not pause."""

    def __init__(self, timeline: Timeline) -> None:
        self._stretch: dict[int, int] = {}
        self._behind: dict[int, int] = {}
        self._taken: dict[int, int] = {}
        streams: dict[str, list[int]] = {}
        for launch, span in timeline.spans.items():
            streams.setdefault(span.stream, []).append(launch)
        for queue in streams.values():
            queue.sort(key=lambda n: (timeline.spans[n].start, timeline.spans[n].end, n))
            behind, following = 0, None
            for launch in reversed(queue):
                span = timeline.spans[launch]
                if following is None or span.end < timeline.spans[following].start:
                    # A pause: what comes later would not begin earlier. The stretch has the name of its last launch.
                    behind, stretch = 0, launch
                    self._taken[stretch] = 0
                behind += timeline.exposed.get(launch, 0)
                self._stretch[launch], self._behind[launch] = stretch, behind
                following = launch

    def take(self, members: Sequence[Collective], wanted: int, had: Mapping[int, int]) -> dict[int, int]:
        """As much of ``wanted`` ns as is there for these members, by stretch. had: what they took before."""
        most: dict[int, int] = {}
        for launch in (c.launch for c in members):
            stretch = self._stretch[launch]
            most[stretch] = max(most.get(stretch, 0), self._behind[launch])
        taken: dict[int, int] = {}
        for stretch, ns in most.items():
            left = ns - self._taken[stretch] + had.get(stretch, 0)
            taken[stretch] = max(0, min(left, wanted - sum(taken.values())))
        return taken

    def settle(self, now: Mapping[int, int], had: Mapping[int, int]) -> None:
        """Note what a bucket takes now in place of what it had."""
        for stretch in now.keys() | had.keys():
            self._taken[stretch] += now.get(stretch, 0) - had.get(stretch, 0)
