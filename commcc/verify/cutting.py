"""Parts and rows of a layout: what slices, splits and joins along a dimension need.

::

    cut(items, 2, 5)              # elements 2, 3 and 4
    cut_all(items, (4, 4))        # two neighbouring parts
    rows_of(items, 8, 10)         # the body of a loop over 8 rows of 10 elements, if there is one

Limits: symbolic cuts are made only at boundaries; anything else raises :class:`Undecidable`.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from commcc.verify.layout import MAX_ITEMS, Item, Items, Leaf, Loop, each_leaf, instance, length_of, normalise, shifted
from commcc.verify.sizes import Size, Undecidable

if TYPE_CHECKING:
    from collections.abc import Sequence


def cut(items: Items, start: Size, stop: Size, level: int = 0) -> list[Item]:
    """Elements ``start`` to ``stop`` of items that are inside ``level`` loops."""
    if start == stop:
        return []
    lengths = [length_of(item) for item in items]
    if not all(isinstance(n, int) for n in (start, stop, *lengths)):
        return _cut_at_boundaries(items, lengths, start, stop)
    out: list[Item] = []
    position: Size = 0
    for item, length in zip(items, lengths, strict=True):
        end = position + length
        if stop <= position:
            break
        if start <= position and end <= stop:
            out.append(item)
        elif start < end:
            out.extend(_part(item, max(start, position) - position, min(stop, end) - position, level))
        position = end
    return out


def cut_all(items: Items, lengths: Sequence[Size], level: int = 0) -> list[list[Item]]:
    """Items cut into neighbouring parts of these lengths, in one walk; the same as ``cut`` for each part."""
    if not all(isinstance(n, int) for n in (*lengths, *map(length_of, items))):
        ends = [0, *itertools.accumulate(lengths)]
        return [cut(items, start, stop, level) for start, stop in itertools.pairwise(ends)]
    walk = _Walk(items, level)
    out: list[list[Item]] = [walk.take(length) for length in lengths]
    return out


class _Walk:
    """Takes items from the front, piece by piece."""

    def __init__(self, items: Items, level: int) -> None:
        self._rest = iter(items)
        self._level = level
        self._item: Item | None = None
        self._used: Size = 0
        self._left: Size = 0

    def take(self, length: Size) -> list[Item]:
        part: list[Item] = []
        while length > 0:
            if self._item is None or self._left == 0:
                self._item = next(self._rest)
                self._used, self._left = 0, length_of(self._item)
            taken = min(length, self._left)
            if self._used == 0 and taken == self._left:
                part.append(self._item)
            else:
                part.extend(_part(self._item, self._used, self._used + taken, self._level))
            self._used, self._left, length = self._used + taken, self._left - taken, length - taken
        return part


def _cut_at_boundaries(items: Items, lengths: list[Size], start: Size, stop: Size) -> list[Item]:
    """Symbolic cuts are made only where an item ends: no order of sizes needs to be known for that."""
    ends: list[Size] = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    if start not in ends or stop not in ends:
        return _part_of_one(items, ends, start, stop)
    first, last = ends.index(start), ends.index(stop)
    if last < first:
        raise Undecidable("a slice whose end may lie before its start")
    return list(items[first:last])


def _part_of_one(items: Items, ends: list[Size], start: Size, stop: Size) -> list[Item]:
    """A cut inside one run, where the order of sizes happens to be known."""
    for item, begin, end in zip(items, ends, ends[1:], strict=False):
        try:
            inside = begin <= start and start <= stop and stop <= end
        except Undecidable:
            continue
        if inside and isinstance(item, Leaf):
            return [item._replace(start=item.start + (start - begin), length=stop - start)]
    raise Undecidable("a slice at a symbolic position that no boundary matches")


def _part(item: Item, start: Size, stop: Size, level: int) -> list[Item]:
    if isinstance(item, Leaf):
        return [item._replace(start=item.start + start, length=stop - start)]
    row = item.row
    first, last = start // row, stop // row
    if first == last:
        return cut(instance(item.body, first, level), start - first * row, stop - first * row, level)
    out: list[Item] = []
    if start % row != 0:
        out.extend(cut(instance(item.body, first, level), start % row, row, level))
        first = first + 1
    if first != last:
        moved = each_leaf(item.body, lambda leaf: shifted(leaf, first, level))
        out.append(Loop(last - first, moved, row))
    if stop % row != 0:
        out.extend(cut(instance(item.body, last, level), 0, stop % row, level))
    return out


def rows_of(items: Items, count: Size, row: Size) -> Items | None:
    """The items as ``count`` equal rows: the body of the loop over them, None when rows are not alike."""
    if len(items) == 1:
        only = items[0]
        if isinstance(only, Leaf):
            return (only._replace(length=row, strides=(row,)),)
        if only.times == count:
            return only.body
        if isinstance(count, int) and isinstance(only.times, int) and only.times % count == 0:
            return _regroup(only, only.times // count)
    return unify(explicit_rows(items, count, row))


def _regroup(loop: Loop, rows: int) -> Items:
    """Some rows of a loop as one row."""
    body = each_leaf(loop.body, lambda leaf: leaf._replace(strides=(rows * leaf.strides[0], *leaf.strides)))
    return (Loop(rows, body, loop.row),)


def explicit_rows(items: Items, count: Size, row: Size) -> list[Items]:
    """Every row by itself."""
    if not isinstance(count, int):
        raise Undecidable("a symbolic number of rows")
    if count * len(items) > MAX_ITEMS:
        raise Undecidable("a layout with too many pieces")
    return [normalise(cut(items, r * row, (r + 1) * row)) for r in range(count)]


def unify(rows: Sequence[Items]) -> Items | None:
    """The body of a loop over rows that differ by a constant step in every run; None when they do not."""
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        return None
    body: list[Item] = []
    for column in zip(*rows, strict=True):
        item = _unify_column(column)
        if item is None:
            return None
        body.append(item)
    return tuple(body)


def _unify_column(column: Sequence[Item]) -> Item | None:
    first = column[0]
    if isinstance(first, Loop):
        loops = [item for item in column if isinstance(item, Loop)]
        if len(loops) != len(column) or any((p.times, p.row) != (first.times, first.row) for p in loops):
            return None
        inner = unify([p.body for p in loops])
        return None if inner is None else first._replace(body=inner)
    runs = [item for item in column if isinstance(item, Leaf)]
    same = (first.source, first.length, first.strides)
    if len(runs) != len(column) or any((p.source, p.length, p.strides) != same for p in runs):
        return None
    step: Size = runs[1].start - first.start if len(runs) > 1 else 0
    if any(p.start != first.start + r * step for r, p in enumerate(runs)):
        return None
    return first._replace(strides=(step, *first.strides))
