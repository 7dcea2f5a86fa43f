"""bucket: merges many small collectives into few large ones.

Three launches of one kind, group, reduction and dtype become one::

    ag1 = all_gather(p1)   w1 = wait(ag1)       flat = cat(p1.flatten(), p2.flatten())
    ag2 = all_gather(p2)   w2 = wait(ag2)  ->   ag = all_gather(flat)   w = wait(ag).view(W, -1)
                                                w1, w2 = w.split([n1, n2], 1), each reshaped

Eligible are gathers of one parameter and reductions that only lead to outputs (by tag, else by
identification). All-gathers launch where the first member stood, since parameters are there from
the start, and the casts that feed them move along; reductions launch where the last member stood.
Limits: members with symbolic sizes, other users than one wait, or in-place writes stay out, each
with its reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from commcc.metrics import longest_run
from commcc.passes.base import Pass
from commcc.passes.eligibility import eligible, select_groups
from commcc.passes.greedy import MIB, Limits, OpenBucket, Walk, walk
from commcc.passes.options import option, to_text
from commcc.plan import Bucket as PlannedBucket
from commcc.plan import LeftOut, Plan
from commcc.terms import Kind

if TYPE_CHECKING:
    from commcc.collectives import Collective, Identification
    from commcc.cost import CostModel
    from commcc.index import GraphIndex
    from commcc.terms import Json


@dataclass(frozen=True)
class Bucket(Pass):
    """Options of the greedy strategy; see the module docstring."""

    name: ClassVar[str] = "bucket"
    summary: ClassVar[str] = "merge collectives of one kind, group, reduction and dtype"

    strategy: str = option("greedy", "how buckets are formed", type="choice", choices=("greedy",))
    bucket_cap_mb: float | tuple[float, ...] | None = option(
        200.0,
        "MiB in one bucket, the larger of input and output counted; a list 10:25 gives caps by bucket number",
        type="floats",
        minimum=0,
        none="no limit",
    )
    max_topo_span: int | None = option(
        1500,
        "nodes between the first and the last member, in the graph before the pass",
        type="int",
        minimum=0,
        none="no limit, only bytes count",
    )
    max_consecutive: int | None = option(
        None,
        "longest run of compute nodes between reduce-scatters that merging may make",
        type="int",
        minimum=1,
        none="no limit",
    )
    groups: str | tuple[str, ...] = option(
        "primary", "groups that take part: primary, all, or names a:b", type="names", choices=("primary", "all")
    )
    multi_dtype: bool = option(False, "let all-gathers of several dtypes share a bucket, as bytes", type="bool")
    param_order: bool = option(
        False, "concatenate in order of parameters and outputs instead of graph order", type="bool"
    )

    def plan(self, index: GraphIndex, ident: Identification, model: CostModel | None = None) -> Plan:
        """Greedy buckets under the caps; see :mod:`commcc.passes.greedy` for the cases."""
        groups = select_groups(ident, self.groups)
        taken, left = eligible(index, ident, groups)
        found = walk(index, ident, taken, self._limits(), self.multi_dtype)
        buckets = [self._bucket(index, b) for b in found.buckets if len(b.members) > 1]
        left += [LeftOut(b.first, _lonely(b)) for b in found.buckets if len(b.members) == 1]
        return Plan(
            pass_text=to_text(self),
            fingerprint=index.fingerprint,
            buckets=tuple(buckets),
            left_out=tuple(sorted(left, key=lambda entry: entry.launch)),
            report=self._report(index, ident, found, buckets, left),
        )

    def _limits(self) -> Limits:
        caps = self.bucket_cap_mb if isinstance(self.bucket_cap_mb, tuple) else (self.bucket_cap_mb,)
        sizes = tuple(float("inf") if cap is None else cap * MIB for cap in caps)
        return Limits(sizes, self.max_topo_span, self.max_consecutive)

    def _bucket(self, index: GraphIndex, found: OpenBucket) -> PlannedBucket:
        members = self._ordered(found.members)
        kind = members[0].kind
        early = kind is Kind.ALL_GATHER and all(c.derived == "param" for c in members)
        launch_at = found.first if early else found.last
        hoist = {n for c in members for n in c.chain if n > launch_at} if early else set()
        waits = [wait for c in members for wait in c.waits if wait > launch_at]
        dtypes = {c.dtype for c in members}
        return PlannedBucket(
            kind=kind,
            members=tuple(c.launch for c in members),
            launch_at=launch_at,
            wait_at=min(waits),
            hoist=tuple(sorted(hoist)),
            shared_cast=len(dtypes) == 1 and _one_cast(index, members),
            as_bytes=len(dtypes) > 1,
            copies=tuple(_needs_copy(index, c) for c in members),
            reason=f"{len(members)} members, {_size(found.bytes)}, span {found.span}; {_ended(found)}",
        )

    def _ordered(self, members: list[Collective]) -> list[Collective]:
        if not self.param_order:
            return members
        return sorted(members, key=lambda c: (c.anchor is None, c.anchor or 0, c.launch))

    def _report(
        self,
        index: GraphIndex,
        ident: Identification,
        found: Walk,
        buckets: list[PlannedBucket],
        left: list[LeftOut],
    ) -> dict[str, Json]:
        spans = [b.span for b in found.buckets if len(b.members) > 1]
        report: dict[str, Json] = {
            "primary_group": ident.primary,
            "buckets": len(buckets),
            "members": sum(len(b.members) for b in buckets),
            "by_kind": _by_kind(index, buckets),
            "largest_span": max(spans, default=0),
            "closed": {reason: found.closed[reason] for reason in ("bytes", "span", "dependence", "max_consecutive")},
            "knobs": self._knobs(found),
            "copies": sum(sum(b.copies) for b in buckets),
            "shared_casts": sum(len(b.members) for b in buckets if b.shared_cast),
            "reordered_buckets": sum(list(b.members) != sorted(b.members) for b in buckets),
            "left_out": dict(sorted(Counter(_general(index, entry) for entry in left).items())),
        }
        report["remarks"] = list(self._remarks(index, ident))
        return report

    def _knobs(self, found: Walk) -> dict[str, Json]:
        fired = {"bucket_cap_mb": "bytes", "max_topo_span": "span", "max_consecutive": "max_consecutive"}
        knobs: dict[str, Json] = {}
        for knob, reason in fired.items():
            value: Any = getattr(self, knob)
            shown = list(value) if isinstance(value, tuple) else value
            knobs[knob] = {
                "value": shown,
                "fired": found.closed[reason],
                "dormant": value is not None and not found.closed[reason],
            }
        return knobs

    def _remarks(self, index: GraphIndex, ident: Identification) -> list[str]:
        remarks = []
        if self.groups == "primary" and ident.primary is None and ident.collectives:
            remarks.append("no group gathers parameters, so none is primary; name groups or use groups=all")
        before = longest_run(index, Kind.REDUCE_SCATTER)
        if self.max_consecutive is not None and before > self.max_consecutive:
            remarks.append(
                f"max_consecutive={self.max_consecutive} cannot hold: the graph has a run of {before} already"
            )
        return remarks


def _size(count: int) -> str:
    return f"{count / MIB:.1f} MiB" if count >= MIB // 10 else f"{count} bytes"


def _lonely(bucket: OpenBucket) -> str:
    return f"alone in its bucket ({_ended(bucket)})"


def _ended(bucket: OpenBucket) -> str:
    return "no more candidates" if bucket.closed_by == "end" else f"closed for {bucket.closed_by}"


def _general(index: GraphIndex, entry: LeftOut) -> str:
    """The reason without node names, so that equal reasons can be counted."""
    words = entry.reason.split("'")
    named = [w if i % 2 == 0 or w not in index.position else "..." for i, w in enumerate(words)]
    return f"{index.launches[entry.launch].kind}: {chr(39).join(named)}"


def _one_cast(index: GraphIndex, members: list[Collective]) -> bool:
    """Whether every member sends the same sort of cast, made for it alone."""
    sent = [index.launches[c.launch].inputs[0] for c in members]
    keys = {index.casts.get(node) for node in sent}
    return len(keys) == 1 and None not in keys and all(len(index.users[node]) == 1 for node in sent)


def _needs_copy(index: GraphIndex, member: Collective) -> bool:
    """Whether an output would come to share the merged buffer: a slice is a view of it.

    The slices of an all-gather over more than one rank are copies anyway.
    """
    if member.kind is Kind.ALL_GATHER and (member.group_size or 0) > 1:
        return False
    return not index.output_storages.isdisjoint(index.storages[member.waits[0]])


def _by_kind(index: GraphIndex, buckets: list[PlannedBucket]) -> dict[str, Json]:
    kinds: dict[str, Json] = {}
    for kind in dict.fromkeys(b.kind for b in buckets):
        same = [b for b in buckets if b.kind is kind]
        kinds[kind.value] = {"buckets": len(same), "members": sum(len(b.members) for b in same)}
    return kinds
