"""The buckets of one graph that strategy ``auto`` chooses from, each made once.

::

    making = Making(options, context, model, costs, taken)
    making.of(keys, choice)                             # of a cap and a form for each key
    making.by_block("coalesced")                        # those of strategy module, by key
    making.bucket([gather_a, gather_b], "copy")
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from commcc.base.reasons import Reason
from commcc.base.terms import MIB
from commcc.passes.strategies.choices import BY_BLOCK
from commcc.passes.strategies.module import by_block
from commcc.passes.strategies.results import bucket_of, in_form
from commcc.planning.bucket_model import AUTO, CASTS_FIRST, COPY, FORMS, BucketModel, key_of, size_of
from commcc.planning.caps import ByteCaps
from commcc.planning.greedy import Limits, walk
from commcc.planning.merge_cost import MergeCost

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from commcc.graph.collectives import Collective
    from commcc.passes.base import PlanContext
    from commcc.passes.bucket import Bucket
    from commcc.passes.strategies.choices import Choice, Rung
    from commcc.plan import Bucket as PlannedBucket
    from commcc.planning.bucket_model import Key
    from commcc.timing.cost import CostModel, Costs


class Making:
    """Buckets by choice and by members. taken: collectives that may be merged. size: of each, in bytes. form: of a
    bucket, by what a choice says.
    """

    def __init__(
        self, options: Bucket, context: PlanContext, model: CostModel, costs: Costs, taken: Sequence[Collective]
    ) -> None:
        self.options, self.index, self.ident, self.taken = options, context.index, context.ident, taken
        self.collective = {collective.launch: collective for collective in taken}
        self.size = {launch: size_of(collective) for launch, collective in self.collective.items()}
        cost_of = {form: MergeCost(self.index, model, costs, form) for form in (*FORMS, CASTS_FIRST)}
        self.form = {form: cost.form_of for form, cost in cost_of.items()}
        self._cost = cost_of[AUTO]
        keys = {key_of(collective, options.multi_dtype) for collective in taken}
        self._blocks = {COPY: by_block(replace(options, form=COPY), context, keys)}
        self._choices: dict[Choice, tuple[PlannedBucket, ...]] = {}
        self._made: dict[tuple[tuple[int, ...], str], PlannedBucket] = {}

    def of(self, keys: Sequence[Key], choice: Choice) -> tuple[PlannedBucket, ...]:
        """The buckets of a choice, which has a rung for each key."""
        if choice not in self._choices:
            self._choices[choice] = tuple(self._buckets(dict(zip(keys, choice, strict=True))))
        return self._choices[choice]

    def _buckets(self, choice: Mapping[Key, Rung]) -> Iterator[PlannedBucket]:
        caps = {key: rung.cap for key, rung in choice.items()}
        blocks = {key for key, cap in caps.items() if cap == BY_BLOCK}
        for key in choice:
            if key in blocks:
                yield from self.by_block(choice[key].form).get(key, ())
        limits = Limits(
            caps=ByteCaps((0.0,), {key: float(cap * MIB) for key, cap in caps.items() if key not in blocks}),
            span=self.options.max_topo_span,
            max_consecutive=None,
        )
        taken = [c for c in self.taken if key_of(c, self.options.multi_dtype) not in blocks]
        for open_bucket in walk(self.index, self.ident, taken, limits, self.options.multi_dtype).buckets:
            if len(open_bucket.members) > 1:
                yield self.bucket(open_bucket.members, choice[open_bucket.key].form)

    def bucket(self, members: Sequence[Collective], form: str) -> PlannedBucket:
        """A bucket of these members, which are given in graph order."""
        launches = tuple(member.launch for member in members)
        made = self._made.get((launches, form))
        if made is None:
            made = self._made[launches, form] = bucket_of(
                self.index,
                members,
                Reason.of("shorter_step", members=len(members), bytes=sum(self.size[launch] for launch in launches)),
                param_order=self.options.param_order,
                form=self.form[form](members),
            )
        return made

    def casts_first(self, bucket: PlannedBucket) -> PlannedBucket:
        """The bucket with its members' own casts, where these take less than one behind; else as it is."""
        first = replace(bucket, shared_cast=False)
        copies = [self._cost.copies(BucketModel.planned(self.index, each)) for each in (first, bucket)]
        return first if bucket.shared_cast and copies[0] < copies[1] else bucket

    def by_block(self, form: str) -> dict[Key, tuple[PlannedBucket, ...]]:
        """The buckets of strategy module in a form, by key; none where no blocks are found."""
        if form not in self._blocks:
            form_of, of = self.form[form], self.collective
            self._blocks[form] = {
                key: tuple(in_form(self.index, b, form_of([of[n] for n in sorted(b.members)])) for b in row)
                for key, row in self._blocks[COPY].items()
            }
        return self._blocks[form]
