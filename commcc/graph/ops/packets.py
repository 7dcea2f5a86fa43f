"""Ops without an overload, as in ``torch.ops.aten.mul_(x, 2)``: which one runs is known only by what it is given.

    position_names(node)                    # ("self", "other"): what it is given by position
    fixed_names(torch.ops.aten.squeeze)     # ("self",): first in all overloads

PyTorch takes the first overload that the arguments fit, and is asked which; nothing is run for it. Where it cannot be
asked, since an operand has no ``val``, a name is known where all overloads that take as many arguments agree on it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

if TYPE_CHECKING:
    from torch._ops import OpOverload, OpOverloadPacket


def overloads_of(packet: OpOverloadPacket) -> list[OpOverload]:
    """All overloads, in the order in which they are registered."""
    names: list[str] = packet.overloads()  # type: ignore[no-untyped-call]
    return [getattr(packet, name) for name in names]


@lru_cache(maxsize=4096)
def fixed_names(packet: OpOverloadPacket) -> tuple[str, ...]:
    """Names of arguments that come first in every overload."""
    return _agreed(tuple(names for names, _ in _parameters(packet)))


@lru_cache(maxsize=4096)
def has_one_place(packet: OpOverloadPacket, name: str) -> bool:
    """Whether an argument is found by its name however the op is called: at one position, or by keyword alone."""
    return name in fixed_names(packet) or not any(name in names for names, _ in _parameters(packet))


@lru_cache(maxsize=4096)
def is_named(packet: OpOverloadPacket, name: str) -> bool:
    """Whether an overload takes an argument of that name."""
    return any(name in names or name in keywords for names, keywords in _parameters(packet))


def position_names(node: fx.Node) -> tuple[str, ...]:
    """Names of what a call of such an op is given by position, as far as they are known."""
    packet: Any = node.target
    chosen, count = _chosen(node), len(node.args)
    if chosen is not None:
        return _names(getattr(packet, chosen))[0][:count]
    fitting = tuple(
        names
        for names, keywords in _parameters(packet)
        if count <= len(names) and not node.kwargs.keys() - {*names[count:], *keywords}
    )
    return _agreed(fitting)[:count] if fitting else fixed_names(packet)[:count]


def _chosen(node: fx.Node) -> str | None:
    """The overload that PyTorch would run; None where that is not known."""
    resolve = getattr(torch._C, "_jit_resolve_packet", None)
    if resolve is None or any("val" not in operand.meta for operand in node.all_input_nodes):
        return None
    packet: Any = node.target
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda operand: operand.meta["val"])
    try:
        name: str = resolve(packet._qualified_op_name, *args, **kwargs)
    except (RuntimeError, TypeError, ValueError):  # it fits none
        return None
    return name or "default"


def _agreed(rows: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    names = []
    for column in zip(*rows, strict=False):
        if len(set(column)) > 1:
            break
        names.append(column[0])
    return tuple(names)


@lru_cache(maxsize=4096)
def _parameters(packet: OpOverloadPacket) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    return tuple(_names(overload) for overload in overloads_of(packet))


def _names(overload: OpOverload) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of arguments that may come by position, and of those that only come by keyword."""
    arguments = overload._schema.arguments
    return tuple(a.name for a in arguments if not a.kwarg_only), tuple(a.name for a in arguments if a.kwarg_only)
