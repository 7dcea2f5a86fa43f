"""Binary heaps of pairs of a key and a place (a position of an order, or a node), smallest first; kernels.

Pairs of a heap differ, so the order in which they come out is one and the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commcc.base.jit import compiled

if TYPE_CHECKING:
    from commcc.schedule.arrays import Ints


class Heaps(NamedTuple):
    """Several heaps: keys and places have a row for every heap, sizes a number. The last one is for :func:`refuse`."""

    keys: Ints
    places: Ints
    sizes: Ints


def heaps(count: int, most: int) -> Heaps:
    """Empty heaps, each for at most so many pairs."""
    return Heaps(np.empty((count, most), np.int64), np.empty((count, most), np.int64), np.zeros(count, np.int64))


@compiled
def push(of: Heaps, heap: int, key: int, place: int) -> None:
    """Put a pair in."""
    keys, places = of.keys[heap], of.places[heap]
    at = of.sizes[heap]
    of.sizes[heap] += 1
    while at > 0:
        above = (at - 1) >> 1
        if keys[above] < key or (keys[above] == key and places[above] < place):
            break
        keys[at], places[at] = keys[above], places[above]
        at = above
    keys[at], places[at] = key, place


@compiled
def pop(of: Heaps, heap: int) -> tuple[int, int]:
    """Take the smallest pair out."""
    keys, places = of.keys[heap], of.places[heap]
    key, place = keys[0], places[0]
    of.sizes[heap] -= 1
    count = of.sizes[heap]
    last_key, last_place = keys[count], places[count]
    at = 0
    while 2 * at + 1 < count:
        below = 2 * at + 1
        right = below + 1
        if right < count and (
            keys[right] < keys[below] or (keys[right] == keys[below] and places[right] < places[below])
        ):
            below = right
        if last_key < keys[below] or (last_key == keys[below] and last_place <= places[below]):
            break
        keys[at], places[at] = keys[below], places[below]
        at = below
    keys[at], places[at] = last_key, last_place
    return key, place


@compiled
def refuse(of: Heaps, key: int, place: int) -> None:
    """Remember a candidate for :func:`put_back`."""
    last = len(of.sizes) - 1
    at = of.sizes[last]
    of.keys[last, at], of.places[last, at] = key, place
    of.sizes[last] += 1


@compiled
def put_back(of: Heaps, heap: int) -> None:
    """Put the candidates that were refused back."""
    last = len(of.sizes) - 1
    for k in range(of.sizes[last]):
        push(of, heap, of.keys[last, k], of.places[last, k])
    of.sizes[last] = 0
