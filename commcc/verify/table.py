"""The term table: every value of both graphs as a number, equal values as equal numbers.

A term is a tuple that is kept once::

    table = Terms()
    x = table.source(("input", "primals_1"), numel=32, dtype=torch.float32)
    y = table.source(("op", "aten.relu.default", (x,)), numel=32, dtype=torch.float32)

A *source* is a term that stands for an array of elements in row-major order; the *content* of a tensor
is a source, or a layout term that says which elements of which sources follow one another (see
:mod:`commcc.verify.layout`). One table serves both graphs, so comparing values is comparing numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.verify.sizes import Undecidable

if TYPE_CHECKING:
    import torch

    from commcc.verify.layout import Item
    from commcc.verify.sizes import Size
    from commcc.verify.subgraphs import Summary
    from commcc.verify.values import Meta, Shape

LAYOUT = "layout"


class Terms:
    """Hash-consed terms, with the number of elements and the dtype of those that are sources.

    undecided: terms made because something could not be decided; a difference that involves one is
    a gap in the proof, not a difference. metas: shapes, strides and dtypes that nodes with this term had.
    strides: how the operands of ops were laid out in the first graph, by the op's term.
    same: contents found to hold the elements of another one, in another normal form.
    summaries: what sub-graphs do, by term. subgraphs: terms of sub-graphs already traced, by identity.
    """

    def __init__(self) -> None:
        self._ids: dict[tuple[Any, ...], int] = {}
        self.keys: list[tuple[Any, ...]] = []
        self._numel: dict[int, Size] = {}
        self.dtype: dict[int, torch.dtype] = {}
        self.undecided: dict[int, str] = {}
        self.metas: dict[int, list[Meta]] = {}
        self.strides: dict[int, set[tuple[Shape | None, ...]]] = {}
        self.summaries: dict[int, Summary] = {}
        self.same: dict[int, int] = {}
        self.subgraphs: dict[int, tuple[int, object]] = {}
        self._sources: dict[int, tuple[int, ...]] = {}
        self._foreign: dict[int, tuple[int, Any]] = {}

    def intern(self, key: tuple[Any, ...]) -> int:
        """The number of a term; equal keys give equal numbers. Constants in keys carry their type."""
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self.keys)
            self.keys.append(key)
        return found

    def source(self, key: tuple[Any, ...], numel: Size | None, dtype: torch.dtype | None) -> int:
        """A term that is an array; the first caller's number of elements and dtype stand."""
        term = self.intern(key)
        if numel is not None:
            self._numel.setdefault(term, numel)
        if dtype is not None:
            self.dtype.setdefault(term, dtype)
        return term

    def function(self, name: str, operands: tuple[Size, ...]) -> int:
        """The term of an arithmetic function of sizes that has no simpler form."""
        return self.intern(("function", name, tuple(("int", o) for o in operands)))

    def foreign(self, value: Any) -> int:
        """The term of an object that has no key of its own: equal only to itself."""
        if id(value) not in self._foreign:
            term = self.intern(("object", type(value).__qualname__, len(self._foreign)))
            self.undecided[term] = f"an argument of type {type(value).__qualname__}"
            self._foreign[id(value)] = (term, value)
        return self._foreign[id(value)][0]

    def numel(self, source: int) -> Size:
        """Number of elements of a source; :class:`Undecidable` when its shape is not known."""
        size = self._numel.get(source)
        if size is None:
            raise Undecidable("a tensor whose shape is not known")
        return size

    def layout_of(self, content: int) -> tuple[Item, ...] | None:
        """The items of a layout term, None for a source."""
        key = self.keys[content]
        return key[1] if key[0] == LAYOUT else None

    def sources_of(self, content: int) -> tuple[int, ...]:
        """Every source that a content reads, in the order of first use."""
        found = self._sources.get(content)
        if found is None:
            items = self.layout_of(content)
            found = (content,) if items is None else tuple(dict.fromkeys(_leaves(items)))
            self._sources[content] = found
        return found


def _leaves(items: tuple[Item, ...]) -> list[int]:
    found: list[int] = []
    for item in items:
        if len(item) == 3:
            found.extend(_leaves(item[1]))
        else:
            found.append(item[0])
    return found
