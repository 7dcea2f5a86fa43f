"""Rules about how much a graph communicates, and about its order; no cost model is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commcc.base.terms import Kind
from commcc.lint.options import ROLES, TOTAL, by_kind, by_role, figure
from commcc.lint.quantities import BYTES, COUNT, Quantity
from commcc.lint.types import Finding, Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from commcc.graph.collectives import Collective
    from commcc.graph.index import GraphIndex
    from commcc.lint.types import Subject

#: Launches that one finding names.
_NAMED = 5


@dataclass(frozen=True)
class CountOptions:
    """Most launches."""

    max: Mapping[str, float] | None = by_role(COUNT, "most launches")


@dataclass(frozen=True)
class BytesOptions:
    """Most bytes."""

    max: Mapping[str, float] | None = by_role(BYTES, "most bytes on the wire, of one rank")


@dataclass(frozen=True)
class RunOptions:
    """Longest runs of compute."""

    max: Mapping[str, float] | None = by_kind(
        COUNT,
        (Kind.REDUCE_SCATTER, Kind.ALL_GATHER, Kind.ALL_TO_ALL),
        "most compute nodes in a row without a launch of the kind",
    )


@dataclass(frozen=True)
class SpanOptions:
    """Widest bucket."""

    max: float | None = figure(None, COUNT, "most nodes between the first and the last member of a bucket")


def collective_count(subject: Subject, options: CountOptions) -> Iterator[Finding]:
    """Kinds and roles with too many launches."""
    remedy = "commcc bucket merges those of parameters and gradients"
    return _amounts(subject, options.max or {}, COUNT, lambda _: 1, remedy)


def collective_bytes(subject: Subject, options: BytesOptions) -> Iterator[Finding]:
    """Kinds and roles with too many bytes."""
    remedy = "commcc inspect --all lists all of them"
    return _amounts(subject, options.max or {}, BYTES, lambda collective: collective.wire_bytes, remedy)


def _amounts(
    subject: Subject,
    limits: Mapping[str, float],
    quantity: Quantity,
    amount: Callable[[Collective], int],
    remedy: str,
) -> Iterator[Finding]:
    for selector, limit in limits.items():
        chosen = [collective for collective in subject.ident.collectives if _selected(collective, selector)]
        measured = sum(map(amount, chosen))
        unsized = [collective for collective in chosen if collective.unknown] if quantity is BYTES else []
        if measured <= limit:
            if unsized:
                yield Finding(
                    f"{quantity.show(measured)} by {_noun(selector)} at least, and nobody knows whether that is within "
                    f"{quantity.show(limit)}: sizes of {len(unsized):,} are unknown",
                    subject.spots(*(collective.launch for collective in unsized[:_NAMED])),
                    measured=measured,
                    limit=limit,
                    unit=quantity.unit,
                    weight=len(unsized),
                    remedy=subject.index.size_remedy,
                )
            continue
        largest = sorted(chosen, key=lambda collective: (-collective.wire_bytes, collective.launch))[:_NAMED]
        noun = _noun(selector) if quantity is COUNT else f"by {_noun(selector)}"
        yield Finding(
            f"{quantity.show(measured)} {noun}, more than {quantity.show(limit)}",
            subject.spots(*(collective.launch for collective in largest)),
            measured=measured,
            limit=limit,
            unit=quantity.unit,
            weight=measured / limit if limit else measured,
            remedy=remedy,
        )


def _noun(selector: str) -> str:
    """``all_gather launches for fsdp``."""
    kind, _, role = selector.partition("/")
    if kind in (TOTAL, *ROLES):
        return "launches" if kind == TOTAL else f"launches for {kind}"
    return f"{kind} launches for {role}" if role else f"{kind} launches"


def _selected(collective: Collective, selector: str) -> bool:
    kind, _, role = selector.partition("/")
    if role:
        return str(collective.kind) == kind and str(collective.role) == role
    return selector in (TOTAL, str(collective.kind), str(collective.role))


def max_consecutive(subject: Subject, options: RunOptions) -> Iterator[Finding]:
    """Kinds whose launches leave too long a run of compute between them."""
    for name, limit in (options.max or {}).items():
        kind = Kind(name)
        first, last, length = _longest_run(subject.index, kind)
        if length <= limit or not subject.metrics.collectives.get(name):
            continue
        yield Finding(
            f"{length:,} compute nodes in a row without a {kind} launch, more than {COUNT.show(limit)}: from "
            f"'{subject.index.names[first]}' to '{subject.index.names[last]}'",
            subject.spots(first, last),
            measured=length,
            limit=limit,
            weight=length / limit if limit else length,
            remedy="commcc bucket --max-consecutive keeps runs short while it merges, commcc reorder cuts them",
        )


def _longest_run(index: GraphIndex, kind: Kind) -> tuple[int, int, int]:
    """The first and the last compute node of the longest run, and its length."""
    best, start, length = (0, 0, 0), 0, 0
    for node, compute in enumerate(index.compute):
        launch = index.launches.get(node)
        if launch is not None and launch.kind is kind:
            length = 0
        elif compute:
            start = start if length else node
            length += 1
            best = max(best, (start, node, length), key=lambda run: run[2])
    return best


def topological_span(subject: Subject, options: SpanOptions) -> Iterator[Finding]:
    """Buckets whose members stood too far apart."""
    assert options.max is not None
    index = subject.index
    spans = _spans(subject.program.provenance)
    unknown = []
    for launch, members in index.merged_from.items():
        span = spans.get(frozenset(members))
        if span is None:
            unknown.append(launch)
        elif span > options.max:
            yield Finding(
                f"'{index.names[launch]}' merges {len(members)} collectives that stood {span:,} nodes apart, more than "
                f"{COUNT.show(options.max)}",
                subject.spots(launch),
                measured=span,
                limit=options.max,
                weight=span,
                remedy="bucket with a smaller max_topo_span",
            )
    if unknown:
        some = "one bucket" if len(unknown) == 1 else f"{len(unknown):,} buckets"
        yield Finding(
            f"the file does not say how far apart the members of {some} stood",
            subject.spots(*unknown[:_NAMED]),
            severity=Severity.INFO,
            remedy="bucket again with this version of commcc",
        )


def _spans(provenance: tuple[dict[str, Any], ...]) -> dict[frozenset[str], int]:
    """Spans of buckets by their members, from what the passes stored; whatever has another form is left out."""
    span_of: dict[frozenset[str], int] = {}
    for entry in provenance:
        spans = entry.get("spans") if isinstance(entry.get("spans"), list) else []
        for bucket in spans or ():
            if isinstance(bucket, dict) and isinstance(bucket.get("members"), list) and type(bucket.get("span")) is int:
                span_of[frozenset(map(str, bucket["members"]))] = bucket["span"]
    return span_of


AMOUNTS = (
    Rule(
        "collective-count",
        Severity.ERROR,
        collective_count,
        CountOptions,
        "too many launches",
        "Launches in the graph, in all or by kind (all_gather), role (fsdp) or both (all_gather/fsdp).",
        needs=("max",),
    ),
    Rule(
        "collective-bytes",
        Severity.ERROR,
        collective_bytes,
        BytesOptions,
        "too many bytes on the wire",
        "Bytes that one rank sends with ring algorithms, in all or by kind, role or both.",
        needs=("max",),
    ),
    Rule(
        "max-consecutive-compute",
        Severity.ERROR,
        max_consecutive,
        RunOptions,
        "long runs of compute without a launch",
        "The longest run of compute nodes (matmuls, attention, convolutions) in graph order with no launch of the kind "
        "between them. Without a kind, reduce-scatters are meant: gradients that pile up there are memory held and "
        "communication put off to the end. A graph without launches of the kind has no such runs.",
        needs=("max",),
    ),
    Rule(
        "topological-span",
        Severity.ERROR,
        topological_span,
        SpanOptions,
        "buckets whose members stood far apart",
        "Position of a bucket's last member minus that of its first, in the graph before they were merged. The file of "
        "a graph that commcc merged says it; of others it is not known.",
        needs=("max",),
    ),
)
