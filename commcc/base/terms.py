"""Words that the whole of commcc shares; imports nothing, so that planners and ``--help`` stay light."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

MIB = 1 << 20
GIB = 1 << 30

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class Kind(str, Enum):
    """What a collective does; the values are the names used in reports and files."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"

    def __str__(self) -> str:
        return self.value


class Role(str, Enum):
    """What a collective is for.

    ``EP`` moves tokens between experts, ``EP_COUNT`` their numbers; ``TP`` gathers or reduces
    activations; ``OTHER`` is anything that fits none of them.
    """

    FSDP = "fsdp"
    DDP = "ddp"
    EP = "ep"
    EP_COUNT = "ep_count"
    TP = "tp"
    OTHER = "other"

    def __str__(self) -> str:
        return self.value
