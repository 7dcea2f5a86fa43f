"""The slices of a trace (:mod:`commcc.report.perfetto`), in nanoseconds, before they are text.

On the compute stream, ``compute`` slices add up to compute and slow-down, ``launch`` slices to the
launch overhead, and ``stall`` slices to the exposed time of the timeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.report.costs import collective
from commcc.timing.predict import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from commcc.base.terms import Json
    from commcc.timing.predict import Prediction
    from commcc.timing.snapshot import Snapshot

#: What the compute stream does when it has finished before the last collective.
TAIL = "waiting for the last collectives"


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


def compute_slices(seen: Snapshot, prediction: Prediction) -> list[Slice]:
    """Everything that takes time on the compute stream, in order."""
    timeline = prediction.timeline
    slices: list[Slice] = []
    for node in timeline.order:
        start, end = timeline.start[node], timeline.end[node]
        if start == end:
            continue
        stall = timeline.stalls.get(node, 0)
        if end - stall > start:
            slices.append(_work(seen, prediction, node, end - stall - start))
        if stall:
            slices.append(_stall(seen, node, end - stall, stall))
    done = max(timeline.end, default=0)
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
        args["result"] = f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
        args["bytes"] = tensor.bytes
    if flops:
        args["flops"] = flops
    if source >= 0:
        args["priced by"] = costs.sources[source]
    return Slice(node, start, ns, index.names[node], "compute", args)


def _stall(seen: Snapshot, node: int, start: int, ns: int) -> Slice:
    launch = seen.index.wait_of.get(node, node)
    name = seen.index.names[launch]
    args: dict[str, Json] = {"node": seen.index.names[node], "waits for": name}
    return Slice(node, start, ns, f"wait for {name}", "stall", {**args, "group": seen.index.launches[launch].group})


def _about(seen: Snapshot, node: int) -> dict[str, Json]:
    module = seen.index.modules[node]
    return {"op": seen.index.ops[node], **({} if module is None else {"module": module})}


def lane_slices(seen: Snapshot, prediction: Prediction) -> Iterator[tuple[str, Slice]]:
    """Collectives that take time, with the lane they are in, in order of launch."""
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
            "merged from": len(index.merged_from.get(node, ())) or 1,
            "queued ms": milliseconds(span.start - span.queued_at),
            **{key.replace("_", " "): value for key, value in collective(prediction, node).items()},
        }
        yield span.lane, Slice(node, span.start, span.ns, index.names[node], "collective", args)


def flow_ends(seen: Snapshot, prediction: Prediction, slices: Sequence[Slice]) -> Iterator[tuple[int, int | None]]:
    """For every wait its launch and the time on the compute stream at which its arrow ends.

    That is inside the stall, as late as possible; else at the start of the next slice; None where
    nothing follows. A launch that nobody waits for, or that itself waits, has one entry.
    """
    timeline = prediction.timeline
    stalls = {each.node: each for each in slices if each.category == "stall"}
    starts = [each.start for each in slices]
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
