"""In-place ops and ops with an ``out`` argument: a functional op and a write.

    functional(torch.ops.aten.scatter_.value)     # torch.ops.aten.scatter.value
    functional(torch.ops.aten.mm.out)             # torch.ops.aten.mm.default
    functional(torch.ops.aten.mm.default)         # the same: it writes nothing

The twin is derived from the schemas: an op of the same library and the same name, but for the underscore behind it,
that takes the same arguments and writes none. What it computes is what is left in the argument that is written.

Limits: an op that writes several arguments, or one that is no tensor of its own (a list), has a twin where the library
has one, and its results are then those of the twin, in order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket


@lru_cache(maxsize=4096)
def functional(target: Any) -> Any:
    """The op that computes what ``target`` writes, and writes nothing; ``target`` itself where there is none."""
    if not isinstance(target, OpOverload) or not _written(target):
        return target
    # An argument by keyword alone is an ``out``, which the twin does not have; another one is read as well.
    outs = {a.name for a in _written(target) if a.kwarg_only}
    wanted = [(a.name, str(a.type)) for a in target._schema.arguments if a.name not in outs]
    library, name = target._schema.name.split("::")
    plain = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    # Python's own names for in-place arithmetic: ``__ior__`` of ``__or__``.
    plain = f"__{name[3:]}" if name.startswith("__i") and name.endswith("__") else plain
    for twin in (
        overload for op in dict.fromkeys((plain, f"{plain}_functional", name)) for overload in _overloads(library, op)
    ):
        rest = {(a.name, str(a.type)): a.has_default_value() for a in twin._schema.arguments}
        # A factory's twin also takes a dtype and a device, which its ``out`` has already.
        extra = [default for key, default in rest.items() if key not in wanted]
        if not _written(twin) and [key for key in rest if key in wanted] == wanted and all(extra):
            return twin
    return target


@lru_cache(maxsize=4096)
def has_twin(target: Any) -> bool:
    """Whether the op is in place, or one does the same in place: its result may be as large as ``self``."""
    if functional(target) is not target:
        return True
    if not isinstance(target, OpOverload):
        return False
    library, name = target._schema.name.split("::")
    return any(functional(overload) is target for overload in _overloads(library, f"{name}_"))


def _written(op: OpOverload) -> list[Any]:
    return [a for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def _overloads(library: str, name: str) -> list[OpOverload]:
    """All overloads of an op, in the order in which they are registered."""
    packet = getattr(getattr(torch.ops, library), name, None)
    names: list[str] = packet.overloads() if isinstance(packet, OpOverloadPacket) else []  # type: ignore[no-untyped-call]
    return [getattr(packet, which) for which in names]
