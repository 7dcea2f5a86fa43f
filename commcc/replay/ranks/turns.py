"""One graph that a rank runs in turns with others: what each repetition took.

::

    bench = Bench(prepared, Seat(rank, place, team, watch, seed=0))
    bench.sample(made, keep=True)                # made: the rank's inputs, of which the graph gets copies of its own
    bench.wall_ns, bench.exposed_ns              # nanoseconds, one for each repetition that was kept
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from commcc.replay.bench.waiting import StepTimes
from commcc.replay.emulate.crossing import Crossing
from commcc.replay.numeric.pair import own_inputs
from commcc.replay.place import CUDA
from commcc.replay.runnable import run
from commcc.replay.serial import RankRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from commcc.base.terms import Json
    from commcc.replay.emulate.crossing import Took
    from commcc.replay.emulate.transport import Transport
    from commcc.replay.place import Place
    from commcc.replay.prepare import Prepared, Step
    from commcc.replay.ranks.team import Team
    from commcc.replay.ranks.watch import Watch
    from commcc.replay.runnable import Runnable
    from commcc.replay.values import RankResults


@dataclass(frozen=True)
class Seat:
    """One rank among the others, and what it runs on."""

    rank: int
    place: Place
    team: Team
    watch: Watch
    seed: int


@dataclass
class Bench:
    """One graph with the samples that were kept, in nanoseconds and bytes. transport: of emulated communication."""

    prepared: Prepared
    seat: Seat
    transport: Transport | None = None
    wall_ns: list[int] = field(default_factory=list)
    exposed_ns: list[int] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    waits: list[dict[str, int]] = field(default_factory=list)
    crossings: list[Crossing] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._waits = StepTimes(self.seat.place)
        self.program: Runnable = self.runner(self._waits.step)

    def run(self, inputs: dict[str, Any]) -> RankResults:
        """One run that is not timed, on inputs that are :meth:`ready`."""
        return run(self.program, inputs)

    def runner(self, wrap: Callable[[Step], Step]) -> RankRun:
        """Runs the graph with steps that are wrapped in something."""
        seat = self.seat
        prepared = replace(self.prepared, steps=tuple(map(wrap, self.prepared.steps)))
        return RankRun(prepared, seat.rank, seat.seed, seat.watch.progress, seat.place)

    def ready(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """What is done with inputs before a run that is timed."""
        return inputs

    def beginnings(self, made: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
        """Inputs for so many runs, each given when all ranks are there to begin."""
        for _ in range(count):
            inputs = self.ready(own_inputs(self.prepared, made))
            self.seat.place.synchronize()
            self.settle()
            self.seat.watch.stage("waiting for the other ranks to begin a repetition")
            self.seat.team.barrier()
            yield inputs

    def sample(self, made: dict[str, Any], *, keep: bool) -> None:
        """One run on inputs of its own, begun by all ranks together."""
        place = self.seat.place
        counted = place.forget_peak()
        self._waits.forget()
        (inputs,) = self.beginnings(made, 1)
        self.seat.watch.device = self._waits.newest if place.name == CUDA else None
        with self.program.running():
            start = place.stamp()
            self.program.outputs(inputs)
            end = place.stamp()
            place.synchronize()
        self.seat.watch.device = None
        took = self.settle()
        if keep:
            self.crossings += [Crossing.of(took)] if self.transport is not None else []
            self.wall_ns.append(place.elapsed_ns(start, end))
            self.waits.append(self._waits.taken())
            self.exposed_ns.append(sum(self.waits[-1].values()))
            self.peaks += [peak] if counted and (peak := place.peak_bytes()) is not None else []

    def settle(self) -> dict[str, Took]:
        """What each emulated collective has taken, by node; the place must have been synchronized."""
        return {} if self.transport is None else self.transport.settle()

    def release(self) -> None:
        """Give back what has to be gone before the process groups are."""

    def leave(self) -> None:
        """The end, for all graphs of the rank."""
        self.seat.team.leave()
        if self.transport is not None:
            self.transport.lanes.close()

    def to_json(self) -> dict[str, Json]:
        peak: Json = max(self.peaks, default=None)
        times: dict[str, Json] = {"wall_ns": list(self.wall_ns), "exposed_ns": list(self.exposed_ns)}
        crossings: list[Json] = [asdict(each) for each in self.crossings]
        return {**times, "peak_bytes": peak, "crossings": crossings, "order": None}
