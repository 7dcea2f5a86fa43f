"""A rank's bench of one graph through Inductor, as a recorded CUDA graph, or both.

    bench = make_bench(way, prepared, seat)                # a Bench, whichever way it runs the graph

Limits: of a recorded graph no waits can be timed.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commcc.replay.compiled.cuda_graphs import CapturedRun
from commcc.replay.compiled.rank_run import CompiledRun, Direct
from commcc.replay.ranks.turns import Bench
from commcc.replay.serial import RankRun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commcc.base.terms import Json
    from commcc.replay.bench.ways import Way
    from commcc.replay.emulate.transport import Transport
    from commcc.replay.prepare import Prepared, Step
    from commcc.replay.ranks.turns import Seat


def make_bench(way: Way, prepared: Prepared, seat: Seat, transport: Transport | None = None) -> Bench:
    """What runs a graph in this way; transport: of emulated communication."""
    if not way.compiled and not way.captured:
        return Bench(prepared, seat, transport)
    return Variant(prepared, seat, transport, compiled=way.compiled, captured=way.captured)


@dataclass
class Variant(Bench):
    """A graph that is not called op by op."""

    compiled: bool = False
    captured: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._code = self._compiled() if self.compiled else None
        program = self._code or self.runner(_plain)
        self._captured = CapturedRun(program, self.seat.watch.stage) if self.captured else None
        self.program = self._captured or program

    def _compiled(self) -> CompiledRun:
        seat, network = self.seat, self.transport or Direct()
        real = self.prepared if self.transport is None else self.transport.real
        eager = RankRun(real, seat.rank, seat.seed, seat.watch.progress, seat.place)
        # Stamps within a recorded graph are never reached.
        return CompiledRun(eager, _plain if self.captured else self._waits.step, self._turn, network)

    def ready(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Compile and record, the first time; inputs are put where a recorded graph reads them."""
        if self._code is not None:
            self._code.compile(inputs)
        return inputs if self._captured is None else self._captured.ready(inputs)

    def release(self) -> None:
        if self._captured is not None:
            self._captured.release()

    def to_json(self) -> dict[str, Json]:
        order = self._code.order if self._code is not None else None
        found = {**super().to_json(), "order": None if order is None else order.kept.to_json()}
        return {**found, "exposed_ns": []} if self.captured else found

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The first rank of a machine compiles before the others, which then find its code in the cache."""
        seat, first = self.seat, int(os.environ.get("LOCAL_RANK", "0")) == 0
        seat.watch.stage("waiting for rank 0 to compile")
        if not first:
            seat.team.barrier()
        seat.watch.stage("compiling with Inductor")
        yield
        if first:
            seat.team.barrier()


def _plain(step: Step) -> Step:
    return step
