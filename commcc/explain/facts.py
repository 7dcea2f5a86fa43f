"""What an explanation says about one collective as it stands. Plain frozen data.

Times are whole nanoseconds, sizes bytes. A *position* is a node's place in the graph. A *compute node*
is an op with a FLOP formula; *work* is anything that takes time on the compute stream and is neither a
launch nor a wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.timing.predict import milliseconds

if TYPE_CHECKING:
    from commcc.base.terms import Json


@dataclass(frozen=True)
class Near:
    """A node that could overlap with the collective. away: compute nodes between the two."""

    name: str
    ns: int
    away: int

    def to_json(self) -> dict[str, Json]:
        return {"name": self.name, "ms": milliseconds(self.ns), "compute_nodes_away": self.away}


@dataclass(frozen=True)
class Beside:
    """Work that overlaps with the collective now: how many nodes, compute nodes among them, time shared."""

    nodes: int
    compute_nodes: int
    ns: int
    names: tuple[str, ...]

    def to_json(self) -> dict[str, Json]:
        return {
            "nodes": self.nodes,
            "compute_nodes": self.compute_nodes,
            "ms": milliseconds(self.ns),
            "largest": list(self.names),
        }


@dataclass(frozen=True)
class Possible:
    """Work that neither feeds the launch nor needs the wait, in the whole graph.

    There is a legal order in which all of it runs between the two. before, after: the nearest compute
    nodes of it ahead of the launch and behind the wait. stays_ns: what every order leaves exposed.
    """

    ns: int
    compute_nodes: int
    stays_ns: int
    before: tuple[Near, ...]
    after: tuple[Near, ...]

    def to_json(self) -> dict[str, Json]:
        return {
            "ms": milliseconds(self.ns),
            "compute_nodes": self.compute_nodes,
            "stays_exposed_ms": milliseconds(self.stays_ns),
            "before": [near.to_json() for near in self.before],
            "after": [near.to_json() for near in self.after],
        }


@dataclass(frozen=True)
class Side:
    """How far the launch could go up, or the wait down, with the small ops that feed or follow it.

    position: the first place it could take, or the last. limit: the node that stops it, None at the
    ends of the graph. path: the dependence path, from ``limit`` to the launch, or from the wait to
    ``limit``. compute_nodes, ns: independent work that it would pass.
    """

    position: int
    limit: str | None
    path: tuple[str, ...]
    compute_nodes: int
    ns: int

    def to_json(self) -> dict[str, Json]:
        return {
            "position": self.position,
            "limit": self.limit,
            "path": list(self.path),
            "compute_nodes": self.compute_nodes,
            "ms": milliseconds(self.ns),
        }


@dataclass(frozen=True)
class Stall:
    """The compute stream stalled while the collective ran, at ``wait``; None at the end of the step."""

    wait: str | None
    waits_for: str
    ns: int

    def to_json(self) -> dict[str, Json]:
        return {"wait": self.wait, "for": self.waits_for, "ms": milliseconds(self.ns)}


@dataclass(frozen=True)
class Timing:
    """Where the collective is in the step and in the graph. queue: who ran ahead of it in its queue
    after it had been launched, with the time that took."""

    launch_position: int
    wait_position: int | None
    launched_ns: int
    start_ns: int
    end_ns: int
    waited_ns: int | None
    queue_ns: int
    queue: tuple[tuple[str, int], ...]
    stalls: tuple[Stall, ...]

    def to_json(self) -> dict[str, Json]:
        waited = None if self.waited_ns is None else milliseconds(self.waited_ns)
        return {
            "launch_position": self.launch_position,
            "wait_position": self.wait_position,
            "launched_at_ms": milliseconds(self.launched_ns),
            "start_ms": milliseconds(self.start_ns),
            "end_ms": milliseconds(self.end_ns),
            "wait_at_ms": waited,
            "queued_ms": milliseconds(self.queue_ns),
            "queued_behind": [{"name": name, "ms": milliseconds(ns)} for name, ns in self.queue],
            "stalls": [stall.to_json() for stall in self.stalls],
        }


@dataclass(frozen=True)
class Segment:
    """A stretch of one stream: ``compute``, ``stall``, ``this`` collective or ``other`` ones."""

    what: str
    start_ns: int
    end_ns: int

    def to_json(self) -> Json:
        return [self.what, milliseconds(self.start_ns), milliseconds(self.end_ns)]


@dataclass(frozen=True)
class Picture:
    """The two streams around the collective, for a drawing."""

    start_ns: int
    end_ns: int
    compute: tuple[Segment, ...]
    lane: tuple[Segment, ...]

    def to_json(self) -> dict[str, Json]:
        return {
            "start_ms": milliseconds(self.start_ns),
            "end_ms": milliseconds(self.end_ns),
            "compute": [segment.to_json() for segment in self.compute],
            "lane": [segment.to_json() for segment in self.lane],
        }
