"""One rank: it does its work, says in one line why it could not, and has process groups under the graph's names.

::

    serve(work, Settings)                         # in a process of its own, started by ``launch``

    team = join(layout, rank, place, timeout, watch)
    team.barrier()
    results = team.gather({"wall_ns": [...]})       # on rank 0 a list with every rank's, None on the others
    team.leave()

Every rank makes every group, in one order, as ``new_group`` wants it. Each name has a process group of its own, also
where two names stand for the same ranks, since each stands for a stream of its own. Barriers and what is gathered go
through gloo, also where the graph's own groups use NCCL, so that they put nothing on the device.

Limits: names that PyTorch gave to groups of its own ('0', '1', ...) are taken away from them; those groups can
still be used as objects.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from commcc.base.errors import CommccError
from commcc.graph.ops.allowed import imported_ops
from commcc.replay.place import DeviceError
from commcc.replay.ranks.failing import out_of_memory
from commcc.replay.ranks.watch import Watch, write_json
from commcc.replay.virtual import StepError

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.base.terms import Json
    from commcc.replay.layout import Layout
    from commcc.replay.numeric.pair import Settings
    from commcc.replay.place import Place

S = TypeVar("S", bound="Settings")

EXIT_FAILED = 3
_SILENT = "fake"


def serve(work: Callable[[Path, int, S, Watch], dict[str, Json]], kind: type[S]) -> None:
    """Do the work of the rank that the environment names, in the folder that the command line names.

    The folder holds ``settings.json``, of this kind; the rank writes ``rankN.json``: what ``work`` returned, or one
    line that says what went wrong, and then it exits with :data:`EXIT_FAILED`.
    """
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    file = folder / f"rank{rank}.json"
    settings = kind.from_text((folder / "settings.json").read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    # The main thread may be inside a collective, where Python's own handler would not be heard.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    watch = Watch(settings.timeout, file)
    try:
        imported_ops(settings.imports)  # before the files that name their ops are read
        result = work(folder, rank, settings, watch)
    except Exception as error:
        write_json(file, watch.words(**error_words(error)))
        sys.exit(EXIT_FAILED)
    write_json(file, result)
    watch.close()


def error_words(error: Exception) -> dict[str, Json]:
    """What there is to say about an error that ended a rank's work."""
    if isinstance(error, DeviceError):
        return {"refused": error.what, "hint": error.hint}
    text = error.render() if isinstance(error, CommccError) else f"{type(error).__name__}: {error}"
    node = error.node if isinstance(error, StepError) else None
    return {"error": " ".join(text.split())[:500], "node": node, "memory": out_of_memory(error)}


class Team(Protocol):
    """Who runs together."""

    def barrier(self) -> None:
        """Return when all are here."""

    def gather(self, value: Any) -> list[Any] | None:
        """What each rank has, in order of ranks; None but on rank 0."""

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
        result: list[Any] | None = [None] * self._world if self._rank == 0 else None
        dist.gather_object(value, result)
        return result

    def leave(self) -> None:
        dist.barrier()
        dist.destroy_process_group()


def join(layout: Layout, rank: int, place: Place, timeout: float, watch: Watch) -> Team:
    """Wait for the other ranks, and make the graphs' groups. timeout: seconds that a collective may take."""
    watch.stage("waiting for the other ranks")
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    bind_groups(layout, rank, timeout, place.backend)
    return Ranks(layout.world, rank)


def bind_groups(layout: Layout, rank: int, timeout: float, backend: str = "gloo") -> None:
    """Make and register all groups of a layout; timeout: seconds that a collective may take."""
    # new_group does not take over the timeout of init_process_group: without one it waits half an hour.
    limit = timedelta(seconds=timeout)
    own: dict[str, Any] = {}
    for name, parts in sorted(layout.parts.items()):
        for part in parts:
            group = dist.new_group(list(part), timeout=limit, backend=backend)
            if rank in part:
                own[name] = group
    # A graph's names can be those that PyTorch has just made up for these groups.
    registry: Any = torch._C._distributed_c10d
    taken = {str(group.group_name) for group in (*own.values(), dist.group.WORLD) if group is not None}
    for name in sorted(taken):
        registry._unregister_process_group(name)
    for name, group in sorted(own.items()):
        registry._register_process_group(name, group)


def stand_in_groups(layout: Layout) -> None:
    """Groups of rank 0 that send nothing: Inductor looks up sizes and backends of those that a graph names."""
    # Imported here: it is needed by one process that stands for all ranks, and by no other.
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group(_SILENT, store=FakeStore(), rank=0, world_size=layout.world)
    bind_groups(layout, 0, 1.0, _SILENT)
