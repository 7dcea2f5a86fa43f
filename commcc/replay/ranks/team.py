"""The ranks that a process runs with: all begin together, and rank 0 gets what each has found.

::

    team = join(layout, rank, place, timeout, watch)
    team.barrier()
    found = team.gather({"wall_ns": [...]})       # on rank 0 a list with every rank's, None on the others
    team.leave()

Barriers and what is gathered go through gloo, also where the graph's own groups use NCCL, so that they put nothing
on the device.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch.distributed as dist

from commcc.replay.ranks.groups import bind_groups

if TYPE_CHECKING:
    from commcc.replay.layout import Layout
    from commcc.replay.place import Place
    from commcc.replay.ranks.watch import Watch


class Team(Protocol):
    """Who runs together."""

    def barrier(self) -> None:
        """Return when all are here."""

    def gather(self, value: Any) -> list[Any] | None:
        """What each rank gives, in order of ranks; None but on rank 0."""

    def leave(self) -> None:
        """The end."""


class Alone:
    """A process that stands for all ranks."""

    def barrier(self) -> None:
        pass

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def leave(self) -> None:
        pass


class Ranks:
    """Processes of a process group that has been initialized."""

    def __init__(self, world: int, rank: int) -> None:
        self._world, self._rank = world, rank

    def barrier(self) -> None:
        dist.barrier()

    def gather(self, value: Any) -> list[Any] | None:
        found: list[Any] | None = [None] * self._world if self._rank == 0 else None
        dist.gather_object(value, found)
        return found

    def leave(self) -> None:
        dist.barrier()
        dist.destroy_process_group()


def join(layout: Layout, rank: int, place: Place, timeout: float, watch: Watch) -> Team:
    """Wait for the other ranks, and make the graphs' groups. timeout: seconds that a collective may take."""
    watch.stage("waiting for the other ranks")
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    bind_groups(layout, rank, timeout, place.backend)
    return Ranks(layout.world, rank)
