"""Times of nodes: stamps around steps, runs recorded by PyTorch's profiler, and one time out of those of all ranks.

::

    times = StepTimes(place)                           # steps that stall; StepTimes(place, which=every) takes all
    steps = tuple(map(times.step, prepared.steps))     # the same steps, timed
    ...                                                # run them
    times.taken()                                      # {'wait_tensor_3': 120_000, ...} nanoseconds, of this run

    steps = tuple(map(marked, prepared.steps))         # a mark for every node: a trace tells which node an event is of
    record(place, [run, run], file)                    # a trace for Perfetto
    read_runs(file, {"all_gather_3": Kind.ALL_GATHER})[0].transfers["all_gather_3"]      # nanoseconds

    times = gather_times(index, layout, ranks)         # out of every rank's RankNodes
    times.ops["mm_3"], times.transfers["all_gather_3"], times.waits["wait_tensor_3"]     # nanoseconds

What a step takes is on the CPU the time in the call; on a CUDA device the time between what was queued before the
call and what is queued after it: for a wait what the stream of the rank stalls.

What a collective takes is the time that gloo's thread works on it, or that NCCL's kernel runs: from when this rank
begins until it has everything, so waiting for ranks that begin later is in it. gloo's events name no group and no
launch; they belong to launches in order, each to the first that begins after the launch, of its kind and size. What
an op takes on a CUDA device is the time of the kernels and copies that it has queued; on the CPU a trace does not
tell, because recording takes longer than many an op (:class:`StepTimes` does).

One time for each node comes of all ranks' records. An op's time is the mean over ranks of each rank's median. A
collective ends on all ranks of its group together, but a rank that comes early has waited, so one run of it takes the
shortest time that any rank of the group saw; the time is the median over runs and groups. How much longer it was on
average, over runs and ranks, is what late ranks and outliers cost: means add up to what ranks stall, medians do not.

Limits: a host that is late with its launches lets a device stall as well, which no wait shows. What the profiler does
not record (ops of other back ends, collectives inside a compiled call) is not there.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field, replace
from math import prod
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from commcc.base.terms import Kind
from commcc.graph.ops.collective_table import LAUNCHING
from commcc.replay.place import CUDA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from commcc.base.terms import Json
    from commcc.graph.index import GraphIndex
    from commcc.replay.layout import Layout
    from commcc.replay.place import Place
    from commcc.replay.prepare import Step

MARK = "node "
RUN = "commcc run"
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")
#: What gloo calls the work of a collective; it reduces and scatters by an all-reduce.
_GLOO = {
    Kind.ALL_GATHER: ("gloo:all_gather", "gloo:_all_gather_base"),
    Kind.REDUCE_SCATTER: ("gloo:all_reduce", "gloo:reduce_scatter", "gloo:_reduce_scatter_base"),
    Kind.ALL_REDUCE: ("gloo:all_reduce",),
    Kind.ALL_TO_ALL: ("gloo:all_to_all", "gloo:alltoall"),
    Kind.BROADCAST: ("gloo:broadcast",),
}


def stalls(step: Step) -> bool:
    """Whether a rank waits at this step until a collective has ended."""
    return step.waits or (step.fact is not None and not step.fact.asynchronous)


def every(_step: Step) -> bool:
    """All steps."""
    return True


@dataclass
class StepTimes:
    """Stamps around steps of one run after the other; which: the steps to time."""

    place: Place
    which: Callable[[Step], bool] = stalls
    _stamps: list[tuple[str, Any, Any]] = field(default_factory=list)

    def step(self, step: Step) -> Step:
        """A step as it is, or timed if it is to be."""
        if not self.which(step):
            return step
        place, stamps, name, call = self.place, self._stamps, step.name, step.call

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = place.stamp()
            try:
                return call(*args, **kwargs)
            finally:
                stamps.append((name, start, place.stamp()))

        return replace(step, call=timed)

    def forget(self) -> None:
        """A new run begins."""
        self._stamps.clear()

    def taken(self) -> dict[str, int]:
        """Nanoseconds of each step since :meth:`forget`, by node; the place must have been synchronized."""
        return {name: self.place.elapsed_ns(start, end) for name, start, end in self._stamps}

    def newest(self) -> str | None:
        """The newest wait of this run that the rank's device has ended; any thread may ask."""
        return next((name for name, _, end in reversed(tuple(self._stamps)) if self.place.reached(end)), None)


@dataclass(frozen=True)
class NodeRun:
    """Nanoseconds of one run on one rank, by node. ops: on a CUDA device only. transfers: of collectives."""

    ops: dict[str, int] = field(default_factory=dict)
    transfers: dict[str, int] = field(default_factory=dict)


def marked(step: Step) -> Step:
    """A step whose name is in the trace."""
    # The public record_function takes ten times as long, longer than the ops that it is to tell apart.
    mark: Any = torch._C._profiler._RecordFunctionFast
    call, name = step.call, MARK + step.name

    def named(*args: Any, **kwargs: Any) -> Any:
        with mark(name):
            return call(*args, **kwargs)

    return replace(step, call=named)


def record(place: Place, runs: Iterable[Callable[[], Any]], file: Path) -> None:
    """Record these runs into a trace, one after the other; a name that ends in ``.gz`` compresses it.

    What an iterator does before it gives the next run is not part of one.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if place.name == CUDA else [])]
    with profile(activities=activities, record_shapes=True) as profiler:
        for run in runs:
            with record_function(RUN):
                run()
                place.synchronize()
    # The profiler goes by the end of the name.
    fresh = file.with_name(f"part.{file.name}")
    profiler.export_chrome_trace(str(fresh))
    fresh.replace(file)


def read_runs(file: Path, launches: Mapping[str, Kind]) -> list[NodeRun]:
    """What each recorded run took, in order. launches: nodes that begin a collective."""
    content = file.read_bytes()
    trace = json.loads(gzip.decompress(content) if file.name.endswith(".gz") else content)
    events = sorted((e for e in trace["traceEvents"] if e.get("ph") == "X"), key=lambda e: float(e["ts"]))
    starts = [float(e["ts"]) for e in events if e["name"] == RUN and e.get("cat") == "user_annotation"]
    by_run: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        by_run[bisect_right(starts, float(event["ts"])) - 1].append(event)
    return [_Reader(by_run[number], launches).read() for number in range(len(starts))]


@dataclass(frozen=True)
class _Mark:
    """A node's call on the host. start, end: microseconds."""

    node: str
    start: float
    end: float


class _Reader:
    """Events of one run, in order of time."""

    def __init__(self, events: list[dict[str, Any]], launches: Mapping[str, Kind]) -> None:
        self._events = events
        self._launches = launches
        calls = [e for e in events if e["name"].startswith(MARK) and e.get("cat") == "cpu_op"]
        self._marks = [_Mark(e["name"].removeprefix(MARK), float(e["ts"]), float(e["ts"]) + e["dur"]) for e in calls]
        self._starts = [mark.start for mark in self._marks]

    def read(self) -> NodeRun:
        kernels = self._kernels()
        return kernels if kernels is not None else NodeRun(transfers=dict(self._gloo()))

    def _kernels(self) -> NodeRun | None:
        """Work on the device, by the node whose call queued it; None where nothing ran on one."""
        queued = {e["args"].get("correlation"): float(e["ts"]) for e in self._events if e.get("cat") in _CALLS}
        run, seen = NodeRun(), False
        for event in self._events:
            if event.get("cat") not in _ON_DEVICE:
                continue
            seen = True
            mark = self._at(queued.get(event["args"].get("correlation")))
            if mark is not None:
                moves = mark.node in self._launches and "nccl" in event["name"].lower()
                times = run.transfers if moves else run.ops
                times[mark.node] = times.get(mark.node, 0) + round(1000 * event["dur"])
        return run if seen else None

    def _at(self, ts: float | None) -> _Mark | None:
        """The node that the host was at."""
        place = bisect_right(self._starts, ts) - 1 if ts is not None else -1
        mark = self._marks[place] if place >= 0 else None
        return mark if mark is not None and ts is not None and ts <= mark.end else None

    def _gloo(self) -> Iterator[tuple[str, int]]:
        """Launches with the time from the first of their events to the end of the last."""
        # Elements of every tensor that a launch sends, by node.
        sent: dict[str, list[int]] = {}
        for event in self._events:
            if event.get("cat") == "cpu_op" and event["name"].partition("::")[0] in LAUNCHING:
                mark, dims = self._at(float(event["ts"])), event.get("args", {}).get("Input Dims")
                if mark is not None and dims:
                    sent.setdefault(mark.node, _elements(dims[0]))
        left = [e for e in self._events if e["name"].startswith("gloo:")]
        for mark in self._marks:
            kind = self._launches.get(mark.node)
            if kind is None:
                continue
            own = [self._take(left, mark, kind, count) for count in sent.get(mark.node, ())]
            done = [e for e in own if e is not None]
            if done and len(done) == len(own):
                begin = min(float(e["ts"]) for e in done)
                yield mark.node, round(1000 * (max(float(e["ts"]) + e["dur"] for e in done) - begin))

    def _take(self, left: list[dict[str, Any]], mark: _Mark, kind: Kind, count: int) -> dict[str, Any] | None:
        for place, event in enumerate(left):
            dims = event.get("args", {}).get("Input Dims") or [[]]
            fits = event["name"] in _GLOO[kind] and _elements(dims[0]) == [count]
            if fits and float(event["ts"]) >= mark.start:
                return left.pop(place)
        return None


def _elements(dims: list[Any]) -> list[int]:
    """Elements of a tensor of this shape, or of each tensor of a list of shapes."""
    if any(isinstance(shape, list) for shape in dims):
        return [prod(shape) for shape in dims]
    return [prod(dims)]


# All ranks


@dataclass
class RankNodes:
    """One rank's nodes, nanoseconds by node. ops, waits: medians. transfers: run after run."""

    ops: dict[str, float] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)
    transfers: dict[str, list[int]] = field(default_factory=dict)

    def add_runs(self, runs: Sequence[NodeRun]) -> None:
        """Take over what a trace told."""
        self.ops.update(medians(run.ops for run in runs))
        for run in runs:
            for node, ns in run.transfers.items():
                self.transfers.setdefault(node, []).append(ns)

    def to_json(self) -> dict[str, Json]:
        return {
            "ops": dict(self.ops),
            "waits": dict(self.waits),
            "transfers": {node: list(times) for node, times in self.transfers.items()},
        }

    @staticmethod
    def of(data: Mapping[str, Any]) -> RankNodes:
        """What :meth:`to_json` wrote."""
        return RankNodes(**data)


@dataclass(frozen=True)
class NodeTimes:
    """One graph on all ranks, nanoseconds by node. late: how much longer transfers were on average."""

    ops: Mapping[str, float]
    waits: Mapping[str, float]
    transfers: Mapping[str, float]
    late: Mapping[str, float] = field(default_factory=dict)


def medians(runs: Iterable[Mapping[str, int]]) -> dict[str, float]:
    """By node, of the runs in which it is."""
    by_node: dict[str, list[int]] = {}
    for run in runs:
        for node, ns in run.items():
            by_node.setdefault(node, []).append(ns)
    return {node: float(median(times)) for node, times in by_node.items()}


def gather_times(index: GraphIndex, layout: Layout, ranks: Sequence[RankNodes]) -> NodeTimes:
    """One time for each node out of every rank's. ranks: in order; one alone stands for all."""
    groups = {index.names[node]: launch.group for node, launch in index.launches.items()}
    transfers, late = {}, {}
    for node in {node: None for rank in ranks for node in rank.transfers}:
        parts = layout.parts[groups[node]] if len(ranks) == layout.world else ((0,),)
        runs: list[tuple[int, ...]] = []
        for part in parts:
            seen = [ranks[rank].transfers.get(node, []) for rank in part]
            # Run by run; nothing unless all ranks have seen it equally often.
            runs += zip(*seen, strict=True) if len(set(map(len, seen))) == 1 else ()
        if runs:
            transfers[node] = float(median(map(min, runs)))
            late[node] = max(0.0, fmean(map(fmean, runs)) - transfers[node])
    return NodeTimes(_means(rank.ops for rank in ranks), _means(rank.waits for rank in ranks), transfers, late)


def _means(ranks: Iterable[Mapping[str, float]]) -> dict[str, float]:
    by_node: dict[str, list[float]] = {}
    for rank in ranks:
        for node, ns in rank.items():
            by_node.setdefault(node, []).append(ns)
    return {node: fmean(times) for node, times in by_node.items()}
