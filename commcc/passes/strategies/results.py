"""What a strategy returns, and how the members of one bucket become a planned bucket.

    form = form_of(options, context)([gather_a, gather_b])     # as the option form has it
    bucket_of(index, [gather_a, gather_b], reason, param_order=False, form=form)     # a commcc.plan.Bucket

All-gathers of parameters launch where the first member stood, since parameters are there from the
start, and the casts that feed them move along; all else launches where the last member stood. The
merged wait stands at the first member's wait. A strategy may ask for another place of the launch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from commcc.base.errors import OptionError
from commcc.base.reasons import Reason
from commcc.base.record import Record
from commcc.plan import Bucket as PlannedBucket
from commcc.plan import LeftOut
from commcc.planning.bucket_model import AUTO, COALESCED, SIDE_BY_SIDE, BucketModel, Form, Member, key_of
from commcc.planning.merge_cost import MergeCost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from commcc.graph.collectives import Collective
    from commcc.graph.index import GraphIndex
    from commcc.passes.base import PlanContext
    from commcc.passes.bucket import Bucket
    from commcc.plan import Before, Move


@dataclass(frozen=True)
class BucketResult:
    """Buckets of one strategy. left_out: collectives of the right roles that are in none of them.

    moves, before: as in :class:`commcc.plan.Merging`.
    report: the strategy's own account, besides what is counted for all strategies alike.
    """

    buckets: tuple[PlannedBucket, ...]
    left_out: tuple[LeftOut, ...] = ()
    report: Record = field(default_factory=Record)
    remarks: tuple[str, ...] = ()
    moves: tuple[Move, ...] = ()
    before: tuple[Before, ...] = ()


@dataclass(frozen=True)
class AutoReport(Record):
    """caps_mb: of the chosen bucketing, by key; 0 for no merging, in words for others than caps. bucketings_tried: of
    caps; unequal_tried: of unequal sizes. scheduled_step_ms:
    ``unmerged``, ``merged``, of the first schedules where no bucketing came near, or one was better beyond doubt.
    """

    cost_model: Mapping[str, str]
    caps_mb: Mapping[str, int | str]
    bucketings_tried: int
    unequal_tried: int
    scheduled_step_ms: Mapping[str, float]


def unmerged(
    index: GraphIndex, taken: Sequence[Collective], buckets: Sequence[PlannedBucket], multi_dtype: bool
) -> list[LeftOut]:
    """Candidates that are in none of the buckets: merging does not pay, or there is nothing to merge them with.

    multi_dtype: as the option of ``bucket``.
    """
    merged = {member for bucket in buckets for member in bucket.members}
    sides = {c.launch: bisect_left(index.barriers, c.launch) for c in taken}
    keys = {c.launch: key_of(c, multi_dtype) for c in taken}
    alike, near = Counter(keys.values()), Counter((keys[launch], side) for launch, side in sides.items())

    def why(launch: int) -> Reason:
        key, side = keys[launch], sides[launch]
        if alike[key] == 1:
            return Reason.of("no_partner")
        if near[key, side] == 1:
            return Reason.of("no_partner_here", node=index.names[index.barriers[max(0, side - 1)]])
        return Reason.of("does_not_pay")

    return [LeftOut(launch, why(launch)) for launch in keys if launch not in merged]


def bucket_of(
    index: GraphIndex,
    members: Sequence[Collective],
    reason: Reason,
    *,
    param_order: bool,
    form: Form = SIDE_BY_SIDE,
) -> PlannedBucket:
    """A planned bucket of two or more members, which are given in graph order.

    param_order: concatenate in order of parameters and outputs instead.
    """
    ordered = list(members)
    if param_order:
        ordered.sort(key=lambda c: (c.anchor is None, c.anchor or 0, c.launch))
    members_in_order = tuple(c.launch for c in ordered)
    planned = PlannedBucket(kind=ordered[0].kind, members=members_in_order, launch_at=0, wait_at=0, reason=reason)
    planned = in_form(index, planned, form)
    launch_at = min(planned.members) if launches_early(ordered) else max(planned.members)
    return placed(planned, ordered, launch_at)


def in_form(index: GraphIndex, bucket: PlannedBucket, form: Form) -> PlannedBucket:
    """The same members at the same place in this form."""
    model = BucketModel.of([Member.of(index, launch) for launch in bucket.members], form)
    return replace(
        bucket,
        shared_cast=model.shared_cast,
        as_bytes=model.as_bytes,
        copies=model.copies,
        coalesced=model.coalesced,
    )


def placed(bucket: PlannedBucket, members: Sequence[Collective], launch_at: int) -> PlannedBucket:
    """The bucket with its launch at ``launch_at``, a position in the graph before."""
    hoist = {n for c in members for n in c.chain if n > launch_at} if launches_early(members) else set()
    return replace(
        bucket,
        launch_at=launch_at,
        wait_at=min(wait for c in members for wait in c.waits if wait > launch_at),
        hoist=tuple(sorted(hoist)),
    )


def form_of(options: Bucket, context: PlanContext) -> Callable[[Sequence[Collective]], Form]:
    """Tells how the members of a bucket are launched, which ``form=auto`` sees by price."""
    if options.form_given != AUTO:
        return lambda _members: Form(options.form_given == COALESCED)
    if context.model is None:
        raise OptionError("form auto needs a cost model", where="pass 'bucket'", hint="name one: --cost h100")
    return MergeCost(context.index, context.model, context.model.price(context.index), AUTO).form_of


def launches_early(members: Sequence[Collective]) -> bool:
    """Whether the merged launch can stand at the first member, or before: parameters are there from the start."""
    return all(c.derived in ("param", "scale") for c in members)
