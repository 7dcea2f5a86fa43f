"""The verdict, launches and lists of ranks as text: one block for the first difference, a line for each further one.

DISAGREE: the group of ranks 0-3 (dp_shard): launch 13 of 41 (all_gather) has dtype ...
  rank 0, which calls the group '0':
       12 of 41  all_gather, bfloat16, 256 elements    all_gather_into_tensor_12   layers.1.wq   model.py:98
    >  13 of 41  ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.text import listed, plural
from commcc.lint.ranks.types import Neighbourhood, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from commcc.lint.ranks.types import Agreement, Difference, Launch, Sent, Trace

_MORE = 5
_MOST_PARTS = 6


def text(agreement: Agreement) -> str:
    """All that is known, for people."""
    seen = (
        f"{plural(agreement.ranks, 'rank')} ({plural(agreement.programs, 'different program')}), "
        f"{plural(agreement.groups, 'process group')}, {plural(agreement.launches, 'launch')}"
    )
    what = seen if agreement.status is Status.AGREE else f"nothing wrong found, but not all is known [{seen}]"
    if agreement.first is not None:
        what = f"{agreement.first.what} [{seen}]"
    lines = [f"{str(agreement.status).upper()}: {what}"]
    if agreement.first is not None:
        lines += block(agreement.first)
        rest = agreement.differences[1:]
        lines += [f"also: {difference.what}" for difference in rest[:_MORE]]
        lines += [f"also: {plural(len(rest) - _MORE, 'further difference')}"] if len(rest) > _MORE else []
    lines += [f"not known: ranks that are in one group may differ: {each.what}" for each in agreement.possible]
    lines += [f"not known: {reason}" for reason in agreement.reasons]
    lines += [f"taken for granted: {assumption}" for assumption in agreement.assumed]
    return "\n".join(lines)


def block(difference: Difference) -> list[str]:
    """Details and both neighbourhoods."""
    lines = [f"  {detail}" for detail in difference.details]
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
    rows = [
        (f"'{launch.group}'", sent_text(launch), launch.node, launch.module or "", launch.source or "")
        for launch in (trace.launches[i] for i in shown)
    ]
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


def title(rank: int, names: Iterable[str]) -> str:
    """``rank 3, which calls the group '0':``."""
    called = ", ".join(f"'{name}'" for name in names)
    return f"rank {rank}, which calls the group {called}:" if called else f"rank {rank}, which has no such group:"


def name_of(launch: Launch) -> str:
    """A launch in a sentence."""
    return f"'{launch.node}' ({launch.sent.kind} on group '{launch.group}')"


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0, 2 and 4-9``, ``ranks 0, 8, 16, 24, 32 and 3 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    # Two neighbours are as short with a comma as with a dash.
    parts = [text for run in runs for text in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run))]
    if len(parts) > _MOST_PARTS:
        return f"ranks {listed([*map(str, ranks)], _MOST_PARTS - 1)}"
    return f"ranks {listed(parts, None) or '(none)'}"


def sent_text(launch: Launch) -> str:
    """``reduce_scatter avg, bfloat16, 4,096 elements``."""
    sent = launch.sent
    named = str(sent.kind) if sent.reduction is None else f"{sent.kind} {sent.reduction}"
    dtypes = "/".join(dict.fromkeys(dtype or "unknown dtype" for dtype in sent.dtypes))
    others = [f"{name}={value}" for name, value in sent.others]
    if launch.splits is not None:
        total = launch.splits.total
        size = "size known at run time" if total is None else f"{total:,} elements"
        size += "" if sent.row in (None, 1) else f" in rows of {sent.row:,}"
    else:
        counts = ["?" if count is None else f"{count:,}" for count in sent.counts]
        size = f"{' + '.join(counts[:4])}{' + ...' if len(counts) > 4 else ''} elements"
    return ", ".join(filter(None, [named, dtypes, size, *others]))


def argument_text(sent: Sent, name: str) -> str:
    """One field of :class:`Sent` as text."""
    value = getattr(sent, name)
    if name == "others":
        return ", ".join(f"{key}={item}" for key, item in value) or "none"
    if name in ("dtypes", "counts"):
        texts = [f"{item:,}" if isinstance(item, int) else str(item) for item in value]
        return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return str(value)
