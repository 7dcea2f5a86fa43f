"""What an explanation is: the facts, the reasons, and what would change it. Plain frozen data.

Times are whole nanoseconds, sizes bytes. A *position* is a node's place in the graph. A *compute node*
is an op with a FLOP formula; *work* is anything that takes time on the compute stream and is neither a
launch nor a wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.text import duration
from commcc.passes.reorder import Reorder
from commcc.planning.headroom import budget_bytes
from commcc.timing.predict import milliseconds

if TYPE_CHECKING:
    from commcc.base.terms import Json, Kind, Role


@dataclass(frozen=True)
class Limits:
    """How far a launch or a wait may be moved; by default as far as ``reorder`` moves them by default.

    max_compute_prefetch: compute nodes between launch and wait; None for no limit.
    max_in_flight_gb: GiB of collectives launched and not yet waited for; None for no limit.
    memory_budget: bytes of peak memory; None for the graph's own peak and the larger of 1 GiB and 5 %.
    """

    max_compute_prefetch: int | None = Reorder.max_compute_prefetch
    max_in_flight_gb: float | None = Reorder.max_in_flight_gb
    memory_budget: int | None = None

    def budget(self, peak_bytes: int) -> int:
        """Bytes that a moved order may need at most, where the graph as it stands needs ``peak_bytes``."""
        if self.memory_budget is not None:
            return self.memory_budget
        own = budget_bytes(Reorder.memory_budget, peak_bytes)
        assert own is not None
        return own

    def to_json(self) -> dict[str, Json]:
        return {
            "max_compute_prefetch": self.max_compute_prefetch,
            "max_in_flight_gb": self.max_in_flight_gb,
            "memory_budget": self.memory_budget,
        }


@dataclass(frozen=True)
class Near:
    """A node that could overlap with the collective. away: compute nodes between the two."""

    name: str
    ns: int
    away: int

    def to_json(self) -> dict[str, Json]:
        return {"name": self.name, "ms": milliseconds(self.ns), "compute_nodes_away": self.away}


@dataclass(frozen=True)
class Overlap:
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
    stream: tuple[Segment, ...]

    def to_json(self) -> dict[str, Json]:
        return {
            "start_ms": milliseconds(self.start_ns),
            "end_ms": milliseconds(self.end_ns),
            "compute": [segment.to_json() for segment in self.compute],
            "lane": [segment.to_json() for segment in self.stream],
        }


@dataclass(frozen=True)
class Advice:
    """The smallest move within the limits that saves at least nine tenths of what any tried one does.

    earlier, later: compute nodes that the launch passes upwards and the wait downwards. above, below:
    the node that the launch then stands over, and the one that the wait stands under. saves_ns: by how
    much the simulated step gets shorter; exposed_ns: of this collective, then. peak_bytes: memory.
    within: compute nodes between launch and wait.
    """

    earlier: int
    above: str | None
    later: int
    below: str | None
    within: int
    saves_ns: int
    exposed_ns: int
    peak_bytes: int

    def to_json(self) -> dict[str, Json]:
        return {
            "launch_earlier": self.earlier,
            "above": self.above,
            "wait_later": self.later,
            "below": self.below,
            "compute_nodes_between": self.within,
            "saves_ms": milliseconds(self.saves_ns),
            "exposed_ms": milliseconds(self.exposed_ns),
            "peak_bytes": self.peak_bytes,
        }


@dataclass(frozen=True)
class Reason:
    """One thing that keeps the collective exposed. saves_ns: by how much the step would be shorter if
    this alone were not so; simulated says whether that comes from a simulation of the changed step."""

    kind: str
    text: str
    path: tuple[str, ...] = ()
    saves_ns: int = 0
    simulated: bool = True

    def to_json(self) -> dict[str, Json]:
        return {
            "kind": self.kind,
            "text": self.text,
            "path": list(self.path),
            "saves_ms": milliseconds(self.saves_ns),
            "simulated": self.simulated,
        }


@dataclass(frozen=True)
class Knob:
    """What would change it. command: a pass that exists and does this, else None. saves_ns: of the step,
    None where it was not simulated; besides: on top of the first knob's."""

    text: str
    command: str | None = None
    saves_ns: int | None = None
    besides: bool = False

    def to_json(self) -> dict[str, Json]:
        saves = None if self.saves_ns is None else milliseconds(self.saves_ns)
        return {"text": self.text, "pass": self.command, "saves_ms": saves, "besides": self.besides}


@dataclass(frozen=True)
class Explanation:
    """Why one collective is exposed. how, priced_by: what decided its price, and which source of the model.

    cost_ns: by how much the step would be shorter if the collective took no time (simulated).
    slack_ns: how much longer it could take before the longest path of the graph gets longer.
    """

    name: str
    waits: tuple[str, ...]
    kind: Kind
    group: str
    group_size: int | None
    stream: str
    role: Role
    module: str | None
    input_bytes: int
    output_bytes: int
    unknown_size: bool
    total_ns: int
    latency_ns: int
    how: str
    priced_by: str
    exposed_ns: int
    cost_ns: int
    slack_ns: int
    timing: Timing
    overlap: Overlap
    possible: Possible
    launch_side: Side
    wait_side: Side
    advice: Advice | None
    reasons: tuple[Reason, ...]
    knobs: tuple[Knob, ...]
    picture: Picture

    @property
    def summary(self) -> str:
        """One line: the first reason's kind and the first knob."""
        share = f"{self.name}: {duration(self.exposed_ns)} of {duration(self.total_ns)} exposed"
        if not self.exposed_ns:
            return f"{self.name}: hidden, all of its {duration(self.total_ns)}"
        kinds = ", ".join(dict.fromkeys(reason.kind.replace("_", " ") for reason in self.reasons))
        return f"{share} ({kinds}); {self.knobs[0].text}" if self.knobs else f"{share} ({kinds})"

    def to_json(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "kind": self.kind.value,
            "group": self.group,
            "role": self.role.value,
            "exposed_ms": milliseconds(self.exposed_ns),
            "total_ms": milliseconds(self.total_ns),
            "reasons": [reason.to_json() for reason in self.reasons],
            "knobs": [knob.to_json() for knob in self.knobs],
            "summary": self.summary,
            "waits": list(self.waits),
            "group_size": self.group_size,
            "lane": self.stream,
            "module": self.module,
            "input_bytes": self.input_bytes,
            "output_bytes": self.output_bytes,
            **({"unknown_size": True} if self.unknown_size else {}),
            "latency_ms": milliseconds(self.latency_ns),
            "how": self.how,
            "priced_by": self.priced_by,
            "cost_ms": milliseconds(self.cost_ns),
            "slack_ms": milliseconds(self.slack_ns),
            "timing": self.timing.to_json(),
            "beside": self.overlap.to_json(),
            "possible": self.possible.to_json(),
            "launch_side": self.launch_side.to_json(),
            "wait_side": self.wait_side.to_json(),
            "move": None if self.advice is None else self.advice.to_json(),
            "picture": self.picture.to_json(),
        }
