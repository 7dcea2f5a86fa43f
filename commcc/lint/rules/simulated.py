"""Rules about the simulated step and its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.text import plural
from commcc.lint.options import figure
from commcc.lint.quantities import BYTES, SHARE, TIME, Quantity
from commcc.lint.types import Finding, Rule, Severity, Spot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commcc.lint.types import Subject

#: Launches that one finding names.
_NAMED = 5
_EXPLAIN = "commcc explain says why, commcc reorder schedules for overlap"


@dataclass(frozen=True)
class StepOptions:
    """Longest step."""

    max: float | None = figure(None, TIME, "longest step")


@dataclass(frozen=True)
class ExposedOptions:
    """Most exposed communication."""

    max: float | None = figure(None, TIME, "most exposed time")
    max_share: float | None = figure(None, SHARE, "most exposed time, as a share of all communication")
    max_of_step: float | None = figure(None, SHARE, "most exposed time, as a share of the step")
    max_each: float | None = figure(None, TIME, "most exposed time of one collective")


@dataclass(frozen=True)
class GapOptions:
    """Widest gap."""

    max: float | None = figure(None, SHARE, "how far the step may be above its lower bound")


@dataclass(frozen=True)
class MemoryOptions:
    """Highest peak."""

    max: float | None = figure(None, BYTES, "most live bytes")


@dataclass(frozen=True)
class FlightOptions:
    """Most in flight."""

    max: float | None = figure(None, BYTES, "most bytes launched and not yet waited for")


def step_time(subject: Subject, options: StepOptions) -> Iterator[Finding]:
    """A step that is too long."""
    step = subject.prediction.timeline.step_ns
    if options.max is not None and step > options.max:
        yield _over("the simulated step takes", step, options.max, TIME, _worst(subject), _EXPLAIN)


def exposed(subject: Subject, options: ExposedOptions) -> Iterator[Finding]:
    """Too much exposed communication: in all, as a share, of one collective."""
    timeline = subject.prediction.timeline
    total, worst = timeline.exposed_ns, _worst(subject)
    said = f"{TIME.show(total)} of {TIME.show(timeline.communication_ns)} communication"
    if options.max is not None and total > options.max:
        yield _over("exposed communication takes", total, options.max, TIME, worst, _EXPLAIN)
    share = total / timeline.communication_ns if timeline.communication_ns else 0.0
    if options.max_share is not None and share > options.max_share:
        yield _over(f"{said} are exposed:", share, options.max_share, SHARE, worst, _EXPLAIN)
    of_step = total / timeline.step_ns if timeline.step_ns else 0.0
    if options.max_of_step is not None and of_step > options.max_of_step:
        text = f"{TIME.show(total)} of a step of {TIME.show(timeline.step_ns)} are exposed communication:"
        yield _over(text, of_step, options.max_of_step, SHARE, worst, _EXPLAIN)
    for launch, ns in timeline.exposed.items() if options.max_each is not None else ():
        if ns > (options.max_each or 0):
            name = subject.index.names[launch]
            text, remedy = f"'{name}' is exposed for", f"commcc explain GRAPH {name}"
            yield _over(text, ns, options.max_each or 0, TIME, subject.spots(launch), remedy)


def bound_gap(subject: Subject, options: GapOptions) -> Iterator[Finding]:
    """A step far above what no order can beat."""
    step, bound = subject.prediction.timeline.step_ns, subject.prediction.bound
    gap = step / bound.ns - 1 if bound.ns else 0.0
    if options.max is not None and gap > options.max:
        text = f"the step of {TIME.show(step)} is above its lower bound of {TIME.show(bound.ns)} ({bound.name}) by"
        yield _over(text, gap, options.max, SHARE, _worst(subject), "commcc reorder schedules for overlap")


def peak_memory(subject: Subject, options: MemoryOptions) -> Iterator[Finding]:
    """Too many live bytes."""
    memory = subject.memory
    if options.max is not None and memory.peak_bytes > options.max:
        where = () if memory.peak_at is None else subject.spots(memory.peak_at)
        at = f" at '{where[0].node}'" if where else ""
        least = " at least" if subject.index.estimates.unknown else ""
        text = f"live bytes reach their peak{at}, {BYTES.show(memory.input_bytes)} of inputs among them:{least}"
        remedy = "commcc reorder --memory-budget plans for less"
        yield _over(text, memory.peak_bytes, options.max, BYTES, where, remedy)
    elif options.max is not None:
        yield from _not_known(subject, "peak memory", memory.peak_bytes, options.max)


def in_flight(subject: Subject, options: FlightOptions) -> Iterator[Finding]:
    """Too many bytes in flight."""
    timeline = subject.prediction.timeline
    most = timeline.in_flight_bytes
    if options.max is not None and most > options.max:
        where = subject.spots(timeline.order[timeline.in_flight.index(most)])
        text = f"most bytes are in flight after '{where[0].node}':"
        yield _over(text, most, options.max, BYTES, where, "commcc reorder --max-in-flight-gb limits them")
    elif options.max is not None:
        yield from _not_known(subject, "bytes in flight", most, options.max)


def _not_known(subject: Subject, what: str, least: int, limit: float) -> Iterator[Finding]:
    """A limit that is kept as far as sizes are known, where some are not."""
    missing = sorted(subject.index.estimates.unknown)
    if missing:
        yield Finding(
            f"{what} is at least {BYTES.show(least)}, and nobody knows whether it is within {BYTES.show(limit)}: "
            f"{plural(len(missing), 'size')} unknown, the first of '{subject.index.names[missing[0]]}'",
            subject.spots(*missing[:_NAMED]),
            measured=least,
            limit=limit,
            unit=BYTES.unit,
            weight=len(missing),
            remedy=subject.index.size_remedy,
        )


def _worst(subject: Subject) -> tuple[Spot, ...]:
    """The most exposed collectives."""
    ranked = sorted(subject.prediction.timeline.exposed.items(), key=lambda pair: (-pair[1], pair[0]))
    return subject.spots(*(launch for launch, ns in ranked[:_NAMED] if ns))


def _over(
    text: str, measured: float, limit: float, quantity: Quantity, where: tuple[Spot, ...], remedy: str
) -> Finding:
    return Finding(
        f"{text} {quantity.show(measured)}, more than {quantity.show(limit)}",
        where,
        measured=measured,
        limit=limit,
        unit=quantity.unit,
        weight=measured / limit if limit else measured,
        remedy=remedy,
    )


SIMULATED = (
    Rule(
        "step-time",
        Severity.ERROR,
        step_time,
        StepOptions,
        "long steps",
        "The end of the simulated timeline: one compute stream, and a stream for each process group.",
        needs=("max",),
        costed=True,
    ),
    Rule(
        "exposed-communication",
        Severity.ERROR,
        exposed,
        ExposedOptions,
        "communication that nothing hides",
        "Time that the compute stream stalls in waits, each bit charged to the collective that ran then: in all, "
        "as a share of all communication (1 - hidden share) or of the step, and of a single collective.",
        needs=("max", "max_share", "max_of_step", "max_each"),
        costed=True,
    ),
    Rule(
        "bound-gap",
        Severity.ERROR,
        bound_gap,
        GapOptions,
        "steps far above the lower bound",
        "How much longer the simulated step is than the lower bound, below which no order of this graph gets. Where "
        "the gap is small, reordering has nothing left to gain; merging, chunks or another model may.",
        needs=("max",),
        costed=True,
    ),
    Rule(
        "peak-memory",
        Severity.ERROR,
        peak_memory,
        MemoryOptions,
        "high peaks of memory",
        "Highest live bytes over the graph's order: aliases and in-place writes understood, inputs never freed, "
        "buffers of collectives live from launch to last use. Needs no cost model.",
        needs=("max",),
    ),
    Rule(
        "in-flight-bytes",
        Severity.ERROR,
        in_flight,
        FlightOptions,
        "many bytes in flight",
        "Highest bytes of collectives that are launched and not yet waited for.",
        needs=("max",),
        costed=True,
    ),
)
