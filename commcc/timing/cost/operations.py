"""The operations of a graph, as cost sources are asked about them.

    ops = operations(index, fused=True)
    ops[i].flops, ops[i].read_bytes, ops[i].written_bytes, ops[i].kernels

Every node has one that is not a collective launch and not free (:class:`commcc.graph.ops.kernels.Work`). With
``fused`` pointwise ops, casts and reductions pay for what enters and leaves a chain of them
(:mod:`commcc.timing.cost.fusion`), otherwise each for all that it reads and writes (:mod:`commcc.timing.cost.traffic`).
Takes time linear in the size of the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.graph.ops.kernels import Work
from commcc.timing.cost.fusion import Chains
from commcc.timing.cost.traffic import Traffic, on_host
from commcc.timing.cost.types import Operation

if TYPE_CHECKING:
    from commcc.graph.index import GraphIndex


def operations(index: GraphIndex, *, fused: bool) -> dict[int, Operation]:
    """Operation of every node that runs something on the compute stream, by node number."""
    return operations_and_chains(index, fused=fused)[0]


def operations_and_chains(index: GraphIndex, *, fused: bool) -> tuple[dict[int, Operation], Chains | None]:
    """The same, and the chains where there are any."""
    traffic = Traffic(index)
    chains = Chains(index, traffic) if fused else None
    in_chains = {**chains.traffic(), **chains.concatenations()} if chains else {}
    known: _Known = {}
    by_node = {
        i: _operation(index, traffic, i, in_chains.get(i), known)
        for i, work in enumerate(index.estimates.work)
        if work is not Work.FREE and i not in index.launches
    }
    return by_node, chains


#: Operations by all that tells them apart.
_Known = dict[tuple[object, ...], Operation]
_NO_CALLS = ("placeholder", "get_attr", "output")


def free_calls(index: GraphIndex) -> list[int]:
    """Calls that move no data and wait for nothing: views, and what takes tuples apart."""
    return [
        i
        for i, work in enumerate(index.estimates.work)
        if work is Work.FREE and index.ops[i] not in _NO_CALLS and i not in index.launches and i not in index.wait_of
    ]


def _operation(
    index: GraphIndex, traffic: Traffic, node: int, fused: tuple[int, int, int] | None, known: _Known
) -> Operation:
    """The operation of a node. known: those of other nodes, which equal ones share."""
    hosted = traffic.hosted(node)
    read, written, kernels = fused or ((0, 0, 0) if hosted else _alone(index, traffic, node))
    figures = (
        index.estimates.flops.get(node),
        index.compute[node],
        read,
        written,
        kernels,
        not hosted and node in index.host_syncs and not index.host_copies.get(node, False),
        0 if hosted or fused else traffic.crossing(node),
        node in index.estimates.unmasked,
    )
    kinds = traffic.kinds
    key = index.ops[node], tuple([kinds[p] for p in index.data_preds[node]]), kinds[node], figures
    operation = known.get(key)
    if operation is None:
        operation = known[key] = Operation(index.ops[node], traffic.inputs(node), traffic.results[node], *figures)
    return operation


def _alone(index: GraphIndex, traffic: Traffic, node: int) -> tuple[int, int, int]:
    """Bytes read, bytes written and kernels of a node that is not fused; a copy to or from the host has none."""
    if traffic.crossing(node):
        inputs, outputs = traffic.inputs(node), traffic.results[node]
        if all(map(on_host, inputs)) or all(map(on_host, outputs)):
            return 0, 0, 0
    return sum(size for _, size in traffic.reads(node)), traffic.writes(node), 1
