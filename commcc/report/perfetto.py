"""A simulated step as a trace that ui.perfetto.dev and chrome://tracing open::

    replace_file(path, lambda stream: write_trace(stream, [Track("before", old), Track("after", new)]))

Each graph is a process. Its thread ``compute`` has a slice for every op that takes time, for every
launch and for every stall; each stream of collectives (a process group, or several that share a link) is a
thread with its collectives. Arrows lead from the launch to the collective and on to the wait: to the stall, or,
where the wait found its collective finished, to what ran next. Counters show live and in-flight bytes.

The format is the JSON of "Trace Event Format" (Google, 2016): X slices, s/t/f flows, C counters, M
metadata; times in microseconds, written to the nanosecond. One event a line, made while it is written;
the same graphs give the same bytes. Limits: ops that take no time have no slice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from commcc import __version__
from commcc.base.text import escaped, plural
from commcc.report.documents import collective_costs, result_text
from commcc.timing.predict import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from commcc.base.terms import Json
    from commcc.timing.predict import Prediction
    from commcc.timing.snapshot import Snapshot

#: Threads of one process have numbers from pid * STRIDE on: unique in the trace, as some viewers want.
STRIDE = 100
#: What the compute stream does when it has finished before the last collective.
#: What a figure of bytes is that lacks a size.
AT_LEAST = "at least: a size is unknown"
TAIL = "waiting for the last collectives"
_DUMP = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


@dataclass(frozen=True)
class Track:
    """A graph in the trace: what its process is called, and the graph with its prediction."""

    label: str
    seen: Snapshot

    @property
    def prediction(self) -> Prediction:
        prediction = self.seen.prediction
        assert prediction is not None
        return prediction


@dataclass(frozen=True)
class Slice:
    """A stretch of time on one thread. node: None for the tail of the step."""

    node: int | None
    start: int
    ns: int
    name: str
    category: str
    args: Mapping[str, Json]

    @property
    def end(self) -> int:
        return self.start + self.ns


class Writer(Protocol):
    """A binary stream, or something that compresses."""

    def write(self, data: bytes, /) -> object: ...


def write_trace(stream: Writer, tracks: Sequence[Track]) -> None:
    """Write the whole trace, UTF-8 text that is ASCII only."""
    model = tracks[-1].prediction.model_json()
    other = {"made by": f"commcc {__version__}", "cost model": model["name"], "cost model hash": model["hash"]}
    stream.write(f'{{"displayTimeUnit":"ms","otherData":{_json(other)},"traceEvents":[\n'.encode())
    first = True
    for event in events(tracks):
        stream.write(f"{'' if first else ',' + chr(10)}{event}".encode())
        first = False
    stream.write(b"\n]}\n")


def events(tracks: Sequence[Track]) -> Iterator[str]:
    """The events as JSON texts, process after process."""
    # Thread ids must differ between graphs too, also where one has more streams than usual.
    stride = max(STRIDE, *(2 + len(track.seen.ident.groups) for track in tracks))
    flow = 1
    for pid, track in enumerate(tracks, 1):
        process = _Process(pid, stride, track, flow)
        yield from process.metadata()
        yield from process.slices()
        yield from process.flows()
        yield from process.counters()
        flow = process.next_flow


class _Process:
    """One graph. Threads: the compute stream first, then the others in order of first use."""

    def __init__(self, pid: int, stride: int, track: Track, next_flow: int) -> None:
        self.pid = pid
        self.track = track
        self.next_flow = next_flow
        spans = track.prediction.timeline.spans
        streams = dict.fromkeys(spans[n].stream for n in track.prediction.timeline.order if n in spans)
        self.compute = pid * stride + 1
        self.tid = {stream: self.compute + place for place, stream in enumerate(streams, 1)}
        self.compute_slices = compute_slices(track.seen, track.prediction)

    def metadata(self) -> Iterator[str]:
        prediction = self.track.prediction
        costs = prediction.costs
        step = milliseconds(prediction.timeline.step_ns)
        yield self._meta("process_name", {"name": self.track.label})
        yield self._meta("process_sort_index", {"sort_index": self.pid})
        yield self._meta("process_labels", {"labels": f"step {step:.3f} ms, {costs.model}, {costs.hash}"})
        threads = [("compute", self.compute)]
        for stream, tid in self.tid.items():
            groups = [g for g in self.track.seen.ident.groups if costs.streams.get(g.name, g.name) == stream]
            if len(groups) == 1:
                name = ", ".join(filter(None, (f"group {groups[0].name}", groups[0].description)))
                threads.append((name if stream == groups[0].name else f"{stream}: {name}", tid))
            else:
                threads.append((f"{stream}: groups {', '.join(group.name for group in groups)}", tid))
        for place, (name, tid) in enumerate(threads):
            yield self._meta("thread_name", {"name": name}, tid)
            yield self._meta("thread_sort_index", {"sort_index": place}, tid)

    def slices(self) -> Iterator[str]:
        for piece in self.compute_slices:
            yield self._slice(self.compute, piece)
        for stream, piece in stream_slices(self.track.seen, self.track.prediction):
            yield self._slice(self.tid[stream], piece)

    def flows(self) -> Iterator[str]:
        """Arrows through all slices of a collective; each wait has one of its own."""
        timeline = self.track.prediction.timeline
        begins = {piece.node: piece.start for piece in self.compute_slices if piece.category == "launch"}
        for launch, wait_at in flow_ends(self.track.seen, self.track.prediction, self.compute_slices):
            span = timeline.spans[launch]
            points = [(begins[launch], self.compute)] if launch in begins else []
            points += [(span.start, self.tid[span.stream])] if span.ns else []
            points += [(wait_at, self.compute)] if wait_at is not None else []
            # A collective that takes no time has no slice, so there may be nothing to join.
            if len(points) < 2:
                continue
            for place, (ns, tid) in enumerate(points):
                phase = "s" if not place else "f" if place == len(points) - 1 else "t"
                binding = '"bp":"e",' if place else ""
                yield (
                    f'{{"ph":"{phase}",{binding}"id":{self.next_flow},"pid":{self.pid},"tid":{tid},'
                    f'"ts":{microseconds(ns)},"name":"collective","cat":"flow"}}'
                )
            self.next_flow += 1

    def counters(self) -> Iterator[str]:
        prediction = self.track.prediction
        timeline = prediction.timeline
        starts = [timeline.start[node] for node in timeline.order]
        ends = [timeline.end[node] for node in timeline.order]
        unknown = len(self.track.seen.index.estimates.unknown)
        rest = f", at least: {plural(unknown, 'size')} unknown" if unknown else ""
        for ns, value in _steps(starts, prediction.memory.live):
            yield self._counter(f"live{rest}", ns, value)
        for ns, value in _steps(ends, timeline.in_flight):
            yield self._counter(f"in flight{rest}", ns, value)

    def _counter(self, name: str, ns: int, value: int) -> str:
        return f'{{"ph":"C","pid":{self.pid},"ts":{microseconds(ns)},"name":"{name}","args":{{"bytes":{value}}}}}'

    def _slice(self, tid: int, piece: Slice) -> str:
        color = ',"cname":"terrible"' if piece.category == "stall" else ""
        return (
            f'{{"ph":"X","pid":{self.pid},"tid":{tid},"ts":{microseconds(piece.start)},"dur":{microseconds(piece.ns)},'
            f'"name":{_json(piece.name)},"cat":"{piece.category}"{color},"args":{_json(piece.args)}}}'
        )

    def _meta(self, name: str, args: Mapping[str, Json], tid: int | None = None) -> str:
        where = "" if tid is None else f',"tid":{tid}'
        return f'{{"ph":"M","pid":{self.pid}{where},"name":"{name}","args":{_json(args)}}}'


def compute_slices(seen: Snapshot, prediction: Prediction) -> list[Slice]:
    """Everything that takes time on the compute stream, in order, in nanoseconds.

    ``compute`` slices add up to compute and slow-down, ``launch`` slices to the launch overhead, and ``stall`` slices
    to the exposed time of the timeline.
    """
    timeline = prediction.timeline
    slices: list[Slice] = []
    for node in timeline.order:
        start, end = timeline.start[node], timeline.end[node]
        if start == end:
            continue
        stall = timeline.stalls.get(node, 0)
        # A synchronous launch works first and then stalls until it is done; a wait only stalls.
        if end - stall > start:
            slices.append(_work(seen, prediction, node, end - stall - start))
        if stall:
            launch = seen.index.awaited(node)
            name = seen.index.names[launch]
            args: dict[str, Json] = {"node": seen.index.names[node], "waits for": name}
            if launch in seen.index.launches:  # else it was launched by another graph
                args["group"] = seen.index.launches[launch].group
            slices.append(Slice(node, end - stall, stall, f"wait for {name}", "stall", args))
    done = max(timeline.end, default=0)
    # The step ends with the last collective, which may be after the last node.
    if timeline.step_ns > done:
        slices.append(Slice(None, done, timeline.step_ns - done, TAIL, "stall", {}))
    return slices


def _work(seen: Snapshot, prediction: Prediction, node: int, ns: int) -> Slice:
    index, costs = seen.index, prediction.costs
    start = prediction.timeline.start[node]
    if node in index.launches:
        return Slice(node, start, ns, f"launch {index.names[node]}", "launch", _about(seen, node))
    tensor, source, flops = index.tensors[node], costs.priced_by[node], index.estimates.flops.get(node)
    args = _about(seen, node)
    if tensor is not None:
        args["result"] = result_text(tensor)
        args["bytes"] = tensor.bytes
        if tensor.numel is None:
            args["bytes are"] = AT_LEAST
    if flops:
        args["flops"] = flops
    if source >= 0:
        args["priced by"] = costs.sources[source]
    return Slice(node, start, ns, index.names[node], "compute", args)


def _about(seen: Snapshot, node: int) -> dict[str, Json]:
    module = seen.index.modules[node]
    return {"op": seen.index.ops[node], **({} if module is None else {"module": module})}


def stream_slices(seen: Snapshot, prediction: Prediction) -> Iterator[tuple[str, Slice]]:
    """Collectives that take time, with the stream they run on, in order of launch."""
    timeline, index = prediction.timeline, seen.index
    known = seen.ident.by_launch
    for node in timeline.order:
        span = timeline.spans.get(node)
        if span is None or not span.ns:
            continue
        facts = known[node]
        args: dict[str, Json] = {
            **_about(seen, node),
            "kind": str(facts.kind),
            "group": facts.group,
            "ranks": facts.group_size,
            "role": str(facts.role),
            "dtype": facts.dtype,
            "input bytes": facts.input_bytes,
            "output bytes": facts.output_bytes,
            "bytes on the wire": facts.wire_bytes,
            **({"bytes are": AT_LEAST} if facts.unknown else {}),
            "merged from": len(index.merged_from.get(node, ())) or 1,
            "queued ms": milliseconds(span.start - span.queued_at),
            **{key.replace("_", " "): value for key, value in collective_costs(prediction, node).items()},
        }
        yield span.stream, Slice(node, span.start, span.ns, index.names[node], "collective", args)


def flow_ends(seen: Snapshot, prediction: Prediction, slices: Sequence[Slice]) -> Iterator[tuple[int, int | None]]:
    """For every wait its launch and the time on the compute stream at which its arrow ends.

    That is inside the stall, as late as possible; else at the start of the next slice; None where
    nothing follows. A launch that nobody waits for, or that itself waits, has one entry.
    """
    timeline = prediction.timeline
    stalls = {piece.node: piece for piece in slices if piece.category == "stall"}
    starts = [piece.start for piece in slices]
    place = 0
    for node in timeline.order:
        launch = seen.index.wait_of.get(node)
        if launch is None and node in timeline.spans and not seen.index.launches[node].waits:
            launch = node
        if launch is None or launch not in timeline.spans:
            continue
        while place < len(starts) and starts[place] < timeline.end[node]:
            place += 1
        if node in stalls:
            yield launch, stalls[node].end - 1
        elif node == launch:
            yield launch, None
        else:
            yield launch, starts[place] if place < len(starts) else None


def microseconds(ns: int) -> str:
    """Nanoseconds as microseconds, exact: ``12.345``."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _steps(times: Sequence[int], values: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where a counter changes. Of several values at one time the highest is kept, then the last."""
    place, shown = 0, -1
    while place < len(times):
        until = place
        while until < len(times) and times[until] == times[place]:
            until += 1
        for value in (max(values[place:until]), values[until - 1]):
            if value != shown:
                yield times[place], value
                shown = value
        place = until


def _json(value: Any) -> str:
    text = _DUMP(value)
    # What is not printable is spelt out in JSON, with a backslash: most texts need no second look.
    return _DUMP(escaped(value)) if "\\" in text else text
