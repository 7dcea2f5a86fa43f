"""Who pays for fused chains in other orders of a graph, and how much.

    costs.payers.prices(order)              # {17: 2000, 23: 41_500}: ns of nodes that cost something else there
    costs.payers.after(order)               # what has to stay ahead of each member, so that these prices hold

The first member of a chain that runs pays for its kernel, the first reader of a tensor for its bytes
(:mod:`commcc.timing.cost.fusion`). The chains are the same in every legal order, so only those whose payers no longer
stand first are priced anew: the prices are those of the graph written in that order, to the ns.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from commcc.timing.cost.least import Least, Pricing, least

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from commcc.timing.cost.fusion import Chains
    from commcc.timing.cost.types import Operation

Ints = NDArray[np.int64]


class _Paid(NamedTuple):
    """A chain in one order. ns: of members that cost something else than in the graph's own; after: see
    :meth:`Payers.after`.
    """

    ns: dict[int, int]
    after: dict[int, tuple[int, ...]]


class Payers:
    """Of one graph, whose own order the operations are of. price: ns of an operation."""

    def __init__(self, chains: Chains, operations: Mapping[int, Operation], price: Callable[[Operation], int]) -> None:
        self._chains, self._operations, self._price = chains, operations, price
        self._in_place = frozenset(chains.concatenations())
        pairs = [(node, payer) for node, payers in chains.after.items() for payer in payers]
        self._late, self._early = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
        self._chain = np.array([chains.of[node] for node, _ in pairs], np.int64)
        members: dict[int, list[int]] = {}
        for node in chains.members():
            members.setdefault(chains.of[node], []).append(node)
        self._members = {chain: np.array(nodes, np.int64) for chain, nodes in members.items()}
        # Schedules of one graph have most chains in one of few orders.
        self._known: dict[bytes, _Paid] = {}

    def prices(self, order: Ints) -> dict[int, int]:
        """Nodes that cost something else in this order of all nodes than in the graph's own, and their ns."""
        place, result = _places(order), dict[int, int]()
        for chain in self._changed(place):
            result.update(self._paid(chain, place).ns)
        return result

    def after(self, order: Ints) -> Mapping[int, tuple[int, ...]]:
        """By member those of its chain that pay ahead of it in this order: as long as they do, its prices hold."""
        place = _places(order)
        result = dict(self._chains.after)
        for chain in self._changed(place):
            for node in self._members[chain].tolist():
                result.pop(node, None)
            result.update(self._paid(chain, place).after)
        return result

    @cached_property
    def least(self) -> Least:
        """What the chains cost at least, whatever the order."""
        pricing = Pricing(self._chains, self._operations, self._price, self._in_place)
        return least(pricing, {chain: nodes.tolist() for chain, nodes in self._members.items()})

    def _changed(self, place: Ints) -> list[int]:
        """Chains of which a payer comes behind a member that it stood ahead of."""
        changed: list[int] = np.unique(self._chain[place[self._late] < place[self._early]]).tolist()
        return changed

    def _paid(self, chain: int, place: Ints) -> _Paid:
        """One chain in this order."""
        members = self._members[chain]
        members = members[place[members].argsort()]
        key = members.tobytes()
        if key not in self._known:
            paid, after = self._chains.paid(members.tolist())
            ns = dict[int, int]()
            for node, (read, _written, kernels) in paid.items():
                own = self._operations[node]
                if (own.read_bytes, own.kernels) != (read, kernels) and node not in self._in_place:
                    ns[node] = self._price(replace(own, read_bytes=read, kernels=kernels))
            self._known[key] = _Paid(ns, after)
        return self._known[key]


def _places(order: Ints) -> Ints:
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place
