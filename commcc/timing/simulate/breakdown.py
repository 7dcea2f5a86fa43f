"""Where the time of a simulated step goes: by stream, and by family of ops.

    streams(index, costs, timeline)[1].exposed_ns       # of the second; the compute stream comes first
    families(index, costs)[0]                           # Family('matmul', nodes=225, ns=..., largest=(...))

The families' times and what the streams say of the compute stream add up to the same. Limits: launch
overhead and slow-down are no family; they are in the timeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.timing.cost.roofline import family

if TYPE_CHECKING:
    from commcc.graph.index import GraphIndex
    from commcc.timing.cost.types import Costs
    from commcc.timing.simulate.timeline import Timeline

COMPUTE = "compute"


@dataclass(frozen=True)
class Stream:
    """The compute stream, or another one with the groups whose collectives wait in it.

    jobs: ops that take time, or collectives. busy_ns: time at work. exposed_ns: see Timeline; 0 for
    the compute stream.
    """

    name: str
    groups: tuple[str, ...]
    jobs: int
    busy_ns: int
    exposed_ns: int


@dataclass(frozen=True)
class Family:
    """Ops of one kind on the compute stream. largest: ops with their times, the three longest."""

    name: str
    nodes: int
    ns: int
    largest: tuple[tuple[str, int], ...]


def streams(index: GraphIndex, costs: Costs, timeline: Timeline) -> tuple[Stream, ...]:
    """The compute stream, then the others in order of first use."""
    working = [i for i, ns in enumerate(costs.ns) if ns and i not in index.launches]
    busy = timeline.compute_ns + timeline.launch_ns + timeline.slowed_ns
    result = [Stream(COMPUTE, (), len(working), busy, 0)]
    launched_on: dict[str, list[int]] = {}
    for node in timeline.order:
        if node in timeline.spans:
            launched_on.setdefault(timeline.spans[node].stream, []).append(node)
    for name, launches in launched_on.items():
        groups = tuple(dict.fromkeys(index.launches[node].group for node in launches))
        ns = sum(timeline.spans[node].ns for node in launches)
        exposed = sum(timeline.exposed.get(node, 0) for node in launches)
        result.append(Stream(name, groups, len(launches), ns, exposed))
    return tuple(result)


def families(index: GraphIndex, costs: Costs) -> tuple[Family, ...]:
    """Families with any time, the longest first."""
    nodes: dict[str, int] = {}
    by_op: dict[str, dict[str, int]] = {}
    for i, ns in enumerate(costs.ns):
        if ns and i not in index.launches:
            name = family_of(index, i)
            nodes[name] = nodes.get(name, 0) + 1
            ops = by_op.setdefault(name, {})
            # What a node waits for in its sub-graphs is no work.
            waited = costs.within[i].exposed_ns if i in costs.within else 0
            ops[index.ops[i]] = ops.get(index.ops[i], 0) + ns - waited
    result: list[Family] = []
    for name, ops in by_op.items():
        longest = sorted(ops.items(), key=lambda item: (-item[1], item[0]))[:3]
        result.append(Family(name, nodes[name], sum(ops.values()), tuple(longest)))
    return tuple(sorted(result, key=lambda family: (-family.ns, family.name)))


def family_of(index: GraphIndex, node: int) -> str:
    """What kind of work a node on the compute stream is: ``matmul``, ``pointwise, reductions``, ..."""
    if index.compute[node]:
        return family(index.ops[node]).replace("_", " ")
    if node in index.host_syncs:
        return "host"
    return "pointwise, reductions" if index.estimates.work[node].value == "fusable" else "other kernels"
