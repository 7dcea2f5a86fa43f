"""Lists of ranks, and launches, as sentences have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.text import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.lint.ranks.types import Launch, Sent

_MOST = 6


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0, 2 and 4-9``, ``ranks 0, 8, 16, 24, 32 and 3 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    parts = _runs(ranks)
    if len(parts) > _MOST:
        return f"ranks {listed([*map(str, ranks)], _MOST - 1)}"
    return f"ranks {listed(parts, None) or '(none)'}"


def _runs(ranks: Sequence[int]) -> list[str]:
    """Neighbouring numbers put together where there are at least three."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return [text for run in runs for text in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run))]


def sent_text(launch: Launch) -> str:
    """``reduce_scatter avg, bfloat16, 4,096 elements``."""
    sent = launch.sent
    named = str(sent.kind) if sent.reduction is None else f"{sent.kind} {sent.reduction}"
    dtypes = "/".join(dict.fromkeys(dtype or "unknown dtype" for dtype in sent.dtypes))
    others = [f"{name}={value}" for name, value in sent.others]
    return ", ".join(filter(None, [named, dtypes, _size(launch), *others]))


def _size(launch: Launch) -> str:
    sent = launch.sent
    if launch.splits is not None:
        whole = f"{launch.splits.total:,} elements" if launch.splits.total is not None else "size known at run time"
        rows = "" if sent.row in (None, 1) else f" in rows of {sent.row:,}"
        return whole + rows
    counts = ["?" if count is None else f"{count:,}" for count in sent.counts]
    return f"{' + '.join(counts[:4])}{' + ...' if len(counts) > 4 else ''} elements"


def argument_text(sent: Sent, name: str) -> str:
    """One field of :class:`Sent` as text."""
    value = getattr(sent, name)
    if name == "others":
        return ", ".join(f"{key}={each}" for key, each in value) or "none"
    if name in ("dtypes", "counts"):
        texts = [f"{each:,}" if isinstance(each, int) else str(each) for each in value]
        return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return str(value)
