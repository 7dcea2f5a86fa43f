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
   one of them counts with the least price that it has in the input and in ``results``; 0 where it is gone.

Limits: valid for the graphs in ``results`` and for those that price compute no lower; not for
passes that remove collectives (dedup) or change groups. Memory is not looked at.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from commcc.base.terms import Kind
from commcc.timing.simulate import lower_bound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commcc.graph.index import GraphIndex
    from commcc.timing.cost import CostModel, Costs
    from commcc.timing.cost.types import Transfer
    from commcc.timing.simulate import Bound

MERGEABLE = frozenset({Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE})


def merge_bound(
    index: GraphIndex, costs: Costs, model: CostModel, results: Iterable[tuple[GraphIndex, Costs]] = ()
) -> Bound:
    """No order of ``index`` with any of its collectives merged has a shorter step; see the module docstring."""
    ns = list(costs.ns)
    for other, priced in results:
        known = dict(zip(other.names, priced.ns, strict=True))
        for node, name in enumerate(index.names):
            if node not in index.launches:
                ns[node] = min(ns[node], known.get(name, 0))
    least_launch, load = costs.launch_ns, dict[int, int]()
    for node, sharing in sharing_sets(index).items():
        mine, _ = model.transfer_of(index, node)
        others = [model.transfer_of(index, other)[0].full_bytes for other in sharing]
        sizes = _sizes(mine, mine.full_bytes + sum(others))
        load[node] = min(ns[node], _share(model, mine, sizes))
        ns[node] = min(ns[node], *(model.transfer(_sized(mine, size)).ns for size in sizes))
        least_launch = min(least_launch, costs.launch_ns // (1 + len(sharing)))
    return lower_bound(index, replace(costs, ns=tuple(ns), launch_ns=least_launch), load)


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
