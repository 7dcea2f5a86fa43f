"""The least that fused chains cost in any order of a graph, whoever pays.

    least = costs.payers.least
    least.ns[node]                          # no less in any order; nodes whose price is always the same are left out
    least.rests                             # [Rest(nodes=(3, 7), ns=1800)]: one of them or several pay that besides

A member pays for the kernel of its chain where no other one can come first, and for what it reads where no other
reader can come before it. What a chain costs in the order that is best for it, and its members do not pay in all
orders, is its rest.

Layers repeat chains, so what is found for one holds for all that are alike: whose members, in turn, run the same
operations, follow the same others and read as much of as many tensors.

Limits: orders within a chain that nothing allows (by what lies outside of it) count as possible. A rest is up to half a
ns a member too small, since prices are rounded one by one. Chains with a concatenation that is written in place have
none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from commcc.timing.cost.fusion import Chains
    from commcc.timing.cost.types import Operation


class Rest(NamedTuple):
    """What nodes of one chain pay together, in any order, on top of the least of each."""

    nodes: tuple[int, ...]
    ns: int


class Least(NamedTuple):
    """See the module docstring."""

    ns: dict[int, int]
    rests: tuple[Rest, ...]


@dataclass(frozen=True)
class Pricing:
    """What is asked of members. fixed: those whose price no order changes, though others of their chain may."""

    chains: Chains
    operations: Mapping[int, Operation]
    price: Callable[[Operation], int]
    fixed: frozenset[int]

    def of(self, node: int, read: int, kernels: int, more: int = 0) -> int:
        """ns; more: bytes written besides its own."""
        own = self.operations[node]
        return self.price(replace(own, read_bytes=read, kernels=kernels, written_bytes=own.written_bytes + more))


def least(pricing: Pricing, members: Mapping[int, Sequence[int]]) -> Least:
    """Of all chains of several members, which are given in an order that is legal."""
    ns, rests = dict[int, int](), list[Rest]()
    before, known = pricing.chains.before(), dict[tuple[Alike, tuple[int, ...]], Least]()
    for nodes in members.values():
        if len(nodes) > 1:
            reads = [pricing.chains.entering(node) for node in nodes]
            same = alike(pricing, nodes, reads), tuple([before[node] for node in nodes])
            if same not in known:
                known[same] = _Chain(pricing, nodes, before, reads).found()
            found = known[same]
            ns.update((nodes[place], price) for place, price in found.ns.items())
            rests += [Rest(tuple([nodes[place] for place in rest.nodes]), rest.ns) for rest in found.rests]
    return Least(ns, tuple(rests))


#: All that prices in a chain follow from, by member: its operation, whether its price is fixed, and what it reads.
#: Operations are told apart by where they are: those of one graph that equal one another are one
#: (:mod:`commcc.timing.cost.operations`), or are counted as different.
Alike = tuple[tuple[int, bool, tuple[tuple[int, ...], ...]], ...]
#: By what a member reads: the tensor that this is a view of, and bytes.
_Reads = dict[int, tuple[int, int]]


def alike(pricing: Pricing, nodes: Sequence[int], reads: Sequence[_Reads]) -> Alike:
    """Equal for chains with the same prices, whose nodes these are. Tensors have numbers in the order in which they are
    read first.
    """
    numbers, size_of, members = dict[int, int](), pricing.chains.size_of, []
    for node, read in zip(nodes, reads, strict=True):
        row = []
        for source, (origin, size) in read.items():
            places = [numbers.setdefault(tensor, len(numbers)) for tensor in (source, origin)]
            row.append((*places, size_of(origin), size))
        members.append((id(pricing.operations[node]), node in pricing.fixed, tuple(row)))
    return tuple(members)


class _Chain:
    """before: by node, the bits of members of its chain that always come ahead of it, by their places in ``nodes``.
    reads: of each member.
    """

    def __init__(
        self, pricing: Pricing, nodes: Sequence[int], before: Mapping[int, int], reads: Sequence[_Reads]
    ) -> None:
        self.pricing, self.nodes = pricing, nodes
        self.firsts = [node for node in nodes if not before[node]]
        self.before, self.bits = before, {node: 1 << k for k, node in enumerate(nodes)}
        self.reads = dict(zip(nodes, reads, strict=True))
        #: By tensor, and by what views of it are read: who reads how much.
        self.readers: dict[int, dict[int, list[tuple[int, int]]]] = {}
        for node, read in self.reads.items():
            for source, (origin, size) in read.items():
                self.readers.setdefault(origin, {}).setdefault(source, []).append((node, size))

    def found(self) -> Least:
        """The least of its members, which are given by their places, and the rest."""
        pricing, alone = self.pricing, len(self.firsts) == 1
        own = {node: pricing.price(pricing.operations[node]) for node in self.nodes}
        least, payers = dict(own), list[int]()
        for node in self.nodes:
            if node in pricing.fixed:
                continue
            read, most = self._least_read(node), self._most_read(node)
            first = node in self.firsts
            # A measured price of the whole kernel may be below that of the bytes alone.
            prices = [pricing.of(node, read, kernels) for kernels in ((1,) if first and alone else (0, 1)[: 1 + first])]
            least[node] = min(*prices, own[node])
            if (first and not alone) or read < most:
                payers.append(node)
        place = {node: k for k, node in enumerate(self.nodes)}
        lower = {place[node]: ns for node, ns in least.items() if ns < own[node]}
        left = self._total() - sum(least.values()) if payers and pricing.fixed.isdisjoint(self.nodes) else 0
        return Least(lower, (Rest(tuple([place[node] for node in payers]), left),) if left > 0 else ())

    def _total(self) -> int:
        """The least that the chain costs in all: one of those that can is first, and bytes add up."""
        pricing, written = self.pricing, {node: self.pricing.operations[node].written_bytes for node in self.nodes}
        sources: dict[int, dict[int, int]] = {}
        for node in self.nodes:
            for source, (origin, size) in self.reads[node].items():
                known = sources.setdefault(origin, {})
                known[source] = min(size, known.get(source, size))
        size_of = pricing.chains.size_of
        read = sum(min(size_of(origin), sum(sizes.values())) for origin, sizes in sources.items())
        totals = []
        for first in self.firsts:
            most = self._most_read(first)
            others = max(0, read - most) + sum(written.values()) - written[first]
            rest = pricing.of(first, 0, 0, others - written[first])
            totals.append(pricing.of(first, most, 1) + rest)
        return min(totals) - len(self.nodes) // 2 - 1

    def _most_read(self, node: int) -> int:
        return sum(self._per_origin(self.reads[node], {}).values())

    def _least_read(self, node: int) -> int:
        """Where all that may come ahead do. Only who reads the same tensors matters: chains may be long."""
        taken: dict[int, tuple[int, int]] = {}
        for origin in {origin for origin, _ in self.reads[node].values()}:
            for source, readers in self.readers[origin].items():
                ahead = [s for other, s in readers if other != node and not self.before[other] & self.bits[node]]
                if ahead:
                    taken[source] = origin, max(ahead)
        return sum(self._per_origin(self.reads[node], taken).values())

    def _per_origin(self, reads: Mapping[int, tuple[int, int]], taken: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        """Bytes by tensor, each source once, no more than the tensor has left."""
        wanted, gone = dict[int, int](), dict[int, int]()
        for source, (origin, size) in reads.items():
            wanted[origin] = wanted.get(origin, 0) + (0 if source in taken else size)
        for origin, size in taken.values():
            gone[origin] = gone.get(origin, 0) + size
        size_of = self.pricing.chains.size_of
        return {origin: min(size, max(0, size_of(origin) - gone.get(origin, 0))) for origin, size in wanted.items()}
