"""What a sequence kept in order, and what can be reached in sequences of neighbours."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def closure(neighbours: Sequence[Sequence[int]], starts: Iterable[int]) -> frozenset[int]:
    """Everything that can be reached over lists of neighbours by node, the starts included."""
    stack = list(starts)
    seen = set(stack)
    while stack:
        for near in neighbours[stack.pop()]:
            if near not in seen:
                seen.add(near)
                stack.append(near)
    return frozenset(seen)


def longest_increasing(values: Sequence[int]) -> list[int]:
    """Indices of a longest strictly increasing subsequence; of several, one found deterministically.

    Patience sorting (Fredman, 1975), O(n log n).
    """
    tails: list[int] = []
    tail_values: list[int] = []
    previous = [-1] * len(values)
    for i, value in enumerate(values):
        place = bisect_left(tail_values, value)
        previous[i] = tails[place - 1] if place else -1
        tails[place : place + 1] = [i]
        tail_values[place : place + 1] = [value]
    chain: list[int] = []
    current = tails[-1] if tails else -1
    while current >= 0:
        chain.append(current)
        current = previous[current]
    return chain[::-1]
