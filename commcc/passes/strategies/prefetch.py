"""Prefetch between modules: whose launch goes ahead of whose wait.

1. A module's all-gathers are launched before the waits of the module that prefetches it: the one before
   it in the graph, or what the user says. On a backward graph the one before is the layer behind.
2. A reduction is waited for after the next module's reduction of the same queue was launched (of any
   queue where that module has none on this one), so that it has that module's compute to hide behind.

What stands right already stays where it is, so that running it again changes nothing. An order that the
graph's dependences do not allow is given up, with a remark.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from commcc.base.reasons import Reason
from commcc.base.terms import Kind
from commcc.passes.strategies.results import placed
from commcc.plan import Before, Merging, Move
from commcc.planning.merge_order import MergeOrder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from commcc.graph.collectives import Collective
    from commcc.graph.index import GraphIndex
    from commcc.graph.modules import Entry
    from commcc.passes.strategies.entries import Wanted
    from commcc.plan import Bucket

#: How often the order of modules is read off what came out before it is left as it is.
_ATTEMPTS = 5


@dataclass(frozen=True)
class Unit:
    """What is launched as one: a new bucket, a lone collective, or a bucket that was there before.

    round: how often its parameters were met before in the same entry.
    """

    entry: Entry
    round: int
    members: tuple[Collective, ...]
    bucket: Bucket | None

    @property
    def kind(self) -> Kind:
        return self.members[0].kind

    @property
    def launch(self) -> int:
        """A node that stands for the launch."""
        return self.members[0].launch

    @property
    def launch_at(self) -> int:
        return self.launch if self.bucket is None else self.bucket.launch_at

    @property
    def wait(self) -> int:
        """A node that stands for the wait: the first, where there are several."""
        return self.members[0].waits[0]

    @property
    def wait_at(self) -> int:
        return self.wait if self.bucket is None else self.bucket.wait_at

    @property
    def is_old(self) -> bool:
        return self.members[0].stands_for > 1


@dataclass(frozen=True)
class Prefetched:
    """Units at their new places. partner: for a unit's launch, the entry that it prefetches for, or waits behind."""

    units: tuple[Unit, ...]
    moves: tuple[Move, ...] = ()
    before: tuple[Before, ...] = ()
    partner: Mapping[int, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class OrderConstraint:
    """The launch of ``first`` stands before the wait of ``then``."""

    first: Unit
    then: Unit

    @property
    def nodes(self) -> tuple[int, int]:
        """The launch and the wait, each by a node that stands for it."""
        return self.first.launch, self.then.wait

    @property
    def moved(self) -> Unit:
        """The unit that moves for it: a gather's launch, or a reduction's wait."""
        return self.first if self.first.kind is Kind.ALL_GATHER else self.then


def prefetch(
    index: GraphIndex, units: Sequence[Unit], wanted: Wanted | None, still: frozenset[int] = frozenset()
) -> Prefetched:
    """Move launches of all-gathers ahead and waits of reductions back, as far as dependences allow. still: launches
    that are not moved, nor what waits for them.

    Which module is the next one is read off the order of launches that comes out: a wait that is moved back
    can hold up a later launch (an all-reduce of what a reduce-scatter returns), so this is done again, from
    where everything stands by then, until nothing is new. Of constraints that contradict each other those come
    first that hold already.
    """
    if wanted is None:
        return Prefetched(tuple(units))
    place = {unit.launch: unit.launch_at for unit in units}
    place |= {unit.wait: unit.wait_at for unit in units if unit.members[0].waits}
    applied: dict[tuple[int, int], OrderConstraint] = {}
    known: set[tuple[int, int]] = set()  # constraints that hold together
    for tries in range(_ATTEMPTS):
        constraints, remarks = _of_gathers(_stops(units, Kind.ALL_GATHER, place), wanted)
        for kind in (Kind.REDUCE_SCATTER, Kind.ALL_REDUCE):
            constraints += _of_reductions(_stops(units, kind, place))
        constraints = [
            constraint for constraint in constraints if not still & {c.launch for c in constraint.moved.members}
        ]
        constraints.sort(key=lambda c: place[c.first.launch] > place[c.then.wait])
        kept, refused = constraints, list[OrderConstraint]()
        if not known.issuperset(constraint.nodes for constraint in constraints):
            order, kept = MergeOrder(index, (), merged=[unit.members for unit in units]), []
            for constraint in constraints:
                (kept if order.keep(*constraint.nodes) else refused).append(constraint)
        known = {constraint.nodes for constraint in kept}
        fresh = [constraint for constraint in kept if constraint.nodes not in applied]
        applied.update((constraint.nodes, constraint) for constraint in fresh)
        moved = _moved_for(units, applied.values(), kept)
        if tries and not fresh:
            break
        place = _places(index, moved)
    remarks += [
        f"{constraint.first.entry.name} cannot be launched before the wait of {constraint.then.entry.name}: "
        f"'{index.names[constraint.first.launch]}' needs what comes after it"
        for constraint in refused
    ]
    return replace(moved, remarks=tuple(dict.fromkeys(remarks)))


def _stops(units: Iterable[Unit], kind: Kind, place: Mapping[int, int]) -> list[list[Unit]]:
    """Units of one entry and round together, in the order of their first launches."""
    stops: dict[tuple[int, str], list[Unit]] = defaultdict(list)
    for unit in sorted(units, key=lambda u: place[u.launch]):
        if unit.kind is kind and all(c.waits for c in unit.members):
            stops[unit.round, unit.entry.name].append(unit)
    return list(stops.values())


def _of_gathers(stops: Sequence[list[Unit]], wanted: Wanted) -> tuple[list[OrderConstraint], list[str]]:
    """Launches of prefetched modules before the waits of those that prefetch them, and what makes no sense."""
    pairs: list[tuple[list[Unit], list[Unit]]] = []
    remarks: list[str] = []
    if wanted.pairs is None:
        ahead = range(1, wanted.depth + 1)
        pairs = [(stop, stops[at + by]) for at, stop in enumerate(stops) for by in ahead if at + by < len(stops)]
    for first, second in wanted.pairs or ():
        both = [(a, b) for a in stops for b in stops if (a[0].entry.name, b[0].entry.name) == (first, second)]
        both = [(a, b) for a, b in both if a[0].round == b[0].round]
        if not both:
            remarks.append(f"prefetch {first}={second}: they are not both gathered in this graph")
        for stop, later in both:
            if max(u.wait_at for u in later) < min(u.launch_at for u in stop):
                remarks.append(f"prefetch {first}={second}: {second} is gathered before {first} anyway")
            else:
                pairs.append((stop, later))
    constraints: list[OrderConstraint] = []
    for stop, later in pairs:
        for unit in later:
            movable = all(c.derived in ("param", "bucket") for c in unit.members)  # it needs nothing but parameters
            constraints += [OrderConstraint(unit, other) for other in stop if movable or unit.launch_at < other.wait_at]
    return constraints, remarks


def _of_reductions(stops: Sequence[list[Unit]]) -> list[OrderConstraint]:
    """Waits of each module behind a launch of the next one."""
    constraints: list[OrderConstraint] = []
    for stop, following in pairwise(stops):
        for unit in stop:
            queue = [u for u in following if u.members[0].group == unit.members[0].group]
            constraints.append(OrderConstraint((queue or following)[0], unit))
    return constraints


def _moved_for(
    units: Sequence[Unit], applied: Iterable[OrderConstraint], kept: Sequence[OrderConstraint]
) -> Prefetched:
    """Units where these constraints put them. kept: those that hold for good."""
    ahead: dict[int, Unit] = {}
    behind: dict[int, Unit] = {}
    for constraint in applied:
        if constraint.first.kind is Kind.ALL_GATHER:
            other = ahead.setdefault(constraint.first.launch, constraint.then)
            ahead[constraint.first.launch] = min(other, constraint.then, key=lambda u: u.wait_at)
        else:
            other = behind.setdefault(constraint.then.launch, constraint.first)
            behind[constraint.then.launch] = max(other, constraint.first, key=lambda u: u.launch_at)
    moved = [_moved(unit, ahead.get(unit.launch), behind.get(unit.launch)) for unit in units]
    return Prefetched(
        tuple(unit for unit, _ in moved),
        tuple(move for _, moves in moved for move in moves),
        tuple(Before(constraint.first.launch, constraint.then.wait) for constraint in kept),
        {launch: other.entry.name for side in (ahead, behind) for launch, other in side.items()},
    )


def _moved(unit: Unit, ahead: Unit | None, behind: Unit | None) -> tuple[Unit, list[Move]]:
    """The unit with its launch ahead of one unit's wait, or its wait behind one unit's launch.

    A bucket says itself where it stands; nodes that are in none are moved.
    """
    bucket = unit.bucket
    if ahead is not None:
        at, why = ahead.wait_at, Reason.of("launched_ahead", entry=ahead.entry.name)
        if bucket is not None:
            bucket = placed(bucket, unit.members, min(at, unit.launch_at))
            return replace(unit, bucket=replace(bucket, reason=replace(bucket.reason, also=why))), []
        if unit.launch_at < at:
            return unit, []
        return unit, [Move(node, at, why) for node in (*unit.members[0].chain, unit.launch) if node > at]
    if behind is not None:
        at, why = behind.launch_at, Reason.of("waited_behind", entry=behind.entry.name)
        if bucket is not None:
            reason = replace(bucket.reason, also=why)
            return replace(unit, bucket=replace(bucket, wait_at=max(at, unit.wait_at), reason=reason)), []
        return unit, [Move(unit.wait, at, why)] if unit.wait_at < at else []
    return unit, []


def _places(index: GraphIndex, moved: Prefetched) -> dict[int, int]:
    """Where each unit is launched, and waited for, once all is applied."""
    from commcc.apply.order import LAUNCH, NODE, WAIT, arrange  # not at the top: the package makes torch nodes

    units = [unit for unit in moved.units if unit.bucket is not None]
    buckets = tuple(unit.bucket for unit in units if unit.bucket is not None)
    places: dict[int, int] = {}
    for at, unit in enumerate(arrange(index, Merging(buckets, moved.moves, moved.before))):
        if unit.kind == LAUNCH:
            places[units[unit.number].launch] = at
        elif unit.kind == WAIT:
            places[units[unit.number].wait] = at
        elif unit.kind == NODE:
            places[unit.number] = at
    return places
