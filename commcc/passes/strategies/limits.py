"""Strategy module within a memory budget: what a launch ahead, or a bucket, would hold too long is given up.

The graph is merged and its live bytes are counted. Of the launches that hold something where the budget is passed,
those that were moved stay where they are; where that is not enough, their buckets are taken apart. Then again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from commcc.base.text import plural, size
from commcc.graph.memory import MemoryModel
from commcc.passes.strategies.written import written
from commcc.plan import Merging

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from commcc.graph.index import GraphIndex
    from commcc.passes.base import PlanContext
    from commcc.passes.strategies.results import BucketResult

_FETCHED = frozenset({"placeholder", "get_attr"})
#: How often something is given up before everything is.
_ROUNDS = 10


@dataclass(frozen=True)
class GivenUp:
    """Launches, in the graph before, that are not to be moved, and those that are not to be merged."""

    still: frozenset[int] = frozenset()
    apart: frozenset[int] = frozenset()


def within(budget: int | None, context: PlanContext, form: Callable[[GivenUp], BucketResult]) -> BucketResult:
    """The first result whose peak memory is within the budget, or no more than it was before."""
    index = context.index
    given_up = GivenUp()
    result = form(given_up)
    if budget is None or not (result.buckets or result.moves):
        return result
    own = MemoryModel(index).live(range(len(index))).peak_bytes
    limit = max(budget, own)
    # All that could be held at once, side by side and copied: within the budget nothing has to be counted.
    touched = {i for n, launch in index.launches.items() for i in (n, *launch.inputs)}
    buffers = {buffer for node in touched for buffer in index.estimates.buffers[node]}
    if own + 2 * sum(index.estimates.buffer_bytes[buffer] for buffer in buffers) <= limit:
        return result
    looked_at, holding = None, None
    for _ in range(_ROUNDS):
        merging = Merging(result.buckets, result.moves, result.before)
        if merging != looked_at:  # what was given up may change nothing
            looked_at, holding = merging, _holding(context, merging, limit)
        if holding is None:
            return _told(result, given_up, limit)
        spent = given_up.still & given_up.apart
        guilty = next((left for launches in holding if (left := launches - spent)), frozenset[int]())
        still = given_up.still | guilty
        apart = given_up.apart | (guilty if still == given_up.still else frozenset())
        if (still, apart) == (given_up.still, given_up.apart):
            break
        given_up = GivenUp(still, apart)
        result = form(given_up)
    everything = frozenset(index.launches)
    given_up = GivenUp(everything, everything)
    return _told(form(given_up), given_up, limit)


def _holding(context: PlanContext, merging: Merging, limit: int) -> list[frozenset[int]] | None:
    """Launches, in the graph before, that hold memory where the limit is passed; None where it is kept.

    First those that do with what is put together for them; then, with what they are sent, which an earlier launch
    would have let go.
    """
    index = context.index
    after = written(context, merging)
    memory = MemoryModel(after)
    live = memory.live(range(len(after))).live
    over = [at for at, held in enumerate(live) if held > limit]
    if not over:
        return None
    last = {buffer: node for node in range(len(after)) for buffer in memory.touched[node]}
    number = {name: launch for launch in index.launches for name in _names(index, launch)}
    members = {launch: [number[n] for n in _names(after, launch) if n in number] for launch in after.launches}
    holding: list[frozenset[int]] = []
    for begin_of in (_begin, partial(_sent_from, index, members)):
        holders: set[int] = set()
        for launch in after.launches:
            begin = begin_of(after, launch)
            end = max((last.get(buffer, launch) for buffer in after.estimates.buffers[launch]), default=launch)
            if any(begin <= at <= end for at in over):
                holders.update(members[launch])
        holding.append(frozenset(holders))
    return holding


def _begin(after: GraphIndex, launch: int) -> int:
    """Where the first of what a merged launch puts together is made: a cast, a row of all, and its parts."""
    nodes = frontier = {launch}
    for _ in range(3 if len(_names(after, launch)) > 1 else 0):
        frontier = {p for node in frontier for p in after.data_preds[node] if after.ops[p] not in _FETCHED}
        nodes = nodes | frontier
    return min(nodes)


def _sent_from(index: GraphIndex, members: Mapping[int, Sequence[int]], after: GraphIndex, launch: int) -> int:
    """Where the first of what the members of a merged launch sent in the graph before is made; views begin with it."""
    begin, preds, buffers = launch, index.data_preds, index.estimates.buffers
    for sent in (sent for member in members[launch] for sent in index.launches[member].inputs):
        node = sent
        while index.names[node] not in after.position:  # a cast that is made of all members at once
            (node,) = preds[node]
        while preds[node] and buffers[preds[node][0]] == buffers[node]:
            node = preds[node][0]
        if index.ops[node] not in _FETCHED:
            begin = min(begin, after.position[index.names[node]])
    return begin


def _names(index: GraphIndex, launch: int) -> tuple[str, ...]:
    return index.merged_from.get(launch) or (index.names[launch],)


def _told(result: BucketResult, given_up: GivenUp, limit: int) -> BucketResult:
    if not given_up.still:
        return result
    apart = f", and {len(given_up.apart)} are not merged" if given_up.apart else ""
    text = f"for a peak of {size(limit)}, {plural(len(given_up.still), 'launch')} stay where they are"
    return replace(result, remarks=(*result.remarks, text + apart))
