"""What the simulated step shows around one collective: who was ahead, what overlapped with it, who waited for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.explain.types import Near, Overlap, Picture, Possible, Segment, Stall, Timing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from commcc.explain.context import Context, Scene

#: Names of each list: enough to act on, few enough to read.
SHOWN = 5
#: Segments of a stream in a picture; what is finer than this is not drawn.
FINEST = 240


def timing(context: Context, scene: Scene) -> Timing:
    """When it was launched, ran and was waited for."""
    timeline, launch = context.timeline, scene.launch
    span = timeline.spans[launch]
    wait = scene.first_wait
    return Timing(
        launch_position=launch,
        wait_position=wait,
        launched_ns=span.queued_at,
        start_ns=span.start,
        end_ns=span.end,
        waited_ns=None if wait is None else timeline.start[wait],
        queue_ns=span.start - span.queued_at,
        queue=tuple((context.index.names[n], ns) for n, ns in ahead(context, scene)),
        stalls=tuple(_stalls(context, scene)),
    )


def ahead(context: Context, scene: Scene) -> list[tuple[int, int]]:
    """Launches that ran in the same queue while this one was queued, and for how long; the first ran first."""
    spans, launch = context.timeline.spans, scene.launch
    own = spans[launch]
    if own.start == own.queued_at:
        return []
    ran_before = []
    for node in context.stream_members[own.stream]:
        ran = spans[node]
        shared = min(ran.end, own.start) - max(ran.start, own.queued_at)
        if node != launch and shared > 0:
            ran_before.append((ran.start, node, shared))
    return [(node, shared) for _, node, shared in sorted(ran_before)]


def _stalls(context: Context, scene: Scene) -> Iterator[Stall]:
    """Where the compute stream stalled while the collective ran; sums to its exposed time."""
    timeline, names = context.timeline, context.index.names
    span = timeline.spans[scene.launch]
    rest = timeline.exposed.get(scene.launch, 0)
    for wait in sorted(timeline.stalls):
        target = context.index.awaited(wait)
        # A stall for another queue is charged to collectives of that queue, one for an input in flight to the input.
        if target not in timeline.spans or timeline.spans[target].stream != span.stream:
            continue
        end = timeline.end[wait]
        shared = min(end, span.end) - max(end - timeline.stalls[wait], span.start)
        if shared > 0:
            rest -= shared
            yield Stall(names[wait], names[target], shared)
    # What is left is the tail, when the compute stream has already finished.
    if rest > 0:
        yield Stall(None, names[scene.launch], rest)


def overlap(context: Context, scene: Scene) -> Overlap:
    """Work that shares time with the collective in the simulated step."""
    timeline, index = context.timeline, context.index
    span = timeline.spans[scene.launch]
    shared: list[tuple[int, int]] = []
    for node in range(scene.launch + 1, len(index)):
        # Nodes start in graph order, so none of the later ones can overlap.
        if timeline.start[node] >= span.end:
            break
        common = min(timeline.end[node], span.end) - max(timeline.start[node], span.start)
        if common > 0 and context.works[node]:
            shared.append((common, node))
    largest = sorted(shared, key=lambda item: (-item[0], item[1]))[:SHOWN]
    return Overlap(
        nodes=len(shared),
        compute_nodes=sum(index.compute[n] for _, n in shared),
        ns=sum(ns for ns, _ in shared),
        names=context.names(n for _, n in largest),
    )


def possible(context: Context, scene: Scene) -> Possible:
    """Work that is independent of the collective, and what no order can hide.

    While the collective runs, the compute stream can only run independent work, as slowly as the model
    lets it, and launch independent collectives; for the rest of the time it stalls.
    """
    index, costs = context.index, context.costs
    total = compute = 0
    for node, works in enumerate(context.works):
        if works and node not in scene.before and node not in scene.after:
            total += costs.ns[node]
            compute += index.compute[node]
    launches = sum(n not in scene.before and n not in scene.after for n in index.launches) - 1
    covered = total * max(1000, costs.slowdown_permille) // 1000 + launches * costs.launch_ns
    behind = scene.launch if scene.first_wait is None else scene.first_wait
    held = not index.launches[scene.launch].asynchronous
    return Possible(
        ns=total,
        compute_nodes=compute,
        stays_ns=costs.ns[scene.launch] if held else max(0, costs.ns[scene.launch] - covered),
        before=_near(context, range(scene.launch - 1, context.first - 1, -1), scene.before),
        after=_near(context, range(behind + 1, context.last), scene.after),
    )


def _near(context: Context, nodes: Iterable[int], bound: frozenset[int]) -> tuple[Near, ...]:
    """The nearest independent compute nodes; any work where a graph has no compute nodes."""
    near: list[Near] = []
    index = context.index
    away = 0
    for node in nodes:
        if node not in bound and (index.compute[node] if context.has_compute else context.works[node]):
            near.append(Near(index.names[node], context.costs.ns[node], away))
            if len(near) == SHOWN:
                break
        away += index.compute[node]
    return tuple(near)


def picture(context: Context, scene: Scene) -> Picture:
    """The two streams from a little before the launch to a little after the end."""
    timeline = context.timeline
    span = timeline.spans[scene.launch]
    length = span.end - span.queued_at
    start = max(0, span.queued_at - length // 3)
    wait = scene.first_wait
    stalled = timeline.end[wait] if wait is not None and timeline.stalls.get(wait) else 0
    end = min(timeline.step_ns, max(span.end, stalled) + length // 3)
    least = (end - start) // FINEST
    compute = _runs(context, (start, end))
    stream = [
        Segment("this" if n == scene.launch else "other", max(start, ran.start), min(end, ran.end))
        for n, ran in ((n, timeline.spans[n]) for n in context.stream_members[span.stream])
        if ran.end > start and ran.start < end and (ran.ns or n == scene.launch)
    ]
    return Picture(start, end, tuple(_coarse(compute, least)), tuple(_coarse(stream, least)))


def _runs(context: Context, window: tuple[int, int]) -> list[Segment]:
    """The compute stream in the window: stretches of work and of stalls."""
    start, end = window
    timeline = context.timeline
    runs: list[Segment] = []
    at = start
    for wait in sorted(timeline.stalls, key=lambda n: timeline.end[n]):
        until = timeline.end[wait]
        begin = until - timeline.stalls[wait]
        if until <= start or begin >= end:
            continue
        if begin > at:
            runs.append(Segment("compute", at, begin))
        runs.append(Segment("stall", max(begin, start), min(until, end)))
        at = min(until, end)
    # The step goes on after the compute stream has finished for as long as exposed time is no stall of a wait.
    finished = timeline.step_ns - (timeline.exposed_ns - sum(timeline.stalls.values()))
    if at < min(end, finished):
        runs.append(Segment("compute", at, min(end, finished)))
        at = min(end, finished)
    return runs if at >= end else [*runs, Segment("stall", at, end)]


def _coarse(segments: Iterable[Segment], least: int) -> Iterator[Segment]:
    """Neighbours of one kind joined, and what is too short to be seen left out, but never this collective."""
    previous: Segment | None = None
    for segment in segments:
        if segment.end_ns - segment.start_ns < least and segment.what != "this":
            continue
        if previous is not None and previous.what == segment.what and segment.start_ns - previous.end_ns < least:
            previous = Segment(segment.what, previous.start_ns, segment.end_ns)
            continue
        if previous is not None:
            yield previous
        previous = segment
    if previous is not None:
        yield previous
