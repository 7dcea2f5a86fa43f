"""One rank of a bench on gloo: runs all graphs in turns and times them; started by :mod:`commcc.replay.bench`.

    python -c 'from commcc.replay.gloo.bench_worker import main; main()' FOLDER

FOLDER holds ``graph1.fx.txt``, ``graph2.fx.txt``, ... and ``settings.json``; the rank writes ``rankN.json``: its
times, its peak memory, and how what the other graphs give back differs from what the first one gives.

Limits: nodes are called one by one from Python, which is part of the time. Peak memory is that of the process.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from commcc.collection import no_collection
from commcc.replay.bench_set import BenchSettings, graph_file, make_set
from commcc.replay.compare import compare_rank
from commcc.replay.gloo.worker import join, serve
from commcc.replay.pair import own_inputs
from commcc.replay.serial import RankRun
from commcc.serialization import load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from commcc.replay.gloo.watch import Watch
    from commcc.replay.prepare import Prepared, Step
    from commcc.replay.values import RankResults
    from commcc.terms import Json


def main() -> None:
    """Run the rank that the environment names, and exit with 0 when it has its times."""
    serve(_run, BenchSettings)


def _run(folder: Path, rank: int, settings: BenchSettings, watch: Watch) -> dict[str, Json]:
    """All repetitions of all graphs."""
    files = [folder / graph_file(number) for number in range(1, settings.graphs + 1)]
    graphs = make_set([load(file) for file in files], settings)
    made = graphs.maker.of_rank(rank)
    join(graphs.layout, rank, settings.timeout, watch)
    benches = [_Bench(each, rank, settings.seed, watch) for each in graphs.prepared]
    gaps = _compared(benches, made, rank)
    _in_turns(benches, made, settings)
    watch.stage("waiting for the other ranks to end")
    dist.barrier()
    dist.destroy_process_group()
    return {"graphs": [bench.to_json() for bench in benches], "gaps": gaps}


@no_collection()
def _in_turns(benches: Sequence[_Bench], made: dict[str, Any], settings: BenchSettings) -> None:
    """Warm-ups, then what counts: A B A B, so that what changes with time changes for all."""
    for repetition in range(-settings.warmup, settings.repeat):
        for number, bench in enumerate(benches, 1):
            bench.watch.program = f"graph {number}"
            bench.sample(made, keep=repetition >= 0)


def _compared(benches: list[_Bench], made: dict[str, Any], rank: int) -> list[Json]:
    """What every other graph gives back against the first; these runs are not timed."""
    first: RankResults | None = None
    gaps: list[Json] = []
    for number, bench in enumerate(benches, 1):
        bench.watch.program = f"graph {number}"
        results = bench.run(own_inputs(bench.run.prepared, made))
        if first is None:
            first = results
        else:
            gaps.append(asdict(compare_rank(first, results, rank)))
    return gaps


@dataclass
class _Waited:
    """Nanoseconds spent in calls that wait for communication."""

    ns: int = 0

    def timing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, with its time added here."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter_ns()
            try:
                return call(*args, **kwargs)
            finally:
                self.ns += time.perf_counter_ns() - start

        return timed

    def step(self, step: Step) -> Step:
        """A step as it is, or timed if the host waits there."""
        waits = step.waits or (step.fact is not None and not step.fact.asynchronous)
        return replace(step, call=self.timing(step.call)) if waits else step


@dataclass
class _Bench:
    """One graph with the samples that were kept."""

    prepared: Prepared
    rank: int
    seed: int
    watch: Watch
    wall_ns: list[int] = field(default_factory=list)
    exposed_ns: list[int] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._waited = _Waited()
        steps = tuple(map(self._waited.step, self.prepared.steps))
        self.run = RankRun(replace(self.prepared, steps=steps), self.rank, self.seed, self.watch.progress)

    def sample(self, made: dict[str, Any], *, keep: bool) -> None:
        """One run on inputs of its own, begun by all ranks together."""
        inputs = own_inputs(self.prepared, made)
        measured = _forget_peak()
        self.watch.stage("waiting for the other ranks to begin a repetition")
        dist.barrier()
        self._waited.ns = 0
        start = time.perf_counter_ns()
        self.run(inputs)
        wall = time.perf_counter_ns() - start
        if keep:
            self.wall_ns.append(wall)
            self.exposed_ns.append(self._waited.ns)
            self.peaks += [peak] if measured and (peak := _peak_bytes()) is not None else []

    def to_json(self) -> dict[str, Json]:
        peak: Json = max(self.peaks, default=None)
        return {"wall_ns": list(self.wall_ns), "exposed_ns": list(self.exposed_ns), "peak_bytes": peak}


def _forget_peak() -> bool:
    """Let the peak memory of this process count from now on; False where the system does not do that."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _peak_bytes() -> int | None:
    """The most memory that this process has had in use since :func:`_forget_peak` (Linux: VmHWM)."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    found = (line.split() for line in lines if line.startswith("VmHWM:"))
    return next((int(words[1]) * 1024 for words in found), None)
