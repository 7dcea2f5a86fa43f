"""Blocks of a model that says nothing of its modules: what comes again and again, in the same order.

    labels(["embed", "q", "k", "q", "k", "q", "k", "norm"])
    # ['before', 'block.0', 'block.0', 'block.1', 'block.1', 'block.2', 'block.2', 'after']

The stretch that repeats and covers most wins, with the shortest period; what is left on either side is
searched again. What covers less than a third of all is no model's blocks. Limits: a period is at most 500
long, and where a block begins cannot be told: one that begins as it ends may be cut one place off.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import eq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

#: Longest period that is looked for.
LONGEST = 500
#: What repeats is no model's blocks where it covers less than one part in so many.
_PART = 3


@dataclass(frozen=True)
class _Stretch:
    """``count`` blocks of ``period`` marks each, from ``start`` on."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.count


def labels(marks: Sequence[Hashable]) -> list[str] | None:
    """For each mark the block that it is in, or its place beside the blocks; None when nothing repeats."""
    found = _longest(marks, 0, len(marks), shortest=1)
    if found is None or (found.end - found.start) * _PART < len(marks):
        return None
    stretches = sorted(
        [found, *_further(marks, 0, found.start), *_further(marks, found.end, len(marks))], key=lambda each: each.start
    )
    named = ["after"] * len(marks)
    blocks = end = 0
    for gap, each in enumerate(stretches):
        named[end : each.start] = [f"between.{gap}" if gap else "before"] * (each.start - end)
        named[each.start : each.end] = [f"block.{blocks + at // each.period}" for at in range(each.end - each.start)]
        blocks, end = blocks + each.count, each.end
    return named


def _further(marks: Sequence[Hashable], start: int, end: int) -> list[_Stretch]:
    """Stretches beside the main one: of periods with something to merge."""
    found = _longest(marks, start, end, shortest=2)
    if found is None:
        return []
    return [found, *_further(marks, start, found.start), *_further(marks, found.end, end)]


def _longest(marks: Sequence[Hashable], start: int, end: int, shortest: int) -> _Stretch | None:
    best: _Stretch | None = None
    part = marks[start:end]
    for period in range(shortest, min(LONGEST, len(part) // 2) + 1):
        same = bytes(map(eq, part, part[period:]))
        run = max(same.split(b"\0"), key=len)
        count = len(run) // period + 1
        if count > 1 and (best is None or count * period > best.period * best.count):
            best = _Stretch(start + same.index(run), period, count)
    return best
