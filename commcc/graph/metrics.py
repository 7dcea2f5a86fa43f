"""Metrics of a graph as it stands, without any cost model.

collectives: launches by kind. bytes: bytes on the wire by kind, one rank, ring algorithms.
max consecutive compute: longest run of compute nodes in graph order with no launch of the given
kind between them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commcc.base.terms import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.base.terms import Json
    from commcc.graph.collectives import Identification
    from commcc.graph.index import GraphIndex

REPORTED = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE, Kind.ALL_TO_ALL)
_RUNS = (Kind.REDUCE_SCATTER, Kind.ALL_GATHER, Kind.ALL_TO_ALL)


@dataclass(frozen=True)
class GraphMetrics:
    """See the module docstring; ``groups`` counts launches by group name. unknown_sizes: collectives by kind whose
    bytes rest on a size without a number, and all ``values`` of which that is so; empty where every size is known.
    in_sub_graphs: collectives by kind that sub-graphs launch, each sub-graph once; in no other count. loops: nodes
    that may run such sub-graphs more often than their time says.
    """

    nodes: int
    compute_nodes: int
    collectives: Mapping[str, int]
    bytes: Mapping[str, int]
    groups: Mapping[str, int]
    max_consecutive_compute: Mapping[str, int]
    unknown_sizes: Mapping[str, int] = field(default_factory=dict)
    in_sub_graphs: Mapping[str, int] = field(default_factory=dict)
    loops: int = 0

    def to_json(self) -> dict[str, Json]:
        return {
            "nodes": self.nodes,
            "compute_nodes": self.compute_nodes,
            "collectives": dict(self.collectives),
            "bytes": dict(self.bytes),
            "groups": dict(self.groups),
            "max_consecutive_compute": dict(self.max_consecutive_compute),
            **({"in_sub_graphs": dict(self.in_sub_graphs)} if self.in_sub_graphs else {}),
            **({"loops_counted_once": self.loops} if self.loops else {}),
            **({"unknown_sizes": dict(self.unknown_sizes)} if self.unknown_sizes else {}),
        }


def measure(index: GraphIndex, ident: Identification) -> GraphMetrics:
    """Metrics of the indexed graph."""
    counts = {kind.value: 0 for kind in REPORTED}
    wire = dict(counts)
    groups: dict[str, int] = {}
    unknown: dict[str, int] = {}
    for c in ident.collectives:
        counts[c.kind.value] = counts.get(c.kind.value, 0) + 1
        wire[c.kind.value] = wire.get(c.kind.value, 0) + c.wire_bytes
        groups[c.group] = groups.get(c.group, 0) + 1
        if c.unknown:
            unknown[c.kind.value] = unknown.get(c.kind.value, 0) + 1
    inside: Counter[str] = Counter()
    for subgraphs in index.inside.values():
        inside.update(subgraphs.kinds)
    return GraphMetrics(
        nodes=len(index),
        compute_nodes=sum(index.compute),
        collectives=counts,
        bytes=wire,
        groups=groups,
        unknown_sizes={**unknown, "values": values} if (values := len(index.estimates.unknown)) else {},
        in_sub_graphs=dict(sorted(inside.items())),
        loops=sum(subgraphs.at_least for subgraphs in index.inside.values()),
        max_consecutive_compute={kind.value: longest_run(index, kind) for kind in _RUNS},
    )


def longest_run(index: GraphIndex, kind: Kind) -> int:
    """Most compute nodes in graph order without a launch of ``kind`` between them."""
    ends = sorted(node for node, launch in index.launches.items() if launch.kind is kind)
    runs = zip([0, *(end + 1 for end in ends)], [*ends, len(index)], strict=True)
    return max(sum(index.compute[begin:end]) for begin, end in runs)
