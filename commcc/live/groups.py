"""Process groups that a plan wants and a running job does not have yet.

    after, wanted = new_groups(before, after)     # splits of groups of the job, with the same ranks
    stand_in(wanted)                              # while compiling: the group that each was split off, by another name
    make(wanted, timeout_s)                       # on every rank of them, before the graph first runs

Compilers look groups up, and no rank may wait for another while it compiles. Each group is made once in a process,
whichever graphs name it, in the order in which graphs first run, which is the same on all ranks of a group. Only its
ranks take part, over the store: nothing is launched. Where the job has destroyed its groups, they are made again.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from commcc.base.errors import CommccError
from commcc.graph.structure import renamed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commcc.graph.program import ProcessGroup, Program

#: So that no group that the job makes later takes the name; the group that it was split off follows.
_PREFIX = "commcc/"

#: Ranks and the group itself, by name.
_made: dict[str, tuple[tuple[int, ...], Any]] = {}
_registry: Any = dist.distributed_c10d


def new_groups(before: Program, after: Program) -> tuple[Program, tuple[ProcessGroup, ...]]:
    """``after`` with names for groups that ``before`` does not have, which no job gives; and these groups.

    Raises :class:`CommccError` where the ranks of one are not known.
    """
    new = [group for name, group in after.groups.items() if name not in before.groups and group.origin is not None]
    unknown = [group.name for group in new if group.ranks is None]
    if unknown:
        raise CommccError(f"group '{unknown[0]}' cannot be made: nobody knows its ranks", hint=_HINT)
    if not new:
        return after, ()
    names = {group.name: f"{_PREFIX}{group.origin}/{group.name}" for group in new}
    return renamed(after, {}, names), tuple(replace(group, name=names[group.name]) for group in new)


_HINT = "call torch.distributed.init_process_group first"


def stand_in(groups: Iterable[ProcessGroup]) -> None:
    """Let names of groups that are not made yet mean the groups that they were split off; nothing without any."""
    if not dist.is_initialized():
        return
    for group in groups:
        if not _is_there(group.name):
            _register(group.name, _registry._resolve_process_group(group.origin))


def make(groups: Iterable[ProcessGroup], timeout_s: float | None = None) -> None:
    """Make those that are not there yet; nothing without a process group. timeout_s: of their collectives too."""
    if not dist.is_initialized():
        return
    for group in groups:
        ranks = group.ranks or ()
        if _is_there(group.name) and _made[group.name][0] == ranks:
            continue
        options = None
        if group.high_priority and dist.get_backend() == "nccl":
            options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        limit = None if timeout_s is None else timedelta(seconds=timeout_s)
        # Not all ranks of the job may have this graph; those of the group do.
        process_group = dist.new_group(list(ranks), timeout=limit, pg_options=options, use_local_synchronization=True)
        _register(group.name, process_group)
        _made[group.name] = ranks, process_group


def _is_there(name: str) -> bool:
    """Whether it was made, and is not gone since: a process may end its groups and begin again."""
    if name in _made and _made[name][1] not in _registry._world.pg_map:
        del _made[name]
    return name in _made


def _register(name: str, group: Any) -> None:
    registry: Any = torch._C._distributed_c10d
    with contextlib.suppress(RuntimeError):  # nothing has the name yet
        registry._unregister_process_group(name)
    registry._register_process_group(name, group)
