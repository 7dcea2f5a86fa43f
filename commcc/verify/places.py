"""Writing known elements to part of a storage: what the whole storage holds afterwards.

Where a view is in its storage is itself a layout, over a source whose elements are numbered (``slot``)::

    spliced(table, slot, x, slot[2:4], y)     the content x[0:2] y x[4:6]

Limits: views in more than :data:`MAX_RUNS` runs and symbolic positions raise :class:`Undecidable`; so does
a storage of unknown elements, unless all of it is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from commcc.verify.cutting import cut
from commcc.verify.layout import Leaf, instance, intern, items_of, total
from commcc.verify.sizes import Size, Undecidable

if TYPE_CHECKING:
    from commcc.verify.layout import Item, Items
    from commcc.verify.table import Terms

MAX_RUNS = 1 << 12


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
    found: list[Run] = []
    taken = 0
    for leaf in unrolled(items_of(table, at)):
        if leaf.source != slot or not isinstance(leaf.start, int) or not isinstance(leaf.length, int):
            raise Undecidable("a view whose place in memory is not known")
        found.append(Run(leaf.start, leaf.length, taken))
        taken += leaf.length
    return found


def unrolled(items: Items) -> list[Leaf]:
    """All runs with loops unrolled, in order."""
    found: list[Leaf] = []
    for item in items:
        if isinstance(item, Leaf):
            found.append(item)
        elif not isinstance(item.times, int) or item.times * len(item.body) > MAX_RUNS:
            raise Undecidable("a view in too many pieces")
        else:
            for row in range(item.times):
                found.extend(unrolled(instance(item.body, row, 0)))
        if len(found) > MAX_RUNS:
            raise Undecidable("a view in too many pieces")
    return found
