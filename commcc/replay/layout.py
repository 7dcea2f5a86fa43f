"""Which ranks are in a group with which: the layout that a replay needs and that a graph does not say.

A graph is one rank's view: a group's name means "my group along that axis", its size is in the collectives,
and its ranks, where the file lists them, are those of the rank that dumped it. In this order the groups of
all ranks follow from

1. what was given: ``--groups '33=0,2|1,3;35=0-1|2-3'``;
2. the mesh in the file's header, which ``commcc capture`` writes;
3. the group that it was split off from;
4. the ranks of one rank's view, continued as a regular grid: (0, 2) of 4 ranks is ``0,2|1,3``;
5. its size alone: all ranks where it is the world's; else blocks of neighbours, which is noted as an assumption.

Limits: nothing but 1 describes a grid that is not regular.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from math import lcm, prod
from typing import TYPE_CHECKING, Any

from commcc.base.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from commcc.graph.index import GraphIndex
    from commcc.graph.index.graph import GroupEntry
    from commcc.graph.program import Program

#: All groups of one name; every rank is in exactly one.
Parts = tuple[tuple[int, ...], ...]

MAX_RANKS = 4096
_HOW = "say which ranks are together: --groups 'NAME=0,2|1,3'"
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


@dataclass(frozen=True)
class Layout:
    """Ranks and their groups. parts: by group name. assumed: what was taken for granted, one line each."""

    world: int
    parts: Mapping[str, Parts]
    assumed: tuple[str, ...] = ()

    def mine(self, group: str, rank: int) -> tuple[int, ...]:
        """The ranks that are in this group with ``rank``, in order."""
        return next(part for part in self.parts[group] if rank in part)

    def placed(self, index: GraphIndex, given: Collection[str]) -> GraphIndex:
        """The index with what is said here of groups that were given, and of those split off them, for their prices."""
        groups = dict(index.groups)
        for name, entry in index.groups.items():
            if name in self.parts and (name in given or entry.origin in given):
                ranks = self.mine(name, entry.ranks[0] if entry.ranks else 0)
                groups[name] = replace(entry, size=len(ranks), ranks=ranks)
        inside = {
            node: replace(parts, graphs=tuple(self.placed(graph, given) for graph in parts.graphs))
            for node, parts in index.inside.items()
        }
        return replace(index, groups=groups, inside=inside)


def read_groups(text: str) -> dict[str, Parts]:
    """``'33=0,2|1,3;35=0-1|2-3'`` as parts by name; :class:`OptionError` names everything that is wrong."""
    groups: dict[str, Parts] = {}
    wrong: list[str] = []
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, ranks = (part.strip() for part in entry.partition("="))
        parts = _parts(ranks) if equals and name else None
        if parts is None:
            wrong.append(f"'{entry[:60]}' is not NAME=RANKS|RANKS")
        elif name in groups:
            wrong.append(f"{name} is given twice")
        elif len(set(itertools.chain(*parts))) < sum(map(len, parts)):
            wrong.append(f"{name}: a rank is in two groups or twice in one")
        else:
            groups[name] = parts
    if wrong or not groups:
        raise OptionError(f"groups: {'; '.join(wrong) or 'none are given'}", hint="as in --groups '33=0,2|1,3;35=0-3'")
    return groups


def _parts(text: str) -> Parts | None:
    parts = []
    for part in text.split("|"):
        ranks: list[int] = []
        for piece in part.split(","):
            match = _RANGE.fullmatch(piece.strip())
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if not first <= last < MAX_RANKS:
                return None
            ranks.extend(range(first, last + 1))
        parts.append(tuple(ranks))
    return tuple(parts)


def make_layout(
    programs: Iterable[tuple[Program, GraphIndex]],
    world: int | None = None,
    given: Mapping[str, Parts] | None = None,
    most: int = MAX_RANKS,
) -> Layout:
    """The layout for all graphs together, which may name different groups.

    world: how many ranks were asked for; None for as many as the graphs are for. most: how many there may be.
    Raises :class:`OptionError` where the graphs are for another number, or where a group's ranks must be given.
    """
    pairs, told = list(programs), dict(given or {})
    used: dict[str, GroupEntry] = {}
    for index in (part for _, whole in pairs for part in whole.with_inside()):
        groups = {launch.group for launch in index.launches.values()} & index.groups.keys()
        used = {name: index.groups[name] for name in groups} | used
    entries = dict(sorted(used.items()))
    unknown = sorted(set(told) - set(entries))
    if unknown:
        raise OptionError(
            f"groups: no collective uses '{unknown[0]}'", hint=f"the graphs use {', '.join(entries) or 'no groups'}"
        )
    meshes = [mesh for program, _ in pairs if (mesh := _mesh(program.header, most)) is not None]
    size = _world(entries.values(), meshes, told, world)
    if size > most:
        raise OptionError(f"{size} ranks are more than {most}, the most that are laid out here")
    known = {name: parts for mesh in meshes for name, parts in mesh.parts.items()} | told
    maker = _Maker(size, entries, known)
    for name in entries:
        maker.add(name)
    return Layout(size, maker.done, tuple(maker.assumed))


@dataclass(frozen=True)
class _Mesh:
    world: int
    parts: dict[str, Parts]


def _mesh(header: Mapping[str, Any], most: int = MAX_RANKS) -> _Mesh | None:
    """The mesh of a header; None without one, or where it is not what ``commcc capture`` writes."""
    mesh = header.get("mesh")
    if not isinstance(mesh, dict):
        return None
    shape: Any = mesh.get("shape")
    dims: Any = mesh.get("dims")
    names: Any = mesh.get("group_names")
    joined: Any = mesh.get("joined", {})
    well = isinstance(shape, list) and isinstance(dims, list) and isinstance(names, dict) and isinstance(joined, dict)
    if not well or len(shape) != len(dims) or not all(type(n) is int and 0 < n <= most for n in shape):
        return None
    if prod(shape) > most:
        return None
    parts = {str(name): _along(shape, dims, joined.get(axis, [axis])) for axis, name in names.items()}
    return _Mesh(prod(shape), parts)


def _along(shape: list[int], dims: list[Any], members: Any) -> Parts:
    """All groups along some axes: ranks that differ in their coordinates on those only; ranks are row-major."""
    inside = [name in members if isinstance(members, list) else False for name in dims]
    parts: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(itertools.product(*map(range, shape))):
        key = tuple(at for at, along in zip(place, inside, strict=True) if not along)
        parts.setdefault(key, []).append(rank)
    return tuple(map(tuple, parts.values()))


def _world(entries: Collection[GroupEntry], meshes: list[_Mesh], told: Mapping[str, Parts], asked: int | None) -> int:
    needed = max(
        [1, *(entry.size or 1 for entry in entries), *(max(entry.ranks) + 1 for entry in entries if entry.ranks)]
        + [max(itertools.chain(*parts)) + 1 for parts in told.values()]
    )  # fmt: skip
    # Groups of 3 and of 8 ranks are of 24, where nobody tells their ranks.
    unit = lcm(*(entry.size or 1 for entry in entries if entry.name not in told))
    needed = -(-needed // unit) * unit if unit <= MAX_RANKS else needed
    exact = meshes[0].world if meshes else None
    if any(mesh.world != exact for mesh in meshes):
        raise OptionError(f"the graphs are for different numbers of ranks: {exact} and {meshes[-1].world}")
    # On one rank every collective is a copy, so nothing would be learned of a group whose size nobody tells.
    fewest = 2 if any(entry.size is None for entry in entries) else 1
    world = asked or exact or max(needed, fewest)
    if exact not in (None, world):
        raise OptionError(
            f"the graph is for {exact} ranks, not {world}: its shapes and groups have that number in them",
            hint=f"ask for {exact} ranks, or capture the model for {world}",
        )
    if world < needed:
        raise OptionError(
            f"the graph is for at least {needed} ranks, not {world}: its groups have that many",
            hint=f"ask for {needed} ranks, or capture the model for {world}",
        )
    return world


class _Maker:
    """Finds the parts of one group after the other."""

    def __init__(self, world: int, entries: Mapping[str, GroupEntry], known: Mapping[str, Parts]) -> None:
        self.world = world
        self.entries = entries
        self.known = known
        self.done: dict[str, Parts] = {}
        self.assumed: list[str] = []

    def add(self, name: str) -> None:
        entry = self.entries[name]
        origin = self.known.get(entry.origin or "")
        parts = self.known.get(name) or origin or self._from_view(entry) or self._from_size(entry)
        sizes = {len(part) for part in parts}
        if sorted(itertools.chain(*parts)) != list(range(self.world)):
            raise OptionError(f"group '{name}': every one of the {self.world} ranks must be in one part", hint=_HOW)
        if len(sizes) > 1 or (entry.size is not None and sizes != {entry.size}):
            size = entry.size or "equally many"
            raise OptionError(f"group '{name}' has {size} ranks in the graph, not {max(sizes)}", hint=_HOW)
        self.done[name] = parts

    def _from_view(self, entry: GroupEntry) -> Parts | None:
        """One rank's view, continued as a grid; None when it is not part of a regular one."""
        ranks = entry.ranks
        if not ranks:
            return None
        size, step = len(ranks), ranks[1] - ranks[0] if len(ranks) > 1 else 1
        block = size * step
        if step < 1 or self.world % block or any(b - a != step for a, b in itertools.pairwise(ranks)):
            raise OptionError(f"group '{entry.name}': ranks {list(ranks)} tell nothing about the others", hint=_HOW)
        starts = [at + first for at in range(0, self.world, block) for first in range(step)]
        parts = tuple(tuple(range(start, start + block, step)) for start in starts)
        if tuple(ranks) not in parts:
            raise OptionError(f"group '{entry.name}': ranks {list(ranks)} are not one part of a grid", hint=_HOW)
        return parts

    def _from_size(self, entry: GroupEntry) -> Parts:
        if entry.size is None and len(self.entries) > 1:
            raise OptionError(f"group '{entry.name}': the graph does not say which ranks are in it", hint=_HOW)
        size = entry.size or self.world
        if self.world % size:
            raise OptionError(f"group '{entry.name}' of {size} ranks does not divide {self.world} ranks", hint=_HOW)
        parts = tuple(tuple(range(at, at + size)) for at in range(0, self.world, size))
        if size < self.world:
            shown = "|".join(f"{part[0]}-{part[-1]}" for part in parts[:3]) + ("|..." if len(parts) > 3 else "")
            self.assumed.append(f"group '{entry.name}' is taken to be {shown}; --groups says otherwise")
        return parts
