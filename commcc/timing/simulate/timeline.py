"""Types of a simulated step. Plain data; no torch. Times are whole nanoseconds from the step's start."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Span:
    """When a collective moved its bytes. queued_at: when it was launched; stream: the queue it was in."""

    stream: str
    queued_at: int
    start: int
    end: int

    @property
    def ns(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Timeline:
    """One step as simulated.

    order: nodes in the order they ran. start, end: of each node, by node number, on the compute
    stream; a wait ends when its collective has, a launch when the compute stream is free to go on.
    spans: of each launch. exposed: for each launch the time that the compute stream stood still
    while this collective ran, whoever was waited for; sums to ``exposed_ns``. stalls: for each node
    that waited, how long. compute_ns: work on the compute stream; launch_ns: launching collectives;
    slowed_ns: what collectives in flight added to compute. in_flight: bytes launched and not waited
    for, at each position of the order, after the node. arrivals: of inputs in flight at the start, when
    their collective has ended, where that is known; what of it stalls the compute stream is in
    ``exposed`` under the input. within_ns: communication of sub-graphs; what is exposed of it is in ``exposed`` under
    the node that runs them.

    step_ns = compute_ns + launch_ns + slowed_ns + exposed_ns.
    """

    order: tuple[int, ...]
    start: tuple[int, ...]
    end: tuple[int, ...]
    spans: dict[int, Span]
    exposed: dict[int, int]
    stalls: dict[int, int]
    step_ns: int
    compute_ns: int
    launch_ns: int
    slowed_ns: int
    in_flight: tuple[int, ...]
    arrivals: dict[int, int] = field(default_factory=dict)
    within_ns: int = 0

    @cached_property
    def exposed_ns(self) -> int:
        return sum(self.exposed.values())

    @cached_property
    def communication_ns(self) -> int:
        return sum(span.ns for span in self.spans.values()) + sum(self.arrivals.values()) + self.within_ns

    @property
    def hidden_share(self) -> float | None:
        """1 - exposed / total communication; None without communication."""
        return 1 - self.exposed_ns / self.communication_ns if self.communication_ns else None

    @property
    def in_flight_bytes(self) -> int:
        """Highest bytes of collectives launched and not yet waited for."""
        return max(self.in_flight, default=0)

    def hidden_share_of(self, launch: int) -> float | None:
        """Share of one collective's time that compute overlapped; None if it takes no time."""
        span = self.spans[launch]
        return 1 - self.exposed.get(launch, 0) / span.ns if span.ns else None
