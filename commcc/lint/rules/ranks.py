"""The rule about ranks: whether the graphs of all ranks of a program launch the same, see :mod:`commcc.lint.ranks`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.errors import CommccError, OptionError
from commcc.base.options import option
from commcc.lint.options import figure
from commcc.lint.quantities import COUNT
from commcc.lint.types import Finding, Rule, Severity, Spot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from commcc.lint.ranks import Agreement, Difference, Trace
    from commcc.lint.types import Subject

NAMES, ALL = "names", "all"


@dataclass(frozen=True)
class RankAgreement:
    """Options of ``rank-agreement``."""

    ranks: str = option(
        NAMES,
        f"'{NAMES}': graphs named after their rank, as rank0.fx.txt or rank_1/bw.fx.txt; '{ALL}': all graphs are the "
        "ranks of one program, in the order in which they are named where the names do not tell",
        choices=(NAMES, ALL),
        takes=f"'{NAMES}' or '{ALL}'",
    )
    around: int | None = figure(3, COUNT, "launches to show before and after a difference")


@dataclass(frozen=True)
class Kept:
    """What is kept of a graph. rank: where the file tells it."""

    graph: str
    trace: Trace
    rank: int | None


def kept(subject: Subject) -> Kept:
    """The launches of a graph."""
    from commcc.lint.ranks.trace import trace_of

    told = subject.program.header.get("rank")
    rank = told if type(told) is int and told >= 0 else None
    return Kept(subject.graph, trace_of(subject.program, subject.index), rank)


def rank_agreement(graphs: Sequence[Kept], options: RankAgreement) -> Iterator[Finding]:
    """For every program whose ranks are among the graphs, what its ranks do not agree about."""
    from commcc.lint.ranks import agree_on
    from commcc.lint.ranks.naming import by_rank, families, in_order

    by_name = {graph.graph: graph for graph in graphs}
    told = {graph.graph: graph.rank for graph in graphs if graph.rank is not None}
    by_family = {"": list(in_order(by_name, told).items())} if options.ranks == ALL else families(by_name, told)
    for family, members in by_family.items():
        try:
            names = by_rank(members)
        except OptionError as error:  # the other programs are compared all the same
            yield Finding(error.what, remedy=error.hint or "", severity=Severity.WARNING)
            continue
        if len(names) > 1:
            traces = {rank: by_name[name].trace for rank, name in names.items()}
            yield from _findings(agree_on(traces, int(options.around or 0)), family, names)


def _findings(agreement: Agreement, family: str, names: Mapping[int, str]) -> Iterator[Finding]:
    from commcc.lint.ranks import DifferenceKind, Status
    from commcc.lint.ranks.show import block

    of = f"{family}: " if family else ""
    unsure = (DifferenceKind.HAZARD, DifferenceKind.MIXED)
    told = [(each.what, each, Severity.WARNING if each.kind in unsure else None) for each in agreement.differences]
    may = "ranks that are in one group may differ: "
    told += [(may + each.what, each, Severity.WARNING) for each in agreement.possible]
    for place, (what, difference, severity) in enumerate(told):
        yield Finding(
            of + what,
            _spots(difference, names),
            remedy="let every rank plan the same graph with the same options" if place == 0 else "",
            severity=severity,
            weight=len(told) - place,
            details=tuple(block(difference)) if place == 0 else (),
        )
    granted = [f"taken for granted: {text}" for text in agreement.assumed]
    if agreement.reasons or agreement.possible:
        wrong = agreement.status is Status.DISAGREE or agreement.possible
        decided = "more cannot be decided" if wrong else "nothing wrong, but not proved"
        some = (*agreement.reasons, *granted)
        what = f"{of}{agreement.ranks} ranks: {decided}: {some[0]}"
        yield Finding(what, severity=Severity.INFO, details=tuple(f"  {text}" for text in some[1:]))


def _spots(difference: Difference, names: Mapping[int, str]) -> tuple[Spot, ...]:
    """Where the marked launches of both sides are."""
    from commcc.serialization import node_lines

    spots = []
    for around in difference.around:
        if around.node is not None:
            line = None
            with suppress(CommccError):  # the file went away, or is another one by now
                line = node_lines(names[around.rank]).get(around.node)
            spots.append(Spot(names[around.rank], around.node, around.module, around.source, line))
    return tuple(spots)


RANKS = (
    Rule(
        "rank-agreement",
        Severity.ERROR,
        rank_agreement,
        RankAgreement,
        "ranks that do not launch the same collectives",
        "Every process group has to see one sequence of kinds, sizes, dtypes and reductions on all its ranks, "
        "all-to-alls have to send what their peers expect, and no ranks may block one another. Files named after "
        "their rank are compared; what cannot be decided is said as information.",
        keep=kept,
    ),
)
