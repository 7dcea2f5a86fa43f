"""Which elements of which sources a tensor holds, in row-major order, in a normal form.

The content of a tensor is a sequence of items. A :class:`Leaf` is a run of neighbouring elements of one
source; a :class:`Loop` repeats a body, and every leaf inside moves on by a stride of its own. Flatten,
reshape and views do not change a content at all; merging and splitting collectives regroup it::

    cat([x, y])             x[0:6] y[0:4]
    all_gather over 8       8 * (ag(x)[0:6]+6  ag(y)[0:4]+4)      what one merged launch returns
    split on dim 1, first   8 * (ag(x)[0:6]+6)  ==  ag(x)[0:48]   what x's own launch returned

Two contents with equal numbers hold the same elements. Limits: the reverse holds for layouts that are
regular along the dimensions that were cut; layouts past :data:`MAX_ITEMS` items or :data:`MAX_DEPTH`
nested loops, and symbolic cuts that no boundary matches, raise :class:`Undecidable`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from commcc.verify.sizes import Size, Undecidable
from commcc.verify.table import LAYOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from commcc.verify.table import Terms

MAX_ITEMS = 1 << 16
MAX_DEPTH = 6


class Leaf(NamedTuple):
    """``length`` elements of ``source`` from ``start``; one stride for each loop around it, outermost first."""

    source: int
    start: Size
    length: Size
    strides: tuple[Size, ...]


class Loop(NamedTuple):
    """``times`` repetitions of the body, which is ``row`` elements long."""

    times: Size
    body: tuple[Leaf | Loop, ...]
    row: Size


Item: TypeAlias = Leaf | Loop
Items: TypeAlias = "tuple[Item, ...]"


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
    return each_leaf(body, lambda leaf: shifted(leaf, rows, depth))


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
        inner = each_leaf(only.body, lambda leaf: leaf._replace(strides=_drop(leaf.strides, depth)))
        return (Loop(loop.times * only.times, inner, only.row),)
    return (loop._replace(body=body),)


def leaves(items: Iterable[Item]) -> list[Leaf]:
    """All runs, those inside loops once."""
    found: list[Leaf] = []
    for item in items:
        if isinstance(item, Leaf):
            found.append(item)
        else:
            found.extend(leaves(item.body))
    return found


def each_leaf(items: Iterable[Item], change: Callable[[Leaf], Leaf]) -> Items:
    """The same loops with every run replaced."""
    return tuple(
        change(item) if isinstance(item, Leaf) else item._replace(body=each_leaf(item.body, change)) for item in items
    )


def _drop(strides: tuple[Size, ...], level: int) -> tuple[Size, ...]:
    return (*strides[:level], *strides[level + 1 :])


def instance(body: Items, row: Size, level: int) -> Items:
    """One repetition of the body of a loop that is at nesting ``level``."""

    def fix(leaf: Leaf) -> Leaf:
        return leaf._replace(start=leaf.start + row * leaf.strides[level], strides=_drop(leaf.strides, level))

    return each_leaf(body, fix)


def shifted(leaf: Leaf, rows: Size, level: int) -> Leaf:
    """The run that a leaf is some repetitions further on, in the loop at nesting ``level``."""
    return leaf._replace(start=leaf.start + rows * leaf.strides[level])
