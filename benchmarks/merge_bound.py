"""A lower bound on the step that stays valid when collectives are merged.

    bound = merge_bound(index, costs, model, results)

``commcc.timing.simulate.lower_bound`` counts every collective with its latency, which merging saves. Here every
collective that a pass may merge (gathers, reduce-scatters, all-reduces) counts with less, so that the
bound holds for every order of every graph that merges any of them:

1. Members of one merged collective have one kind and one group, and none depends on another. So those
   that can share one with launch i are among S(i): same kind and group, no path between them. Let
   B(i) be the bytes of all of S(i) and i.
2. Let p(b) be the price of b bytes. If p(b)/b never rises with b, a merged collective M with members in
   M takes p(B(M)) = B(M) p(B(M))/B(M) >= sum over its members of b(i) p(B(i))/B(i), as B(M) <= B(i) for
   each. So c(i) = b(i) p(B(i))/B(i) is what i counts. The formula's prices are the least of several
   a + r sqrt(b) + s b, so the condition holds. For measured tables p(b)/b is replaced by its least value
   over b(i) .. B(i), found at the ends and at the powers of two between (tables whose sizes are powers of
   two have their bends there).
3. A merged launch takes the compute stream once: each member counts launch_ns / (number in S(i) and i).
   It still takes at least p(b(i)) from its launch to its end, or the least price of b(i) and more bytes: so
   long is whatever waits for it held up, which counts in paths and not in what the lane does.
4. Given a run of a merged graph, run the members of a merged collective one after the other while it
   transfers, each for c(i), and leave out copies: their inputs are ready before, their waits come after,
   and nothing else moves. That is a run of the given graph at the lower prices, so the bound of the given
   graph at these prices holds. Bytes do not change, nor do kinds and groups.
5. What nodes on the compute stream cost may change with merging, since other chains are fused. So every
   one of them counts with the least price that it has in the input and in ``results``; 0 where it is gone, but
   for a cast that a merged collective has in common: that counts with its share of the common one, by bytes, in
   whose place the members' casts run in step 4.

Step 2 lets every collective have the rate of the largest one it could be part of, though such a one can only begin when
its last member is ready, and ends before what needs its first. :func:`late_bound` counts that, for the merged
collectives of one kind and group on their stream:

6. A merged collective M takes p(B(M)), begins no sooner than the head of each of its members, and what must follow any
   of them follows its end: in step 4 each member may be the first to run, or the last.
7. Take the merged collectives in the order in which they run, sort members by their heads, and hand members out anew
   in that order, as many bytes to each as it had, members cut where need be. The first j now hold the bytes with the
   smallest heads, which are no later than those they held before; so each can still begin when it did, and takes as
   long. So the shortest end is that of cuts through the bytes in order of their heads: E(0) = what else keeps the
   stream busy (step 2; it is there from the start, which only helps), E(j) = max(E(j-1), head) + p(bytes between).
8. Cuts are tried in pieces of members. Let a cut within a piece leave a part x of it to the earlier collective, and
   let c be the piece's bytes times the least slope of p. The end of the later one is at least
   max(E + xc, head) + p(rest) + (1-x)c >= max(E + c, head) + p(rest): so the whole piece counts with c, before the
   later one. Prices are those of the next smaller size of a grid; no collective takes less than one of a byte.
   Where all members have the same bytes none needs to be cut in step 7: cuts are between members, and the grid has all
   sums of them.
9. The last end and the least tail of any member make a bound; and so it is seen from the end of the step, with tails
   for heads. With what else keeps the stream busy the last end may be that of another collective, so the least tail is
   that of any on the stream; without it, E(0) = 0 and it is that of any member.

10. With a budget of live bytes, graph inputs are live all the time. While a merged collective runs, so is its result,
   and what it sends, which is its members' inputs or a copy of them; where these are graph inputs they count once. So
   its bytes are limited, and B(i) in step 2 and the bytes between two cuts in step 7 with it, but not to less than a
   member's own.

11. With a budget, what may run while others are waited for is limited: :mod:`memory_bound`.

Limits: prices that rise with bytes. Valid for the graphs in ``results`` and for those that price compute no lower; not
for passes that remove collectives (dedup) or change groups. Step 10 supposes
that members send different bytes.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from memory_bound import MERGEABLE, memory_bound

from commcc.graph.memory import MemoryModel
from commcc.timing.simulate import lower_bound
from commcc.timing.simulate.bound import Bound
from commcc.timing.simulate.events import Events
from commcc.timing.simulate.heads import heads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from commcc.base.terms import Kind
    from commcc.graph.index import GraphIndex
    from commcc.timing.cost import CostModel, Costs
    from commcc.timing.cost.types import Transfer

    Floats = NDArray[np.float64]


def merge_bound(
    index: GraphIndex,
    costs: Costs,
    model: CostModel,
    results: Iterable[tuple[GraphIndex, Costs]] = (),
    budget: int | None = None,
) -> Bound:
    """No order of ``index`` with any of its collectives merged has a shorter step; see the module docstring.

    budget: of live bytes; None for any.
    """
    results, ns = list(results), list(costs.ns)
    memory = MemoryModel(index)
    # Inputs that are resized are not there all the time.
    inputs = 0 if index.estimates.resizes else memory.live(range(len(index))).input_bytes
    room = None if budget is None else budget - inputs
    for other, priced in results:
        known = common_casts(index, other, priced) | dict(zip(other.names, priced.ns, strict=True))
        for node, name in enumerate(index.names):
            if node not in index.launches:
                ns[node] = min(ns[node], known.get(name, 0))
    least_launch, load = costs.launch_ns, dict[int, int]()
    for node, sharing in sharing_sets(index).items():
        mine, _ = model.transfer_of(index, node)
        others = [model.transfer_of(index, other)[0].full_bytes for other in sharing]
        most = _most(index, memory, node, mine, room)
        sizes = _sizes(mine, max(mine.full_bytes, min(mine.full_bytes + sum(others), most)))
        load[node] = min(ns[node], _share(model, mine, sizes))
        ns[node] = min(ns[node], *(model.transfer(_sized(mine, size)).ns for size in sizes))
        least_launch = min(least_launch, costs.launch_ns // (1 + len(sharing)))
    least = replace(costs, ns=tuple(ns), launch_ns=least_launch)
    bound = lower_bound(index, least, load)
    parts = {**bound.parts, "lanes, merged late": late_bound(index, least, load, model, room)}
    if budget is not None:
        parts["compute stream in memory"] = memory_bound(index, least, load, budget, [other for other, _ in results])
    name = max(parts, key=lambda part: parts[part])
    return Bound(parts[name], name, parts)


def common_casts(index: GraphIndex, other: GraphIndex, costs: Costs) -> dict[str, int]:
    """By name of a cast that feeds a collective: its share of its merged collective's cast in another graph, in ns."""
    shares: dict[str, int] = {}
    merged = {member: launch for launch, members in other.merged_from.items() for member in members}
    for node, facts in index.launches.items():
        if (launch := merged.get(index.names[node])) is None:
            continue
        cast, whole = facts.inputs[0], other.launches[launch].inputs[0]
        own, sent = index.tensors[cast], other.tensors[whole]
        if cast in index.casts and whole in other.casts and own is not None and sent is not None:
            shares[index.names[cast]] = costs.ns[whole] * own.bytes // max(1, sent.bytes)
    return shares


def _most(index: GraphIndex, memory: MemoryModel, node: int, mine: Transfer, room: int | None) -> int:
    """Bytes of a collective like this one, in its larger tensor, that memory has room for: step 10."""
    if room is None or not mine.full_bytes:
        return sys.maxsize
    sent = {buffer for each in index.launches[node].inputs for buffer in index.estimates.buffers[each]}
    new = mine.output_bytes + (mine.input_bytes if sent.isdisjoint(memory.inputs) else 0)
    return room * mine.full_bytes // max(1, new)


def late_bound(
    index: GraphIndex, costs: Costs, load: Mapping[int, int], model: CostModel, room: int | None = None
) -> int:
    """Steps 6 to 10 of the module docstring: the largest bound of any kind and group."""
    memory = MemoryModel(index)
    events = Events.of(index, costs, load)
    before, after = heads(events), heads(events.mirrored())
    alike: dict[tuple[str, Kind, str], list[int]] = defaultdict(list)
    busy: dict[str, int] = defaultdict(int)
    on: dict[str, list[int]] = defaultdict(list)
    for node, facts in index.launches.items():
        stream = costs.streams.get(facts.group, facts.group)
        on[stream].append(events.transfers[node])
        busy[stream] += events.load[events.transfers[node]]
        if node in load:
            alike[stream, facts.kind, facts.group].append(node)
    worst = 0
    for (stream, _, _), nodes in alike.items():
        transfers = [model.transfer_of(index, node)[0] for node in nodes]
        sizes = [transfer.full_bytes for transfer in transfers]
        if not any(sizes):
            continue
        prices = Prices(model, transfers)
        most = max(_most(index, memory, node, t, room) for node, t in zip(nodes, transfers, strict=True))
        own = [events.transfers[node] for node in nodes]
        others = busy[stream] - sum(events.load[each] for each in own)
        first, then = ([side[each] for each in own] for side in (before, after))
        for head, tail, tails in ((first, then, after), (then, first, before)):
            alone = earliest_end(head, sizes, prices, 0, most) + min(tail)
            together = earliest_end(head, sizes, prices, others, most) + min(tails[each] for each in on[stream])
            worst = max(worst, alone, together)
    return worst


#: Sizes that are priced, for each power of two; pieces that the members of a kind and group are cut into, at most.
_STEPS, _PIECES = 64, 2048


class Prices:
    """What collectives like these take at least, by bytes in all. slope: ns that one more byte takes at least."""

    def __init__(self, model: CostModel, transfers: Sequence[Transfer]) -> None:
        largest = sum(transfer.full_bytes for transfer in transfers)
        grid = np.unique(np.exp2(np.arange(0, _STEPS * (math.log2(largest) + 1)) / _STEPS).astype(np.int64))
        alone = {transfer.full_bytes for transfer in transfers}
        sums = max(alone) * np.arange(1, len(transfers) + 1) if len(alone) == 1 else grid
        self.sizes = np.union1d(grid, sums)
        alike = {replace(t, input_bytes=0, output_bytes=0): t for t in transfers if t.full_bytes}.values()
        self.ns = np.array([min(model.transfer(_sized(t, int(b))).ns for t in alike) for b in self.sizes], float)
        # Prices are in whole ns, rounded: over a whole octave that does not matter.
        ns = self.of(grid)
        slopes = (ns[_STEPS:] - ns[:-_STEPS] - 1) / (grid[_STEPS:] - grid[:-_STEPS])
        self.slope = max(0.0, float(slopes.min(initial=np.inf))) if len(slopes) else 0.0

    def of(self, sizes: Floats) -> Floats:
        """Those of the next smaller sizes of the grid; of less than a byte that of a byte."""
        return self.ns[np.maximum(np.searchsorted(self.sizes, sizes, "right") - 1, 0)]


def earliest_end(
    heads: Sequence[int],
    sizes: Sequence[int],
    prices: Prices,
    others: int = 0,
    most: int = sys.maxsize,
    pieces_in_all: int = _PIECES,
) -> int:
    """No sooner can a stream end that is busy with others, and with all of these in any collectives made of them.

    most: bytes of a collective of several.
    """
    most = max(most, *sizes)
    order = np.argsort(heads, kind="stable")
    whole = len(set(sizes)) == 1
    each = 1 if whole else max(1, pieces_in_all // len(order))
    ready = np.repeat(np.asarray(heads, float)[order], each)
    pieces = np.repeat(np.asarray(sizes, float)[order] / each, each)
    ends = np.concatenate([[0.0], np.cumsum(pieces)])
    # By piece: the least end of what comes before a cut in it, the piece with its least included; then that of all.
    best = np.full(len(ends), float(others))
    least = np.append(np.zeros(len(pieces)) if whole else pieces * prices.slope, 0.0)
    best[0] += least[0]
    for place in range(1, len(ends)):
        bytes_of = ends[place] - (ends[:place] if whole else ends[1 : place + 1])
        took = np.where(bytes_of <= most, prices.of(bytes_of), np.inf)
        best[place] = np.min(np.maximum(best[:place], ready[place - 1]) + took) + least[place]
    return int(best[-1])


def _sizes(mine: Transfer, together: int) -> list[int]:
    """Sizes of collectives that ``mine`` may be part of: its own, all together, powers of two between."""
    marks = {mine.full_bytes, together}
    mark = 1 << mine.full_bytes.bit_length()
    while mark < together:
        marks.add(mark)
        mark *= 2
    return sorted(marks)


def _share(model: CostModel, mine: Transfer, sizes: list[int]) -> int:
    """The least that ``mine`` takes as a part of a collective of one of these sizes, in ns, rounded down."""
    if not mine.full_bytes:
        return 0
    least = min(model.transfer(_sized(mine, size)).ns / size for size in sizes)
    return int(least * mine.full_bytes)


def _sized(transfer: Transfer, full: int) -> Transfer:
    """The collective with ``full`` bytes in its larger tensor, the smaller one in proportion."""
    old = transfer.full_bytes
    return replace(
        transfer, input_bytes=transfer.input_bytes * full // old, output_bytes=transfer.output_bytes * full // old
    )


def sharing_sets(index: GraphIndex) -> dict[int, list[int]]:
    """For every mergeable launch the others of its kind and group that neither need it nor are needed by it."""
    launches = [node for node, facts in index.launches.items() if facts.kind in MERGEABLE]
    bit = {node: 1 << place for place, node in enumerate(launches)}
    waits = index.wait_of
    before = [0] * len(index)
    for node in range(len(index)):
        found = 0
        sources = index.preds(node)
        for source in (*sources, waits[node]) if node in waits else sources:
            found |= before[source] | bit.get(source, 0)
        before[node] = found
    alike: dict[tuple[Kind, str], list[int]] = defaultdict(list)
    for node in launches:
        alike[(index.launches[node].kind, index.launches[node].group)].append(node)
    return {
        node: [o for o in alike[(facts.kind, facts.group)] if o != node and not tied(before, bit, node, o)]
        for node, facts in index.launches.items()
        if node in bit
    }


def tied(before: list[int], bit: dict[int, int], one: int, other: int) -> bool:
    """Whether there is a path between two launches."""
    return bool(before[one] & bit[other] or before[other] & bit[one])
