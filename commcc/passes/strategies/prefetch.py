"""Prefetch between modules: whose launch goes ahead of whose wait.

1. A module's all-gathers are launched before the waits of the module that prefetches it: the one before
   it in the graph, or what the user says. On a backward graph the one before is the layer behind.
2. A reduction is waited for after the next module's reduction of the same queue was launched (of any
   queue where that module has none on this one), so that it has that module's compute to hide behind.

What stands right already stays where it is, so that running it again changes nothing. A wish that the
graph's dependences do not allow is given up, and told.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from commcc.base.reasons import Reason
from commcc.base.terms import Kind
from commcc.passes.strategies.formed import placed
from commcc.plan import Before, Merging, Move
from commcc.planning.merge_order import MergeOrder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from commcc.graph.collectives import Collective
    from commcc.graph.index import GraphIndex
    from commcc.graph.modules import Entry
    from commcc.passes.strategies.entries import Wanted
    from commcc.plan import Bucket


_REDUCTIONS = (Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)
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
    """Units at their new places. beside: for a unit's launch, the entry that it prefetches for, or waits behind."""

    units: tuple[Unit, ...]
    moves: tuple[Move, ...] = ()
    before: tuple[Before, ...] = ()
    beside: Mapping[int, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Wish:
    """The launch of ``first`` stands before the wait of ``then``."""

    first: Unit
    then: Unit

    @property
    def before(self) -> Before:
        return Before(self.first.launch, self.then.wait)


def prefetch(index: GraphIndex, units: Sequence[Unit], wanted: Wanted | None) -> Prefetched:
    """Move launches of all-gathers ahead and waits of reductions back, as far as dependences allow.

    Which module is the next one is read off the order of launches that comes out: a wait that is moved back
    can hold up a later launch (an all-reduce of what a reduce-scatter returns), so this is done again, from
    where everything stands by then, until nothing is new. Of wishes that contradict each other those come
    first that hold already.
    """
    if wanted is None:
        return Prefetched(tuple(units))
    place = {unit.launch: unit.launch_at for unit in units}
    place |= {unit.wait: unit.wait_at for unit in units if unit.members[0].waits}
    applied: list[_Wish] = []
    for tries in range(_ATTEMPTS):
        gathers, remarks = _gather_wishes(_stops(units, Kind.ALL_GATHER, place), wanted)
        wishes = gathers + [w for kind in _REDUCTIONS for w in _reduction_wishes(_stops(units, kind, place))]
        order, kept, refused = _merged(index, units), list[_Wish](), list[_Wish]()
        for wish in sorted(wishes, key=lambda w: place[w.first.launch] > place[w.then.wait]):
            (kept if order.keep(wish.first.launch, wish.then.wait) else refused).append(wish)
        fresh = [wish for wish in kept if wish not in applied]
        applied += fresh
        made = _moved_for(units, applied, kept)
        if tries and not fresh:
            break
        place = _places(index, made)
    remarks += [
        f"{wish.first.entry.name} cannot be launched before the wait of {wish.then.entry.name}: "
        f"'{index.names[wish.first.launch]}' needs what comes after it"
        for wish in refused
    ]
    return replace(made, remarks=tuple(dict.fromkeys(remarks)))


def _moved_for(units: Sequence[Unit], applied: Sequence[_Wish], kept: Sequence[_Wish]) -> Prefetched:
    """Units where these wishes put them. kept: those that hold for good."""
    ahead: dict[int, Unit] = {}
    behind: dict[int, Unit] = {}
    for wish in applied:
        if wish.first.kind is Kind.ALL_GATHER:
            other = ahead.setdefault(wish.first.launch, wish.then)
            ahead[wish.first.launch] = min(other, wish.then, key=lambda u: u.wait_at)
        else:
            other = behind.setdefault(wish.then.launch, wish.first)
            behind[wish.then.launch] = max(other, wish.first, key=lambda u: u.launch_at)
    moved = [_moved(unit, ahead.get(unit.launch), behind.get(unit.launch)) for unit in units]
    return Prefetched(
        tuple(unit for unit, _ in moved),
        tuple(move for _, moves in moved for move in moves),
        tuple(wish.before for wish in kept),
        {launch: other.entry.name for side in (ahead, behind) for launch, other in side.items()},
    )


def _stops(units: Iterable[Unit], kind: Kind, place: Mapping[int, int]) -> list[list[Unit]]:
    """Units of one entry and round together, in the order of their first launches."""
    stops: dict[tuple[int, str], list[Unit]] = defaultdict(list)
    for unit in sorted(units, key=lambda u: place[u.launch]):
        if unit.kind is kind and all(c.waits for c in unit.members):
            stops[unit.round, unit.entry.name].append(unit)
    return list(stops.values())


def _places(index: GraphIndex, made: Prefetched) -> dict[int, int]:
    """Where each unit is launched, and waited for, once all is applied."""
    from commcc.apply.order import LAUNCH, NODE, WAIT, arrange  # not at the top: the package makes torch nodes

    units = [unit for unit in made.units if unit.bucket is not None]
    buckets = tuple(unit.bucket for unit in units if unit.bucket is not None)
    plan = Merging(buckets, made.moves, made.before)
    places: dict[int, int] = {}
    for at, unit in enumerate(arrange(index, plan)):
        if unit.sort == LAUNCH:
            places[units[unit.number].launch] = at
        elif unit.sort == WAIT:
            places[units[unit.number].wait] = at
        elif unit.sort == NODE:
            places[unit.number] = at
    return places


def _gather_wishes(stops: Sequence[list[Unit]], wanted: Wanted) -> tuple[list[_Wish], list[str]]:
    """Launches of prefetched modules before the waits of those that prefetch them, and what makes no sense."""
    if wanted.pairs is None:
        ahead = range(1, wanted.depth + 1)
        pairs = [(stop, stops[at + by]) for at, stop in enumerate(stops) for by in ahead if at + by < len(stops)]
        return [wish for stop, later in pairs for wish in _all_before(later, stop)], []
    wishes: list[_Wish] = []
    remarks: list[str] = []
    for first, second in wanted.pairs:
        both = [(a, b) for a in stops for b in stops if (a[0].entry.name, b[0].entry.name) == (first, second)]
        both = [(a, b) for a, b in both if a[0].round == b[0].round]
        if not both:
            remarks.append(f"prefetch {first}={second}: they are not both gathered in this graph")
        for stop, later in both:
            if max(u.wait_at for u in later) < min(u.launch_at for u in stop):
                remarks.append(f"prefetch {first}={second}: {second} is gathered before {first} anyway")
            else:
                wishes += _all_before(later, stop)
    return wishes, remarks


def _all_before(later: Sequence[Unit], stop: Sequence[Unit]) -> list[_Wish]:
    """Launches of ``later`` before the waits of ``stop``, where they can move or stand there already."""
    return [_Wish(unit, other) for unit in later for other in stop if _can_move(unit) or unit.launch_at < other.wait_at]


def _can_move(unit: Unit) -> bool:
    """Whether the launch needs nothing but parameters."""
    return all(c.derived in ("param", "bucket") for c in unit.members)


def _reduction_wishes(stops: Sequence[list[Unit]]) -> list[_Wish]:
    """Waits of each module behind a launch of the next one."""
    wishes: list[_Wish] = []
    for stop, following in itertools.pairwise(stops):
        for unit in stop:
            queue = [u for u in following if u.members[0].group == unit.members[0].group]
            wishes.append(_Wish((queue or following)[0], unit))
    return wishes


def _merged(index: GraphIndex, units: Sequence[Unit]) -> MergeOrder:
    """The graph with every unit as one launch and one wait."""
    order = MergeOrder(index, ())
    for unit in units:
        order.merge_all(unit.members)
    return order


def _moved(unit: Unit, ahead: Unit | None, behind: Unit | None) -> tuple[Unit, list[Move]]:
    """The unit with its launch ahead of one unit's wait, or its wait behind one unit's launch."""
    if ahead is not None:
        return _launched_ahead(unit, ahead)
    if behind is not None:
        return _waited_behind(unit, behind)
    return unit, []


def _launched_ahead(unit: Unit, other: Unit) -> tuple[Unit, list[Move]]:
    at, why = other.wait_at, Reason.of("launched_ahead", entry=other.entry.name)
    if unit.bucket is not None:
        bucket = placed(unit.bucket, unit.members, min(at, unit.launch_at))
        return replace(unit, bucket=replace(bucket, reason=replace(bucket.reason, also=why))), []
    if unit.launch_at < at:
        return unit, []
    return unit, [Move(node, at, why) for node in (*unit.members[0].chain, unit.launch) if node > at]


def _waited_behind(unit: Unit, other: Unit) -> tuple[Unit, list[Move]]:
    at, why = other.launch_at, Reason.of("waited_behind", entry=other.entry.name)
    if unit.bucket is not None:
        reason = replace(unit.bucket.reason, also=why)
        return replace(unit, bucket=replace(unit.bucket, wait_at=max(at, unit.wait_at), reason=reason)), []
    return unit, [Move(unit.wait, at, why)] if unit.wait_at < at else []
