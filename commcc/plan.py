"""Plans: what a pass wants changed, as frozen data, with the reason for each change.

A plan is made of index numbers and carries the fingerprint of the index it was made from;
``commcc.apply`` refuses it on any other graph::

    plan.buckets[0].members      # (12, 40, 71): launches to merge, in order of concatenation
    str(plan.buckets[0].reason)  # '3 members, 21.0 MiB, span 12; closed for bytes'
    plan.left_out[0].reason      # Reason('used_early', (('node', 'mm_3'),))

Plans are stored by :mod:`commcc.run.planfile`, which reads from the annotations here what a number stands for:
``Node`` and ``Order`` for nodes, ``Count`` for plain numbers. A bare ``int`` is refused there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.base.reasons import Reason
    from commcc.base.terms import Json, Kind, Role

#: A node of the index, or the position at which it stands.
Node: TypeAlias = Annotated[int, "node"]
#: A number that is not a node.
Count: TypeAlias = Annotated[int, "count"]
#: All nodes of the index in a new order.
Order: TypeAlias = Annotated[tuple[int, ...], "order"]


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
    members: tuple[Node, ...]
    launch_at: Node
    wait_at: Node
    reason: Reason
    hoist: tuple[Node, ...] = ()
    shared_cast: bool = False
    as_bytes: bool = False
    copies: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Move:
    """Let a surviving node stand where ``at`` stands in the graph before, or later where an input is not there yet."""

    node: Node
    at: Node
    reason: Reason


@dataclass(frozen=True)
class Before:
    """Keep ``first`` ahead of ``then``. A member's launch stands for the merged one, its wait for the merged wait."""

    first: Node
    then: Node


@dataclass(frozen=True)
class TagEntry:
    """Write a role into the record of a launch."""

    launch: Node
    role: Role
    evidence: str


@dataclass(frozen=True)
class NewGroup:
    """A process group to add to the table: ``origin`` once more, under another name.

    role: the option of the ``groups`` pass that asked for it.
    """

    name: str
    origin: str
    role: str
    reason: Reason
    high_priority: bool = True


@dataclass(frozen=True)
class Regroup:
    """Let a launch run on another group."""

    launch: Node
    group: str


@dataclass(frozen=True)
class Duplicate:
    """Launches that gather what ``keep`` gathers, to be served by it.

    drop: the other launches. wait: the earliest wait on any of them, which stays. waits: the others, which go.
    dead: nodes that fed dropped launches and nothing else. bytes: of the gathered result.
    """

    keep: Node
    drop: tuple[Node, ...]
    wait: Node
    waits: tuple[Node, ...]
    reason: Reason
    dead: tuple[Node, ...] = ()
    bytes: Count = 0


@dataclass(frozen=True)
class Dead:
    """Nodes to be removed: none of their results is used, and they do nothing else."""

    nodes: tuple[Node, ...]
    reason: Reason


@dataclass(frozen=True)
class Same:
    """A node to be removed, whose users take ``source`` instead: it shows all of that tensor, as it is."""

    node: Node
    source: Node


@dataclass(frozen=True)
class ControlEdge:
    """``node`` must not run before ``after`` has, whatever a backend makes of the order."""

    node: Node
    after: Node
    reason: Reason


@dataclass(frozen=True)
class HostCopy:
    """Let the host wait for a copy from a device, or not."""

    node: Node
    non_blocking: bool
    reason: Reason


@dataclass(frozen=True)
class WaitLabel:
    """Annotate a wait as one for a ``dispatch`` or a ``combine`` (``exchange``), not as that exchange itself."""

    wait: Node
    exchange: str


@dataclass(frozen=True)
class Fusion:
    """Let PyTorch's micro-pipeline pass make one op of a launch and the matmuls that it feeds, or that feed it."""

    launch: Node
    matmuls: tuple[Node, ...]
    reason: Reason


@dataclass(frozen=True)
class FixedSize:
    """Let a symbol in sizes be this number from now on: the graph then fits inputs of that size only."""

    symbol: str
    value: Count
    reason: Reason


@dataclass(frozen=True)
class Cut:
    """An activation from outside that is split along ``dim`` for the chunks of a region."""

    node: Node
    dim: Count


@dataclass(frozen=True)
class Join:
    """How a value that leaves a region becomes whole: ``rows`` (concatenated along ``dim``), ``sum``, or ``last`` (the
    last of a chain of writes). proof: why that is the same value.
    """

    node: Node
    how: str
    dim: Count | None
    proof: str


@dataclass(frozen=True)
class Resize:
    """An argument of a node, or the place in a list of sizes, that becomes ``per`` times the units of a chunk."""

    node: Node
    argument: str
    place: Count | None
    per: Count


@dataclass(frozen=True)
class ChunkedRegion:
    """The nodes of a module, in one direction, that every chunk of its tokens gets a clone of.

    extent: units that are cut; sizes: units of each chunk. chained: writes to a buffer that the chunks share, each on
    what the chunk before has written.
    """

    root: str
    backward: bool
    extent: Count
    sizes: tuple[Count, ...]
    body: tuple[Node, ...]
    cuts: tuple[Cut, ...]
    joins: tuple[Join, ...]
    resized: tuple[Resize, ...] = ()
    chained: tuple[Node, ...] = ()


@dataclass(frozen=True)
class LeftOut:
    """A collective that could have been merged but was not, and why."""

    launch: Node
    reason: Reason


@dataclass(frozen=True)
class Plan:
    """Edits of one pass on the graph with this fingerprint.

    moves, before: where nodes that are in no bucket go, and what holds whatever else moves.
    order: all nodes in their new order, for plans that remove and merge nothing; None leaves it.
    host_copies: copies to the host that the host is to wait for, or no longer. wait_labels: annotations of waits.
    sizes: symbols in sizes that become numbers; nothing else changes then. fusions: the same. metadata: keys of node
    metadata to be dropped everywhere. report: the pass's own account.
    """

    pass_text: str
    fingerprint: str
    buckets: tuple[Bucket, ...] = ()
    moves: tuple[Move, ...] = ()
    before: tuple[Before, ...] = ()
    tags: tuple[TagEntry, ...] = ()
    order: Order | None = None
    groups: tuple[NewGroup, ...] = ()
    regroups: tuple[Regroup, ...] = ()
    duplicates: tuple[Duplicate, ...] = ()
    dead: tuple[Dead, ...] = ()
    same: tuple[Same, ...] = ()
    metadata: tuple[str, ...] = ()
    control: tuple[ControlEdge, ...] = ()
    host_copies: tuple[HostCopy, ...] = ()
    wait_labels: tuple[WaitLabel, ...] = ()
    sizes: tuple[FixedSize, ...] = ()
    fusions: tuple[Fusion, ...] = ()
    chunked: tuple[ChunkedRegion, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    report: Mapping[str, Json] = field(default_factory=dict)

    @property
    def changes(self) -> bool:
        edits = (
            self.buckets,
            self.moves,
            self.tags,
            self.regroups,
            self.duplicates,
            self.dead,
            self.same,
            self.metadata,
            self.control,
            self.host_copies,
            self.wait_labels,
            self.sizes,
            self.fusions,
            self.chunked,
        )
        return self.order is not None or any(edits)
