"""Real process groups under the very names that a graph uses.

    bind_groups(layout, rank, timeout)        # '33' in the graph is now this rank's group of that name

Every rank makes every group, in one order, as ``new_group`` wants it. Each name has a process group of its own,
also where two names stand for the same ranks, since each stands for a stream of its own.

Limits: names that PyTorch gave to groups of its own ('0', '1', ...) are taken away from them; those groups can
still be used as objects.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from commcc.replay.layout import Layout

_SILENT = "fake"


def stand_in_groups(layout: Layout) -> None:
    """Groups of rank 0 that send nothing: Inductor looks up sizes and backends of those that a graph names."""
    # Imported here: it is needed by one process that stands for all ranks, and by no other.
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group(_SILENT, store=FakeStore(), rank=0, world_size=layout.world)
    bind_groups(layout, 0, 1.0, _SILENT)


def bind_groups(layout: Layout, rank: int, timeout: float, backend: str = "gloo") -> None:
    """Make and register all groups of a layout; timeout: seconds that a collective may take."""
    # new_group does not take over the timeout of init_process_group: without one it waits half an hour.
    limit = timedelta(seconds=timeout)
    made: dict[str, Any] = {}
    for name, parts in sorted(layout.parts.items()):
        for part in parts:
            group = dist.new_group(list(part), timeout=limit, backend=backend)
            if rank in part:
                made[name] = group
    registry: Any = torch._C._distributed_c10d
    taken = {str(group.group_name) for group in (*made.values(), dist.group.WORLD) if group is not None}
    for name in sorted(taken):
        registry._unregister_process_group(name)
    for name, group in sorted(made.items()):
        registry._register_process_group(name, group)
