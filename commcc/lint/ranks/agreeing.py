"""Puts the checks together; see the package docstring."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from commcc.base.errors import OptionError
from commcc.base.text import plural
from commcc.lint.ranks.groups import resolve
from commcc.lint.ranks.order import circle, colour
from commcc.lint.ranks.sequences import NOBODY, Sequences, compare, compare_splits
from commcc.lint.ranks.show import name_of, neighbourhood, ranks_text, title
from commcc.lint.ranks.types import Agreement, Difference, DifferenceKind, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.lint.ranks.groups import Groups
    from commcc.lint.ranks.order import Hop
    from commcc.lint.ranks.sequences import GroupDifference
    from commcc.lint.ranks.types import Launch, Neighbourhood, Trace

_MOST_REASONS = 10


def agree_on(traces: Mapping[int, Trace], around: int = 3) -> Agreement:
    """As :func:`commcc.lint.ranks.agree`, on traces."""
    if len(traces) < 2:
        raise OptionError("rank agreement needs the graphs of two ranks or more", hint="name one file for each rank")
    # Ranks that launch the same share it, and are compared once.
    same: dict[tuple[Launch, ...], tuple[Launch, ...]] = {}
    traces = {
        rank: replace(trace, launches=same.setdefault(trace.launches, trace.launches))
        for rank, trace in sorted(traces.items())
    }
    known = resolve(traces)
    sequences = Sequences(traces)
    differences = list(known.differences)
    reasons = [*known.reasons, *_not_there(known, traces)]
    mismatches, suspected, more = _compared(known, sequences)

    def place(mismatch: GroupDifference) -> tuple[int, int]:
        """Where the rank that does as most do has the first difference, among all its launches."""
        rank, name, at = mismatch.ranks[0]
        launches = sequences.of(rank, name).launches
        return launches[at] if at < len(launches) else len(traces[rank].launches), rank

    differences += [_shown(mismatch, sequences, around) for mismatch in sorted(mismatches, key=place)]
    possible = tuple(_shown(mismatch, sequences, around) for mismatch in sorted(suspected, key=place))
    reasons += more
    # Where sequences differ, an order of theirs would tell nothing new.
    if not differences and not possible:
        stuck, more = _order(known, traces, sequences, around)
        differences += stuck
        reasons += more
    unique = list(dict.fromkeys(reasons))
    if len(unique) > _MOST_REASONS:
        unique[_MOST_REASONS:] = [plural(len(unique) - _MOST_REASONS, "further reason")]
    status = Status.DISAGREE if differences else Status.UNDECIDED if reasons or possible else Status.AGREE
    return Agreement(
        status=status,
        differences=tuple(differences),
        possible=possible,
        reasons=tuple(unique),
        assumed=known.assumed,
        ranks=len(traces),
        programs=len({id(trace.launches) for trace in traces.values()}),
        groups=len(known.groups),
        launches=sum(len(trace.launches) for trace in traces.values()),
    )


def _not_there(known: Groups, traces: Mapping[int, Trace]) -> list[str]:
    """Ranks without a file, and nodes that are not looked into."""
    missing = {rank for group in known.groups for rank in group.missing}
    groups = plural(sum(bool(group.missing) for group in known.groups), "group")
    where: dict[str, list[int]] = {}
    for rank, trace in traces.items():
        for opaque in trace.opaque:
            where.setdefault(f"'{opaque.node}' ({opaque.op}) {opaque.why}", []).append(rank)
    return [
        *([f"no file of {ranks_text(sorted(missing))}, which {groups} of the others needs"] if missing else []),
        *(f"{ranks_text(ranks)}: {text}" for text, ranks in where.items()),
    ]


def _compared(known: Groups, sequences: Sequences) -> tuple[list[GroupDifference], list[GroupDifference], list[str]]:
    """Sequences and splits of every group: what is wrong, what is along an axis and only may be, what is open."""
    mismatches: list[GroupDifference] = []
    possible: list[GroupDifference] = []
    reasons: list[str] = []
    open_on: dict[str, list[str]] = {}
    for group in known.groups:
        own, more = compare(group, sequences)
        if not own:
            own, open_splits = compare_splits(group, sequences)
            more = [*more, *open_splits]
        (possible if group.ranks is None else mismatches).extend(own)
        for reason in more:
            open_on.setdefault(reason, []).append(group.label)
    for reason, (label, *others) in open_on.items():
        more_groups = f" and {plural(len(others), 'further group')}" if others else ""
        reasons.append(f"{label}{more_groups}: {reason}")
    return mismatches, possible, reasons


def _shown(mismatch: GroupDifference, sequences: Sequences, around: int) -> Difference:
    """The difference with the neighbourhoods of both places."""
    blocks = []
    for rank, name, at in dict.fromkeys(mismatch.ranks):
        trace = sequences.traces[rank]
        launches = sequences.of(rank, name).launches
        marked = launches[at : at + 1]
        names = () if name == NOBODY else (name,)
        missing = None if marked else (launches[-1] + 1 if launches else len(trace.launches))
        blocks.append(neighbourhood(rank, trace, marked, around, title(rank, names), missing))
    return replace(mismatch.difference, around=tuple(blocks))


def _order(
    known: Groups, traces: Mapping[int, Trace], sequences: Sequences, around: int
) -> tuple[list[Difference], list[str]]:
    """Whether groups block one another: certainly, or where launches run in order."""
    colours = colour(traces, known, sequences)
    hazard = circle(colours, traces, certain=False)
    if not hazard:
        return [], []
    deadlock = circle(colours, traces, certain=True)
    hops = deadlock or hazard
    difference = _circle(hops, traces, around, certain=bool(deadlock))
    on = [known.groups[known.of[hop.rank, traces[hop.rank].launches[hop.second].group]] for hop in hops]
    if any(group.ranks is None for group in on):
        return [], [f"ranks may block one another, depending on who is in whose group: {difference.what}"]
    return [replace(difference, group=", ".join(dict.fromkeys(group.label for group in on)))], []


def _circle(hops: tuple[Hop, ...], traces: Mapping[int, Trace], around: int, *, certain: bool) -> Difference:
    told = []
    blocks: list[Neighbourhood] = []
    for hop in hops:
        first, second = (traces[hop.rank].launches[i] for i in (hop.first, hop.second))
        verb = "waits for" if certain else "launches"
        told.append(f"rank {hop.rank} {verb} {name_of(first)} before it launches {name_of(second)}")
        if len(blocks) < 2:
            marked = sorted({hop.first, hop.second})
            blocks.append(neighbourhood(hop.rank, traces[hop.rank], marked, around, f"rank {hop.rank}:"))
    end = (
        "none of them can go on, whatever runs the launches"
        if certain
        else "they hang where a device runs its launches one after the other, as NCCL may; nothing waits in a circle"
    )
    shown = "; ".join(told[:4]) + (f"; and {plural(len(told) - 4, 'further rank')}" if len(told) > 4 else "")
    ranks = tuple(sorted({hop.rank for hop in hops}))
    kind = DifferenceKind.DEADLOCK if certain else DifferenceKind.HAZARD
    return Difference(kind, f"{shown}: {end}", "", ranks, None, (), tuple(blocks))
