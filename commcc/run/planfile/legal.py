"""What a plan from a file must fulfil before it is applied: rules that passes keep by themselves.

    for path, what in problems(plan, index): ...      # (('buckets', 3), 'has members of two groups')

Only edits of buckets, tags, moves, orders and fused ops are looked at; edits of other kinds are checked by apply, and
the verifier judges the result of all.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from commcc.base.terms import Kind
from commcc.base.text import plural
from commcc.graph.annotations import EXCHANGES
from commcc.graph.index.host import early_reads
from commcc.plan import Fusing, HostCopy, Merging, Reordering, TagEntry, WaitLabel
from commcc.planning.merge_order import cycles

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from commcc.graph.index import GraphIndex
    from commcc.plan import Bucket, Plan

    Problem = tuple[tuple[str | int, ...], str]

_MERGED = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)


def problems(plan: Plan, index: GraphIndex) -> Iterator[Problem]:
    """Path and text of everything that is not legal."""
    if isinstance(plan.rewrite, Reordering):
        yield from _of_order(plan.rewrite.order, index)
    yield from _of_host_copies(plan, index)
    yield from _of_launches("tags", (tag.launch for tag in plan.of(TagEntry)), index)
    if isinstance(plan.rewrite, Merging):
        yield from _of_copies(plan.rewrite)
        yield from _of_merging(plan.rewrite, index)
    if isinstance(plan.rewrite, Fusing):
        yield from _of_launches("fusions", (fusion.launch for fusion in plan.rewrite.fusions), index)


def _of_launches(part: str, nodes: Iterable[int], index: GraphIndex) -> Iterator[Problem]:
    for number, node in enumerate(nodes):
        if node not in index.launches:
            yield (part, number), f"'{index.names[node]}' launches no collective"


def _of_copies(merging: Merging) -> Iterator[Problem]:
    for number, bucket in enumerate(merging.buckets):
        members, copies = len(bucket.members), len(bucket.copies)
        if copies != members:
            what = f"'copies' has {plural(copies, 'value')}, and the bucket {plural(members, 'member')}"
            yield ("buckets", number, "copies"), f"{what}: give true or false for each member, or plan again"


def _of_merging(merging: Merging, index: GraphIndex) -> Iterator[Problem]:
    used = Counter(member for bucket in merging.buckets for member in bucket.members)
    for number, bucket in enumerate(merging.buckets):
        twice = [index.names[member] for member in bucket.members if used[member] > 1]
        if twice:
            yield ("buckets", number), f"'{twice[0]}' is in a bucket twice"
        for what in _of_bucket(bucket, index):
            yield ("buckets", number), what
    for number, move in enumerate(merging.moves):
        if move.node in used or index.ops[move.node] in ("placeholder", "output"):
            yield ("moves", number), f"'{index.names[move.node]}' cannot move by itself"
    for number, constraint in enumerate(merging.before):
        if index.ops[constraint.first] == "output":
            yield ("before", number), "the output has to stay last"
    if not used.keys() <= index.launches.keys():
        return
    # What would have to come before itself.
    for cycle in cycles(index, [bucket.members for bucket in merging.buckets], merging.before):
        for number in cycle.before:
            constraint = merging.before[number]
            names = index.names[constraint.first], index.names[constraint.then]
            yield ("before", number), f"'{names[0]}' cannot come before '{names[1]}'"
        if not cycle.before:
            yield ("buckets", cycle.groups[0]), "waits for itself"


def _of_host_copies(plan: Plan, index: GraphIndex) -> Iterator[Problem]:
    for number, copy in enumerate(plan.of(HostCopy)):
        if copy.node not in index.host_copies:
            yield ("host_copies", number), f"'{index.names[copy.node]}' is no copy from a device to the host"
    for number, label in enumerate(plan.of(WaitLabel)):
        if label.wait not in index.wait_of or label.exchange not in EXCHANGES:
            yield ("wait_labels", number), f"'{index.names[label.wait]}' is no wait for a '{label.exchange}'"
    before = range(len(index))
    flags = {copy.node: copy.non_blocking for copy in plan.of(HostCopy)}
    order = plan.rewrite.order if isinstance(plan.rewrite, Reordering) else before
    for node, source in sorted(early_reads(index, order, flags) - early_reads(index, before))[:1]:
        names = index.names[node], index.names[source]
        where = "host_copies" if order is before else "order"
        yield (where,), f"'{names[0]}' reads '{names[1]}' before the host has waited for that copy"


def _of_order(order: Sequence[int], index: GraphIndex) -> Iterator[Problem]:
    place = {node: at for at, node in enumerate(order)}
    for node in order:
        launch = index.wait_of.get(node)
        needs = (*index.needs(node), *(() if launch is None else (launch,)))
        late = [need for need in needs if place[need] > place[node]]
        if late:
            yield ("order",), f"'{index.names[node]}' comes before '{index.names[late[0]]}', which it needs"
            return
    if order and order[-1] != len(index) - 1:
        yield ("order",), "the output has to stay last"


def _of_bucket(bucket: Bucket, index: GraphIndex) -> Iterator[str]:
    strange = [index.names[member] for member in bucket.members if member not in index.launches]
    if strange:
        yield f"'{strange[0]}' launches no collective"
        return
    if len(bucket.members) < 2:
        yield f"a bucket has two members or more, not {len(bucket.members)}"
        return
    for member in bucket.members:
        what = _of_member(bucket, member, index)
        if what is not None:
            yield f"'{index.names[member]}' {what}"
            return
    facts = [index.launches[member] for member in bucket.members]
    if len({(launch.group, launch.group_size, launch.reduction) for launch in facts}) > 1:
        yield "the members differ in group or reduction"
    dtypes = {getattr(index.tensors[launch.inputs[0]], "dtype", None) for launch in facts}
    if bucket.coalesced:
        if bucket.as_bytes or bucket.shared_cast or any(bucket.copies):
            yield "members that are launched in one call are neither cast together nor copied"
        if len(dtypes) > 1 and bucket.kind is not Kind.ALL_GATHER:
            yield "only all-gathers of several dtypes are launched in one call"
        return
    if (len(dtypes) > 1) != bucket.as_bytes or (bucket.as_bytes and bucket.kind is not Kind.ALL_GATHER):
        yield "only all-gathers of several dtypes travel as bytes"
    sent = [launch.inputs[0] for launch in facts]
    casts = {index.casts.get(node) for node in sent}
    shared = len(casts) == 1 and None not in casts and all(len(index.users[node]) == 1 for node in sent)
    if bucket.shared_cast and not shared:
        yield "the members do not share a cast"


def _of_member(bucket: Bucket, member: int, index: GraphIndex) -> str | None:
    facts = index.launches[member]
    if facts.kind is not bucket.kind or bucket.kind not in _MERGED:
        return f"is no {bucket.kind} that can be merged"
    plain = facts.asynchronous and not facts.coalesced and not facts.writes_to and not facts.group.startswith("%")
    if not plain or len(facts.inputs) != 1 or len(facts.waits) != 1 or index.users[member] != facts.waits:
        return "is no plain launch with one input and one wait"
    if facts.group_size is None and bucket.kind is not Kind.ALL_REDUCE:
        return "has a group of unknown size"
    tensors = [index.tensors[node] for node in (facts.inputs[0], facts.waits[0])]
    if any(tensor is None or tensor.symbolic or not tensor.numel for tensor in tensors):
        return "has a size that is not known"
    return None
