"""Whether launches on different groups can block one another.

The steps of every rank are points of a graph, in order, and so is every collective, which needs its launches on
all ranks of its group. Two rules say what needs a collective to be over:

certain
    what comes after a *wait* for it on the same rank: a circle hangs whatever runs it;
in order
    what comes after its *launch* on the same rank: where a device runs its launches one after the other, as it
    does when it has space for one kernel of NCCL, or one worker thread of Gloo, only.

A circle under the second rule alone is a hazard. Ranks that do the same on groups that look the same are one
point each: the cost grows with the number of different ranks, and then with the number of launches.

    rank 0: launch A, launch B, wait A, wait B      rank 1: launch B, launch A, ...      a hazard
    rank 0: launch A, wait A, launch B, wait B      rank 1: launch B, wait B, launch A   a deadlock

Limits: what is launched inside opaque nodes is not here; a collective is over when all its ranks have launched it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.lint.ranks.groups import Groups
    from commcc.lint.ranks.sequences import Sequences
    from commcc.lint.ranks.types import Trace

#: After so many every rank is a colour of its own.
_TURNS = 50
#: A point: a colour of ranks and one of its steps.
Point = tuple[int, int]


@dataclass(frozen=True)
class Colours:
    """ranks: colour by rank. groups: colour by number of the group. examples: a rank of every colour.
    first: number of the first collective of every colour of groups. collectives: of all of them."""

    ranks: Mapping[int, int]
    groups: tuple[int, ...]
    examples: tuple[int, ...]
    first: tuple[int, ...]
    collectives: int
    known: Groups

    def of_launches(self, rank: int, trace: Trace) -> list[int]:
        """The collective, up to colour, that each launch of a rank takes part in."""
        counts: dict[str, int] = {}
        collectives = []
        for launch in trace.launches:
            place = counts.get(launch.group, 0)
            counts[launch.group] = place + 1
            collectives.append(self.first[self.groups[self.known.of[rank, launch.group]]] + place)
        return collectives

    def member(self, rank: int, group: str, colour: int, name: str) -> int:
        """The first rank of a colour that calls ``name`` what ``rank`` calls ``group``."""
        members = self.known.groups[self.known.of[rank, group]].members
        return next(other for other, own in members if own == name and self.ranks[other] == colour)


def colour(traces: Mapping[int, Trace], known: Groups, sequences: Sequences) -> Colours:
    """Ranks that do the same on groups that look the same, put together; all sequences of the groups have to agree.

    Ranks start out alike when their traces are. Then, in turns, groups are alike when alike ranks call them by the
    same names, and ranks stay alike while the groups behind each of their names are, until nothing changes any more.
    What is true of a rank's place among the others is then true of all that are alike: 64 ranks of one program on a
    mesh of 8 x 8 have 1 colour, and their groups 2.
    """
    names = {rank: tuple(dict.fromkeys(launch.group for launch in trace.launches)) for rank, trace in traces.items()}
    ranks = _numbered({rank: (sequences.names(rank), trace.steps) for rank, trace in traces.items()})
    groups: tuple[int, ...] = ()
    for _ in range(_TURNS):
        alike = _numbered(
            {i: frozenset((ranks[rank], name) for rank, name in group.members) for i, group in enumerate(known.groups)}
        )
        groups = tuple(alike.values())
        finer = _numbered(
            {rank: (ranks[rank], *(groups[known.of[rank, name]] for name in own)) for rank, own in names.items()}
        )
        # Colours only get finer, so an equal number means that none was divided.
        if len(set(finer.values())) == len(set(ranks.values())):
            break
        ranks = finer
    else:
        # They would settle in the end, one at a time: ranks on their own are right too, only slower.
        ranks = {rank: i for i, rank in enumerate(traces)}
        groups = tuple(range(len(known.groups)))
    examples: dict[int, int] = {}
    for rank, own in ranks.items():
        examples.setdefault(own, rank)
    lengths: dict[int, int] = {}
    for group, own in zip(known.groups, groups, strict=True):
        lengths.setdefault(own, len(sequences.of(*group.members[0]).launches))
    first, total = [], 0
    for own in sorted(lengths):
        first.append(total)
        total += lengths[own]
    return Colours(ranks, groups, tuple(examples[own] for own in sorted(examples)), tuple(first), total, known)


def _numbered(keys: Mapping[int, Any]) -> dict[int, int]:
    """Small numbers for equal keys, by first appearance."""
    numbers: dict[Any, int] = {}
    return {rank: numbers.setdefault(key, len(numbers)) for rank, key in keys.items()}


class Hop(NamedTuple):
    """A rank that makes launch ``second`` only after launch ``first`` is over; numbers of its trace."""

    rank: int
    first: int
    second: int


@dataclass(frozen=True)
class _Steps:
    """One colour of ranks. of: for every step the collective that is launched, or None. blocked: step -> the
    collective that has to be over before it. launches: step -> number of the launch that is made, and of that
    which it is blocked by."""

    of: tuple[int | None, ...]
    blocked: Mapping[int, int]
    launches: Mapping[int, int]
    over: Mapping[int, int]


@dataclass(frozen=True)
class _Web:
    """All points. launched, blocked: the points at which a collective is launched, and that need it to be over."""

    steps: tuple[_Steps, ...]
    launched: tuple[tuple[Point, ...], ...]
    blocked: tuple[tuple[Point, ...], ...]


class _Need(NamedTuple):
    """Ranks of a colour do not reach ``step`` before those of another one reach ``point``."""

    colour: int
    step: int
    point: Point


def circle(colours: Colours, traces: Mapping[int, Trace], *, certain: bool) -> tuple[Hop, ...]:
    """Ranks that block one another; none when all can go on. What one hop launches late is what the next waits for."""
    steps = [_steps(colours, traces, colour, certain) for colour in range(len(colours.examples))]
    launched: list[list[Point]] = [[] for _ in range(colours.collectives)]
    blocked: list[list[Point]] = [[] for _ in range(colours.collectives)]
    for colour, own in enumerate(steps):
        for step, collective in enumerate(own.of):
            if collective is not None:
                launched[collective].append((colour, step))
        for step, collective in own.blocked.items():
            blocked[collective].append((colour, step))
    web = _Web(tuple(steps), tuple(map(tuple, launched)), tuple(map(tuple, blocked)))
    left = _stuck(web)
    return _on_ranks(colours, traces, web, _round(web, left)) if left else ()


def _steps(colours: Colours, traces: Mapping[int, Trace], colour: int, certain: bool) -> _Steps:
    """The steps of a colour, and an end: with the rule in order, what comes after a launch is blocked by it."""
    rank = colours.examples[colour]
    collectives = colours.of_launches(rank, traces[rank])
    of: list[int | None] = []
    blocked: dict[int, int] = {}
    launches: dict[int, int] = {}
    over: dict[int, int] = {}
    for step in traces[rank].steps:
        at = len(of)
        launch = step if step >= 0 else ~step
        if step >= 0:
            launches[at] = launch
            of.append(collectives[launch])
            if not certain:
                blocked[at + 1], over[at + 1] = collectives[launch], launch
        elif certain:
            blocked[at], over[at] = collectives[launch], launch
            of.append(None)
    return _Steps((*of, None), blocked, launches, over)


def _stuck(web: _Web) -> set[Point]:
    """Points that are never reached, one after the other being done."""
    open_launches = [len(points) for points in web.launched]
    needs = {
        (colour, step): (step > 0) + (step in own.blocked)
        for colour, own in enumerate(web.steps)
        for step in range(len(own.of))
    }
    ready = deque(point for point, count in needs.items() if count == 0)
    while ready:
        point = ready.popleft()
        del needs[point]
        following = (point[0], point[1] + 1)
        freed = [following] if following in needs else []
        collective = web.steps[point[0]].of[point[1]]
        if collective is not None:
            open_launches[collective] -= 1
            freed += web.blocked[collective] if open_launches[collective] == 0 else ()
        for successor in freed:
            needs[successor] -= 1
            if needs[successor] == 0:
                ready.append(successor)
    return set(needs)


def _round(web: _Web, left: set[Point]) -> list[_Need]:
    """A circle of colours, each at the first step that it does not reach, and what it needs of the next one."""
    first: dict[int, int] = {}
    for colour, step in sorted(left):
        first.setdefault(colour, step)
    needs: dict[int, list[Point]] = {}
    for colour, step in first.items():
        # The step before is reached, so that it is a collective which this one is blocked by.
        needs[colour] = [point for point in web.launched[web.steps[colour].blocked[step]] if point in left]
    # Every colour needs another one, so following the needs ends in a circle, on which the search starts.
    start, seen = min(first), set[int]()
    while start not in seen:
        seen.add(start)
        start = needs[start][0][0]
    came: dict[int, tuple[int, Point]] = {}
    queue = deque([start])
    while start not in came:
        colour = queue.popleft()
        for point in needs[colour]:
            if point[0] not in came:
                came[point[0]] = (colour, point)
                queue.append(point[0])
    way: list[_Need] = []
    at = start
    while not way or at != start:
        at, point = came[at]
        way.append(_Need(at, first[at], point))
    return way[::-1]


def _on_ranks(colours: Colours, traces: Mapping[int, Trace], web: _Web, way: Sequence[_Need]) -> tuple[Hop, ...]:
    """The circle on real ranks; on ranks of one colour it may have to go round more than once."""
    ranks: list[tuple[int, int]] = []
    seen: dict[tuple[int, int], int] = {}
    rank, at = colours.examples[way[0].colour], 0
    while (at, rank) not in seen:
        seen[at, rank] = len(ranks)
        ranks.append((at, rank))
        need = way[at]
        group = traces[rank].launches[web.steps[need.colour].over[need.step]].group
        other, step = need.point
        name = traces[colours.examples[other]].launches[web.steps[other].launches[step]].group
        rank, at = colours.member(rank, group, other, name), (at + 1) % len(way)
    hops = []
    for place, member in ranks[seen[at, rank] :]:
        own = web.steps[way[place].colour]
        hops.append(Hop(member, own.over[way[place].step], own.launches[way[place - 1].point[1]]))
    # Told from its lowest hop on, so that the same circle always reads the same.
    lowest = hops.index(min(hops))
    return tuple(reversed([*hops[lowest + 1 :], *hops[: lowest + 1]]))
