"""What merging a collective with its neighbours would take, by the cost model's own prices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.reasons import Reason
from commcc.base.terms import MIB
from commcc.passes.bucket import Bucket
from commcc.planning.bucket_model import size_of
from commcc.planning.eligibility import eligible
from commcc.planning.merge_cost import MergeCost

if TYPE_CHECKING:
    from commcc.explain.context import Context
    from commcc.graph.collectives import Collective
    from commcc.planning.merge_order import MergeOrder

#: Caps that are tried, in MiB; the smallest that takes away half of the latency is chosen.
CAPS_MB = (5, 10, 25, 50, 100, 200)


@dataclass(frozen=True)
class Merge:
    """A merge with ``others`` neighbours. apart_ns, merged_ns: time in the queue. obstacle: why the
    bucket pass would not do it. group: to be named, where it is not the one that is taken by itself. unknown: how many
    have a size without a number."""

    others: int
    bytes: int
    cap_mb: float
    apart_ns: int
    merged_ns: int
    obstacle: Reason | None
    group: str | None
    unknown: int = 0


def merge(context: Context, own: Collective) -> Merge | None:
    """The smallest merge with neighbours of one kind that takes away half of their latency."""
    index, costs = context.index, context.costs
    taken, left = eligible(index, context.ident, frozenset(g.name for g in context.ident.groups))
    obstacle = next((entry.reason for entry in left if entry.launch == own.launch), None)
    able = {c.launch for c in taken}
    if own.launch not in able:
        obstacle = obstacle or Reason.of("other_role")
    kind = (own.kind, own.group, own.reduction, own.dtype, own.role)
    span = Bucket.max_topo_span or len(index)
    mates = [
        c
        for c in context.ident.collectives
        if (c.kind, c.group, c.reduction, c.dtype, c.role) == kind
        and abs(c.launch - own.launch) <= span
        # One that the pass leaves alone is compared with all its like, to show what that costs.
        and (c is own or obstacle is not None or c.launch in able)
    ]
    group = None if own.group == context.ident.primary else own.group
    cost = MergeCost(index, context.model, costs)
    best: Merge | None = None
    for cap in CAPS_MB:
        members = _members(context.merges, mates, own, cap * MIB)
        if len(members) < 2:
            continue
        apart = sum(costs.ns[c.launch] for c in members)
        together = cost.transfer(members)
        latency = sum(costs.latency_ns.get(c.launch, 0) for c in members)
        size = sum(size_of(c) for c in members)
        if together < apart:
            unknown = sum(c.unknown for c in members)
            best = Merge(len(members) - 1, size, cap, apart, together, obstacle, group, unknown)
        # Larger caps save little more than this and hold more memory.
        if (apart - together) * 2 >= latency:
            break
    return best


def _members(order: MergeOrder, mates: list[Collective], own: Collective, cap: int) -> list[Collective]:
    """Neighbours around the collective, the nearest first, while they fit under the cap.

    The pass closes a bucket where one needs another: on that side no more may join.
    """
    members, size = [own], size_of(own)
    closed: set[bool] = set()
    for mate in sorted(mates, key=lambda c: (abs(c.launch - own.launch), c.launch)):
        behind = mate.launch > own.launch
        if mate is own or behind in closed:
            continue
        if not all(order.may_merge_both(mate, member) for member in members):
            closed.add(behind)
            continue
        if size + size_of(mate) > cap:
            break
        members.append(mate)
        size += size_of(mate)
    return members
