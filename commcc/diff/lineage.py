"""Which collectives became which: merges, splits and replacements.

A merged launch that commcc made carries the names of its members. For any other graph the lineage is
read off the uses: where a removed collective's result went, something new must now come from, and the
launches found on the way back from there do its work::

    before  w = wait(ag_1(p));  mm(w, x)
    after   mm(reshape(getitem(split(wait(ag_new(cat(...)))), 1)), x)      ag_1 is a member of ag_new

A collective whose result only feeds another one that is gone (the reduce-scatter of an HSDP gradient) is
found from its input in the same way.

Limits: the search passes over at most ``REACH`` new or removed nodes for each collective, and needs a
use or an input that both graphs have.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from commcc.diff.types import Change, Merge, Split

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from commcc.diff.match import Matching
    from commcc.diff.moves import Stationary

REACH = 2000


def lineage(matching: Matching, still: Stationary) -> tuple[tuple[Merge, ...], tuple[Split, ...], tuple[Change, ...]]:
    """Merges in the order of the graph after; splits and one-to-one replacements in that before."""
    old, new = matching.before.index, matching.after.index
    recorded = _recorded(matching)
    told = {b for members in recorded.values() for b in members}
    gone = [b for b in old.launches if b not in matching.to_after and b not in told]
    sources: dict[int, list[int]] = defaultdict(list)
    parts: dict[int, list[int]] = {}
    for b in gone:
        parts[b] = _successors(matching, b)
        for a in parts[b]:
            sources[a].append(b)
    merges = [_merge(matching, still, a, members, "record") for a, members in recorded.items() if members]
    merges += [_merge(matching, still, a, members, "structure") for a, members in sources.items() if len(members) > 1]
    splits = [
        Split(old.names[b], str(old.launches[b].kind), old.launches[b].group, tuple(new.names[a] for a in successors))
        for b, successors in parts.items()
        if len(successors) > 1
    ]
    alone = [
        Change(old.names[b], old.ops[b], old.names[b], new.names[successors[0]])
        for b, successors in parts.items()
        if len(successors) == 1 and len(sources[successors[0]]) == 1
    ]
    return tuple(sorted(merges, key=lambda m: new.position[m.into])), tuple(splits), tuple(alone)


def _recorded(matching: Matching) -> dict[int, list[int]]:
    """Members (before) of new launches (after) by what the launches say of themselves."""
    old, new = matching.before.index, matching.after.index
    owner = {name: b for b, names in old.merged_from.items() for name in names}
    merged: dict[int, list[int]] = {}
    for a, names in new.merged_from.items():
        if a in matching.to_before or a not in new.launches:
            continue
        # A member may itself be in a merged launch of the graph before.
        members = (old.position.get(name, owner.get(name)) for name in names)
        merged[a] = sorted({b for b in members if b is not None and b in old.launches})
    return merged


def _merge(matching: Matching, still: Stationary, a: int, members: list[int], evidence: str) -> Merge:
    old, new = matching.before.index, matching.after.index
    launch = new.launches[a]
    waits = [w for b in members for w in old.launches[b].waits[:1]]
    return Merge(
        into=new.names[a],
        kind=str(launch.kind),
        group=launch.group,
        members=tuple(old.names[b] for b in members),
        evidence=evidence,
        span=members[-1] - members[0],
        launch_moved=_range(still.passed(b, a) for b in members),
        wait_moved=_range(still.passed(w, launch.waits[0]) for w in waits) if launch.waits else None,
    )


def _range(distances: Iterable[int]) -> tuple[int, int] | None:
    known = list(distances)
    return (min(known), max(known)) if known else None


def _successors(matching: Matching, launch: int) -> list[int]:
    """New launches (after) that do the work of the removed launch (before)."""
    successors: set[int] = set()
    uses, complete = _uses(matching, launch)
    for user, slot in uses:
        operands = matching.after.operands(matching.to_after[user])
        if slot < len(operands):
            successors.update(_sources(matching, operands[slot]))
    # Uses alone do not tell, so what it sent is followed forwards too.
    if not successors or not complete:
        successors.update(_launches_fed(matching, launch))
    return sorted(successors)


def _launches_fed(matching: Matching, launch: int) -> list[int]:
    """New launches (after) of the same kind and group that what the removed one sent goes to."""
    old, new = matching.before.index, matching.after.index
    facts = old.launches[launch]
    producers = _walk(launch, old.data_preds, matching.to_after, old.launches)
    reached: set[int] = set()
    for producer in producers & set(matching.to_after):
        reached |= _walk(matching.to_after[producer], new.users, matching.to_before, new.launches)
    # A producer may feed other collectives as well; work does not pass from one group or kind to another.
    same = (a for a in reached if a in new.launches and a not in matching.to_before)
    return sorted(a for a in same if (new.launches[a].kind, new.launches[a].group) == (facts.kind, facts.group))


def _walk(
    start: int, neighbours: Sequence[Sequence[int]], surviving: Mapping[int, int], launches: Mapping[int, object]
) -> set[int]:
    """Nodes reached from ``start`` over nodes that are in one graph only; launches and survivors end it."""
    stack, seen = [start], {start}
    while stack and len(seen) < REACH:
        node = stack.pop()
        if node != start and (node in surviving or node in launches):
            continue
        fresh = [n for n in neighbours[node] if n not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return seen - {start}


def _uses(matching: Matching, launch: int) -> tuple[list[tuple[int, int]], bool]:
    """Surviving nodes (before) that the result reaches through removed ones, with the operand's place.

    The flag is False when part of the result goes to another removed launch, past which nothing is known.
    """
    index, uses, complete = matching.before.index, [], True
    stack, seen = [launch], {launch}
    while stack and len(seen) < REACH:
        node = stack.pop()
        for user in index.users[node]:
            if user in matching.to_after:
                places = matching.before.operands(user)
                uses += [(user, slot) for slot, operand in enumerate(places) if operand == node]
            # What another removed launch makes of it is that launch's lineage.
            elif user in index.launches:
                complete = False
            elif user not in seen:
                seen.add(user)
                stack.append(user)
    return uses, complete


def _sources(matching: Matching, node: int) -> list[int]:
    """New launches (after) that ``node`` comes from through new nodes."""
    index = matching.after.index
    if node in matching.to_before or node in index.launches:
        return [node] if node not in matching.to_before else []
    reached = {node} | _walk(node, index.data_preds, matching.to_before, index.launches)
    return [n for n in reached if n in index.launches and n not in matching.to_before]
