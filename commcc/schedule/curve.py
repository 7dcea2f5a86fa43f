"""Numbers along an order, of which long stretches change at once and are asked for their largest one; kernels.

A stretch changes, or is looked at, in steps that grow with its number of blocks: what covers a block is noted once for
all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commcc.base.jit import compiled

if TYPE_CHECKING:
    from commcc.schedule.arrays import Ints

#: Positions of a block are 2 to the power of this.
_SHIFT = 6


class Curve(NamedTuple):
    """numbers: by position, less what was added to all of their block. added: by block. peaks: the largest of a block's
    numbers as they stand there.
    """

    numbers: Ints
    added: Ints
    peaks: Ints


def curve(count: int) -> Curve:
    """Of so many positions, all 0."""
    blocks = (count >> _SHIFT) + 1
    return Curve(np.zeros(count, np.int64), np.zeros(blocks, np.int64), np.zeros(blocks, np.int64))


@compiled
def begin_curve(of: Curve) -> None:
    """Take the numbers as they stand; nothing was added yet."""
    for block in range(((len(of.numbers) - 1) >> _SHIFT) + 1):
        of.added[block] = 0
        _find_peak(of, block)


@compiled
def _find_peak(of: Curve, block: int) -> None:
    begin = block << _SHIFT
    of.peaks[block] = most_of(of.numbers, begin, min(begin + (1 << _SHIFT), len(of.numbers)))


@compiled
def most_of(numbers: Ints, begin: int, end: int) -> int:
    """The largest of a stretch, which is not empty. Without a way out: several are looked at once."""
    most = numbers[begin]
    for at in range(begin, end):
        most = max(most, numbers[at])
    return int(most)


@compiled
def number_at(of: Curve, at: int) -> int:
    """The number there."""
    return int(of.numbers[at] + of.added[at >> _SHIFT])


@compiled
def add(of: Curve, begin: int, end: int, size: int) -> None:
    """Add to a stretch, which may be empty."""
    if begin >= end or not size:
        return
    first, last = begin >> _SHIFT, (end - 1) >> _SHIFT
    if first == last:
        _add_within(of, first, begin, end, size)
        return
    _add_within(of, first, begin, (first + 1) << _SHIFT, size)
    for block in range(first + 1, last):
        of.added[block] += size
    _add_within(of, last, last << _SHIFT, end, size)


@compiled
def _add_within(of: Curve, block: int, begin: int, end: int, size: int) -> None:
    for at in range(begin, end):
        of.numbers[at] += size
    _find_peak(of, block)


@compiled
def most_between(of: Curve, begin: int, end: int) -> int:
    """The largest of a stretch; 0 of an empty one, and where none is larger."""
    if begin >= end:
        return 0
    first, last = begin >> _SHIFT, (end - 1) >> _SHIFT
    if first == last:
        return int(max(0, most_of(of.numbers, begin, end) + of.added[first]))
    most = max(0, most_of(of.numbers, begin, (first + 1) << _SHIFT) + of.added[first])
    for block in range(first + 1, last):
        most = max(most, of.peaks[block] + of.added[block])
    return int(max(most, most_of(of.numbers, last << _SHIFT, end) + of.added[last]))


@compiled
def last_above(of: Curve, begin: int, end: int, most: int) -> int:
    """The last position of a stretch whose number is larger than that; one before the stretch where there is none."""
    at = end - 1
    while at >= begin and number_at(of, at) <= most:
        block = at >> _SHIFT
        # A block with nothing larger is passed at once.
        at = (block << _SHIFT) - 1 if of.peaks[block] + of.added[block] <= most else at - 1
    return max(at, begin - 1)
