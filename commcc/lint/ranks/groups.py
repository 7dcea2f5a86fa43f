"""Which process group a name on one rank is on another one: told by the ranks that are in it.

    rank 0: {"2": ranks 0, 2}    rank 1: {"2": ranks 1, 3}    rank 2: {"5": ranks 0, 2}
    ->  ranks 0, 2: (rank 0, "2"), (rank 2, "5")        ranks 1, 3: (rank 1, "2"), rank 3 has no file

1. A name stands for the ranks in the table of the file that uses it, or for those of the group that it was
   split off.
2. A name whose ranks the file does not tell takes them from another rank's table, where that has a group of this
   name with this rank in it; else, where its size is the number of files, it is taken to hold all ranks.
3. Else the name is taken to mean the same axis on every rank, whoever is in whose group.

Two groups of the same ranks are paired by name, then in the order of their names.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commcc.base.text import natural_key
from commcc.lint.ranks.show import ranks_text
from commcc.lint.ranks.types import Difference, DifferenceKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commcc.lint.ranks.types import Trace

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """One process group, or all groups along an axis where it is not known who is in which.

    ranks: in the order of the group; None for an axis. members: rank and its name for the group, by rank; all
    of them have a file. lacking: ranks that should be members and have no such group. missing: members without file.
    """

    label: str
    ranks: Ranks | None
    members: tuple[tuple[int, str], ...]
    lacking: Ranks = ()
    missing: Ranks = ()


@dataclass(frozen=True)
class Groups:
    """All groups that some launch is on. of: the number of the group, by rank and name."""

    groups: tuple[Group, ...]
    of: Mapping[tuple[int, str], int]
    differences: tuple[Difference, ...] = ()
    reasons: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


@dataclass
class _Resolved:
    """What is known so far. by_ranks: sorted ranks -> rank -> its names for groups of these ranks."""

    by_ranks: dict[Ranks, dict[int, list[str]]] = field(default_factory=lambda: defaultdict(dict))
    axes: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    orders: dict[Ranks, dict[Ranks, int]] = field(default_factory=lambda: defaultdict(dict))
    differences: list[Difference] = field(default_factory=list)
    reasons: dict[str, None] = field(default_factory=dict)
    assumed: dict[str, None] = field(default_factory=dict)


def resolve(traces: Mapping[int, Trace]) -> Groups:
    """The groups behind all names."""
    resolved = _Resolved()
    used = {rank: dict.fromkeys(launch.group for launch in trace.launches) for rank, trace in traces.items()}
    tables = {rank: _told(trace) for rank, trace in traces.items()}
    # For names that some file uses without telling the ranks: what other files tell, by name and rank.
    open_names = {name for rank, names in used.items() for name in names if name not in tables[rank]}
    lists = {name: dict.fromkeys(table[name] for table in tables.values() if name in table) for name in open_names}
    elsewhere = {(name, rank): ranks for name, several in lists.items() for ranks in several for rank in ranks}
    for rank in sorted(traces):
        told = tables[rank]
        for name in dict.fromkeys((*told, *used[rank])):
            ranks = told.get(name) or _borrowed(resolved, traces, elsewhere, rank, name)
            if ranks is None:
                resolved.axes[name].append(rank)
            elif _sound(resolved, traces[rank], rank, name, ranks):
                resolved.by_ranks[tuple(sorted(ranks))].setdefault(rank, []).append(name)
                resolved.orders[tuple(sorted(ranks))].setdefault(ranks, rank)
    return _collected(resolved, traces, {(rank, name) for rank, names in used.items() for name in names})


def _told(trace: Trace) -> dict[str, Ranks]:
    """The ranks behind every name that the table tells, by way of origins too."""
    told: dict[str, Ranks] = {}
    for name in trace.groups:
        seen: set[str] = set()
        at: str | None = name
        while at is not None and at in trace.groups and at not in seen:
            seen.add(at)
            group = trace.groups[at]
            if group.ranks:
                told[name] = group.ranks
                break
            at = group.origin
    return told


def _borrowed(
    resolved: _Resolved, traces: Mapping[int, Trace], elsewhere: Mapping[tuple[str, int], Ranks], rank: int, name: str
) -> Ranks | None:
    """The ranks behind a name that this rank's table does not tell."""
    if name.startswith("%"):
        resolved.reasons.setdefault(
            f"rank {rank}: the group of some launches is made by '{name[1:]}' when the graph runs"
        )
        return None
    ranks = elsewhere.get((name, rank))
    if ranks is not None:
        resolved.assumed.setdefault(
            f"group '{name}', of which some files do not tell the ranks, is as other files have it"
        )
        return ranks
    size = traces[rank].groups[name].size if name in traces[rank].groups else None
    if size == len(traces) and set(traces) == set(range(size)):
        resolved.assumed.setdefault(f"group '{name}' of {size} ranks holds all ranks: its ranks are not told")
        return tuple(range(size))
    resolved.assumed.setdefault(
        f"group '{name}' is the same axis on every rank: its ranks are not told, so all ranks have to agree"
    )
    return None


def _sound(resolved: _Resolved, trace: Trace, rank: int, name: str, ranks: Ranks) -> bool:
    """Whether the table's entry can be right."""
    problem = ""
    size = trace.groups[name].size if name in trace.groups else None
    if rank not in ranks:
        problem = f"is of {ranks_text(ranks)}, without rank {rank} itself"
        if not any(launch.group == name for launch in trace.launches):
            return False  # a table may list the groups of others
    elif len(set(ranks)) != len(ranks):
        problem = "has a rank twice"
    elif size is not None and size != len(ranks):
        problem = f"has {size} ranks, and a list of {len(ranks)}"
    if problem:
        hint = ("is the file named after the right rank?",) if rank not in ranks else ()
        resolved.differences.append(
            Difference(
                DifferenceKind.GROUP, f"rank {rank}: its group '{name}' {problem}", f"'{name}'", (rank,), details=hint
            )
        )
    return not problem


def _collected(resolved: _Resolved, traces: Mapping[int, Trace], used: set[tuple[int, str]]) -> Groups:
    groups: list[Group] = []
    of: dict[tuple[int, str], int] = {}
    for key in sorted(resolved.by_ranks):
        for members in _paired(resolved, key):
            if any(member in used for member in members):
                of.update(dict.fromkeys(members, len(groups)))
                groups.append(_group(resolved, key, members, traces))
    for name in sorted(name for name, ranks in resolved.axes.items() if any((rank, name) in used for rank in ranks)):
        of.update({(rank, name): len(groups) for rank in resolved.axes[name]})
        groups.append(Group(f"group '{name}'", None, tuple((rank, name) for rank in resolved.axes[name])))
        without = sorted(set(traces) - set(resolved.axes[name]))
        if without:
            resolved.reasons.setdefault(f"group '{name}': {ranks_text(without)} may be in it; its ranks are not told")
    return Groups(tuple(groups), of, tuple(resolved.differences), tuple(resolved.reasons), tuple(resolved.assumed))


def _group(resolved: _Resolved, key: Ranks, members: tuple[tuple[int, str], ...], traces: Mapping[int, Trace]) -> Group:
    orders = resolved.orders[key]
    first, *others = orders
    for other in others:
        what = f"rank {orders[first]} has the group as {ranks_text(first)}, rank {orders[other]} as {ranks_text(other)}"
        resolved.differences.append(
            Difference(DifferenceKind.GROUP, what, ranks_text(key), (orders[first], orders[other]))
        )
    have = {rank for rank, _ in members}
    texts = dict.fromkeys(
        traces[rank].groups[name].description for rank, name in members if name in traces[rank].groups
    )
    about = next((text for text in texts if text), "")
    label = f"the group of {ranks_text(key)}" + (f" ({about})" if about else "")
    lacking = tuple(rank for rank in key if rank in traces and rank not in have)
    missing = tuple(rank for rank in key if rank not in traces)
    return Group(label, first, members, lacking, missing)


def _paired(resolved: _Resolved, key: Ranks) -> Iterable[tuple[tuple[int, str], ...]]:
    """Names of several ranks for the groups of the same ranks, put together."""
    names = resolved.by_ranks[key]
    common = [name for name in next(iter(names.values())) if all(name in own for own in names.values())]
    for name in common:
        yield tuple((rank, name) for rank in sorted(names))
    rest = {rank: sorted((n for n in own if n not in common), key=natural_key) for rank, own in names.items()}
    most = max(map(len, rest.values()))
    if max(map(len, names.values())) > 1 and sum(map(bool, rest.values())) > 1:
        text = f"groups of {ranks_text(key)} with other names on other ranks are the same in the order of their names"
        resolved.assumed.setdefault(text)
    for place in range(most):
        yield tuple((rank, rest[rank][place]) for rank in sorted(rest) if place < len(rest[rank]))
