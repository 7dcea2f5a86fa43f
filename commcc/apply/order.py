"""The order of the new graph, in numbers: what stands where after buckets are merged.

Units are the surviving nodes of the old graph and, for each bucket, one launch unit, one wait unit
and one result unit for each member. Every unit wants a position in the old graph; units are taken
in order of those positions, each as soon as all it needs has been taken (Kahn's algorithm on a
heap), so everything that no edit concerns keeps its place. At one position launches come first, with
what moves along, then waits, then results, then the node that stood there. A coalesced bucket's wait
unit holds a wait for each member, which is its result.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from commcc.base.errors import InternalError
from commcc.base.sequences import topological
from commcc.graph.index.host import early_reads
from commcc.plan import HostCopy, Reordering

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.index import GraphIndex
    from commcc.plan import Bucket, Merging, Plan

NODE, LAUNCH, WAIT, RESULT = range(4)

#: What comes first among units that want the same position.
_LAUNCHES, _WAITS, _RESULTS, _STAYS = range(4)
Key = tuple[int, ...]


class Unit(NamedTuple):
    """One thing to emit. number: node for NODE, else bucket; member: place in the bucket for RESULT."""

    kind: int
    number: int
    member: int = 0


class WaitsForItself(InternalError):
    """Buckets that cannot be: merged, they wait for each other."""


class _Units:
    """Units, what stands for each old node, and what each unit needs. launches, waits: the units of each bucket."""

    def __init__(self, index: GraphIndex, merging: Merging) -> None:
        self.index, self.buckets = index, merging.buckets
        self.stands_for = [-1] * len(index)
        merged = {node for bucket in self.buckets for member in bucket.members for node in self._merged(bucket, member)}
        moved = self._moved(merging)
        nodes = [node for node in range(len(index)) if node not in merged]
        self.units = [Unit(NODE, node) for node in nodes]
        self.keys = [moved.get(node, (node, _STAYS, node)) for node in nodes]
        for number, node in enumerate(nodes):
            self.stands_for[node] = number
        self.launches: list[int] = []
        self.waits: list[int] = []
        for number, bucket in enumerate(self.buckets):
            self.launches.append(self._add(Unit(LAUNCH, number), (bucket.launch_at, _LAUNCHES, number, 1)))
            self.waits.append(self._add(Unit(WAIT, number), (bucket.wait_at, _WAITS, number)))
            for place, member in enumerate(bucket.members):
                launch, wait, *cast = self._merged(bucket, member)
                for node in (launch, *cast):
                    self.stands_for[node] = self.launches[number]
                if bucket.coalesced:
                    self.stands_for[wait] = self.waits[number]
                    continue
                self.stands_for[wait] = self._add(Unit(RESULT, number, place), (wait, _RESULTS, place))
        stands = self.stands_for
        self.needs = [
            [stands[n] for n in index.all_preds[unit.number]] if unit.kind == NODE else self._needed(unit)
            for unit in self.units
        ]
        # What is to stay in order besides: a member's wait is the merged one there, not its own result.
        waits = {index.launches[m].waits[0]: self.waits[n] for n, b in enumerate(self.buckets) for m in b.members}
        for constraint in merging.before:
            first, then = (waits.get(node, stands[node]) for node in (constraint.first, constraint.then))
            self.needs[then].append(first)

    def _merged(self, bucket: Bucket, member: int) -> tuple[int, ...]:
        """Nodes of a member that the bucket's stand for: its launch, its wait, and a cast that all share."""
        facts = self.index.launches[member]
        return (member, facts.waits[0], *(facts.inputs[:1] if bucket.shared_cast else ()))

    def _moved(self, merging: Merging) -> dict[int, Key]:
        """Keys of surviving nodes that do not keep their place."""
        index = self.index
        wanted: list[tuple[int, Key]] = []
        for move in merging.moves:
            rank = _WAITS if move.node in index.wait_of else _LAUNCHES
            wanted.append((move.node, (move.at, rank, -1, 0, move.node)))
        for number, bucket in enumerate(merging.buckets):
            wanted += [(node, (bucket.launch_at, _LAUNCHES, number, 0, node)) for node in bucket.hoist]
        moved: dict[int, Key] = {}
        for node, key in wanted:
            moved[node] = min(moved.get(node, key), key)  # a cast may serve several launches
        moved.update((node, (-1, _STAYS, node)) for node in index.placeholders)
        moved[len(index) - 1] = (len(index), _STAYS)
        return moved

    def _add(self, unit: Unit, key: Key) -> int:
        self.units.append(unit)
        self.keys.append(key)
        return len(self.units) - 1

    def _needed(self, unit: Unit) -> list[int]:
        """The units that one of a bucket has to come after: after what any of its members needs."""
        index, number = self.index, unit.number
        if unit.kind == RESULT:
            return [self.waits[number]]
        members = self.buckets[number].members
        if unit.kind == WAIT:
            after = [n for member in members for n in index.order_preds[index.launches[member].waits[0]]]
            return sorted({self.launches[number], *(self.stands_for[n] for n in after)} - {self.waits[number]})
        launched = [self._merged(self.buckets[number], member) for member in members]
        sent = {n for launch, _, *cast in launched for node in (launch, *cast) for n in index.preds(node)}
        return sorted({self.stands_for[n] for n in sent} - {self.launches[number]})


def arrange(index: GraphIndex, merging: Merging) -> list[Unit]:
    """Units in their new order; :class:`WaitsForItself` when the edits form a cycle."""
    merged = _Units(index, merging)
    units, needs = merged.units, merged.needs
    order = topological(sorted(range(len(units)), key=merged.keys.__getitem__), needs)
    if len(order) < len(units):
        stuck = units[min({*range(len(units))}.difference(order))]
        raise WaitsForItself(f"buckets wait for each other (bucket or node {stuck.number})", where="apply")
    return [units[unit] for unit in order]


def check_order(index: GraphIndex, order: Sequence[int]) -> None:
    """Raise :class:`InternalError` when this is not a legal order of the graph."""
    count = len(index)
    if len(order) != count or set(order) != set(range(count)) or (count and order[-1] != count - 1):
        raise InternalError("an order has to name every node once and the output last", where="apply")
    place = [0] * count
    for at, node in enumerate(order):
        place[node] = at
    needed = chain(enumerate(index.all_preds), ((wait, (launch,)) for wait, launch in index.wait_of.items()))
    early = [(node, need) for node, needs in needed for need in needs if place[need] > place[node]]
    early = [(node, need) for node, need in early if need in index.needs(node) or need == index.wait_of.get(node)]
    if early:
        names = tuple(index.names[node] for node in min(early))
        raise InternalError(f"the order puts '{names[0]}' before '{names[1]}', which it needs", where="apply")


def check_host_copies(index: GraphIndex, plan: Plan) -> None:
    """Raise :class:`InternalError` when a copy to the host is read too early, and was not in the graph before."""
    before = range(len(index))
    after = plan.rewrite.order if isinstance(plan.rewrite, Reordering) else before
    flags = {copy.node: copy.non_blocking for copy in plan.of(HostCopy)}
    wrong = sorted(early_reads(index, after, flags) - early_reads(index, before))
    if wrong:
        names = tuple(index.names[node] for node in wrong[0])
        text = f"the order puts '{names[0]}', which reads '{names[1]}', before the host has waited for that copy"
        raise InternalError(text, where="apply")
