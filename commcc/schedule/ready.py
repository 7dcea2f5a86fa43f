"""A set of positions of an order, looked through from the front; kernels.

One bit for each position, so that candidates which are refused need not be taken out and put back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commcc.base.jit import compiled
from commcc.base.kernel_types import lowest_bit

if TYPE_CHECKING:
    from commcc.schedule.arrays import Ints

#: Positions in one number are 2 to the power of this: 32, so that none has a sign.
_SHIFT, _REST = 5, 31


def no_positions(count: int) -> Ints:
    """An empty set of positions below ``count``."""
    return np.zeros((count >> _SHIFT) + 1, np.int64)


@compiled
def add_position(of: Ints, place: int) -> None:
    """Put a position in."""
    of[place >> _SHIFT] |= 1 << (place & _REST)


@compiled
def drop_position(of: Ints, place: int) -> None:
    """Take a position out, where it is in."""
    of[place >> _SHIFT] -= of[place >> _SHIFT] & (1 << (place & _REST))


@compiled
def next_position(of: Ints, begin: int) -> int:
    """The first position of the set that is not before ``begin``; -1 for none."""
    at = begin >> _SHIFT
    if at >= len(of):
        return -1
    bits = (of[at] >> (begin & _REST)) << (begin & _REST)
    while not bits and at + 1 < len(of):
        at += 1
        bits = of[at]
    return (at << _SHIFT) + lowest_bit(bits) if bits else -1
