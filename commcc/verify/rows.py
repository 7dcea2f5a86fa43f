"""What ops do to rows: how each result of a module is made of the results of its chunks.

    x                   Rows(("tokens", 60), 0)      the chunks one after another, along dimension 0
    mm(x, w)            Rows(("tokens", 60), 0)      row by row
    mm(x.t(), y)        Total()                      the sum over the chunks
    sum(x, [0])         Total()
    softmax(x, 0)       Mixed                        looks from one row at another

:mod:`commcc.verify.tokens` adds the rules for rows that are picked, exchanged and put back.

Limits: an op without a rule mixes rows, and so does a rule whose premises are not seen to hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import torch
from torch import fx

from commcc.graph.ops import is_getitem, op_name
from commcc.graph.ops.row_wise import LINEAR_IN_ALL, LINEAR_IN_ONE, ROW_RULES, RowRule, is_elementwise
from commcc.verify.contents import widens
from commcc.verify.terms import bind

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

#: How rows follow one another: ("tokens", number of rows), ("sorted", order, key), ("received", ...).
Order: TypeAlias = "tuple[Any, ...]"


@dataclass(frozen=True)
class Rows:
    """Rows in an order, along one dimension.

    uniform: all rows are alike, so that any order of as many rows is this one. tag: what the rows say: ``ids`` for
    numbers of (rank, expert) of rows that were received, ``local`` for the number of the expert on this rank.
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
class Number:
    """A size: how many rows a chunk has of something."""

    what: tuple[Any, ...]


Kind: TypeAlias = Union[Rows, Total, Indices, Number, "tuple[Any, ...]"]


class Mixed(Exception):
    """Rows that may depend on each other, or an op without a rule; the text says where."""


#: What counts become when they are seen as a table of ranks and experts, and when that is summed along a dimension.
_OF_RANKS = {"counts": "counts of ranks", "received": "received of ranks"}
_SUMMED = {("counts of ranks", 1): "sent", ("received of ranks", 1): "got", ("received of ranks", 0): "by expert"}


def _first(kind: Total) -> str:
    return str(kind.what[0]) if kind.what else ""


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


#: Rules that see to sizes which differ from chunk to chunk.
_SIZED = frozenset({RowRule.RESHAPE, RowRule.EXPAND, RowRule.FILLED, RowRule.EXCHANGE, RowRule.REPEAT})
#: Dtypes that hold the number of any expert, and of its rows.
EXACT = frozenset({torch.int32, torch.int64, torch.float32, torch.float64})


class RowRules:
    """kinds: by name of the node. own: names of operands that the node at hand reads of its own chunk."""

    def __init__(self, cut: Mapping[str, Collection[int]]) -> None:
        self.cut = {name: tuple(dims) for name, dims in cut.items()}
        self.kinds: dict[str, Kind] = {}
        self.own: Collection[str] = ()

    def of(self, value: object) -> Kind | None:
        """The kind of an argument; None for what is the same in every chunk."""
        if not isinstance(value, fx.Node) or value.name not in self.own:
            return None
        if value.name not in self.kinds:
            raise Mixed(f"'{value.name}' comes from another part of the graph")
        return self.kinds[value.name]

    def kind(self, node: fx.Node) -> Kind:
        """What a node gives."""
        try:
            if is_getitem(node.target):
                return self._part(node)
            name = op_name(node.target)
            rule = ROW_RULES.get(name)
            numbers = [used for used in node.all_input_nodes if isinstance(self.of(used), Number)]
            if numbers and rule not in _SIZED:
                raise Mixed("a number of rows is looked at")
            if rule is not None:
                made: Kind = getattr(self, f"_{rule.name.lower()}")(node, bind(node))
                return made
            if is_elementwise(node.target):
                return self.elementwise(node, name)
            raise Mixed("no rule says what it does to rows")
        except Mixed as reason:
            raise Mixed(f"at '{node.name}' ({node.target}): {reason}") from None
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # a file may say anything
            raise Mixed(f"at '{node.name}' ({node.target}): arguments that the op does not take") from None

    def rows_in(self, value: object, what: str = "an operand") -> Rows:
        kind = self.of(value)
        if not isinstance(kind, Rows):
            raise Mixed(f"{what} that is no rows")
        return kind

    # Rows that stay where they are

    def _keep(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        source = a[next(iter(a))]
        kind = self.of(source)
        if kind is None or isinstance(kind, (Number, tuple)):
            raise Mixed("an operand that is no rows")
        exact = isinstance(kind, Total) and bool(kind.what) and dtype_of(node) in EXACT
        if isinstance(kind, Total) and not exact and not widens(dtype_of(source), dtype_of(node)):
            raise Mixed("a sum over tokens is rounded before the chunks are added up")
        return kind

    def _reshape(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        source, kind = a["self"], self.of(a["self"])
        old, new = shape_of(source), shape_of(node)
        sizes = next(value for name, value in a.items() if name != "self")
        if any(self.of(size) is not None for size in sizes[1:]):
            raise Mixed("a number of rows is the size of something else")
        if isinstance(kind, Total):
            counts = _OF_RANKS.get(_first(kind))
            return Total((counts, *kind.what[1:], new[0])) if counts and len(new) == 2 else Total()
        rows = self.rows_in(source)
        if rows.dim and old[: rows.dim + 1] == new[: rows.dim + 1] and all(type(n) is int for n in old[: rows.dim + 1]):
            return rows  # the dimensions up to the rows stay as they are
        if rows.dim or not new:
            raise Mixed("a reshape of what lies before the rows")
        if rows.order[0] == "tokens" and type(new[0]) is int:
            return Rows(("tokens", new[0]), 0, rows.uniform)  # any cut in front is a cut of the elements
        if not same_size(old[0], new[0]):
            raise Mixed("a reshape of rows in an order of their own")
        return rows

    def _turn(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        return self._moved(a["self"], list(reversed(range(len(shape_of(a["self"]))))))

    def _swap(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        dims = list(range(len(shape_of(a["self"]))))
        dims[a["dim0"]], dims[a["dim1"]] = dims[a["dim1"]], dims[a["dim0"]]
        return self._moved(a["self"], dims)

    def _permute(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        rank = len(shape_of(a["self"]))
        return self._moved(a["self"], [dim % rank for dim in a["dims"]])

    def _moved(self, source: fx.Node, dims: list[int]) -> Kind:
        if isinstance(self.of(source), Total):
            return Total()
        rows = self.rows_in(source)
        return replace(rows, dim=dims.index(rows.dim))

    def _unsqueeze(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        if isinstance(self.of(a["self"]), Total):
            return Total()
        rows, at = self.rows_in(a["self"]), a["dim"] % (len(shape_of(a["self"])) + 1)
        return replace(rows, dim=rows.dim + (at <= rows.dim))

    def _squeeze(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        if isinstance(self.of(a["self"]), Total):
            return Total()
        rows, old = self.rows_in(a["self"]), shape_of(a["self"])
        if "dim" not in a:
            raise Mixed("a chunk of one row would lose the dimension")
        dims = a["dim"] if isinstance(a["dim"], (list, tuple)) else [a["dim"]]
        gone = {dim % len(old) for dim in dims}
        if rows.dim in gone or any(type(old[dim]) is not int for dim in gone):
            raise Mixed("a chunk of one row would lose the dimension")
        return replace(rows, dim=rows.dim - sum(dim < rows.dim and old[dim] == 1 for dim in gone))

    def _expand(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        rows, old = self.rows_in(a["self"]), shape_of(a["self"])
        at = rows.dim + len(a["size"]) - len(old)
        wanted = a["size"][at]
        if isinstance(wanted, fx.Node):
            fits = self.of(wanted) == Number(("rows", length(rows.order)))
        else:
            fits = wanted == -1 or (type(wanted) is int and wanted == old[rows.dim] and wanted > 1)
        if not fits or any(self.of(size) is not None for i, size in enumerate(a["size"]) if i != at):
            raise Mixed("an expansion to other numbers of rows")
        return replace(rows, dim=at)

    def _slice(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        rows = self.rows_in(a["self"])
        if a["dim"] % len(shape_of(a["self"])) == rows.dim:
            raise Mixed("some of the rows are taken")
        return replace(rows, tag="")

    def _select(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        rows, dim = self._slice(node, a), a["dim"] % len(shape_of(a["self"]))
        assert isinstance(rows, Rows)
        return replace(rows, dim=rows.dim - (dim < rows.dim))

    def _parts(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        return (self._slice(node, a),) * len(node.meta["val"])

    def _unbind(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        kind, count = self.of(a["self"]), len(node.meta["val"])
        if isinstance(kind, Total):
            return tuple(Total((*kind.what, i) if kind.what else ()) for i in range(count))
        return (self._select(node, a),) * count

    def _join(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        parts = [self.rows_in(each) for each in a["tensors"]]
        dim = a["dim"] % len(shape_of(node))
        if dim == parts[0].dim or any((p.order, p.dim) != (parts[0].order, parts[0].dim) for p in parts):
            raise Mixed("rows behind rows")
        return Rows(parts[0].order, parts[0].dim)

    def _part(self, node: fx.Node) -> Kind:
        kind, at = self.of(node.args[0]), node.args[1]
        if not isinstance(kind, tuple) or not isinstance(at, int) or not -len(kind) <= at < len(kind):
            raise Mixed("a part of what is no list")
        part: Kind = kind[at]
        return part

    # Rows, one by one

    def elementwise(self, node: fx.Node, name: str) -> Kind:
        rank = len(shape_of(node))
        operands = [value for value in node.all_input_nodes if shape_of(value) or self.of(value) is not None]
        kinds = [(value, self.of(value)) for value in operands]
        given = [kind for _, kind in kinds if kind is not None]
        if any(isinstance(kind, Total) for kind in given):
            return self._linear(node, name, given)
        if not all(isinstance(kind, Rows) for kind in given):
            raise Mixed("numbers of rows, or their order, are looked at")
        rows = [(value, kind) for value, kind in kinds if isinstance(kind, Rows)]
        ends = {kind.dim - len(shape_of(value)) for value, kind in rows}
        firm = [kind for _, kind in rows if not kind.uniform] or [kind for _, kind in rows]
        if len(ends) != 1 or any(kind.order != firm[0].order for kind in firm):
            raise Mixed("rows meet rows in another order")
        if any(length(kind.order) != length(firm[0].order) for _, kind in rows):
            raise Mixed("rows meet another number of rows")
        end = ends.pop()
        for value, kind in kinds:
            shape = shape_of(value)
            if kind is None and len(shape) >= -end and shape[end] != 1:
                raise Mixed(f"every chunk reads all of '{value.name}'")
        return Rows(firm[0].order, rank + end, all(kind.uniform for _, kind in rows))

    def _linear(self, node: fx.Node, name: str, given: list[Any]) -> Kind:
        """A sum over tokens that is added to another one, or multiplied by what is the same in every chunk."""
        whole = all(isinstance(value, fx.Node) for value in node.args)
        if (
            name in LINEAR_IN_ALL
            and whole
            and len(given) == len(node.args)
            and all(isinstance(k, Total) for k in given)
        ):
            return Total()
        if name in LINEAR_IN_ONE and len(given) == 1:
            return Total()
        raise Mixed("a sum over tokens goes through what is not linear")

    def _along(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """Ops along another dimension than that of the rows."""
        tensors = [value for value in a.values() if isinstance(value, fx.Node)]
        if all(isinstance(self.of(value), Total) for value in tensors) and op_name(node.target).endswith("cumsum"):
            what = self.of(tensors[0]).what  # type: ignore[union-attr]
            return Total(("ends", *what[1:]) if what[:1] == ("by expert",) else ())
        rows = [self.rows_in(value) for value in tensors]
        dim = a.get("dim", -1) % len(shape_of(tensors[0]))
        if any((r.order, r.dim) != (rows[0].order, rows[0].dim) for r in rows):
            raise Mixed("rows meet rows in another order")
        if dim == rows[0].dim:
            raise Mixed("it works along the rows")
        result = Rows(rows[0].order, rows[0].dim)
        return (result, result) if isinstance(node.meta.get("val"), (tuple, list)) else result

    def _sort(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        rows, shape = self.rows_in(a["self"]), shape_of(a["self"])
        if a.get("dim", -1) % len(shape) != rows.dim:
            return self._along(node, {"self": a["self"], "dim": a.get("dim", -1)})
        if len(shape) != 1 or a.get("descending"):
            raise Mixed("it works along the rows")
        made = Indices(rows.order, a["self"].name, local=rows.tag == "local")
        return (Rows(made.sorted, 0), made)

    def _reduce(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        kind, shape = self.of(a["self"]), shape_of(a["self"])
        dims = a.get("dim")
        chosen = {d % len(shape) for d in (dims if isinstance(dims, (list, tuple)) else [dims])} if dims else None
        if dims == 0:
            chosen = {0}
        summed = op_name(node.target) == "aten.sum"
        if isinstance(kind, Total) and summed and chosen is not None:
            what = _SUMMED.get((_first(kind), *chosen)) if len(chosen) == 1 else None
            return Total((what, *kind.what[1:]) if what else ())
        rows = self.rows_in(a["self"])
        if chosen is None or rows.dim in chosen:
            if summed:
                return Total()
            raise Mixed("it works along the rows")
        lost = 0 if a.get("keepdim") else sum(dim < rows.dim for dim in chosen)
        return Rows(rows.order, rows.dim - lost)
