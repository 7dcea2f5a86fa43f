"""Plans: what a pass wants changed, as frozen data, with the reason for each change.

A plan is made of index numbers and carries the fingerprint of the index it was made from;
``commcc.apply`` refuses it on any other graph::

    plan.rewrite                         # Merging(buckets=(Bucket(...),), ...): the graph is built anew, in one way
    plan.rewrite.buckets[0].members      # (12, 40, 71): launches to merge, in order of concatenation
    str(plan.rewrite.buckets[0].reason)  # '3 members, 21.0 MiB, span 12; closed for bytes'
    plan.edits                           # (TagEntry(...), ...): what is written on nodes that the rewrite leaves
    plan.left_out[0].reason              # Reason('used_early', (('node', 'mm_3'),))

A plan has one rewrite or none: merging, reordering, removing, cutting in chunks, fixing sizes, fusing and inlining each
build all nodes anew, so no two of them can be in one plan. Edits go with any rewrite and with each other.

Plans are stored by :mod:`commcc.run.planfile`, which reads from the annotations here what a number stands for:
``Node`` and ``NodeOrder`` for nodes, ``Count`` for plain numbers. A bare ``int`` is refused there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from commcc.base.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.base.reasons import Reason
    from commcc.base.terms import Json, Kind, Role

#: A node of the index, or the position at which it stands.
Node: TypeAlias = Annotated[int, "node"]
#: A number that is not a node.
Count: TypeAlias = Annotated[int, "count"]
#: All nodes of the index in a new order.
NodeOrder: TypeAlias = Annotated[tuple[int, ...], "order"]


@dataclass(frozen=True)
class Bucket:
    """Several launches to be made into one.

    members: launches in order of concatenation. launch_at, wait_at: positions in the graph before
    at which the merged launch and wait stand (later where an input is not there yet). hoist: nodes
    that must move with the launch (casts of parameters). shared_cast: each member's input is the
    same cast of something else; one cast of the concatenation replaces them. as_bytes: members
    have several dtypes and travel as bytes. copies: for each member, whether its result is copied
    out so that graph outputs do not come to share storage. coalesced: one call that launches every member by
    itself, without a copy, in place of one launch of all of them side by side.
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
    coalesced: bool = False


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
    """An activation from outside that is split along ``dim`` for the chunks of a region.

    dense: slices that have gaps between their rows are copied.
    """

    node: Node
    dim: Count
    dense: bool = True


@dataclass(frozen=True)
class Join:
    """How a value that leaves a region becomes whole: ``rows`` (concatenated along ``dim``), ``sum``, or ``last`` (the
    last of a chain of writes). proof: why that is the same value. blocks: that lie one after another along ``dim``, of
    each of which every chunk has its slice.
    """

    node: Node
    how: str
    dim: Count | None
    proof: str
    blocks: Count = 1


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
    what the chunk before has written. in_turn: the clones of one chunk stand together, those up to each launch
    where this stood, the rest where the last wait stood; else clones of one node do.
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
    in_turn: bool = False


@dataclass(frozen=True)
class LeftOut:
    """A collective that could have been merged but was not, and why."""

    launch: Node
    reason: Reason


class _Rewrite:
    """True where it changes anything."""

    def __bool__(self) -> bool:
        return any(vars(self).values())


@dataclass(frozen=True)
class Merging(_Rewrite):
    """Launches become few large ones.

    moves, before: where nodes that are in no bucket go, and what holds whatever else moves.
    """

    buckets: tuple[Bucket, ...] = ()
    moves: tuple[Move, ...] = ()
    before: tuple[Before, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.buckets or self.moves)  # what is kept ahead of what changes nothing by itself


@dataclass(frozen=True)
class Reordering(_Rewrite):
    """All nodes in another order."""

    order: NodeOrder

    @classmethod
    def of(cls, order: tuple[int, ...]) -> Reordering | None:
        """The rewrite to this order; None where it is the order that the nodes have."""
        return cls(order) if any(node != place for place, node in enumerate(order)) else None


@dataclass(frozen=True)
class Removal(_Rewrite):
    """Nodes that go, and keys of node metadata that are dropped everywhere."""

    duplicates: tuple[Duplicate, ...] = ()
    dead: tuple[Dead, ...] = ()
    same: tuple[Same, ...] = ()
    metadata: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chunking(_Rewrite):
    """Modules are cut in chunks of tokens."""

    chunked: tuple[ChunkedRegion, ...]


@dataclass(frozen=True)
class Fixing(_Rewrite):
    """Symbols in sizes become numbers."""

    sizes: tuple[FixedSize, ...]


@dataclass(frozen=True)
class Fusing(_Rewrite):
    """Collectives and matmuls become fused ops."""

    fusions: tuple[Fusion, ...]


@dataclass(frozen=True)
class Inlining(_Rewrite):
    """Calls of regions are replaced by what the regions consist of, and by that of regions within."""

    calls: tuple[Node, ...]


#: How the graph is built anew.
Rewrite: TypeAlias = Merging | Reordering | Removal | Chunking | Fixing | Fusing | Inlining
#: What is written on a node that stays, or added to the table of groups.
Edit: TypeAlias = TagEntry | NewGroup | Regroup | ControlEdge | HostCopy | WaitLabel

_Kind = TypeVar("_Kind", TagEntry, NewGroup, Regroup, ControlEdge, HostCopy, WaitLabel)

#: The parts of plans by the names that plan files and stored results use, in their order there: fields of a rewrite,
#: and kinds of edits.
PARTS: Mapping[str, type] = {
    "buckets": Merging,
    "moves": Merging,
    "before": Merging,
    "tags": TagEntry,
    "order": Reordering,
    "groups": NewGroup,
    "regroups": Regroup,
    "duplicates": Removal,
    "dead": Removal,
    "same": Removal,
    "metadata": Removal,
    "control": ControlEdge,
    "host_copies": HostCopy,
    "wait_labels": WaitLabel,
    "sizes": Fixing,
    "fusions": Fusing,
    "calls": Inlining,
    "chunked": Chunking,
    "left_out": LeftOut,
}


@dataclass(frozen=True)
class PassReport(Record):
    """A pass's own account of what it did. Each pass has a class of its own, whose fields are the keys of the JSON."""


@dataclass(frozen=True)
class StoredReport(PassReport):
    """The account of a pass that planned before, as its plan file has it."""

    values: Mapping[str, Json]

    def to_json(self) -> dict[str, Json]:
        """What the file says, whatever that is."""
        return dict(self.values)


@dataclass(frozen=True)
class Plan:
    """What one pass makes of the graph with this fingerprint."""

    pass_text: str
    fingerprint: str
    rewrite: Rewrite | None = None
    edits: tuple[Edit, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    report: PassReport = PassReport()

    @property
    def changes(self) -> bool:
        """Whether anything is other afterwards; a new group that no launch moves to is no change."""
        return bool(self.rewrite) or any(not isinstance(edit, NewGroup) for edit in self.edits)

    def of(self, kind: type[_Kind]) -> tuple[_Kind, ...]:
        """The edits of one kind."""
        return tuple(edit for edit in self.edits if isinstance(edit, kind))

    def parts(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """All that the plan consists of, by name."""
        for name, owner in PARTS.items():
            if owner is LeftOut:
                yield name, self.left_out
            elif isinstance(self.rewrite, owner):
                yield name, getattr(self.rewrite, name)
            else:
                yield name, tuple(edit for edit in self.edits if isinstance(edit, owner))
