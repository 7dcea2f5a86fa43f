"""Time of a collective by formula: a latency, and bytes over bandwidth, for each algorithm; the fastest is taken.

    transfer_price(network, transfer, Settings())      # Price(ns=3095711, how='ring, NVLink 4', latency_ns=27300)

Every algorithm is a line ``alpha + beta * S`` (Hockney 1994), where ``S`` is the full tensor of one rank:
what a gather ends with, what a reduction begins with, what an all-to-all or broadcast sends. Both parts
come from counts that the algorithm fixes, see :class:`Path`:

    alpha = base_us + in-node hops * intra latency + hops between nodes * inter latency
    beta  = the slower of what one device moves over its in-node link and over its network port

The algorithms are pipelined, so the slower link decides and the other one hides behind it. Counts of
hops follow NCCL's own model (ncclTopoTuneModel in src/graph/tuning.cc, NCCL 2.4 to 2.26).

Limits: one line for each algorithm, where NCCL changes protocol with the size; so sizes from about 1 MB
to 100 MB over several nodes really take up to twice as long. No congestion, no rail switches, no SHARP
in the network, no one-sided or PAT algorithms. Measured tables are better where there are any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.cost.device import Algorithm
from commcc.cost.topology import Placement, placement
from commcc.cost.types import Price
from commcc.terms import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.cost.device import Network
    from commcc.cost.types import Settings, Transfer


#: A hop between nodes in NCCL's Simple protocol, in hops of LL128, which device files give: 14 us over 4 us
#: (hwLat in src/graph/tuning.cc, NCCL 2.26). NVLS knows no other protocol.
SIMPLE_HOP = 3.5


@dataclass(frozen=True)
class Path:
    """What an algorithm does, counted for the slowest rank.

    intra_hops, inter_hops: latencies one after the other, inside a node and between nodes.
    intra_load, inter_load: multiples of the full tensor that cross one device's link, one way.
    """

    intra_hops: float
    inter_hops: float
    intra_load: float
    inter_load: float


@dataclass(frozen=True)
class Line:
    """One algorithm as a line: microseconds, microseconds for each byte, and the link that is the slower."""

    algorithm: str
    alpha: float
    beta: float
    link: str

    def us(self, size: int) -> float:
        return self.alpha + self.beta * size


def ring(kind: Kind, size: int, place: Placement) -> Path | None:
    """Every rank passes on to the next: ``(n-1)/n S`` in ``n-1`` steps, all-reduce twice that (Thakur,
    Rabenseifner and Gropp 2005, sections 4.1, 4.4 and 4.5; Patarasuk and Yuan 2009).

    A chunk that goes round leaves a node ``nodes - 1`` times. Each rank of a node is the exit of one
    ring, through its own port, so the bytes between nodes are spread over as many ports as the node
    with the fewest ranks has. A broadcast goes round once, in a pipeline: S.
    """
    if kind is Kind.ALL_TO_ALL:
        return None
    rounds = 2 if kind is Kind.ALL_REDUCE else 1
    load = 1.0 if kind is Kind.BROADCAST else rounds * (size - 1) / size
    return Path(
        intra_hops=rounds * (size - place.nodes),
        inter_hops=rounds * (place.nodes - 1),
        intra_load=load if place.per_node > 1 else 0.0,
        inter_load=load / place.least_per_node if place.crosses else 0.0,
    )


def tree(kind: Kind, size: int, place: Placement) -> Path | None:
    """Two binary trees between nodes, each for half of the bytes, and a chain inside each node (Sanders,
    Speck and Traeff 2009; NCCL since 2.4).

    Up and down again: ``2 (per_node - 1)`` hops in the node and ``2 log2(nodes)`` between nodes. A port
    sends S up and S down; with two nodes each is the root of one tree and a leaf of the other, and half
    of that remains. A broadcast only goes down.
    """
    if kind not in (Kind.ALL_REDUCE, Kind.BROADCAST):
        return None
    ways = 2 if kind is Kind.ALL_REDUCE else 1
    return Path(
        intra_hops=ways * (place.per_node - 1),
        inter_hops=ways * _log2(place.nodes),
        intra_load=ways if place.per_node > 1 else 0.0,
        inter_load=_tree_load(place, ways),
    )


def nvls(kind: Kind, size: int, place: Placement) -> Path | None:
    """The switch inside the node reduces and multicasts (NVLink SHARP), a tree joins the nodes.

    All-reduce: each device sends S for the reduction and its share ``S/g`` for the multicast: ``(g+1)/g``,
    against ``2 (g-1)/g`` of a ring (in-network factor of nccl-tests' PERFORMANCE.md). Gather,
    reduce-scatter and broadcast put S on the link of one device, and work inside one node only.
    It takes two devices in every node to have something to reduce. ``base_us`` holds the hops inside a
    node, which do not grow with the ranks; those between nodes are of the Simple protocol.
    """
    if kind is Kind.ALL_TO_ALL or place.least_per_node < 2:
        return None
    if kind is not Kind.ALL_REDUCE:
        return None if place.crosses else Path(0, 0, 1.0, 0.0)
    local = place.least_per_node
    hops = 2 * _log2(place.nodes) * SIMPLE_HOP
    return Path(intra_hops=0, inter_hops=hops, intra_load=(local + 1) / local, inter_load=_tree_load(place, 2))


def pairwise(kind: Kind, size: int, place: Placement) -> Path | None:
    """All-to-all: every rank sends ``S/n`` to every other, in-node and network messages side by side.

    The messages to other nodes all leave through the sender's own port. Latency: the last of ``n-1``
    messages starts half a hop after the one before it, and takes a hop itself. Half a hop makes about
    33 us for 16 ranks on 2 nodes with NCCL's LL128 latencies, where logs of nccl-tests say 32 to 38 us.
    """
    if kind is not Kind.ALL_TO_ALL:
        return None
    return Path(
        intra_hops=(size - 1) / 2 + (0 if place.crosses else 1),
        inter_hops=1 if place.crosses else 0,
        intra_load=(place.per_node - 1) / size,
        inter_load=(size - place.least_per_node) / size if place.crosses else 0.0,
    )


_FORMULAS: dict[str, Callable[[Kind, int, Placement], Path | None]] = {
    "ring": ring,
    "tree": tree,
    "nvls": nvls,
    "pairwise": pairwise,
}


def known_algorithms() -> tuple[str, ...]:
    """Names that an algorithm of a device file can have."""
    return tuple(_FORMULAS)


def transfer_price(network: Network, transfer: Transfer, settings: Settings) -> Price:
    """Time of one collective on its group's stream; never less for more bytes.

    ``latency_ns`` is all that does not depend on the bytes. Uneven all-to-alls take ``settings.skew``
    times the bandwidth part: everybody waits for the rank that gets most. A group of one rank is free.
    """
    if transfer.size <= 1:
        return Price(0, "one rank")
    place = placement(transfer.size, transfer.ranks, settings.ranks_per_node or network.ranks_per_node)
    lines, note = _lines(network, transfer.kind, transfer.size, place, settings.algorithm)
    skew = settings.skew if transfer.uneven else 1.0
    stretched = [Line(line.algorithm, line.alpha, line.beta * skew, line.link) for line in lines]
    best = min(stretched, key=lambda line: line.us(transfer.full_bytes))
    notes = [note, _assumption(transfer.group, place) if place.assumed else None]
    return Price(
        ns=_ns(best.us(transfer.full_bytes)),
        how=f"{best.algorithm}, {best.link if best.beta * transfer.full_bytes > best.alpha else 'latency'}",
        latency_ns=_ns(best.alpha),
        note="; ".join(filter(None, notes)) or None,
    )


def saturation_bytes(
    network: Network, kind: Kind, size: int, ranks: tuple[int, ...] | None, settings: Settings, share: float = 0.9
) -> int:
    """Smallest full tensor that moves at ``share`` of the highest bandwidth of this group.

    For one algorithm that is where the bandwidth part is ``share`` of the time. 0 for a group of one
    rank. ``ValueError`` unless ``0 < share < 1``.
    """
    if not 0 < share < 1:
        raise ValueError("share must be between 0 and 1")
    if size <= 1:
        return 0
    place = placement(size, ranks, settings.ranks_per_node or network.ranks_per_node)
    lines, _ = _lines(network, kind, size, place, settings.algorithm)
    # Time over bytes falls with the bytes on every line, so the first line to get down to this decides.
    aim = min(line.beta for line in lines) / share
    return min(math.ceil(line.alpha / (aim - line.beta)) for line in lines if line.beta < aim)


def _lines(network: Network, kind: Kind, size: int, place: Placement, wanted: str) -> tuple[list[Line], str | None]:
    """The algorithms to choose from, in order of the device file, and what had to be given up."""
    able = [line for algorithm in network.algorithms if (line := _line(network, algorithm, kind, size, place))]
    if not able:
        name = "pairwise" if kind is Kind.ALL_TO_ALL else "ring"
        plain = _line(network, Algorithm(name, (kind.value,), 0.0, 1.0, 1.0), kind, size, place)
        assert plain is not None, "ring and pairwise do every kind between them"
        return [plain], f"the device has no algorithm for {kind}: {name} at the full speed of the links is taken"
    if wanted == "auto":
        return able, None
    forced = [line for line in able if line.algorithm == wanted]
    if forced:
        return forced, None
    pair = Placement(nodes=1, per_node=2, least_per_node=2)
    elsewhere = any(each.name == wanted and _line(network, each, kind, 2, pair) for each in network.algorithms)
    where = f" over {_spread(size, place)}" if elsewhere else ""
    return able, f"algorithm={wanted} cannot do {kind}{where}: the fastest of the others is taken"


def _line(network: Network, algorithm: Algorithm, kind: Kind, size: int, place: Placement) -> Line | None:
    formula = _FORMULAS.get(algorithm.name)
    path = formula(kind, size, place) if formula is not None and kind.value in algorithm.kinds else None
    if path is None:
        return None
    intra = path.intra_load / (1e3 * network.intra.gb_per_s * algorithm.achievable_intra)
    inter = path.inter_load / (1e3 * network.inter.gb_per_s * algorithm.achievable_inter)
    hops = path.intra_hops * network.intra.latency_us + path.inter_hops * network.inter.latency_us
    link = network.inter.name if inter > intra else network.intra.name
    return Line(algorithm.name, algorithm.base_us + hops, max(intra, inter), link)


def _tree_load(place: Placement, ways: int) -> float:
    """What one port sends in a pair of binary trees, of S: a broadcast 1, an all-reduce 2 but 1 for two nodes."""
    if not place.crosses:
        return 0.0
    return (1.0 if place.nodes == 2 else float(ways)) / place.least_per_node


def _log2(count: int) -> int:
    """Levels of a binary tree over ``count`` nodes, rounded up."""
    return (count - 1).bit_length()


def _spread(size: int, place: Placement) -> str:
    return f"{size} ranks on {place.nodes} node{'s' if place.crosses else ''}"


def _assumption(group: str, place: Placement) -> str:
    where = f"{place.per_node} in each node" if place.crosses else "all in one node"
    return f"where the ranks of group '{group}' sit is not known: {where} is assumed"


def _ns(us: float) -> int:
    return round(1000 * us)
