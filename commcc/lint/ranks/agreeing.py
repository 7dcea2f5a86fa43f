"""Puts the checks together; see the package docstring."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from commcc.base.errors import OptionError
from commcc.base.text import plural
from commcc.lint.ranks import sequences as same
from commcc.lint.ranks import splits
from commcc.lint.ranks.colours import colour
from commcc.lint.ranks.groups import resolve
from commcc.lint.ranks.order import circle
from commcc.lint.ranks.show import name_of, neighbourhood, title
from commcc.lint.ranks.types import Agreement, Difference, Sort, Status
from commcc.lint.ranks.words import ranks_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.lint.ranks.groups import Group, Groups
    from commcc.lint.ranks.order import Hop
    from commcc.lint.ranks.sequences import Found, Sequences
    from commcc.lint.ranks.types import Launch, Neighbourhood, Trace

_MOST_REASONS = 10


def agree_on(traces: Mapping[int, Trace], around: int = 3) -> Agreement:
    """As :func:`commcc.lint.ranks.agree`, on traces."""
    if len(traces) < 2:
        raise OptionError("rank agreement needs the graphs of two ranks or more", hint="name one file for each rank")
    traces = _shared(traces)
    known = resolve(traces)
    sequences = same.Sequences(traces)
    differences = list(known.differences)
    reasons = [*known.reasons, *_missing(known), *_opaque(traces)]
    found, more = _compared(known, sequences)
    differences += [_shown(each, sequences, around) for each in sorted(found, key=lambda f: _place(f, sequences))]
    reasons += more
    if not differences and not any("may differ" in reason for reason in more):
        stuck, more = _order(known, traces, sequences, around)
        differences += stuck
        reasons += more
    status = Status.DISAGREE if differences else Status.UNDECIDED if reasons else Status.AGREE
    return Agreement(
        status=status,
        differences=tuple(differences),
        reasons=_few(reasons),
        assumed=known.assumed,
        ranks=len(traces),
        programs=len({id(trace.launches) for trace in traces.values()}),
        groups=len(known.groups),
        launches=sum(len(trace.launches) for trace in traces.values()),
    )


def _shared(traces: Mapping[int, Trace]) -> dict[int, Trace]:
    """The traces in the order of ranks; ranks that launch the same share it."""
    known: dict[tuple[Launch, ...], tuple[Launch, ...]] = {}
    return {
        rank: replace(traces[rank], launches=known.setdefault(traces[rank].launches, traces[rank].launches))
        for rank in sorted(traces)
    }


def _few(reasons: list[str]) -> tuple[str, ...]:
    unique = list(dict.fromkeys(reasons))
    more = len(unique) - _MOST_REASONS
    return (*unique[:_MOST_REASONS], f"{plural(more, 'further reason')}") if more > 0 else tuple(unique)


def _missing(known: Groups) -> list[str]:
    """Ranks without file, by the ranks that are missing."""
    missing = {rank for group in known.groups for rank in group.missing}
    if not missing:
        return []
    groups = sum(bool(group.missing) for group in known.groups)
    return [f"no file of {ranks_text(sorted(missing))}, which {plural(groups, 'group')} of the others needs"]


def _opaque(traces: Mapping[int, Trace]) -> list[str]:
    """Nodes that are not looked into, by node."""
    where: dict[str, list[int]] = {}
    for rank, trace in traces.items():
        for each in trace.opaque:
            where.setdefault(f"'{each.node}' ({each.op}) {each.why}", []).append(rank)
    return [f"{ranks_text(ranks)}: {text}" for text, ranks in where.items()]


def _compared(known: Groups, sequences: Sequences) -> tuple[list[Found], list[str]]:
    """Sequences and splits of every group; what is wrong along an axis only may be."""
    found: list[Found] = []
    reasons: list[str] = []
    open_on: dict[str, list[str]] = {}
    for group in known.groups:
        own, more = same.compare(group, sequences)
        if not own:
            own, open_splits = splits.compare(group, sequences)
            more = [*more, *open_splits]
        if group.ranks is None:
            reasons += [f"ranks that are in one group may differ: {each.difference.what}" for each in own]
        else:
            found += own
        for reason in more:
            open_on.setdefault(reason, []).append(group.label)
    return found, [*reasons, *(f"{_on(labels)}: {reason}" for reason, labels in open_on.items())]


def _on(labels: list[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]} and {plural(len(labels) - 1, 'further group')}"


def _place(found: Found, sequences: Sequences) -> tuple[int, int]:
    """Where the rank that does as most do has the first difference, among all its launches."""
    rank, name, at = found.ranks[0]
    launches = sequences.of(rank, name).launches
    place = launches[at] if at < len(launches) else len(sequences.traces[rank].launches)
    return place, rank


def _shown(found: Found, sequences: Sequences, around: int) -> Difference:
    """The difference with the neighbourhoods of both places."""
    blocks = []
    for rank, name, at in dict.fromkeys(found.ranks):
        trace = sequences.traces[rank]
        launches = sequences.of(rank, name).launches
        marked = launches[at : at + 1]
        names = () if name == same.NOBODY else (name,)
        missing = None if marked else (launches[-1] + 1 if launches else len(trace.launches))
        blocks.append(neighbourhood(rank, trace, marked, around, title(rank, names), missing))
    return replace(found.difference, around=tuple(blocks))


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
    return [replace(difference, group=_labels(on))], []


def _labels(groups: list[Group]) -> str:
    return ", ".join(dict.fromkeys(group.label for group in groups))


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
    sort = Sort.DEADLOCK if certain else Sort.HAZARD
    return Difference(sort, f"{shown}: {end}", "", ranks, None, (), tuple(blocks))
