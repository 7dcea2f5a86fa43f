"""What nodes took on all ranks: from each rank's records to one time for each node.

    times = gather_times(prepared, layout, [rank["nodes"] for rank in ranks])
    times.ops["mm_3"], times.transfers["all_gather_3"], times.waits["wait_tensor_3"]      # nanoseconds

An op's time is the mean over ranks of each rank's median. A collective ends on all ranks of its group together, but a
rank that comes early has waited, so one run of it takes the shortest time that any rank of the group saw; the time is
the median over runs and groups. How much longer it was on average, over runs and ranks, is what late ranks and
outliers cost: means add up to what ranks stand still, medians do not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from commcc.base.terms import Json
    from commcc.graph.index import GraphIndex
    from commcc.replay.bench.recording import NodeRun
    from commcc.replay.layout import Layout


@dataclass
class RankNodes:
    """One rank's nodes, nanoseconds by node. ops, waits: medians. transfers: run after run."""

    ops: dict[str, float] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)
    transfers: dict[str, list[int]] = field(default_factory=dict)

    def add_runs(self, runs: Sequence[NodeRun]) -> None:
        """Take over what a trace told."""
        self.ops.update(medians(run.ops for run in runs))
        for run in runs:
            for node, ns in run.transfers.items():
                self.transfers.setdefault(node, []).append(ns)

    def to_json(self) -> dict[str, Json]:
        return {
            "ops": dict(self.ops),
            "waits": dict(self.waits),
            "transfers": {node: list(times) for node, times in self.transfers.items()},
        }

    @staticmethod
    def of(data: Mapping[str, Any]) -> RankNodes:
        """What :meth:`to_json` wrote."""
        return RankNodes(**data)


@dataclass(frozen=True)
class NodeTimes:
    """One graph on all ranks, nanoseconds by node. late: how much longer transfers were on average."""

    ops: Mapping[str, float]
    waits: Mapping[str, float]
    transfers: Mapping[str, float]
    late: Mapping[str, float] = field(default_factory=dict)


def medians(runs: Iterable[Mapping[str, int]]) -> dict[str, float]:
    """By node, of the runs in which it is."""
    found: dict[str, list[int]] = {}
    for run in runs:
        for node, ns in run.items():
            found.setdefault(node, []).append(ns)
    return {node: float(median(times)) for node, times in found.items()}


def gather_times(index: GraphIndex, layout: Layout, ranks: Sequence[RankNodes]) -> NodeTimes:
    """One time for each node out of every rank's. ranks: in order; one alone stands for all."""
    groups = {index.names[node]: launch.group for node, launch in index.launches.items()}
    transfers, late = {}, {}
    for node in {node: None for rank in ranks for node in rank.transfers}:
        parts = layout.parts[groups[node]] if len(ranks) == layout.world else ((0,),)
        runs = [times for part in parts for times in _runs([ranks[rank].transfers.get(node, []) for rank in part])]
        if runs:
            transfers[node] = float(median(map(min, runs)))
            late[node] = max(0.0, fmean(map(fmean, runs)) - transfers[node])
    return NodeTimes(_means(rank.ops for rank in ranks), _means(rank.waits for rank in ranks), transfers, late)


def _runs(ranks: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The times of all ranks, run by run; nothing unless all have seen it equally often."""
    return list(zip(*ranks, strict=True)) if len({len(each) for each in ranks}) == 1 else []


def _means(ranks: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for rank in ranks:
        for node, ns in rank.items():
            found.setdefault(node, []).append(ns)
    return {node: fmean(times) for node, times in found.items()}
