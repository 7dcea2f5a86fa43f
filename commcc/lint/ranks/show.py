"""The verdict as text: one block for the first difference, a line for each further one.

DISAGREE: the group of ranks 0-3 (dp_shard): launch 13 of 41 (all_gather) has dtype ...
  rank 0, which calls the group '0':
       12 of 41  all_gather, bfloat16, 256 elements    all_gather_into_tensor_12   layers.1.wq   model.py:98
    >  13 of 41  ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.text import plural
from commcc.lint.ranks.types import Neighbourhood, Status
from commcc.lint.ranks.words import sent_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from commcc.lint.ranks.types import Agreement, Difference, Launch, Trace

_MORE = 5


def text(found: Agreement) -> str:
    """All that is known, for people."""
    lines = [f"{str(found.status).upper()}: {_headline(found)}"]
    if found.first is not None:
        lines += block(found.first)
        rest = found.differences[1:]
        lines += [f"also: {each.what}" for each in rest[:_MORE]]
        lines += [f"also: {plural(len(rest) - _MORE, 'further difference')}"] if len(rest) > _MORE else []
    lines += [f"not known: {reason}" for reason in found.reasons]
    lines += [f"taken for granted: {assumption}" for assumption in found.assumed]
    return "\n".join(lines)


def _headline(found: Agreement) -> str:
    looked = (
        f"{plural(found.ranks, 'rank')} ({plural(found.programs, 'different program')}), "
        f"{plural(found.groups, 'process group')}, {plural(found.launches, 'launch')}"
    )
    if found.first is not None:
        return f"{found.first.what} [{looked}]"
    return looked if found.status is Status.AGREE else f"nothing wrong found, but not all is known [{looked}]"


def block(difference: Difference) -> list[str]:
    """Details and both neighbourhoods."""
    lines = [f"  {each}" for each in difference.details]
    for around in difference.around:
        lines.append(f"  {around.title}")
        lines += [f"    {'>' if marked else ' '} {line}" for marked, line in around.lines]
    return lines


def neighbourhood(
    rank: int, trace: Trace, marked: Sequence[int], around: int, title: str, missing_at: int | None = None
) -> Neighbourhood:
    """The launches next to the marked ones, whatever their group.

    marked: numbers of launches in the trace. missing_at: the number of the launch before which one is missing,
    where none is marked.
    """
    centres = list(marked) if marked else [missing_at or 0]
    shown = sorted({i for at in centres for i in range(at - around, at + around + 1) if 0 <= i < len(trace.launches)})
    rows = [_row(trace, i) for i in shown]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    lines: list[tuple[bool, str]] = []
    for i, row in zip(shown, rows, strict=True):
        if i - 1 not in shown and lines:
            lines.append((False, "..."))
        if not marked and i == missing_at:
            lines.append((True, "(nothing)"))
        padded = (cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True))
        lines.append((i in marked, "  ".join(padded).rstrip()))
    if not marked and missing_at == len(trace.launches):
        lines.append((True, "(nothing more)"))
    if not marked:
        return Neighbourhood(rank, title, None, None, tuple(lines))
    first = trace.launches[marked[0]]
    return Neighbourhood(rank, title, marked[0], first.node, tuple(lines), first.module, first.source)


def _row(trace: Trace, i: int) -> tuple[str, ...]:
    launch = trace.launches[i]
    return (f"'{launch.group}'", sent_text(launch), launch.node, launch.module or "", launch.source or "")


def title(rank: int, names: Iterable[str]) -> str:
    """``rank 3, which calls the group '0':``."""
    called = ", ".join(f"'{name}'" for name in names)
    return f"rank {rank}, which calls the group {called}:" if called else f"rank {rank}, which has no such group:"


def name_of(launch: Launch) -> str:
    """A launch in a sentence."""
    return f"'{launch.node}' ({launch.sent.kind} on group '{launch.group}')"
