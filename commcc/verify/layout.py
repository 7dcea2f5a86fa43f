"""Which elements of which sources a tensor holds, in row-major order, in a normal form.

The content of a tensor is a sequence of items. A :class:`Leaf` is a run of neighbouring elements of one
source; a :class:`Loop` repeats a body, and every leaf inside moves on by a stride of its own. Flatten,
reshape and views do not change a content at all; merging and splitting collectives regroup it::

    cat([x, y])             x[0:6] y[0:4]
    all_gather over 8       8 * (ag(x)[0:6]+6  ag(y)[0:4]+4)      what one merged launch returns
    split on dim 1, first   8 * (ag(x)[0:6]+6)  ==  ag(x)[0:48]   what x's own launch returned

Two contents with equal numbers hold the same elements. Limits: the reverse holds for layouts that are
regular along the dimensions that were cut; layouts past :data:`MAX_ITEMS` items or :data:`MAX_DEPTH`
nested loops raise :class:`Undecidable`.

Parts and rows of a layout are what slices, splits and joins along a dimension need::

    cut(items, 2, 5)              # elements 2, 3 and 4
    cut_all(items, (4, 4))        # two neighbouring parts
    rows_of(items, 8, 10)         # the body of a loop over 8 rows of 10 elements, if there is one
    row_ranges(items, 8, 10)      # the fewest ranges of rows that are alike, such as 5 rows of x, then 3 of y

Symbolic cuts are made only at boundaries; anything else raises :class:`Undecidable`.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from commcc.verify.sizes import Size, Undecidable
from commcc.verify.terms import LAYOUT, Item, Items, Leaf, Loop, leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from commcc.verify.terms import Terms

MAX_ITEMS = 1 << 16
MAX_DEPTH = 6


def items_of(table: Terms, content: int) -> Items:
    """The items of any content; a source is one run of all its elements."""
    items = table.layout_of(content)
    return (Leaf(content, 0, table.numel(content), ()),) if items is None else items


def intern(table: Terms, items: Iterable[Item]) -> int:
    """The content that these items stand for."""
    normal = normalise(items)
    if len(normal) == 1 and isinstance(normal[0], Leaf):
        leaf = normal[0]
        if leaf.start == 0 and leaf.length == table.numel(leaf.source):
            return leaf.source
    content = table.intern((LAYOUT, normal))
    return table.same.get(content, content)


def length_of(item: Item) -> Size:
    return item.length if isinstance(item, Leaf) else item.times * item.row


def total(items: Iterable[Item]) -> Size:
    """Number of elements."""
    result: Size = 0
    for item in items:
        result = result + length_of(item)
    return result


def normalise(items: Iterable[Item], depth: int = 0) -> Items:
    """Neighbouring runs joined, loops that are runs turned into runs, empty items dropped."""
    if depth > MAX_DEPTH:
        raise Undecidable("a layout with too many nested loops")
    out: list[Item] = []
    for item in items:
        for part in (item,) if isinstance(item, Leaf) else _simplify(item, depth):
            _append(out, part, depth)
    if len(out) > MAX_ITEMS:
        raise Undecidable("a layout with too many pieces")
    return tuple(out)


def _append(out: list[Item], item: Item, depth: int) -> None:
    if length_of(item) == 0:
        return
    while out:
        joined = _joined(out[-1], item, depth)
        if joined is None:
            break
        out.pop()
        item = joined
    out.append(item)


def _joined(first: Item, second: Item, depth: int) -> Item | None:
    """Two neighbours as one item, None when the second does not carry on where the first ends."""
    if isinstance(first, Leaf) and isinstance(second, Leaf):
        if (first.source, first.strides) != (second.source, second.strides):
            return None
        follows = first.start + first.length == second.start
        return first._replace(length=first.length + second.length) if follows else None
    if isinstance(first, Loop) and isinstance(second, Loop):
        follows = first.row == second.row and second.body == _moved(first.body, first.times, depth)
        return first._replace(times=first.times + second.times) if follows else None
    if isinstance(first, Loop):
        follows = len(first.body) == 1 and instance(first.body, first.times, depth) == (second,)
        return first._replace(times=first.times + 1) if follows else None
    if isinstance(second, Loop) and len(second.body) == 1 and instance(second.body, -1, depth) == (first,):
        return Loop(second.times + 1, _moved(second.body, -1, depth), second.row)
    return None


def _moved(body: Items, rows: Size, depth: int) -> Items:
    return map_leaves(body, lambda leaf: shifted(leaf, rows, depth))


def _simplify(loop: Loop, depth: int) -> Items:
    body = normalise(loop.body, depth + 1)
    if loop.times == 0 or not body:
        return ()
    if loop.times == 1:
        return normalise(instance(body, 0, depth), depth)
    if len(body) > 1:
        return (loop._replace(body=body),)
    only = body[0]
    if isinstance(only, Leaf):
        if only.strides[depth] == only.length:
            return (Leaf(only.source, only.start, only.length * loop.times, only.strides[:depth]),)
    elif all(leaf.strides[depth] == only.times * leaf.strides[depth + 1] for leaf in leaves(only.body)):
        inner = map_leaves(only.body, lambda leaf: leaf._replace(strides=_drop(leaf.strides, depth)))
        return (Loop(loop.times * only.times, inner, only.row),)
    return (loop._replace(body=body),)


def map_leaves(items: Iterable[Item], change: Callable[[Leaf], Leaf]) -> Items:
    """The same loops with every run replaced."""
    return tuple(
        change(item) if isinstance(item, Leaf) else item._replace(body=map_leaves(item.body, change)) for item in items
    )


def _drop(strides: tuple[Size, ...], level: int) -> tuple[Size, ...]:
    return (*strides[:level], *strides[level + 1 :])


def instance(body: Items, row: Size, level: int) -> Items:
    """One repetition of the body of a loop that is at nesting ``level``."""

    def fix(leaf: Leaf) -> Leaf:
        return leaf._replace(start=leaf.start + row * leaf.strides[level], strides=_drop(leaf.strides, level))

    return map_leaves(body, fix)


def shifted(leaf: Leaf, rows: Size, level: int) -> Leaf:
    """The run that a leaf is some repetitions further on, in the loop at nesting ``level``."""
    return leaf._replace(start=leaf.start + rows * leaf.strides[level])


# Parts and rows


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
        moved = map_leaves(item.body, lambda leaf: shifted(leaf, first, level))
        out.append(Loop(last - first, moved, row))
    if stop % row != 0:
        out.extend(cut(instance(item.body, last, level), 0, stop % row, level))
    return out


class Rows(NamedTuple):
    """``number`` rows of one layout: the body of the loop over them."""

    number: int
    body: Items


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
        if isinstance(row, int) and isinstance(only.row, int) and only.row % row == 0:
            return None  # loops within loops: were all rows alike, this would be one loop
    ranges = row_ranges(items, count, row)
    if len(ranges) == 1:
        return ranges[0].body
    return unify([instance(rows.body, 0, 0) for rows in ranges]) if all(rows.number == 1 for rows in ranges) else None


def _regroup(loop: Loop, rows: int, level: int = 0) -> Items:
    """Some rows of a loop as one row."""

    def change(leaf: Leaf) -> Leaf:
        stride = leaf.strides[level]
        return leaf._replace(strides=(*leaf.strides[:level], rows * stride, stride, *leaf.strides[level + 1 :]))

    return (Loop(rows, map_leaves(loop.body, change), loop.row),)


def row_ranges(items: Items, count: Size, row: Size) -> list[Rows]:
    """The items as neighbouring ranges of rows that are alike, as few as can be seen; not one by one."""
    if not isinstance(count, int):
        raise Undecidable("a symbolic number of rows")
    if row == 0:
        return [Rows(count, ())]
    ranges: list[Rows] = []
    pieces = 0  # in all parts together
    for part, rows in _aligned(items, row, 0):
        body = _rows_of_one(part[0], rows, row, 0) if len(part) == 1 else None
        if body is not None:
            _extend(ranges, Rows(rows, body))
            continue
        pieces += rows * len(part)
        _check_pieces(pieces)
        for one_row in explicit_rows(part, rows, row):
            # A loop of one row may have any stride.
            _extend(ranges, Rows(1, map_leaves(one_row, lambda leaf: leaf._replace(strides=(0, *leaf.strides)))))
    return ranges


def _extend(ranges: list[Rows], more: Rows) -> None:
    """Add rows that follow: to the last range where they carry on with what it does."""
    if ranges and max(ranges[-1].number, more.number) > 1:
        last = ranges[-1]
        if last.number > 1 and instance(last.body, last.number, 0) == instance(more.body, 0, 0):
            if more.number == 1 or more.body == _moved(last.body, last.number, 0):
                ranges[-1] = last._replace(number=last.number + more.number)
                return
        elif last.number == 1 and instance(more.body, -1, 0) == instance(last.body, 0, 0):
            ranges[-1] = Rows(more.number + 1, _moved(more.body, -1, 0))
            return
    ranges.append(more)


def narrow_rows(items: Items, row: Size, begin: Size, end: Size, level: int = 0) -> list[Item]:
    """Elements ``begin`` to ``end`` of every row of items that are inside ``level`` loops."""
    if row == 0:
        return []
    out: list[Item] = []
    pieces = 0
    for part, rows in _aligned(items, row, level):
        only = part[0] if len(part) == 1 else None
        body = None if only is None else _rows_of_one(only, rows, row, level)
        if body is not None:
            out.append(Loop(rows, tuple(cut(body, begin, end, level + 1)), end - begin))
        elif isinstance(only, Loop) and only.row % row == 0:
            inner = narrow_rows(only.body, row, begin, end, level + 1)
            out.append(Loop(only.times, tuple(inner), total(inner)))
        else:
            pieces += rows * len(part)
            _check_pieces(pieces)
            for at in range(rows):
                out.extend(cut(part, at * row + begin, at * row + end, level))
    return out


def joined_rows(parts: Sequence[tuple[Items, Size]], count: Size, level: int = 0) -> list[Item] | None:
    """Row after row of several items, each with the size of its rows; None where the rows of one are not a loop.

    Loops within loops stay so: the rows of ``[256, 16, 192]`` are 256 times 16 rows, not 4096.
    """
    bodies = [_body_of(items, count, row, level) for items, row in parts]
    whole: Size = 0
    for _, row in parts:
        whole = whole + row
    if all(body is not None for body in bodies):
        return [Loop(count, tuple(item for body in bodies if body is not None for item in body), whole)]
    for items, row in parts:
        only = items[0] if len(items) == 1 else None
        if isinstance(only, Loop) and all(isinstance(n, int) for n in (only.times, only.row, row)):
            inner = only.row // row
            if inner > 1 and inner * row == only.row and only.times * inner == count:
                outer = [_body_of(part, only.times, inner * size, level) for part, size in parts]
                nests = [(body, size) for body, (_, size) in zip(outer, parts, strict=True) if body is not None]
                joined = joined_rows(nests, inner, level + 1) if len(nests) == len(parts) else None
                return None if joined is None else [Loop(only.times, tuple(joined), inner * whole)]
    return None


def _body_of(items: Items, count: Size, row: Size, level: int) -> Items | None:
    """The body of a loop over the rows of one item; None when it is not one loop."""
    if len(items) != 1 or (isinstance(items[0], Loop) and not isinstance(items[0].row * row, int)):
        return None
    only = items[0]
    if isinstance(only, Loop) and only.row == row and only.times != count:
        return None
    return _rows_of_one(only, count, row, level) if row != 0 else None


def _aligned(items: Items, row: Size, level: int) -> Iterator[tuple[Items, int]]:
    """Items cut at the ends of rows as rarely as possible: each part with the number of rows that it is."""
    lengths = [length_of(item) for item in items]
    if not isinstance(row, int) or not all(isinstance(length, int) for length in lengths):
        raise Undecidable("rows of a symbolic size")
    pending: list[Item] = []
    missing: Any = 0
    for item, length in zip(items, lengths, strict=True):
        used: Any = min(missing, length)
        if used:
            pending.extend([item] if used == length else _part(item, 0, used, level))
            missing -= used
            if missing == 0:
                yield tuple(pending), 1
                pending = []
        whole = (length - used) // row * row
        if whole:
            yield (item,) if whole == length else tuple(_part(item, used, used + whole, level)), whole // row
        if used + whole < length:
            pending = _part(item, used + whole, length, level)
            missing = row - (length - used - whole)


def _rows_of_one(item: Item, rows: Size, row: Size, level: int) -> Items | None:
    """One item as rows: the body of the loop over them, None when it takes more than one loop to say."""
    if isinstance(item, Leaf):
        return (item._replace(length=row, strides=(*item.strides, row)),)
    if item.row == row:
        return item.body
    if not isinstance(row, int) or not isinstance(item.row, int):
        raise Undecidable("rows of a symbolic size")
    return _regroup(item, row // item.row, level) if row % item.row == 0 else None


def explicit_rows(items: Items, count: Size, row: Size) -> list[Items]:
    """Every row by itself."""
    if not isinstance(count, int):
        raise Undecidable("a symbolic number of rows")
    _check_pieces(count * len(items))
    return [normalise(part) for part in cut_all(items, [row] * count)]


def _check_pieces(count: int) -> None:
    if count > MAX_ITEMS:
        raise Undecidable("a layout with too many pieces")


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
