"""The process groups of all ranks, from the mesh that a file's header holds."""

from __future__ import annotations

import itertools
from typing import Any


def parts_along(mesh: dict[str, Any], axis: str) -> tuple[tuple[int, ...], ...]:
    """All groups along an axis: the ranks that differ in its coordinates only."""
    members = mesh.get("joined", {}).get(axis, [axis])
    along = [name in members for name in mesh["dims"]]
    parts: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(itertools.product(*(range(size) for size in mesh["shape"]))):
        key = tuple(coordinate for coordinate, inside in zip(place, along, strict=True) if not inside)
        parts.setdefault(key, []).append(rank)
    return tuple(tuple(part) for part in parts.values())


def parts_by_name(program: Any) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The groups behind each name in a program's graph, those of groups split off from others included."""
    mesh = program.header["mesh"]
    known = {name: parts_along(mesh, axis) for axis, name in mesh["group_names"].items()}
    split = {group.name: group.origin for group in program.groups.values() if group.origin is not None}
    return known | {name: known[origin] for name, origin in split.items()}
