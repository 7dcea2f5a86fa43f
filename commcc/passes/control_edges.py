"""Control edges that keep an order: for each collective that compute hides, the launch before that compute, and
that compute before the wait.

    ag = launch          mm_1 held behind ag:   else a backend may launch ag after it
    mm_1, mm_2      ->   w held behind mm_2:    else a backend may wait before it
    w = wait(ag)

Only the first and the last compute node between launch and wait are held, and only edges that the graph does not
have yet. Limits: what is held has to be a call of a plain op that writes nothing; a collective with no such
compute between launch and wait is left out.
"""

from __future__ import annotations

from itertools import accumulate
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
    before = list(accumulate((index.compute[node] for node in order), initial=0))  # compute nodes before each position
    reasons: dict[tuple[int, int], Reason] = {}
    left: list[LeftOut] = []
    for launch, facts in index.launches.items():
        for wait in facts.waits:
            between = compute[before[place[launch]] : before[place[wait]]]
            # What is wrapped already, or writes, cannot be wrapped as a plain op.
            plain = (n for n in between if not index.ops[n].startswith("higher_order.") and n not in index.writes)
            first = next(plain, None)
            if first is not None:
                last = _result_of(index, between[-1], place, place[wait])
                reasons[first, launch] = Reason.of("runs_meanwhile", launch=index.names[launch])
                reasons[wait, last] = Reason.of("hides", node=index.names[between[-1]], launch=index.names[launch])
            elif between:
                left.append(LeftOut(launch, Reason.of("nothing_to_hold")))
    edges = [
        ControlEdge(node, after, why)
        for (node, after), why in reasons.items()
        if after not in index.data_preds[node] and after not in index.control.get(node, ())
    ]
    edges.sort(key=lambda edge: (place[edge.node], place[edge.after]))
    return tuple(edges), tuple(dict.fromkeys(left))


def _result_of(index: GraphIndex, node: int, place: dict[int, int], until: int) -> int:
    """The node itself, or the first tensor of its result, when that is a tuple and one is taken before ``until``.

    PyTorch before 2.13 passes over tuples among the nodes to come after, and nothing comes after the numbers in them.
    """
    parts = (n for n in index.users[node] if index.ops[n] == "operator.getitem" and index.tensors[n] is not None)
    taken = [n for n in parts if place[n] < until]
    return node if index.tensors[node] is not None else min(taken, key=place.__getitem__, default=node)
