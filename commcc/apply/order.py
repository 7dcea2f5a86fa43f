"""The order of the new graph, in numbers: what stands where after buckets are merged.

Units are the surviving nodes of the old graph and, for each bucket, one launch unit, one wait unit
and one result unit for each member. Every unit wants a position in the old graph; units are taken
in order of those positions, each as soon as all it needs has been taken (Kahn's algorithm on a
heap), so everything that no edit concerns keeps its place. At one position launches come first, with
what moves along, then waits, then results, then the node that stood there.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.errors import InternalError
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


@dataclass(frozen=True)
class Unit:
    """One thing to emit. number: node for NODE, else bucket; member: place in the bucket for RESULT."""

    kind: int
    number: int
    member: int = 0


class _Units:
    """Units, what stands for each old node, and what each unit needs."""

    def __init__(self, index: GraphIndex, merging: Merging) -> None:
        self.index = index
        self.units: list[Unit] = []
        self.keys: list[Key] = []
        self.stands_for: dict[int, int] = {}
        self.needs: list[list[int]] = []
        removed = self._removed(merging.buckets)
        moved = self._moved(merging)
        for node in range(len(index)):
            if node not in removed:
                self.stands_for[node] = self._add(Unit(NODE, node), moved.get(node, (node, _STAYS, node)))
        for number, bucket in enumerate(merging.buckets):
            self._add_bucket(number, bucket)
        self._connect(merging.buckets)
        self._keep(merging)

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

    def _removed(self, buckets: Sequence[Bucket]) -> set[int]:
        removed: set[int] = set()
        for bucket in buckets:
            for launch in bucket.members:
                facts = self.index.launches[launch]
                removed.update((launch, *facts.waits))
                if bucket.shared_cast:
                    removed.add(facts.inputs[0])
        return removed

    def _add(self, unit: Unit, key: Key) -> int:
        self.units.append(unit)
        self.keys.append(key)
        return len(self.units) - 1

    def _add_bucket(self, number: int, bucket: Bucket) -> None:
        launch = self._add(Unit(LAUNCH, number), (bucket.launch_at, _LAUNCHES, number, 1))
        self._add(Unit(WAIT, number), (bucket.wait_at, _WAITS, number))
        for place, member in enumerate(bucket.members):
            facts = self.index.launches[member]
            wait = facts.waits[0]
            self.stands_for[member] = launch
            self.stands_for[wait] = self._add(Unit(RESULT, number, place), (wait, _RESULTS, place))
            if bucket.shared_cast:
                self.stands_for[facts.inputs[0]] = launch

    def _connect(self, buckets: Sequence[Bucket]) -> None:
        waits = {unit.number: u for u, unit in enumerate(self.units) if unit.kind == WAIT}
        launches = {unit.number: u for u, unit in enumerate(self.units) if unit.kind == LAUNCH}
        for unit in self.units:
            if unit.kind == NODE:
                self.needs.append(self._of(self.index.preds(unit.number)))
            elif unit.kind == LAUNCH:
                self.needs.append(self._launch_needs(buckets[unit.number], launches[unit.number]))
            elif unit.kind == WAIT:
                ordered = [p for m in buckets[unit.number].members for p in self._wait_order(m)]
                self.needs.append(sorted({launches[unit.number], *self._of(ordered)} - {waits[unit.number]}))
            else:
                self.needs.append([waits[unit.number]])

    def _keep(self, merging: Merging) -> None:
        """What is to stay in order besides: a member's wait is the merged one, not its own result."""
        if not merging.before:
            return
        merged_wait = {unit.number: u for u, unit in enumerate(self.units) if unit.kind == WAIT}
        stands_for = dict(self.stands_for)
        for number, bucket in enumerate(merging.buckets):
            stands_for.update((self.index.launches[m].waits[0], merged_wait[number]) for m in bucket.members)
        for each in merging.before:
            self.needs[stands_for[each.then]].append(stands_for[each.first])

    def _launch_needs(self, bucket: Bucket, itself: int) -> list[int]:
        nodes: list[int] = []
        for member in bucket.members:
            nodes.extend(self.index.preds(member))
            if bucket.shared_cast:
                nodes.extend(self.index.preds(self.index.launches[member].inputs[0]))
        return [u for u in self._of(nodes) if u != itself]

    def _wait_order(self, member: int) -> tuple[int, ...]:
        return self.index.order_preds[self.index.launches[member].waits[0]]

    def _of(self, nodes: Sequence[int]) -> list[int]:
        return sorted({self.stands_for[n] for n in nodes})


def arrange(index: GraphIndex, merging: Merging) -> list[Unit]:
    """Units in their new order; :class:`InternalError` when the edits form a cycle."""
    made = _Units(index, merging)
    users: list[list[int]] = [[] for _ in made.units]
    missing = [len(needs) for needs in made.needs]
    for unit, needs in enumerate(made.needs):
        for need in needs:
            users[need].append(unit)
    heap = [(made.keys[u], u) for u, count in enumerate(missing) if not count]
    heapq.heapify(heap)
    order: list[Unit] = []
    while heap:
        _, unit = heapq.heappop(heap)
        order.append(made.units[unit])
        for user in users[unit]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(heap, (made.keys[user], user))
    if len(order) < len(made.units):
        stuck = next(made.units[u] for u, count in enumerate(missing) if count)
        raise InternalError(f"buckets wait for each other (bucket or node {stuck.number})", where="apply")
    return order


def in_order(index: GraphIndex, order: Sequence[int]) -> list[Unit]:
    """Units of all nodes in this order; :class:`InternalError` when it is not a legal order of the graph."""
    count = len(index)
    place = {node: at for at, node in enumerate(order)}
    if len(order) != count or place.keys() != set(range(count)) or (count and order[-1] != count - 1):
        raise InternalError("an order has to name every node once and the output last", where="apply")
    for node in range(count):
        launch = index.wait_of.get(node)
        early = [p for p in (*index.needs(node), *(() if launch is None else (launch,))) if place[p] > place[node]]
        if early:
            names = index.names[node], index.names[early[0]]
            raise InternalError(f"the order puts '{names[0]}' before '{names[1]}', which it needs", where="apply")
    return [Unit(NODE, node) for node in order]


def check_host_copies(index: GraphIndex, plan: Plan) -> None:
    """Raise :class:`InternalError` when a copy to the host is read too early, and was not in the graph before."""
    before = range(len(index))
    after = plan.rewrite.order if isinstance(plan.rewrite, Reordering) else before
    flags = {each.node: each.non_blocking for each in plan.of(HostCopy)}
    wrong = sorted(early_reads(index, after, flags) - early_reads(index, before))
    if wrong:
        names = tuple(index.names[node] for node in wrong[0])
        text = f"the order puts '{names[0]}', which reads '{names[1]}', before the host has waited for that copy"
        raise InternalError(text, where="apply")
