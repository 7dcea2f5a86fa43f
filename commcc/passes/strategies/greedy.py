"""Strategy greedy: fill a bucket in graph order until a cap closes it; :mod:`commcc.planning.greedy` walks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commcc.base.reasons import Reason
from commcc.base.record import Record, left_out
from commcc.base.terms import Kind
from commcc.graph.metrics import longest_run
from commcc.passes.strategies.results import BucketResult, bucket_of, form_of
from commcc.plan import LeftOut
from commcc.planning.caps import byte_caps
from commcc.planning.eligibility import eligible, select_groups
from commcc.planning.greedy import Limits, OpenBucket, Walk, walk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.base.terms import Json
    from commcc.passes.base import PlanContext
    from commcc.passes.bucket import Bucket


@dataclass(frozen=True)
class GreedyReport(Record):
    """closed: buckets by what closed them. knobs: what each cap was, and whether it ever closed one. caps_mb: by key,
    where they differ.
    """

    largest_span: int
    closed: Mapping[str, int]
    knobs: Mapping[str, Json]
    caps_mb: Mapping[str, float] | None = left_out()


def form(options: Bucket, context: PlanContext) -> BucketResult:
    """Greedy buckets under the caps of the options."""
    index, ident = context.index, context.ident
    taken, left = eligible(index, ident, select_groups(ident, options.groups_given))
    caps = byte_caps(options.bucket_cap_mb, index, context.model, taken, multi_dtype=options.multi_dtype)
    limits = Limits(caps, options.max_topo_span, options.max_consecutive)
    form = form_of(options, context)
    walked = walk(index, ident, taken, limits, options.multi_dtype)
    several = [b for b in walked.buckets if len(b.members) > 1]
    left += [LeftOut(b.first, _reason(b)) for b in walked.buckets if len(b.members) == 1]
    report = GreedyReport(
        largest_span=max((b.span for b in several), default=0),
        closed={reason: walked.closed[reason] for reason in ("bytes", "span", "dependence", "max_consecutive")},
        knobs=_knobs(options, walked),
        caps_mb=caps.in_words,
    )
    remarks = []
    before = longest_run(index, Kind.REDUCE_SCATTER)
    if options.max_consecutive is not None and before > options.max_consecutive:
        limit = f"max_consecutive={options.max_consecutive}"
        remarks.append(f"{limit} cannot hold: the graph has a run of {before} already")
    return BucketResult(
        buckets=tuple(
            bucket_of(index, b.members, _reason(b), param_order=options.param_order, form=form(b.members))
            for b in several
        ),
        left_out=tuple(left),
        report=report,
        remarks=tuple(remarks),
    )


def _reason(bucket: OpenBucket) -> Reason:
    """Why it holds what it holds: nothing closes the buckets that are open when the walk ends."""
    at_end = bucket.closed_by == "end"
    if len(bucket.members) == 1:
        return Reason.of("alone_at_end") if at_end else Reason.of("alone", closed_by=bucket.closed_by)
    facts = {"members": len(bucket.members), "bytes": bucket.bytes, "span": bucket.span}
    return Reason.of("at_end", **facts) if at_end else Reason.of("closed", **facts, closed_by=bucket.closed_by)


def _knobs(options: Bucket, walked: Walk) -> dict[str, Json]:
    """For each cap how many buckets it closed; one that closed none is dormant."""
    knobs: dict[str, Json] = {}
    for knob, reason in (
        ("bucket_cap_mb", "bytes"),
        ("max_topo_span", "span"),
        ("max_consecutive", "max_consecutive"),
    ):
        value: Any = getattr(options, knob)
        knobs[knob] = {
            "value": list(value) if isinstance(value, tuple) else value,
            "fired": walked.closed[reason],
            "dormant": value is not None and not walked.closed[reason],
        }
    return knobs
