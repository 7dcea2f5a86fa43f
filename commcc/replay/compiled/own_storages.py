"""Reductions that are in flight together have storages of their own, where one wait would wait for all of them.

    with torch._inductor.config.patch(storage_options()): ...

Inductor reduces in place what nothing else reads, also slices of one tensor. PyTorch knows what is in flight by its
storage, and the first wait for one of it waits for all. So a slice is copied for its reduction, which is what
``all_reduce`` does by itself op by op, if something would be computed between that wait and its own. Limits: it is a
hook of Inductor, taken only where the job does not use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from commcc.base.terms import Kind
from commcc.graph.index.waits import viewed, waits_on
from commcc.graph.ops import argument, collective_of, facts
from commcc.graph.ops.operands import nodes_in
from commcc.replay.compiled.graph_hooks import hook_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import fx


def storage_options() -> Mapping[str, Any]:
    """Settings that give reductions storages of their own."""
    return hook_options("post_grad_custom_post_pass", keep_apart)


@dataclass(frozen=True)
class _Flight:
    """A launch into memory that other launches may write too.

    homes: what made that memory. written: its operands there. begin, waits: places in the graph. own: it may have a
    copy to write to.
    """

    launch: fx.Node
    homes: frozenset[fx.Node]
    written: tuple[fx.Node, ...]
    begin: int
    waits: tuple[int, ...]
    own: bool


def keep_apart(graph: fx.Graph) -> list[fx.Node]:
    """Copy operands of reductions that a wait for another one would wait for too early; these reductions."""
    nodes = list(graph.nodes)
    # How much is computed or launched ahead of each place.
    busy = [0, *accumulate(node.op == "call_function" and not facts(node.target).aliases for node in nodes)]
    stay: list[_Flight] = []
    apart: list[fx.Node] = []
    for flight in sorted(_flights(nodes), key=lambda flight: (flight.own, flight.waits)):
        together = [other for other in stay if not flight.homes.isdisjoint(other.homes)]
        if flight.own and any(_ends(other, flight, busy) or _ends(flight, other, busy) for other in together):
            _copy(graph, flight)
            apart.append(flight.launch)
        else:
            stay.append(flight)
    return apart


def _flights(nodes: Sequence[fx.Node]) -> list[_Flight]:
    place = {node: at for at, node in enumerate(nodes)}
    flights = []
    for node in nodes:
        fact = collective_of(node.target) if node.op == "call_function" else None
        if fact is None or not fact.asynchronous or not (fact.out or fact.kind == Kind.ALL_REDUCE):
            continue
        written = tuple(nodes_in(argument(node, fact.out or fact.tensor)))
        # What nobody waits for here is in flight to the end.
        waits = sorted(place[wait] for wait in waits_on(node)) or [len(nodes)]
        homes = frozenset(map(_home, written))
        flights.append(_Flight(node, homes, written, place[node], tuple(waits), fact.out is None))
    return flights


def _home(node: fx.Node) -> fx.Node:
    """What made the memory of an operand, where every reduction is in place."""
    node = viewed(node)
    fact = collective_of(node.target) if node.op == "call_function" else None
    if fact is None or fact.kind != Kind.ALL_REDUCE or fact.coalesced:
        return node
    return _home(argument(node, fact.tensor))


def _ends(one: _Flight, other: _Flight, busy: Sequence[int]) -> bool:
    """Whether a wait for one waits for the other before something is computed that need not wait for it."""
    early = [wait for wait in one.waits if wait > other.begin]
    return bool(early) and early[0] < other.waits[0] and busy[early[0]] < busy[other.waits[0]]


def _copy(graph: fx.Graph, flight: _Flight) -> None:
    for operand in flight.written:
        with graph.inserting_before(flight.launch):
            copy = graph.call_function(torch.ops.aten.clone.default, (operand,))
        copy.meta = {**operand.meta, "val": torch.ops.aten.clone.default(operand.meta["val"])}
        flight.launch.replace_input_with(operand, copy)
