"""Kinds of values: what the value of a whole module is to those of its chunks.

Rows(("tokens", 60), 0)        the rows of the chunks one after another, along dimension 0
Total()                        the sum over the chunks
Indices(("tokens", 120), "e")  where rows come from that every chunk has sorted by e
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import torch

if TYPE_CHECKING:
    from torch import fx

#: How rows follow one another: ("tokens", number of rows), ("sorted", order, key), ("received", ...).
Order: TypeAlias = "tuple[Any, ...]"


@dataclass(frozen=True)
class Rows:
    """Rows in an order, along one dimension.

    uniform: all rows are alike, so that any order of as many rows is this one. tag: what the rows say: ``ids`` for
    numbers of (rank, expert) of rows that were received, ``local`` for the number of the expert on this rank,
    ``segments`` for numbers of (expert, rank); ``zeros``; ``empty`` for memory to which nothing was written;
    ``chosen KEY`` where each element of a row says whether KEY names it.
    """

    order: Order
    dim: int
    uniform: bool = False
    tag: str = ""


@dataclass(frozen=True)
class Total:
    """The whole is the sum over the chunks. what: which numbers of rows these are, where that is known."""

    what: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Indices:
    """Where rows of ``order``, sorted by ``key``, come from; ``share`` of them are one row of what is indexed."""

    order: Order
    key: str
    share: int = 1
    local: bool = False

    @property
    def sorted(self) -> Order:
        return ("sorted", self.order, self.key)

    def into(self) -> Order:
        """The order of the rows that are pointed at."""
        kind, *rest = self.order
        return (kind, rest[0] // self.share) if kind == "tokens" else self.order


@dataclass(frozen=True)
class Column:
    """Indices as a column, or that column again and again: one number for all elements of a row."""

    indices: Indices


@dataclass(frozen=True)
class Inverse:
    """Where each row went that was sorted: what sorts the indices."""

    indices: Indices


@dataclass(frozen=True)
class Places:
    """A number for each row of ``order``, which differs from chunk to chunk: the sum of ``parts``.

    ``start`` is where the segment of the row begins among the rows that were received, ``-own start`` less where it
    begins among those of ``order``, ``row`` the number of the row itself.
    """

    order: Order
    parts: frozenset[str]


@dataclass(frozen=True)
class Number:
    """A size: how many rows a chunk has of something."""

    what: tuple[Any, ...]


Kind: TypeAlias = Union[Rows, Total, Indices, Column, Inverse, Places, Number, "tuple[Any, ...]"]


def sum_of(numbers: list[tuple[Any, ...]]) -> Number:
    """Of what all ranks get, or of what is sent to them all, it is as many rows as there are."""
    parts = [part for what in numbers for part in (what[1:] if what[0] == "sum" else (what,))]
    head, *rest = parts[0]
    ranks = rest[3] if head in ("got", "sent") else 0
    if len(parts) == ranks and sorted(parts, key=str) == sorted(((*parts[0][:-1], i) for i in range(ranks)), key=str):
        return Number(("rows", ("received", *rest[:5]) if head == "got" else rest[2]))
    return Number(("sum", *parts))


class Mixed(Exception):
    """Rows that may depend on each other, or an op without a rule; the text says where."""


def length(order: Order) -> Order:
    """How many rows an order has: sorting does not change that."""
    return length(order[1]) if order[0] == "sorted" else order


def shape_of(node: fx.Node) -> list[Any]:
    return list(getattr(node.meta.get("val"), "shape", ()))


def static(size: object) -> int:
    if type(size) is not int:
        raise Mixed("a number of tokens that is not known")
    return size


def same_size(one: Any, other: Any) -> bool:
    return bool(type(one) is type(other) and str(one) == str(other))


def dtype_of(node: fx.Node) -> Any:
    return getattr(node.meta.get("val"), "dtype", None)


#: Dtypes that hold the number of any expert, and of its rows.
EXACT = frozenset({torch.int32, torch.int64, torch.float32, torch.float64})
