"""What a diff is made of. Plain data, in graph order, with a JSON form for each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from commcc.base.terms import Json


@dataclass(frozen=True)
class Merge:
    """Collectives of the graph before that one launch of the graph after stands for.

    evidence: ``record`` when the launch says so itself, ``structure`` when its results go where the
    members' results went. span: last member's position minus the first one's, before.
    launch_moved, wait_moved: least and greatest number of nodes, of those that stayed in place, that
    the members' launches and waits passed; negative is towards the front.
    """

    into: str
    kind: str
    group: str
    members: tuple[str, ...]
    evidence: str
    span: int
    launch_moved: tuple[int, int] | None
    wait_moved: tuple[int, int] | None


@dataclass(frozen=True)
class Split:
    """A collective of the graph before whose work several launches of the graph after do."""

    source: str
    kind: str
    group: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Move:
    """A node in both graphs whose place among the others changed; ``passed`` is negative when earlier."""

    name: str
    op: str
    before: int
    after: int
    passed: int


@dataclass(frozen=True)
class OpGroup:
    """Nodes of one op that only one of the graphs has."""

    op: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Rename:
    """The same op on the same operands under another name."""

    before: str
    after: str
    op: str


@dataclass(frozen=True)
class Change:
    """A node in both graphs whose constants, or whose number of operands, are not the same."""

    name: str
    op: str
    before: str
    after: str


@dataclass(frozen=True)
class GroupChange:
    """A process group of one name with other ranks, in words; with another size where the ranks are not known."""

    name: str
    before: str
    after: str


def to_json(item: Merge | Split | Move | OpGroup | Rename | Change | GroupChange) -> dict[str, Json]:
    """The fields by name, tuples as lists."""
    return {
        key: list(value) if isinstance(value, tuple) else cast("Json", value) for key, value in asdict(item).items()
    }
