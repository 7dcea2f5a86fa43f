"""Do two contents hold the same elements, where their normal forms differ.

Layouts have one normal form only where they are regular in the same way. Where two that differ would make two
graphs differ, they are written out run by run and compared; if they are equal, the second stands for the first
from then on (:attr:`commcc.verify.table.Terms.same`).

Limits: contents of more than :data:`MAX_RUNS` runs, and symbolic ones, are not written out.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from commcc.verify.layout import Item, Leaf, Loop, instance, items_of
from commcc.verify.sizes import Undecidable

if TYPE_CHECKING:
    from commcc.verify.table import Terms

MAX_RUNS = 1 << 16


def same_elements(table: Terms, first: int, second: int) -> bool:
    """Whether two contents are equal element by element; :class:`Undecidable` when that cannot be told."""
    one, other = items_of(table, first), items_of(table, second)
    if _totals(one) != _totals(other):
        return False
    return _runs(one) == _runs(other)


def _totals(items: tuple[Item, ...]) -> Counter[int]:
    """Elements by source."""
    found: Counter[int] = Counter()
    stack: list[tuple[Item, int]] = [(item, 1) for item in items]
    while stack:
        item, times = stack.pop()
        if isinstance(item, Leaf):
            found[item.source] += times * _number(item.length)
        else:
            stack.extend((inner, times * _number(item.times)) for inner in item.body)
    return found


def _runs(items: tuple[Item, ...]) -> list[tuple[int, int, int]]:
    """Longest runs of neighbouring elements as (source, start, end)."""
    runs: list[tuple[int, int, int]] = []
    steps = 0
    stack: list[Item] = list(reversed(items))
    while stack:
        item = stack.pop()
        steps += 1
        if steps > MAX_RUNS:
            raise Undecidable("contents in too many pieces")
        if isinstance(item, Loop):
            times = _number(item.times)
            if times > MAX_RUNS:
                raise Undecidable("contents in too many pieces")
            for row in reversed(range(times)):
                stack.extend(reversed(instance(item.body, row, 0)))
            continue
        start, length = _number(item.start), _number(item.length)
        if runs and runs[-1][0] == item.source and runs[-1][2] == start:
            runs[-1] = (item.source, runs[-1][1], start + length)
        else:
            runs.append((item.source, start, start + length))
    return runs


def _number(size: object) -> int:
    if not isinstance(size, int):
        raise Undecidable("symbolic sizes")
    return size
