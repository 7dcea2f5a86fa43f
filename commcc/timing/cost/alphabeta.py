"""Time of a collective by formula: a latency, and bytes over bandwidth, for each way to run it; the fastest is taken.

    transfer_price(network, transfer, Settings())    # Price(ns=3207935, how='ring Simple, NVLink 4', latency_ns=70000)

A way is an algorithm with one of its protocols (NCCL's LL, LL128 and Simple: each hop of them takes longer
than the last, and each has more of the bandwidth). Its time is ``alpha + beta * S + sqrt(hops * beta * S)``,
where ``S`` is the full tensor of one rank: what a gather ends with, what a reduction begins with, what an
all-to-all or broadcast sends. All parts come from counts that the algorithm fixes, see :class:`Path`:

    hops  = in-node hops * intra latency + hops between nodes * inter latency
    alpha = base_us + hops
    beta  = the slower of what one device moves over its in-node link and over its network port

The first two terms are a line (Hockney 1994). The links work at once, so the slower one decides and the
other one hides behind it. The third, see :data:`RELAY`, is there where bytes are relayed from node to node.
Counts of hops follow NCCL's own model (ncclTopoTuneModel in src/graph/tuning.cc, NCCL 2.4 to 2.28).

Limits: the fastest way is taken, where NCCL takes the one it believes to be fastest. No congestion, no rail
switches, no SHARP in the network, no one-sided or PAT algorithms. Measured tables are better where there are any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from commcc.base.terms import Kind
from commcc.timing.cost.device import Algorithm, Protocol
from commcc.timing.cost.topology import Placement, placement
from commcc.timing.cost.types import Price

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.timing.cost.device import Network
    from commcc.timing.cost.types import Settings, Transfer


#: What relaying between nodes costs: this many times the geometric mean of hops and bandwidth time. A pipeline of
#: k chunks takes (hops + k - 1) times a chunk's latency and transfer, which is 2 sqrt(hops * bandwidth time) above
#: the line for the best k (as in Sanders, Speck and Traeff 2009). NCCL has several chunks under way at once, and
#: comes out at half of that: fitted to runs on 2 to 8 nodes in tests/test_alphabeta.py. Those in a node fit 0.
RELAY = 1.0
#: The share of its highest bandwidth at which a group counts as saturated.
SATURATED = 0.9


@dataclass(frozen=True)
class Path:
    """What an algorithm does, counted for the slowest rank.

    intra_hops, inter_hops: latencies one after the other, inside a node and between nodes.
    intra_load, inter_load: multiples of the full tensor that cross one device's link, one way.
    relayed: bytes go on from node to node, in chunks. posted: every hop is a step in which all ranks
    move, so it waits for the messages that hosts post to the network (``post_us``).
    """

    intra_hops: float
    inter_hops: float
    intra_load: float
    inter_load: float
    relayed: bool = False
    posted: bool = False


@dataclass(frozen=True)
class Curve:
    """One way to run a collective: microseconds, for the square root of each byte and for each byte, and
    the link that is the slower. way: algorithm and protocol.
    """

    algorithm: str
    way: str
    alpha: float
    root: float
    beta: float
    link: str

    def us(self, size: int) -> float:
        return self.alpha + self.growth(size)

    def growth(self, size: int) -> float:
        """What depends on the bytes."""
        return self.root * math.sqrt(size) + self.beta * size

    def stretched(self, times: float) -> Curve:
        """At a bandwidth that is lower by so much."""
        return replace(self, root=self.root * math.sqrt(times), beta=self.beta * times)

    def reaches(self, us_per_byte: float) -> float:
        """Bytes from which on it takes no more than this for each; ``us_per_byte`` is more than beta."""
        # alpha + root x + beta x^2 = us_per_byte x^2, with x the square root of the bytes.
        left = us_per_byte - self.beta
        return ((self.root + math.sqrt(self.root**2 + 4 * left * self.alpha)) / (2 * left)) ** 2


def ring(kind: Kind, size: int, place: Placement) -> Path | None:
    """Every rank passes on to the next: ``(n-1)/n S`` in ``n-1`` steps, all-reduce twice that (Thakur,
    Rabenseifner and Gropp 2005, sections 4.1, 4.4 and 4.5; Patarasuk and Yuan 2009).

    A chunk that goes round leaves a node ``nodes - 1`` times. Each rank of a node is the exit of one
    ring, through its own port, so the bytes between nodes are spread over as many ports as the node
    with the fewest ranks has. A broadcast goes round once, in a pipeline: S. All ranks move at every
    step, so with several nodes each step has messages for hosts to post.
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
        relayed=place.crosses,
        posted=place.crosses,
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
        relayed=place.crosses,
    )


def nvls(kind: Kind, size: int, place: Placement) -> Path | None:
    """The switch inside the node reduces and multicasts (NVLink SHARP), a tree joins the nodes.

    All-reduce: each device sends S for the reduction and its share ``S/g`` for the multicast: ``(g+1)/g``,
    against ``2 (g-1)/g`` of a ring (in-network factor of nccl-tests' PERFORMANCE.md). Gather,
    reduce-scatter and broadcast put S on the link of one device, and work inside one node only.
    It takes two devices in every node to have something to reduce. ``base_us`` holds the hops inside a
    node, which do not grow with the ranks.
    """
    if kind is Kind.ALL_TO_ALL or place.least_per_node < 2:
        return None
    if kind is not Kind.ALL_REDUCE:
        return None if place.crosses else Path(0, 0, 1.0, 0.0)
    local = place.least_per_node
    return Path(
        intra_hops=0,
        inter_hops=2 * _log2(place.nodes),
        intra_load=(local + 1) / local,
        inter_load=_tree_load(place, 2),
        relayed=place.crosses,
    )


def pairwise(kind: Kind, size: int, place: Placement) -> Path | None:
    """All-to-all: every rank sends ``S/n`` to every other, in-node and network messages at the same time.

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
    curves, note = _curves(network, transfer.kind, transfer.size, place, settings.algorithm)
    skew = settings.skew if transfer.uneven else 1.0
    # Libraries choose by size, so the algorithm is chosen by what it takes for these bytes.
    best = min((curve.stretched(skew) for curve in curves), key=lambda curve: curve.us(transfer.full_bytes))
    notes = [note]
    if place.assumed:
        where = f"{place.per_node} in each node" if place.crosses else "all in one node"
        notes.append(f"where the ranks of group '{transfer.group}' sit is not known: {where} is assumed")
    return Price(
        ns=_ns(best.us(transfer.full_bytes)),
        how=f"{best.way}, {best.link if best.growth(transfer.full_bytes) > best.alpha else 'latency'}",
        latency_ns=_ns(best.alpha),
        note="; ".join(filter(None, notes)) or None,
    )


def saturation_bytes(
    network: Network, kind: Kind, size: int, ranks: tuple[int, ...] | None, settings: Settings, share: float = SATURATED
) -> int:
    """Smallest full tensor that moves at ``share`` of the highest bandwidth of this group.

    Within a node, and with one algorithm and protocol, that is where the bandwidth part is ``share`` of
    the time. 0 for a group of one rank. ``ValueError`` unless ``0 < share < 1``.
    """
    if not 0 < share < 1:
        raise ValueError("share must be between 0 and 1")
    if size <= 1:
        return 0
    place = placement(size, ranks, settings.ranks_per_node or network.ranks_per_node)
    curves, _ = _curves(network, kind, size, place, settings.algorithm)
    # Time over bytes falls with the bytes on every curve, so the first curve to get down to this decides.
    aim = min(curve.beta for curve in curves) / share
    return min(math.ceil(curve.reaches(aim)) for curve in curves if curve.beta < aim)


def _curves(network: Network, kind: Kind, size: int, place: Placement, wanted: str) -> tuple[list[Curve], str | None]:
    """The ways to choose from, in order of the device file, and what had to be given up."""
    able = [curve for algorithm in network.algorithms for curve in _ways(network, algorithm, kind, size, place)]
    if not able:
        name = "pairwise" if kind is Kind.ALL_TO_ALL else "ring"
        plain = _ways(network, Algorithm(name, (kind.value,), 0.0, 1.0, 1.0), kind, size, place)
        assert plain, "ring and pairwise do every kind between them"
        return plain, f"the device has no algorithm for {kind}: {name} at the full speed of the links is taken"
    if wanted == "auto":
        return able, None
    forced = [curve for curve in able if curve.algorithm == wanted]
    if forced:
        return forced, None
    pair = Placement(nodes=1, per_node=2, least_per_node=2)
    elsewhere = any(a.name == wanted and _ways(network, a, kind, 2, pair) for a in network.algorithms)
    where = f" over {size} ranks on {place.nodes} node{'s' if place.crosses else ''}" if elsewhere else ""
    return able, f"algorithm={wanted} cannot do {kind}{where}: the fastest of the others is taken"


def _ways(network: Network, algorithm: Algorithm, kind: Kind, size: int, place: Placement) -> list[Curve]:
    """One curve for each protocol of the algorithm; none if it cannot do the collective."""
    formula = _FORMULAS.get(algorithm.name)
    path = formula(kind, size, place) if formula is not None and kind.value in algorithm.kinds else None
    if path is None:
        return []
    only = Protocol("", algorithm.base_us or 0.0, network.intra.latency_us, network.inter.latency_us, 1.0, 1.0)
    return [_curve(network, algorithm, protocol, path) for protocol in algorithm.protocols or (only,)]


def _curve(network: Network, algorithm: Algorithm, protocol: Protocol, path: Path) -> Curve:
    intra = path.intra_load / (1e3 * network.intra.gb_per_s * algorithm.achievable_intra * protocol.share_intra)
    inter = path.inter_load / (1e3 * network.inter.gb_per_s * algorithm.achievable_inter * protocol.share_inter)
    posting = network.inter.post_us or 0.0 if path.posted else 0.0
    hops = path.intra_hops * max(protocol.intra_us, posting) + path.inter_hops * max(protocol.inter_us, posting)
    return Curve(
        algorithm=algorithm.name,
        way=f"{algorithm.name} {protocol.name}".strip(),
        alpha=protocol.base_us + hops,
        root=RELAY * math.sqrt(hops * max(intra, inter)) if path.relayed else 0.0,
        beta=max(intra, inter),
        link=network.inter.name if inter > intra else network.intra.name,
    )


def _tree_load(place: Placement, ways: int) -> float:
    """What one port sends in a pair of binary trees, of S: a broadcast 1, an all-reduce 2 but 1 for two nodes."""
    if not place.crosses:
        return 0.0
    return (1.0 if place.nodes == 2 else float(ways)) / place.least_per_node


def _log2(count: int) -> int:
    """Levels of a binary tree over ``count`` nodes, rounded up."""
    return (count - 1).bit_length()


def _ns(us: float) -> int:
    return round(1000 * us)
