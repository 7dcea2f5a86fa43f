"""A training cluster that is not there: one process that believes it is rank 0 of many.

::

    layout = Layout((("dp_replicate", 4), ("dp_shard", 8)))
    with fake_world(layout) as world:
        world.group_name("dp_shard")     # what collectives of that axis are called in a graph
        world.groups()                   # {name: ProcessGroup(name, 8, (0, ..., 7), "dp_shard")}

Limits: the process must not have a process group of its own; nothing is ever sent.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from commcc.base.errors import OptionError
from commcc.graph.program import ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commcc.base.terms import Json


@dataclass(frozen=True)
class Layout:
    """How ranks are arranged: named axes, outermost first, row-major.

    joined: further axes, each made of all ranks along several of ``axes``; an expert-parallel layout
        shards its dense parameters over ``dp_shard = efsdp x ep``.
    """

    axes: tuple[tuple[str, int], ...]
    joined: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of the axes, joined ones not included."""
        return tuple(name for name, _ in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Ranks along each axis."""
        return tuple(size for _, size in self.axes)

    @property
    def world_size(self) -> int:
        """All ranks."""
        return prod(self.shape)

    def size(self, axis: str) -> int:
        """Ranks along an axis (joined or not); 1 for an axis the layout does not have."""
        members = dict(self.joined).get(axis, (axis,))
        sizes = dict(self.axes)
        return prod(sizes.get(name, 1) for name in members)


@dataclass(frozen=True)
class World:
    """A layout with process groups, from :func:`fake_world`; ``meshes`` are by axis, the whole one under ``""``."""

    layout: Layout
    meshes: dict[str, DeviceMesh]

    def has(self, axis: str) -> bool:
        """Whether the layout has an axis of this name, joined ones included."""
        return axis in self.meshes

    def mesh(self, *axes: str) -> DeviceMesh:
        """The mesh over some axes, in layout order; a joined axis can only be had alone."""
        if len(axes) == 1:
            return self.meshes[axes[0]]
        mesh: DeviceMesh = self.meshes[""][axes]
        return mesh

    def group_name(self, axis: str) -> str:
        """What collectives of an axis call its process group."""
        return str(self.meshes[axis].get_group().group_name)

    def groups(self) -> dict[str, ProcessGroup]:
        """One entry for each process group, under its name in graphs; described by its axes."""
        table: dict[str, ProcessGroup] = {}
        for axis, mesh in self.meshes.items():
            if not axis:
                continue
            group = mesh.get_group()
            ranks = tuple(dist.get_process_group_ranks(group))
            name = str(group.group_name)
            text = f"{table[name].description}, {axis}" if name in table else axis
            table[name] = ProcessGroup(name, len(ranks), ranks, text)
        return table

    def header(self) -> dict[str, Json]:
        """The layout as it is kept in a program's header, from which every rank's groups follow."""
        axes = [axis for axis in self.meshes if axis]
        return {
            "shape": list(self.layout.shape),
            "dims": list(self.layout.names),
            "joined": {name: list(members) for name, members in self.layout.joined},
            "group_names": {axis: self.group_name(axis) for axis in axes},
        }


def known_group(group: ProcessGroup) -> ProcessGroup:
    """With its ranks, and the axis of the mesh that it was made for, as far as this process knows them."""
    resolve: Any = dist.distributed_c10d
    try:
        resolved = resolve._resolve_process_group(group.name)
    except (RuntimeError, ValueError, KeyError):
        return group
    ranks, about = tuple(dist.get_process_group_ranks(resolved)), str(resolved.group_desc).removeprefix("mesh_")
    return replace(group, ranks=ranks, size=len(ranks), description="" if about == "undefined" else about)


@contextmanager
def fake_world(layout: Layout) -> Iterator[World]:
    """Rank 0 of a world that only pretends to communicate; its process groups go away at the end.

    Raises OptionError when the process already belongs to a process group.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise OptionError(
            "cannot capture in a process that has a process group", hint="capture in a process of its own"
        )
    hook = sys.excepthook
    dist.init_process_group("fake", rank=0, world_size=layout.world_size, store=FakeStore())
    try:
        whole = init_device_mesh("cpu", layout.shape, mesh_dim_names=layout.names)
        meshes = {"": whole}
        for name in layout.names:
            meshes[name] = whole[name] if len(layout.names) > 1 else whole
        for name, members in layout.joined:
            meshes[name] = whole[members]._flatten(name)
        yield World(layout, meshes)
    finally:
        dist.destroy_process_group()
        # init_process_group puts a hook of its own there and never takes it back.
        sys.excepthook = hook
