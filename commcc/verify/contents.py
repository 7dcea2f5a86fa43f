"""What pointwise ops, gathers and scatters do to a content: they act on every source by itself.

Each of these ops moves or changes elements without looking at their neighbours, so the result of the
op on a concatenation is the concatenation of its results. Writing results that way makes merged, split
and single collectives the same term::

    all_gather(cat(x, y))  =  W * (ag(x) ag(y))        ag(x): x of rank 0, then of rank 1, ...
    all_reduce(x[2:5])     =  ar(x)[2:5]
    reduce_scatter of W * (x y)  =  rs(x) rs(y)

A term such as ``ag(x)`` is the gather of the whole source, whether or not any node computes it.
The rest asks about contents: how much work they stand for, whether two that are written differently hold the same
elements, and what a storage holds once something was written to part of it::

    spliced(table, slot, x, slot[2:4], y)     the content x[0:2] y x[4:6]

Limits: see :mod:`commcc.verify.layout`; a reduce-scatter of rows that are cut differently is not expanded. Contents of
more than :data:`MAX_RUNS` runs are not compared run by run, views in more than :data:`MAX_PIECES` are not written to.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from commcc.verify.layout import (
    MAX_ITEMS,
    cut,
    explicit_rows,
    instance,
    intern,
    items_of,
    length_of,
    map_leaves,
    rows_of,
    total,
)
from commcc.verify.sizes import Size, Undecidable, number
from commcc.verify.terms import Item, Items, Leaf, Loop, leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from commcc.verify.terms import Terms

MAX_RUNS = 1 << 16
MAX_PIECES = 1 << 12


CAST = "cast"
BITS = "bits"
GATHER = "all_gather"
SCATTER = "reduce_scatter"
REDUCE = "all_reduce"
BROADCAST = "broadcast"
#: Sources that stand for the work of an op on part of a tensor, counted in elements.
COUNTED = frozenset({CAST, GATHER, SCATTER, REDUCE, BROADCAST})


class Over(NamedTuple):
    """The group of a collective (as a term key) and, for reductions, what is computed."""

    group: Any
    reduction: str = ""


def _on_sources(table: Terms, content: int, change: Callable[[int], int]) -> int:
    items = table.layout_of(content)
    if items is None:
        return change(content)
    return intern(table, map_leaves(items, lambda leaf: leaf._replace(source=change(leaf.source))))


def cast(table: Terms, content: int, dtype: torch.dtype | None, how: tuple[Any, ...]) -> int:
    """Every element converted; ``how`` is what else the conversion was asked to do (device, layout).

    A conversion of what was widened without loss is a conversion of what was there before.
    """

    return _on_sources(table, content, lambda source: _converted(table, source, dtype or table.dtype.get(source), how))


def _converted(table: Terms, source: int, result: torch.dtype | None, how: tuple[Any, ...]) -> int:
    while not how and is_widening(table, source):
        narrow = table.keys[source][1]
        if not _skips(table.dtype[narrow], table.dtype[source], result):
            break
        source = narrow
    if not how and result is not None and table.dtype.get(source) == result:
        return source
    return table.source((CAST, source, str(result), how), table.numel(source), result)


#: Dtypes whose elements are numbers one by one, as conversions see them.
_REAL = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
_FLOAT8 = frozenset(
    {
        *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
        torch.float8_e8m0fnu,
    }
)
_WHOLE = frozenset(
    {
        *(torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    }
)


@lru_cache(maxsize=1024)
def widens(old: torch.dtype | None, new: torch.dtype | None) -> bool:
    """Whether ``new`` holds every value of ``old`` exactly; tested on all values of all small dtypes."""
    if old == new:
        return old in _REAL | _FLOAT8 | _WHOLE | {torch.bool}
    if old is torch.bool:
        return new in _REAL | _FLOAT8 | _WHOLE and new is not torch.float8_e8m0fnu  # which has no 0
    if old in _WHOLE and new in _WHOLE:
        return torch.iinfo(new).min <= torch.iinfo(old).min and torch.iinfo(old).max <= torch.iinfo(new).max
    if old in _WHOLE and new in _REAL:
        limits = torch.iinfo(old)
        return max(abs(limits.min), limits.max) <= min(2 / torch.finfo(new).eps, torch.finfo(new).max)
    if old not in _REAL | _FLOAT8 or new not in _REAL:
        return False
    small, large = torch.finfo(old), torch.finfo(new)
    return large.eps <= small.eps and large.max >= small.max and large.tiny * large.eps <= small.tiny * small.eps


def adds_up(old: torch.dtype | None, new: torch.dtype | None) -> bool:
    """Whether parts of a sum that get another dtype add up to the sum in that dtype.

    Not if they are rounded. Of integers each part may have wrapped around, and the sum of all once more: bits may be
    cut off then, and none put in front.
    """
    if old is None or new is None or old == new:
        return old is not None and new is not None
    if not (is_whole(old) or is_whole(new)):
        return widens(old.to_real(), new.to_real())
    return torch.bool not in (old, new) and is_whole(old) and is_whole(new) and new.itemsize <= old.itemsize


def is_whole(dtype: object) -> bool:
    """Whether a dtype holds whole numbers only."""
    return isinstance(dtype, torch.dtype) and not (dtype.is_floating_point or dtype.is_complex)


def _skips(old: torch.dtype, wide: torch.dtype, new: torch.dtype | None) -> bool:
    """Whether a conversion by way of a wider dtype is the direct one.

    Numbers out of range and NaN are anything when floats become integers; between integers, bits are cut off.
    """
    if new not in _WHOLE or widens(old, new):
        return new is not None
    return old in _WHOLE and wide in _WHOLE


def is_widening(table: Terms, source: int) -> bool:
    """Whether a source is a conversion that loses nothing, so that it is as good as what it converts."""
    key = table.keys[source]
    return key[0] == CAST and key[3] == () and widens(table.dtype.get(key[1]), table.dtype.get(source))


def reinterpret(table: Terms, content: int, dtype: torch.dtype) -> int:
    """The same bytes read as another dtype."""

    def change(leaf: Leaf) -> Leaf:
        source, old = leaf.source, table.dtype.get(leaf.source)
        if old is None:
            raise Undecidable("a tensor whose dtype is not known")
        key = table.keys[source]
        origin = key[1] if key[0] == BITS else source
        numel = _scaled(table.numel(source), old, dtype)
        new = origin if table.dtype.get(origin) == dtype else table.source((BITS, origin, str(dtype)), numel, dtype)
        start, length, *strides = (_scaled(n, old, dtype) for n in (leaf.start, leaf.length, *leaf.strides))
        return Leaf(new, start, length, tuple(strides))

    items = items_of(table, content)
    dtypes = {table.dtype.get(leaf.source) for leaf in leaves(items)}
    if len(dtypes) != 1 or None in dtypes:
        raise Undecidable("bytes of several dtypes")
    return intern(table, _rescaled(map_leaves(items, change), next(d for d in dtypes if d is not None), dtype))


def _rescaled(items: Items, old: torch.dtype, new: torch.dtype) -> Items:
    """Rows of loops counted in elements of another dtype."""
    return tuple(
        item
        if isinstance(item, Leaf)
        else Loop(item.times, _rescaled(item.body, old, new), _scaled(item.row, old, new))
        for item in items
    )


def _scaled(count: Size, old: torch.dtype, new: torch.dtype) -> Size:
    if (count * old.itemsize) % new.itemsize != 0:
        raise Undecidable("bytes that are not whole elements")
    return count * old.itemsize // new.itemsize


def pointwise(table: Terms, content: int, kind: str, how: tuple[Any, ...]) -> int:
    """All-reduce and broadcast: element ``i`` of the result depends on element ``i`` of every rank's."""

    def change(source: int) -> int:
        return table.source((kind, source, how), table.numel(source), table.dtype.get(source))

    return _on_sources(table, content, change)


def gather(table: Terms, content: int, size: int, over: Over) -> int:
    """The contents of all ``size`` ranks after one another."""
    items = items_of(table, content)

    def change(leaf: Leaf) -> Leaf:
        source = _gathered(table, leaf.source, size, over)
        return leaf._replace(source=source, strides=(table.numel(leaf.source), *leaf.strides))

    return intern(table, [Loop(size, map_leaves(items, change), total(items))])


def _gathered(table: Terms, source: int, size: int, over: Over) -> int:
    key = table.keys[source]
    numel, dtype = table.numel(source) * size, table.dtype.get(source)
    if key[0] == BITS:
        return table.source((BITS, _gathered(table, key[1], size, over), key[2]), numel, dtype)
    return table.source((GATHER, source, size, over.group), numel, dtype)


def scatter(table: Terms, content: int, size: int, over: Over) -> int:
    """This rank's row of the reduction over all ranks of a content seen as ``size`` rows."""
    items = items_of(table, content)
    length = total(items)
    if length % size != 0:
        raise Undecidable("a reduce-scatter that does not divide evenly")
    row = length // size
    if size == 1:
        return intern(table, map_leaves(items, lambda leaf: _scattered(table, leaf, 0, 1, over)))
    body = rows_of(items, size, row)
    if body is None:
        return intern(table, _scatter_rows(table, explicit_rows(items, size, row), over))

    def change(leaf: Leaf) -> Leaf:
        return _scattered(table, leaf._replace(strides=leaf.strides[1:]), leaf.strides[0], size, over)

    return intern(table, map_leaves(body, change))


def _scattered(table: Terms, leaf: Leaf, stride: Size, size: int, over: Over) -> Leaf:
    """A run that every rank finds ``stride`` elements further on in its own source."""
    numel = table.numel(leaf.source)
    whole = stride * size == numel
    key = (SCATTER, leaf.source, ("int", stride), size, over)
    return leaf._replace(source=table.source(key, stride if whole else numel, table.dtype.get(leaf.source)))


def _scatter_rows(table: Terms, rows: Sequence[Items], over: Over) -> list[Item]:
    """Rows that read different sources: every run of the result is named by the runs it reduces."""
    if any(isinstance(item, Loop) for row in rows for item in row):
        raise Undecidable("a reduce-scatter of rows that are laid out differently")
    lengths = [[number(length_of(item), "a symbolic cut") for item in row] for row in rows]
    marks = sorted({mark for row in lengths for mark in itertools.accumulate(row)})
    if len(marks) * len(rows) > MAX_ITEMS:
        raise Undecidable("a layout with too many pieces")
    out: list[Item] = []
    for start, stop in zip([0, *marks], marks, strict=False):
        column = [cut(row, start, stop)[0] for row in rows]
        out.append(_scatter_column(table, [leaf for leaf in column if isinstance(leaf, Leaf)], over))
    return out


def _scatter_column(table: Terms, column: list[Leaf], over: Over) -> Leaf:
    first, second = column[0], column[1]
    step = second.start - first.start
    if all(leaf.source == first.source and leaf.start == first.start + r * step for r, leaf in enumerate(column)):
        return _scattered(table, first, step, len(column), over)
    runs = tuple((leaf.source, ("int", leaf.start - first.start)) for leaf in column)
    key, numel = (SCATTER, runs, over), table.numel(first.source)
    return first._replace(source=table.source(key, numel, table.dtype.get(first.source)))


# What contents stand for


def counts(table: Terms, content: int) -> dict[int, Size]:
    """Elements of a content by source, for the sources that stand for work; of what is gathered as bytes, elements too.

    Bytes that are no whole elements count one each.
    """
    elements: dict[int, Size] = {}
    _count(items_of(table, content), 1, elements)
    work: dict[int, Size] = {}
    for seen, count in elements.items():
        source = gathered_as(table, seen)
        own, dtype = table.dtype.get(seen), table.dtype.get(source)
        sent = count
        if source != seen and own is not None and dtype is not None:
            with suppress(Undecidable):
                sent = _scaled(count, own, dtype)
        if table.keys[source][0] in COUNTED:
            work[source] = work.get(source, 0) + sent
    return work


def gathered_as(table: Terms, source: int) -> int:
    """The gather of elements that a gather of their bytes is; any other source itself."""
    key = table.keys[source]
    return key[1] if key[0] == BITS and table.keys[key[1]][0] == GATHER else source


def _count(items: Items, times: Size, elements: dict[int, Size]) -> None:
    for item in items:
        if isinstance(item, Leaf):
            elements[item.source] = elements.get(item.source, 0) + times * item.length
        else:
            _count(item.body, times * item.times, elements)


def same_elements(table: Terms, first: int, second: int) -> bool:
    """Whether two contents are equal element by element; :class:`Undecidable` when that cannot be told."""
    one, other = items_of(table, first), items_of(table, second)
    if _totals(one) != _totals(other):
        return False
    return _runs(one) == _runs(other)


def _totals(items: tuple[Item, ...]) -> Counter[int]:
    """Elements by source."""
    totals: Counter[int] = Counter()
    stack: list[tuple[Item, int]] = [(item, 1) for item in items]
    while stack:
        item, times = stack.pop()
        if isinstance(item, Leaf):
            totals[item.source] += times * number(item.length)
        else:
            stack.extend((inner, times * number(item.times)) for inner in item.body)
    return totals


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
            times = number(item.times)
            if times > MAX_RUNS:
                raise Undecidable("contents in too many pieces")
            for row in reversed(range(times)):
                stack.extend(reversed(instance(item.body, row, 0)))
            continue
        start, length = number(item.start), number(item.length)
        if runs and runs[-1][0] == item.source and runs[-1][2] == start:
            runs[-1] = (item.source, runs[-1][1], start + length)
        else:
            runs.append((item.source, start, start + length))
    return runs


# Places in memory


class Run(NamedTuple):
    """``length`` neighbouring elements of a storage from ``start``; ``taken``: how many of the view come before."""

    start: int
    length: int
    taken: int


def spliced(table: Terms, slot: int, old: int | None, at: int, new: int) -> int:
    """The content of a storage that held ``old`` once ``new`` is written where the layout ``at`` over ``slot`` says."""
    if at == slot:
        return new
    if old is None:
        raise Undecidable("a storage whose elements are not known")
    before, brought = items_of(table, old), items_of(table, new)
    out: list[Item] = []
    position: Size = 0
    for run in sorted(runs_of(table, slot, at)):
        if run.start < position:
            raise Undecidable("a view that holds an element twice")
        out.extend(cut(before, position, run.start))
        out.extend(cut(brought, run.taken, run.taken + run.length))
        position = run.start + run.length
    out.extend(cut(before, position, total(before)))
    return intern(table, out)


def runs_of(table: Terms, slot: int, at: int) -> list[Run]:
    """The runs of neighbouring elements that a view holds, in its own order."""
    runs: list[Run] = []
    taken = 0
    for leaf in unrolled(items_of(table, at)):
        if leaf.source != slot or not isinstance(leaf.start, int) or not isinstance(leaf.length, int):
            raise Undecidable("a view whose place in memory is not known")
        runs.append(Run(leaf.start, leaf.length, taken))
        taken += leaf.length
    return runs


def meet(targets: Iterable[tuple[Run, int]], others: Iterable[tuple[Run, int]]) -> bool:
    """Whether a run of one target overlaps with one of another target, or of others; runs with the same number are one
    pair's, which may.
    """
    spans = sorted((run.start, run.start + run.length, at) for run, at in targets if run.length)
    begins = [start for start, _, _ in spans]
    if any(end > start for (_, end, _), (start, _, _) in itertools.pairwise(spans)):
        return True
    for run, at in others:
        place = max(0, bisect_right(begins, run.start) - 1)
        for start, end, other in spans[place:]:
            if start >= run.start + run.length:
                break
            if end > run.start and other != at:
                return True
    return False


def unrolled(items: Items) -> list[Leaf]:
    """All runs with loops unrolled, in order."""
    if _pieces(items) > MAX_PIECES:
        raise Undecidable("a view in too many pieces")
    runs: list[Leaf] = []
    for item in items:
        if isinstance(item, Leaf):
            runs.append(item)
        else:
            for row in range(number(item.times)):
                runs.extend(unrolled(instance(item.body, row, 0)))
    return runs


def _pieces(items: Items) -> int:
    """How many runs there are, each as often as it is repeated."""
    return sum(1 if isinstance(item, Leaf) else number(item.times) * _pieces(item.body) for item in items)
