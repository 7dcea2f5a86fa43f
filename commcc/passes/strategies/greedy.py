"""Strategy greedy: fill a bucket in graph order until a cap closes it; :mod:`commcc.planning.greedy` walks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.base.reasons import Reason
from commcc.base.terms import MIB, Kind
from commcc.graph.metrics import longest_run
from commcc.passes.strategies.formed import Formed, bucket_of
from commcc.plan import LeftOut
from commcc.planning.eligibility import eligible, select_groups
from commcc.planning.greedy import Limits, OpenBucket, Walk, walk

if TYPE_CHECKING:
    from commcc.base.terms import Json
    from commcc.graph.collectives import Identification
    from commcc.graph.index import GraphIndex
    from commcc.passes.bucket import Bucket
    from commcc.timing.cost import CostModel


def form(options: Bucket, index: GraphIndex, ident: Identification, model: CostModel | None) -> Formed:
    """Greedy buckets under the caps of the options."""
    groups = select_groups(ident, options.groups_given)
    taken, left = eligible(index, ident, groups)
    found = walk(index, ident, taken, _limits(options), options.multi_dtype)
    several = [b for b in found.buckets if len(b.members) > 1]
    left += [LeftOut(b.first, _alone(b)) for b in found.buckets if len(b.members) == 1]
    report: dict[str, Json] = {
        "largest_span": max((b.span for b in several), default=0),
        "closed": {reason: found.closed[reason] for reason in ("bytes", "span", "dependence", "max_consecutive")},
        "knobs": _knobs(options, found),
    }
    return Formed(
        buckets=tuple(bucket_of(index, b.members, _reason(b), param_order=options.param_order) for b in several),
        left_out=tuple(left),
        report=report,
        remarks=tuple(_remarks(options, index)),
    )


def _limits(options: Bucket) -> Limits:
    caps = options.bucket_cap_mb if isinstance(options.bucket_cap_mb, tuple) else (options.bucket_cap_mb,)
    sizes = tuple(float("inf") if cap is None else cap * MIB for cap in caps)
    return Limits(sizes, options.max_topo_span, options.max_consecutive)


def _knobs(options: Bucket, found: Walk) -> dict[str, Json]:
    fired = {"bucket_cap_mb": "bytes", "max_topo_span": "span", "max_consecutive": "max_consecutive"}
    knobs: dict[str, Json] = {}
    for knob, reason in fired.items():
        value: Any = getattr(options, knob)
        shown = list(value) if isinstance(value, tuple) else value
        knobs[knob] = {
            "value": shown,
            "fired": found.closed[reason],
            "dormant": value is not None and not found.closed[reason],
        }
    return knobs


def _remarks(options: Bucket, index: GraphIndex) -> list[str]:
    before = longest_run(index, Kind.REDUCE_SCATTER)
    if options.max_consecutive is None or before <= options.max_consecutive:
        return []
    return [f"max_consecutive={options.max_consecutive} cannot hold: the graph has a run of {before} already"]


def _alone(bucket: OpenBucket) -> Reason:
    return Reason.of("alone_at_end") if bucket.closed_by == "end" else Reason.of("alone", closed_by=bucket.closed_by)


def _reason(bucket: OpenBucket) -> Reason:
    facts = {"members": len(bucket.members), "bytes": bucket.bytes, "span": bucket.span}
    if bucket.closed_by == "end":
        return Reason.of("at_end", **facts)
    return Reason.of("closed", **facts, closed_by=bucket.closed_by)
