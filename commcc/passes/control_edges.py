"""Control edges that keep an order: for each collective that compute hides, the launch before that compute, and
that compute before the wait.

    ag = launch          mm_1 held behind ag:   else a backend may launch ag after it
    mm_1, mm_2      ->   w held behind mm_2:    else a backend may wait before it
    w = wait(ag)

Only the first and the last compute node between launch and wait are held, and only edges that the graph does not
have yet. Limits: what is held has to be a call of a plain op that writes nothing; a collective with no such
compute beside it is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.reasons import Reason
from commcc.plan import ControlEdge, LeftOut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.index import GraphIndex


def control_edges(index: GraphIndex, order: Sequence[int]) -> tuple[tuple[ControlEdge, ...], tuple[LeftOut, ...]]:
    """Edges for ``order`` (all node numbers), in the order of the nodes that are held; launches left out."""
    place = {node: at for at, node in enumerate(order)}
    compute = [node for node in order if index.compute[node]]
    found: dict[tuple[int, int], Reason] = {}
    left: list[LeftOut] = []
    before = _counted(index, order)
    for launch, facts in index.launches.items():
        for wait in facts.waits:
            beside = compute[before[place[launch]] : before[place[wait]]]
            if not beside:
                continue
            reason = _hold(index, (launch, wait), beside, place, found)
            if reason is not None:
                left.append(LeftOut(launch, reason))
    edges = [ControlEdge(node, after, why) for (node, after), why in found.items() if not _has(index, node, after)]
    edges.sort(key=lambda edge: (place[edge.node], place[edge.after]))
    return tuple(edges), tuple(dict.fromkeys(left))


def _counted(index: GraphIndex, order: Sequence[int]) -> list[int]:
    """For every position, how many compute nodes stand before it."""
    counts, count = [], 0
    for node in order:
        counts.append(count)
        count += index.compute[node]
    return counts


def _hold(
    index: GraphIndex,
    pair: tuple[int, int],
    beside: Sequence[int],
    place: dict[int, int],
    found: dict[tuple[int, int], Reason],
) -> Reason | None:
    """Add the edges of one launch and wait; why that cannot be, None when it was done."""
    launch, wait = pair
    first = next((node for node in beside if _can_be_held(index, node)), None)
    if first is None:
        return Reason.of("nothing_to_hold")
    last = _result_of(index, beside[-1], place, place[wait])
    found[first, launch] = Reason.of("runs_meanwhile", launch=index.names[launch])
    found[wait, last] = Reason.of("hides", node=index.names[beside[-1]], launch=index.names[launch])
    return None


def _has(index: GraphIndex, node: int, after: int) -> bool:
    return after in index.data_preds[node] or after in index.control.get(node, ())


def _can_be_held(index: GraphIndex, node: int) -> bool:
    return not index.ops[node].startswith("higher_order.") and node not in index.writes


def _result_of(index: GraphIndex, node: int, place: dict[int, int], until: int) -> int:
    """The node itself, or the first part of its result, when that is a tuple and a part is taken before ``until``.

    PyTorch before 2.13 passes over tuples among the nodes to come after.
    """
    taken = (n for n in index.users[node] if index.ops[n] == "operator.getitem" and place[n] < until)
    return node if index.tensors[node] is not None else min(taken, key=place.__getitem__, default=node)
