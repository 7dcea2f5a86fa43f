"""Who pays for fused chains in other orders of a graph, and how much.

    costs.payers.prices(order)              # {17: 2000, 23: 41_500}: ns of nodes that cost something else there
    costs.payers.after(order)               # what has to stay ahead of each member, so that these prices hold

The first member of a chain that runs pays for its kernel, the first reader of a tensor for its bytes
(:mod:`commcc.timing.cost.fusion`). The chains are the same in every legal order, so only those whose payers no longer
stand first are priced anew: the prices are those of the graph written in that order, to the ns.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from commcc.timing.cost.least import Alike, Least, Pricing, alike, least

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from commcc.timing.cost.fusion import Chains
    from commcc.timing.cost.types import Operation

Ints = NDArray[np.int64]


class _Paid(NamedTuple):
    """A chain in one order, by the places of its members in the graph's own. ns: of those that cost something else than
    there; after: see :meth:`Payers.after`.
    """

    ns: dict[int, int]
    after: dict[int, tuple[int, ...]]


class Payers:
    """Of one graph, whose own order the operations are of. price: ns of an operation."""

    def __init__(self, chains: Chains, operations: Mapping[int, Operation], price: Callable[[Operation], int]) -> None:
        self._chains = chains
        self._pricing = Pricing(chains, operations, price, frozenset(chains.concatenations()))
        pairs = [(node, payer) for node, payers in chains.after.items() for payer in payers]
        self._late, self._early = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
        self._chain = np.array([chains.of[node] for node, _ in pairs], np.int64)
        members: dict[int, list[int]] = {}
        for node in chains.members():
            members.setdefault(chains.of[node], []).append(node)
        self._members = {chain: np.array(nodes, np.int64) for chain, nodes in members.items()}
        #: By chain a number that those have in common which are alike, as layers repeat them.
        self._kinds: dict[int, int] = {}
        self._numbers: dict[Alike, int] = {}
        # Schedules of one graph have most chains in one of few orders.
        self._known: dict[tuple[int, bytes], _Paid] = {}

    def prices(self, order: Ints) -> dict[int, int]:
        """Nodes that cost something else in this order of all nodes than in the graph's own, and their ns."""
        place, result = _places(order), dict[int, int]()
        for chain in self._changed(place):
            nodes, paid = self._paid(chain, place)
            result.update((nodes[k], ns) for k, ns in paid.ns.items())
        return result

    def after(self, order: Ints) -> Mapping[int, tuple[int, ...]]:
        """By member those of its chain that pay ahead of it in this order: as long as they do, its prices hold."""
        place = _places(order)
        result = dict(self._chains.after)
        for chain in self._changed(place):
            nodes, paid = self._paid(chain, place)
            for node in nodes:
                result.pop(node, None)
            result.update((nodes[k], tuple([nodes[p] for p in payers])) for k, payers in paid.after.items())
        return result

    @cached_property
    def least(self) -> Least:
        """What the chains cost at least, whatever the order."""
        return least(self._pricing, {chain: nodes.tolist() for chain, nodes in self._members.items()})

    def _changed(self, place: Ints) -> list[int]:
        """Chains of which a payer comes behind a member that it stood ahead of."""
        changed: list[int] = np.unique(self._chain[place[self._late] < place[self._early]]).tolist()
        return changed

    def _paid(self, chain: int, place: Ints) -> tuple[list[int], _Paid]:
        """The members of a chain in the graph's own order, and what it is in this one."""
        members = self._members[chain]
        order, nodes = place[members].argsort(), members.tolist()
        key = self._kind(chain, nodes), order.tobytes()
        if key not in self._known:
            self._known[key] = self._priced(nodes, [nodes[k] for k in order.tolist()])
        return nodes, self._known[key]

    def _kind(self, chain: int, nodes: Sequence[int]) -> int:
        if chain not in self._kinds:
            same = alike(self._pricing, nodes, [self._chains.entering(node) for node in nodes])
            self._kinds[chain] = self._numbers.setdefault(same, len(self._numbers))
        return self._kinds[chain]

    def _priced(self, nodes: Sequence[int], order: Sequence[int]) -> _Paid:
        pricing, number = self._pricing, {node: k for k, node in enumerate(nodes)}
        paid, after = self._chains.paid(order)
        ns = dict[int, int]()
        for node, (read, _written, kernels) in paid.items():
            own = pricing.operations[node]
            if (own.read_bytes, own.kernels) != (read, kernels) and node not in pricing.fixed:
                ns[number[node]] = pricing.of(node, read, kernels)
        return _Paid(ns, {number[node]: tuple([number[p] for p in payers]) for node, payers in after.items()})


def _places(order: Ints) -> Ints:
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place
