"""Ranks that do the same on groups that look the same, put together.

Ranks start out alike when their traces are. Then, in turns, groups are alike when alike ranks call them by the
same names, and ranks stay alike while the groups behind each of their names are, until nothing changes any more.
What is true of a rank's place among the others is then true of all that are alike.

    64 ranks of one program on a mesh of 8 x 8      1 colour of ranks, 2 colours of groups
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.lint.ranks.groups import Groups
    from commcc.lint.ranks.sequences import Sequences
    from commcc.lint.ranks.types import Trace

#: Further turns are not worth it: every rank is then a colour of its own.
_TURNS = 50


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
        found = []
        for launch in trace.launches:
            place = counts.get(launch.group, 0)
            counts[launch.group] = place + 1
            found.append(self.first[self.groups[self.known.of[rank, launch.group]]] + place)
        return found

    def member(self, rank: int, group: str, colour: int, name: str) -> int:
        """The first rank of a colour that calls ``name`` what ``rank`` calls ``group``."""
        members = self.known.groups[self.known.of[rank, group]].members
        return next(other for other, own in members if own == name and self.ranks[other] == colour)


def colour(traces: Mapping[int, Trace], known: Groups, sequences: Sequences) -> Colours:
    """Colours of ranks and groups, of which all sequences agree."""
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
        if len(set(finer.values())) == len(set(ranks.values())):
            break
        ranks = finer
    else:
        ranks = {rank: i for i, rank in enumerate(traces)}
        groups = tuple(range(len(known.groups)))
    return _colours(ranks, groups, known, sequences)


def _colours(ranks: dict[int, int], groups: tuple[int, ...], known: Groups, sequences: Sequences) -> Colours:
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
    return {each: numbers.setdefault(key, len(numbers)) for each, key in keys.items()}
