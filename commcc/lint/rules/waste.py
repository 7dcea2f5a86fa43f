"""Rules about communication that a pass could do without, or do better."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from commcc.base.errors import OptionError
from commcc.base.options import option
from commcc.base.text import least_size, plural
from commcc.graph.modules import syntax_problems
from commcc.lint.options import NoOptions, figure
from commcc.lint.quantities import BYTES, COUNT, show
from commcc.lint.types import Finding, Rule, Severity
from commcc.plan import Inlining, Removal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commcc.graph.collectives import Collective
    from commcc.lint.types import Subject

#: Launches that one finding names.
_NAMED = 5


@dataclass(frozen=True)
class SmallOptions:
    """Which collectives are small, and how many make a finding."""

    below: float = figure(1 << 20, BYTES, "a collective is small below this, the larger of input and output counted")
    least: float = figure(2, COUNT, "small ones of one kind, group, reduction and dtype that make a finding")


@dataclass(frozen=True)
class DuplicateOptions:
    """Which repeated gathers count."""

    max_span: float | None = figure(None, COUNT, "nodes between a gather and one that repeats it; none: any number")
    room: float | None = figure(
        None,
        BYTES,
        "by how much keeping the first result may raise the peak; none: the larger of 1 GiB and 5 %, as commcc dedup",
    )


@dataclass(frozen=True)
class WaitOptions:
    """What counts as directly after."""

    least: float = figure(1, COUNT, "ops that do work on the device which have to stand between launch and wait")
    above: float = figure(0, BYTES, "collectives that move fewer bytes than this do not count")


def _module_text(text: str) -> str:
    problems = syntax_problems((text,))
    if problems:
        raise ValueError(problems[0])
    return text


@dataclass(frozen=True)
class ModuleOptions:
    """The module plan."""

    modules: tuple[str, ...] = option(
        (),
        "the module plan",
        one=lambda _, text: _module_text(text),
        takes="module paths and patterns, as bucket{strategy=module} takes them",
    )


def small_collectives(subject: Subject, options: SmallOptions) -> Iterator[Finding]:
    """Small collectives that could share a launch, one finding for each kind."""
    from commcc.planning.bucket_model import key_of, size_of
    from commcc.planning.eligibility import eligible

    groups = frozenset(group.name for group in subject.ident.groups)
    taken, _ = eligible(subject.index, subject.ident, groups)
    alike: dict[tuple[str, ...], list[Collective]] = defaultdict(list)
    for collective in taken:
        if size_of(collective) < options.below:
            alike[key_of(collective, False)].append(collective)
    for members in alike.values():
        if len(members) < max(options.least, 1):
            continue
        first, total = members[0], sum(map(size_of, members))
        yield Finding(
            f"{len(members):,} {first.kind} launches on group {first.group} ({first.dtype}) are smaller than "
            f"{BYTES.show(options.below)}, {BYTES.show(total)} together",
            subject.spots(*(collective.launch for collective in members[:_NAMED])),
            measured=len(members),
            limit=options.least - 1,
            weight=len(members),
            remedy="merge them with commcc bucket",
        )


def duplicated_gathers(subject: Subject, options: DuplicateOptions) -> Iterator[Finding]:
    """Gathers of one parameter that one launch could serve within the memory that there is."""
    from commcc.base.terms import GIB
    from commcc.passes.base import PlanContext
    from commcc.passes.dedup import Dedup

    span = None if options.max_span is None else int(options.max_span)
    index = subject.index
    if not any(launch in index.repeats for launch in index.launches):
        return
    budget = "auto" if options.room is None else (subject.memory.peak_bytes + options.room) / GIB
    dedup, context = Dedup(max_topo_span=span, memory_budget=budget), PlanContext(subject.program, index, subject.ident)
    removal = dedup.plan(context).rewrite
    for duplicate in removal.duplicates if isinstance(removal, Removal) else ():
        collective = subject.ident.by_launch[duplicate.keep]
        parameter = "one value" if collective.anchor is None else f"'{index.names[collective.anchor]}'"
        times = f"{1 + len(duplicate.drop)} times"
        yield Finding(
            f"{parameter} is gathered {times} on group {collective.group}, {BYTES.show(duplicate.bytes)} each time: "
            f"first by '{index.names[duplicate.keep]}'",
            subject.spots(duplicate.drop[0], duplicate.keep, *duplicate.drop[1:_NAMED]),
            measured=1 + len(duplicate.drop),
            limit=1,
            weight=duplicate.bytes * len(duplicate.drop),
            remedy="let one gather serve all with commcc dedup",
        )


def _dedup(options: DuplicateOptions) -> str:
    """The pass; how much memory it may take is known for each graph only, so that ``room`` is left to its default."""
    return "dedup" if options.max_span is None else f"dedup{{max_topo_span={options.max_span:.0f}}}"


def doubled_waits(subject: Subject, _options: NoOptions) -> Iterator[Finding]:
    """All waits for results of waits, as one finding."""
    waits = [wait.node for wait in subject.removable.same]
    if waits:
        yield Finding(
            f"{plural(len(waits), 'wait')} for what was waited for already",
            subject.spots(*waits[:_NAMED]),
            measured=len(waits),
            limit=0,
            remedy="remove them with commcc cleanup",
        )


def collectives_in_regions(subject: Subject, _options: NoOptions) -> Iterator[Finding]:
    """All calls of regions that communicate and that the pass ``inline`` takes apart, as one finding."""
    from commcc.passes.base import PlanContext
    from commcc.passes.inline import Inline

    rewrite = Inline().plan(PlanContext(subject.program, subject.index, subject.ident)).rewrite
    calls = rewrite.calls if isinstance(rewrite, Inlining) else ()
    launches = sum(sum(subject.index.inside[call].kinds.values()) for call in calls if call in subject.index.inside)
    if launches:
        yield Finding(
            f"{plural(launches, 'collective')} in {plural(len(calls), 'call')} of regions that are compiled once: "
            "nothing outside of a call hides them",
            subject.spots(*calls[:_NAMED]),
            measured=launches,
            limit=0,
            remedy="commcc inline puts their nodes in the place of the calls",
        )


def dead_nodes(subject: Subject, _options: NoOptions) -> Iterator[Finding]:
    """All nodes that nothing needs, as one finding; launches among them are named first."""
    index = subject.index
    nodes = (node for entry in subject.removable.dead for node in entry.nodes)
    dead = sorted(nodes, key=lambda node: (node not in index.launches, node))
    launches = sum(node in index.launches for node in dead)
    if dead:
        what = f", {plural(launches, 'launch')} among them" if launches else ""
        yield Finding(
            f"nothing needs {plural(len(dead), 'node')}{what}",
            subject.spots(*dead[:_NAMED]),
            measured=len(dead),
            limit=0,
            remedy="remove them with commcc cleanup",
        )


def wait_after_launch(subject: Subject, options: WaitOptions) -> Iterator[Finding]:
    """Collectives that are waited for before anything else runs."""
    index = subject.index
    before = _work_before(subject)
    exposed = subject.seen.prediction.timeline.exposed if subject.seen.prediction is not None else {}
    for collective in subject.ident.collectives:
        if not collective.waits or max(collective.input_bytes, collective.output_bytes) < options.above:
            continue
        wait = min(collective.waits)
        between = before[wait] - before[collective.launch]
        if between >= options.least:
            continue
        ns = exposed.get(collective.launch)
        cost = "" if ns is None else f", {show(ns, 'ns')} exposed"
        what = "nothing runs" if not between else f"only {between} ops run"
        yield Finding(
            f"{what} between '{index.names[collective.launch]}' and its wait '{index.names[wait]}' ({collective.kind} "
            f"for {collective.role}, {least_size(collective.wire_bytes, collective.unknown, brief=True)} on the wire"
            f"{cost})",
            subject.spots(collective.launch, wait),
            measured=between,
            limit=options.least,
            weight=collective.wire_bytes if ns is None else ns,
            remedy="commcc reorder finds compute to put between; commcc explain says what holds it",
        )


def _work_before(subject: Subject) -> list[int]:
    """For every node how many ops stand before it that do work on the device, collectives left out."""
    from commcc.graph.ops.kernels import Work

    index = subject.index
    works = (
        work is not Work.FREE and node not in index.launches and "." in index.ops[node]
        for node, work in enumerate(index.estimates.work)
    )
    return list(accumulate(works, initial=0))


def module_plan(subject: Subject, options: ModuleOptions) -> Iterator[Finding]:
    """Collectives that could be merged, and that no entry of the module plan covers."""
    from commcc.passes.base import PlanContext
    from commcc.passes.bucket import Bucket, BucketReport
    from commcc.passes.strategies.module import ModuleReport

    plan = Bucket(strategy="module", modules=options.modules, prefetch=None, include_all_reduce=True)
    try:
        report = plan.plan(PlanContext(subject.program, subject.index, subject.ident)).report
    except OptionError as error:
        yield Finding(error.what, remedy=error.hint or "")
        return
    assert isinstance(report, BucketReport)
    assert isinstance(report.own, ModuleReport)
    for name in report.own.uncovered:
        collective = subject.ident.by_launch[subject.index.position[name]]
        served = "a module that is not known" if collective.module is None else f"module '{collective.module}'"
        yield Finding(
            f"'{name}' ({collective.kind} for {collective.role}) serves {served}, which the module plan does not cover",
            subject.spots(collective.launch),
            weight=collective.wire_bytes,
            remedy="add the module to the plan",
        )


WASTE = (
    Rule(
        "small-collective",
        Severity.WARNING,
        small_collectives,
        SmallOptions,
        "small collectives that could share a launch",
        "Gathers of parameters and reductions of gradients that are small, and that have others of the same kind, "
        "group, reduction and dtype to be merged with. Each pays the latency of a launch of its own.",
    ),
    Rule(
        "duplicated-gather",
        Severity.WARNING,
        duplicated_gathers,
        DuplicateOptions,
        "parameters that are gathered more than once",
        "Gathers that send the same value again, where keeping the first result does not conflict with a write and "
        "raises the peak of live bytes by little. Gathers that are repeated to save memory are not reported.",
        fix=_dedup,
    ),
    Rule(
        "doubled-wait",
        Severity.INFO,
        doubled_waits,
        NoOptions,
        "waits for what was waited for",
        "A wait for the result of a wait: there is nothing left to wait for. Traces of code that waits for sure have "
        "them.",
        fix=lambda _: "cleanup{dead=false,metadata=keep}",
    ),
    Rule(
        "dead-nodes",
        Severity.INFO,
        dead_nodes,
        NoOptions,
        "nodes that nothing needs",
        "Neither an output nor a write, random numbers, an assert or a host sync needs them. PyTorch's own "
        "compiler drops most of them later; until then they take part in every figure.",
        fix=lambda _: "cleanup{metadata=keep}",
    ),
    Rule(
        "collective-in-region",
        Severity.WARNING,
        collectives_in_regions,
        NoOptions,
        "collectives in regions that are compiled once",
        "A region of nested_compile_region is a sub-graph, and a collective in it begins and ends within each call. "
        "Merging and ordering leave calls as they are. Calls that have to stay are not reported.",
        fix=lambda _: "inline",
    ),
    Rule(
        "wait-after-launch",
        Severity.WARNING,
        wait_after_launch,
        WaitOptions,
        "waits directly after launches",
        "A collective that is waited for before any other work is queued hides behind nothing: all of its time is "
        "exposed. Views, waits and other launches do not count as work.",
    ),
    Rule(
        "module-plan",
        Severity.ERROR,
        module_plan,
        ModuleOptions,
        "collectives that the module plan does not cover",
        "Gathers of parameters and reductions of gradients that serve a module which no entry of the plan names. "
        "Entries are those of bucket{strategy=module}: layers.*, layers.[0-5], norm+output, transformer_block.",
        needs=("modules",),
    ),
)
