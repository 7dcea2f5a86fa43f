"""What a sequence kept in order, orders by rank, and what can be reached in sequences of neighbours."""

from __future__ import annotations

import heapq
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


def topological(by_rank: Sequence[int], needs: Sequence[Sequence[int]]) -> list[int]:
    """Items from 0 on in order of rank, each as soon as all it needs is there: of those that may come next the first.

    by_rank: all items, the first rank first. What is on a cycle, or behind one, is left out. Linear where ranks hardly
    contradict what is needed.
    """
    taken = bytearray(len(by_rank))
    late: dict[int, list[int]] = {}  # of an item, the ranks of those whose turn came before it was there
    again: list[int] = []
    order: list[int] = []
    rank = 0
    while again or rank < len(by_rank):
        if again:
            now = heapq.heappop(again)
        else:
            now, rank = rank, rank + 1
        item = by_rank[now]
        for need in needs[item]:
            if not taken[need]:
                late.setdefault(need, []).append(now)
                break
        else:
            taken[item] = 1
            order.append(item)
            for late_rank in late.pop(item, ()) if late else ():
                heapq.heappush(again, late_rank)
    return order


def longest_increasing_length(values: Sequence[int]) -> int:
    """How many :func:`longest_increasing` has, in a third of the time."""
    tails: list[int] = []
    for value in values:
        if not tails or value > tails[-1]:
            tails.append(value)
        else:
            tails[bisect_left(tails, value)] = value
    return len(tails)


def longest_increasing(values: Sequence[int]) -> list[int]:
    """Indices of a longest strictly increasing subsequence; of several, one found deterministically.

    Patience sorting (Fredman, 1975), O(n log n).
    """
    tails: list[int] = []
    tail_values: list[int] = []
    previous: list[int] = []
    for i, value in enumerate(values):
        place = bisect_left(tail_values, value)
        previous.append(tails[place - 1] if place else -1)
        if place == len(tails):
            tails.append(i)
            tail_values.append(value)
        else:
            tails[place], tail_values[place] = i, value
    chain: list[int] = []
    current = tails[-1] if tails else -1
    while current >= 0:
        chain.append(current)
        current = previous[current]
    return chain[::-1]
