"""Which ranks get equal values of an input, as they would in the program that the graph comes from.

=====================  ==================================================================================
a parameter            differs along the group that gathers it and, as a matrix, along groups of tensor
                       parallelism; equal along groups that only reduce gradients (DDP, HSDP)
a buffer, a scalar     equal on all ranks
token ids, labels      equal along groups of tensor parallelism, which work on the same tokens
anything else          saved activations: every rank has its own
=====================  ==================================================================================

Told by the roles of the collectives and, where the graph has them, by the descriptors of its inputs.

Limits: without descriptors a parameter that nobody gathers is known by its name only (``primals_*``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from commcc.base.terms import Kind, Role
from commcc.graph.collectives.derive import walk_back

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx

    from commcc.graph.collectives import Identification
    from commcc.graph.index import GraphIndex
    from commcc.replay.layout import Layout, Parts


class Sharing:
    """Answers, for one graph, whose values are equal."""

    def __init__(self, index: GraphIndex, ident: Identification, layout: Layout) -> None:
        self._index = index
        self._layout = layout
        self._gathered = _gathered(index, ident)
        self._replicas = _groups(ident, (Role.FSDP, Role.DDP), Kind.ALL_REDUCE)
        self._tensor_parallel = _groups(ident, (Role.TP,), None)

    def keys(self, placeholder: fx.Node, val: object) -> tuple[int, ...]:
        """One number for each rank; ranks with the same number get the same values."""
        everyone = tuple(0 for _ in range(self._layout.world))
        if not isinstance(val, torch.Tensor) or val.dim() == 0:
            return everyone
        described = self._index.descriptors.get(self._index.position[placeholder.name], "")
        if "BufferAOTInput" in described:
            return everyone
        if (
            placeholder.name in self._gathered
            or "ParamAOTInput" in described
            or self._named_parameter(placeholder, val)
        ):
            return self._of_parameter(placeholder.name, val)
        counting = not val.dtype.is_floating_point and not val.dtype.is_complex
        return self._equal_along(self._tensor_parallel if counting else ())

    def _named_parameter(self, placeholder: fx.Node, val: torch.Tensor) -> bool:
        return placeholder.name.startswith("primals") and val.dtype.is_floating_point and bool(self._replicas)

    def _of_parameter(self, name: str, val: torch.Tensor) -> tuple[int, ...]:
        own = [self._layout.parts[group] for group in self._gathered.get(name, ())]
        along = (*self._replicas, *(self._tensor_parallel if val.dim() == 1 else ()))
        return self._equal_along(
            group for group in along if not any(_meet(self._layout.parts[group], parts) for parts in own)
        )

    def _equal_along(self, groups: Iterable[str]) -> tuple[int, ...]:
        """Ranks that share a part of any of these groups have the lowest rank among them as their number."""
        lowest = list(range(self._layout.world))
        parts = [part for group in groups for part in self._layout.parts[group]]
        for _ in parts:
            before = list(lowest)
            for part in parts:
                least = min(lowest[rank] for rank in part)
                for rank in part:
                    lowest[rank] = least
            if lowest == before:
                break
        return tuple(lowest)


def _gathered(index: GraphIndex, ident: Identification) -> dict[str, tuple[str, ...]]:
    """Groups that gather a parameter, by the input's name."""
    found: dict[str, dict[str, None]] = {}
    for each in ident.collectives:
        if each.kind is Kind.ALL_GATHER and each.role is Role.FSDP:
            source = walk_back(index, index.launches[each.launch].inputs, joining=True)
            for place in source.inputs if source is not None else ():
                found.setdefault(index.names[place], {})[each.group] = None
    return {name: tuple(groups) for name, groups in found.items()}


def _groups(ident: Identification, roles: tuple[Role, ...], kind: Kind | None) -> tuple[str, ...]:
    fitting = (c.group for c in ident.collectives if c.role in roles and kind in (None, c.kind))
    return tuple(dict.fromkeys(fitting))


def _meet(one: Parts, other: Parts) -> bool:
    """Whether two ranks are together in a part of both."""
    return any(len(set(a) & set(b)) > 1 for a in one for b in other)
