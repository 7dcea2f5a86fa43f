"""Plans: what a pass wants changed, as frozen data, with the reason for each change.

A plan is made of index numbers and carries the fingerprint of the index it was made from;
``commcc.apply`` refuses it on any other graph::

    plan.buckets[0].members      # (12, 40, 71): launches to merge, in order of concatenation
    plan.buckets[0].reason       # '3 of 3 members fit in 200 MiB and 1500 nodes'
    plan.left_out[0].reason      # "size depends on 's0'"
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.terms import Json, Kind, Role


@dataclass(frozen=True)
class Bucket:
    """Several launches to be made into one.

    members: launches in order of concatenation. launch_at, wait_at: positions in the graph before
    at which the merged launch and wait stand (later where an input is not there yet). hoist: nodes
    that must move with the launch (casts of parameters). shared_cast: each member's input is the
    same cast of something else; one cast of the concatenation replaces them. as_bytes: members
    have several dtypes and travel as bytes. copies: for each member, whether its result is copied
    out so that graph outputs do not come to share storage.
    """

    kind: Kind
    members: tuple[int, ...]
    launch_at: int
    wait_at: int
    reason: str
    hoist: tuple[int, ...] = ()
    shared_cast: bool = False
    as_bytes: bool = False
    copies: tuple[bool, ...] = ()


@dataclass(frozen=True)
class TagEntry:
    """Write a role into the record of a launch."""

    launch: int
    role: Role
    evidence: str


@dataclass(frozen=True)
class LeftOut:
    """A collective that could have been merged but was not, and why."""

    launch: int
    reason: str


@dataclass(frozen=True)
class Plan:
    """Edits of one pass on the graph with this fingerprint.

    order: all nodes in their new order, for plans without buckets; None leaves it. report: the pass's
    own account.
    """

    pass_text: str
    fingerprint: str
    buckets: tuple[Bucket, ...] = ()
    tags: tuple[TagEntry, ...] = ()
    order: tuple[int, ...] | None = None
    left_out: tuple[LeftOut, ...] = ()
    report: Mapping[str, Json] = field(default_factory=dict)

    @property
    def changes(self) -> bool:
        return bool(self.buckets or self.tags or self.order is not None)
