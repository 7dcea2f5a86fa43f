"""What identification returns. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from commcc.base.terms import Kind, Role

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Collective:
    """One collective launch and what is known about it. Node numbers refer to the index.

    input_bytes, output_bytes: of this rank, 0 when a size is symbolic without a hint.
    wire_bytes: bytes this rank sends with a ring algorithm.
    anchor: for a gather or a scale of one parameter the parameter's placeholder, for a gradient the output slot.
    chain: nodes between the placeholder and the launch, in graph order.
    derived: ``param`` (a gather of exactly one parameter), ``updated`` (a gather of what a parameter is overwritten
    with, or of its new value), ``terminal`` (a reduction that only leads to outputs, or to updates of inputs),
    ``scale`` (an all-reduce of one number, by which a parameter is scaled before it is gathered), ``bucket`` (a gather
    of several parameters) or None.
    stands_for: how many collectives were merged into this one; 1 for a plain one.
    at_end: of the dataflow: no compute node comes before a gather, or after another collective.
    unknown: a size of what it sends or receives has no number, so that its bytes are at least those that are counted.
    """

    launch: int
    waits: tuple[int, ...]
    kind: Kind
    group: str
    group_size: int | None
    reduction: str | None
    dtype: str
    input_bytes: int
    output_bytes: int
    role: Role
    evidence: str
    module: str | None
    derived: str | None = None
    anchor: int | None = None
    chain: tuple[int, ...] = ()
    stands_for: int = 1
    unknown: bool = False
    at_end: bool = False

    @property
    def wire_bytes(self) -> int:
        """Bytes one rank sends on a ring: (W-1)/W of the full tensor, twice that for all-reduce."""
        if self.group_size is None:
            return max(self.input_bytes, self.output_bytes)
        rounds = 2 if self.kind is Kind.ALL_REDUCE else 1
        full = max(self.input_bytes, self.output_bytes)
        return rounds * full * (self.group_size - 1) // max(1, self.group_size)


@dataclass(frozen=True)
class GroupFacts:
    """One process group as the graph uses it.

    roles and kinds count launches; wire_bytes as in :class:`Collective`; same_ranks_as names an
    earlier group whose ranks are known and equal (the same ranks on another stream). origin: the group that
    it was split off; family: the group that it and all others split off with it go back to, maybe itself.
    """

    name: str
    size: int | None
    ranks: tuple[int, ...] | None
    description: str
    roles: Mapping[str, int]
    kinds: Mapping[str, int]
    wire_bytes: int
    same_ranks_as: str | None = None
    origin: str | None = None
    high_priority: bool = False

    @property
    def family(self) -> str:
        return self.name if self.origin is None else self.origin


@dataclass(frozen=True)
class Identification:
    """All collectives in graph order, the groups by first use, and the primary FSDP group."""

    collectives: tuple[Collective, ...]
    groups: tuple[GroupFacts, ...]
    primary: str | None
    warnings: tuple[str, ...] = ()

    @cached_property
    def by_launch(self) -> dict[int, Collective]:
        return {c.launch: c for c in self.collectives}
