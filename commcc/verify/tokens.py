"""Whether the tokens of a module that was cut in chunks depend on each other: proved by what each op does to rows.

Every value of the module gets a kind that says how the value of the whole is made of those of the chunks::

    x: rows of 60 tokens               the chunks one after another
    e = topk(x @ gate, 2)[1]           rows, op by op: nothing looks from one row at another
    order = sort(e.view(-1))[1]        a permutation of 120 slots, two for each token
    sent = index(x, [order // 2])      the rows in the order of their experts; in every chunk, those of its tokens
    got = all_to_all(sent, ...)        rows of all ranks, in an order of their own: each is where its expert is
    y = index_add(zeros, 0, order // 2, back)     rows of 60 tokens again
    g = x.T @ y                        a sum over tokens: the sum over the chunks

Row by row computed, brought back into the order of the tokens, and added up where tokens are added up, the chunks
give what the whole gives. What leaves the module must be rows in the order of the tokens, or a sum.

Limits: sums are associated otherwise, as in merged reductions. Dispatch is understood where rows are sorted by expert,
counted by ``histc`` and exchanged by these counts, on equal numbers of experts for each rank; what else mixes rows is
not decided, and is named. The counts of a rank are taken to fit its rows: otherwise the exchange fails.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import torch
from torch import fx

from commcc.graph.ops import is_getitem, op_name
from commcc.graph.ops.row_wise import (
    COUNTED,
    LINEAR_IN_ALL,
    LINEAR_IN_ONE,
    REPEATED,
    ROW_RULES,
    RowRule,
    is_elementwise,
)
from commcc.verify.contents import widens
from commcc.verify.terms import bind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

#: Dtypes that hold the number of any expert.
_EXACT = frozenset({torch.int32, torch.int64, torch.float32, torch.float64})
#: How rows follow one another: ("tokens", number of rows), ("sorted", order, key), ("received", ...).
Order: TypeAlias = "tuple[Any, ...]"


@dataclass(frozen=True)
class Rows:
    """Rows in an order, along one dimension.

    uniform: all rows are alike, so that any order of as many rows is this one. tag: what the rows say: ``ids`` for
    (rank, expert) numbers of rows that were received, ``local`` for the number of the expert on this rank.
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
    """Where the rows of ``order``, sorted by ``key``, come from; ``share`` rows of it are one row of what is indexed."""

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


def length(order: Order) -> Order:
    """How many rows an order has: sorting does not change that."""
    return length(order[1]) if order[0] == "sorted" else order


def kinds_of(
    body: Mapping[str, fx.Node],
    entering: Mapping[str, int],
    reads: Callable[[str], Collection[str]],
    cut: Mapping[str, Collection[int]],
) -> dict[str, Kind]:
    """The kind of every value of a module; raises :class:`Mixed` at the first that has none.

    body: the nodes that were cut, by name, in order. entering: what was split, and along which dimension. reads: the
    names of the operands that a node reads of its own chunk; all others are the same for all chunks. cut: dimensions of
    factories that are cut, by name.
    """
    rules = _Rules(cut)
    for name, node in body.items():
        rules.own = reads(name)
        for used in (u for u in node.all_input_nodes if u.name in entering and u.name in rules.own):
            if used.name in body:
                continue
            dim = entering[used.name]
            rules.kinds[used.name] = Rows(("tokens", _static(_shape(used)[dim])), dim)
        rules.kinds[name] = rules.kind(node)
    return rules.kinds


def _shape(node: fx.Node) -> list[Any]:
    return list(getattr(node.meta.get("val"), "shape", ()))


def _static(size: object) -> int:
    if type(size) is not int:
        raise Mixed("a number of tokens that is not known")
    return size


def _same_size(one: Any, other: Any) -> bool:
    return bool(type(one) is type(other) and str(one) == str(other))


class _Rules:
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
            if rule is not None:
                return _METHODS[rule](self, node, bind(node))
            if is_elementwise(node.target):
                return self._elementwise(node, name)
            raise Mixed("no rule says what it does to rows")
        except Mixed as reason:
            raise Mixed(f"at '{node.name}' ({node.target}): {reason}") from None
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # a file may say anything
            raise Mixed(f"at '{node.name}' ({node.target}): arguments that the op does not take") from None

    def _rows(self, value: object, what: str = "an operand") -> Rows:
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
        if isinstance(kind, Total) and not kind.what and not widens(_dtype(source), _dtype(node)):
            raise Mixed("a sum over tokens is rounded before the chunks are added up")
        return kind

    def _reshape(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        source, kind = a["self"], self.of(a["self"])
        old, new = _shape(source), _shape(node)
        if isinstance(kind, Total):
            counts = {"counts": "counts of ranks", "received": "received of ranks"}.get(str(kind.what[:1] and kind.what[0]))
            return Total((counts, *kind.what[1:], new[0])) if counts and len(new) == 2 else Total()
        rows = self._rows(source)
        if rows.dim and old[: rows.dim + 1] == new[: rows.dim + 1] and all(type(n) is int for n in old[: rows.dim + 1]):
            return rows  # the dimensions up to the rows stay as they are
        if rows.dim or not new:
            raise Mixed("a reshape of what lies before the rows")
        if rows.order[0] == "tokens" and type(new[0]) is int:
            return Rows(("tokens", new[0]), 0, rows.uniform)  # any cut in front is a cut of the elements
        if not _same_size(old[0], new[0]):
            raise Mixed("a reshape of rows in an order of their own")
        return rows

    def _turn(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        return self._moved(a["self"], list(reversed(range(len(_shape(a["self"]))))))

    def _swap(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        dims = list(range(len(_shape(a["self"]))))
        dims[a["dim0"]], dims[a["dim1"]] = dims[a["dim1"]], dims[a["dim0"]]
        return self._moved(a["self"], dims)

    def _permute(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        rank = len(_shape(a["self"]))
        return self._moved(a["self"], [dim % rank for dim in a["dims"]])

    def _moved(self, source: fx.Node, dims: list[int]) -> Kind:
        if isinstance(self.of(source), Total):
            return Total()
        rows = self._rows(source)
        return replace(rows, dim=dims.index(rows.dim))

    def _unsqueeze(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        if isinstance(self.of(a["self"]), Total):
            return Total()
        rows, at = self._rows(a["self"]), a["dim"] % (len(_shape(a["self"])) + 1)
        return replace(rows, dim=rows.dim + (at <= rows.dim))

    def _squeeze(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        if isinstance(self.of(a["self"]), Total):
            return Total()
        rows, old = self._rows(a["self"]), _shape(a["self"])
        if "dim" not in a:
            raise Mixed("a chunk of one row would lose the dimension")
        dims = a["dim"] if isinstance(a["dim"], (list, tuple)) else [a["dim"]]
        gone = {dim % len(old) for dim in dims}
        if rows.dim in gone or any(type(old[dim]) is not int for dim in gone):
            raise Mixed("a chunk of one row would lose the dimension")
        return replace(rows, dim=rows.dim - sum(dim < rows.dim and old[dim] == 1 for dim in gone))

    def _expand(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        rows, old = self._rows(a["self"]), _shape(a["self"])
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
        rows = self._rows(a["self"])
        if a["dim"] % len(_shape(a["self"])) == rows.dim:
            raise Mixed("some of the rows are taken")
        return replace(rows, tag="")

    def _select(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        rows, dim = self._slice(node, a), a["dim"] % len(_shape(a["self"]))
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
        parts = [self._rows(each) for each in a["tensors"]]
        dim = a["dim"] % len(_shape(node))
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

    def _elementwise(self, node: fx.Node, name: str) -> Kind:
        rank = len(_shape(node))
        operands = [value for value in node.all_input_nodes if _shape(value) or self.of(value) is not None]
        kinds = [(value, self.of(value)) for value in operands]
        given = [kind for _, kind in kinds if kind is not None]
        if any(isinstance(kind, Total) for kind in given):
            return self._linear(node, name, given)
        if not all(isinstance(kind, Rows) for kind in given):
            raise Mixed("numbers of rows, or their order, are looked at")
        rows = [(value, kind) for value, kind in kinds if isinstance(kind, Rows)]
        ends = {kind.dim - len(_shape(value)) for value, kind in rows}
        firm = [kind for _, kind in rows if not kind.uniform] or [kind for _, kind in rows]
        if len(ends) != 1 or any(kind.order != firm[0].order for kind in firm):
            raise Mixed("rows meet rows in another order")
        if any(length(kind.order) != length(firm[0].order) for _, kind in rows):
            raise Mixed("rows meet another number of rows")
        end = ends.pop()
        for value, kind in kinds:
            shape = _shape(value)
            if kind is None and len(shape) >= -end and shape[end] != 1:
                raise Mixed(f"every chunk reads all of '{value.name}'")
        return Rows(firm[0].order, rank + end, all(kind.uniform for _, kind in rows))

    def _linear(self, node: fx.Node, name: str, given: list[Any]) -> Kind:
        """A sum over tokens that is added to another one, or multiplied by what is the same in every chunk."""
        whole = all(isinstance(value, fx.Node) for value in node.args)
        if name in LINEAR_IN_ALL and whole and len(given) == len(node.args) and all(isinstance(k, Total) for k in given):
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
        rows = [self._rows(value) for value in tensors]
        dim = a.get("dim", -1) % len(_shape(tensors[0]))
        if any((r.order, r.dim) != (rows[0].order, rows[0].dim) for r in rows):
            raise Mixed("rows meet rows in another order")
        if dim == rows[0].dim:
            raise Mixed("it works along the rows")
        result = Rows(rows[0].order, rows[0].dim)
        return (result, result) if isinstance(node.meta.get("val"), (tuple, list)) else result

    def _sort(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        rows, shape = self._rows(a["self"]), _shape(a["self"])
        if a.get("dim", -1) % len(shape) != rows.dim:
            return self._along(node, {"self": a["self"], "dim": a.get("dim", -1)})
        if len(shape) != 1 or a.get("descending"):
            raise Mixed("it works along the rows")
        made = Indices(rows.order, a["self"].name, local=rows.tag == "local")
        return (Rows(made.sorted, 0), made)

    def _reduce(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        kind, shape = self.of(a["self"]), _shape(a["self"])
        dims = a.get("dim")
        chosen = {d % len(shape) for d in (dims if isinstance(dims, (list, tuple)) else [dims])} if dims else None
        if dims == 0:
            chosen = {0}
        summed = op_name(node.target) == "aten.sum"
        if isinstance(kind, Total) and summed and chosen is not None:
            names = {("counts of ranks", 1): "sent", ("received of ranks", 1): "got", ("received of ranks", 0): "by expert"}
            what = names.get((str(kind.what[:1] and kind.what[0]), *chosen)) if len(chosen) == 1 else None
            return Total((what, *kind.what[1:]) if what else ())
        rows = self._rows(a["self"])
        if chosen is None or rows.dim in chosen:
            if summed:
                return Total()
            raise Mixed("it works along the rows")
        lost = 0 if a.get("keepdim") else sum(dim < rows.dim for dim in chosen)
        return Rows(rows.order, rows.dim - lost)

    # Products

    def _product(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        left, right = self.of(a["self"]), self.of(a["mat2"])
        if isinstance(left, Rows) and left.dim == 0 and right is None:
            return Rows(left.order, 0)
        if left is None and isinstance(right, Rows) and right.dim == 1:
            return Rows(right.order, 1)
        if isinstance(left, Rows) and isinstance(right, Rows) and (left.dim, right.dim) == (1, 0):
            if left.order == right.order:
                return Total()
        raise Mixed("a product of other things than rows and weights")

    def _batched(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        left, right = self.of(a["self"]), self.of(a["mat2"])
        if isinstance(left, Rows) and isinstance(right, Rows) and left == right and left.dim == 0:
            return Rows(left.order, 0)
        if isinstance(left, Rows) and left.dim == 1 and right is None:
            return Rows(left.order, 1)
        raise Mixed("a product of other things than rows and weights")

    def _grouped(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """Rows in the order of their experts, each times the matrix of its expert."""
        left, right, ends = (self.of(a[name]) for name in ("self", "mat2", "offs"))
        if not isinstance(left, Rows) or not isinstance(ends, Total) or ends.what[:1] != ("ends",) or a.get("bias"):
            raise Mixed("groups of rows that are not those of the experts")
        if left.order[0] != "sorted" or left.order[1] != ("received", *ends.what[1:-1]):
            raise Mixed("groups of rows that are not those of the experts")
        if left.order[2] not in self._local or ends.what[-1] != ends.what[4]:
            raise Mixed("groups of rows that are not those of the experts")
        if left.dim == 0 and right is None and len(_shape(a["mat2"])) == 3 and len(_shape(a["self"])) == 2:
            return Rows(left.order, 0)
        if left.dim == 1 and isinstance(right, Rows) and right.dim == 0 and left.order == right.order:
            return Total()
        raise Mixed("a product of other things than rows and weights")

    @property
    def _local(self) -> set[str]:
        """Names of what says for each row which expert of this rank it is for."""
        return {k.key for kind in self.kinds.values() if isinstance(kind, tuple) for k in kind if isinstance(k, Indices) and k.local}

    # Rows by index

    def _pick(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        return self._along(node, {name: value for name, value in a.items() if name != "sparse_grad"})

    def _pick_rows(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        table, index = self.of(a["self"]), a.get("index", a.get("indices"))
        if isinstance(index, (list, tuple)):
            index = index[0] if len(index) == 1 else None
        where = self.of(index)
        if a.get("dim", 0) % max(len(_shape(a["self"])), 1):
            raise Mixed("an index of another dimension than that of the rows")
        if table is None and isinstance(where, Rows) and len(_shape(index)) == 1:
            local = where.tag == "ids" and _counts_experts(a["self"], where.order)
            return Rows(where.order, 0, tag="local" if local else "")
        if isinstance(table, Rows) and table.dim == 0 and isinstance(where, Indices) and table.order == where.into():
            return Rows(where.sorted, 0)
        raise Mixed("rows are taken from where others are")

    def _put_rows(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        index = a["indices"][0] if len(a["indices"]) == 1 else None
        return self._put(a["self"], index, a["values"], added=bool(a.get("accumulate")))

    def _copy_rows(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        if a["dim"] != 0:
            raise Mixed("an index of another dimension than that of the rows")
        return self._put(a["self"], a["index"], a["source"], added=False)

    def _add_rows(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        if a["dim"] != 0:
            raise Mixed("an index of another dimension than that of the rows")
        return self._put(a["self"], a["index"], a["source"], added=True)

    def _put(self, target: Any, index: Any, source: Any, *, added: bool) -> Kind:
        """Rows back to where they came from; several for one place are added up."""
        base, where, rows = self._rows(target), self.of(index), self._rows(source)
        if not isinstance(where, Indices) or rows.dim != 0 or rows.order != where.sorted or base.dim != 0:
            raise Mixed("rows are put where others were")
        fits = length(base.order) == length(where.into()) if base.uniform else base.order == where.into()
        if not fits or (where.share != 1 and not added):
            raise Mixed("rows are put where others were")
        return Rows(where.into(), 0)

    def _share(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        where, by = self.of(a["self"]), a["other"]
        if not isinstance(where, Indices):
            return self._elementwise(node, op_name(node.target))
        if where.share != 1 or type(by) is not int or by < 1 or where.order[0] != "tokens" or where.order[1] % by:
            raise Mixed("an index that is no longer one")
        return replace(where, share=by)

    # Numbers of rows

    def _count(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """How many rows go to each expert: one bin for each number."""
        rows, bins = self._rows(a["self"]), a["bins"]
        if len(_shape(a["self"])) != 1 or rows.order[0] != "tokens":
            raise Mixed("it counts something else than rows by expert")
        plain = type(bins) is int and a["min"] == 0 and a["max"] == bins
        return Total(("counts", self._origin(a["self"]), bins, rows.order) if plain else ())

    def _origin(self, node: fx.Node) -> str:
        """The name of what conversions convert, if they keep the numbers of experts apart."""
        while ROW_RULES.get(op_name(node.target)) is RowRule.KEEP and _dtype(node) in _EXACT:
            node = node.all_input_nodes[0]
        return node.name

    def _repeat(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """The number of each (rank, expert), once for every row that came from there."""
        kind = self.of(a.get("repeats"))
        if not isinstance(kind, Total) or kind.what[:1] != ("received",) or "repeats" not in a or "self" in a:
            raise Mixed("it repeats something else than what was counted")
        return Rows(kind.what, 0, tag="ids")

    def _like(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        return replace(self._rows(a["self"]), uniform=True, tag="")

    def _filled(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """A tensor whose elements are all alike: which dimension is cut, its clones say."""
        sizes = [(at, self.of(size)) for at, size in enumerate(a["size"]) if self.of(size) is not None]
        if len(sizes) == 1 and isinstance(sizes[0][1], Number) and sizes[0][1].what[0] == "rows":
            return Rows(sizes[0][1].what[1], sizes[0][0], uniform=True)
        cut = self.cut.get(node.name, ())
        if sizes or len(cut) != 1:
            raise Mixed("a tensor of sizes that are not those of rows")
        return Rows(("tokens", _static(a["size"][cut[0]])), cut[0], uniform=True)

    def _size(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        rows = self._rows(a["self"])
        if a["dim"] % len(_shape(a["self"])) != rows.dim:
            raise Mixed("a size that is the same in every chunk")
        return Number(("rows", length(rows.order)))

    def _item(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        kind = self.of(a["self"])
        if not isinstance(kind, Total) or kind.what[:1] not in (("sent",), ("got",)):
            raise Mixed("the host reads what differs from chunk to chunk")
        return Number(kind.what)

    def _exchange(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """Counts in equal parts, or rows by what was counted."""
        given, out, sent = self.of(a["input"]), a["output_split_sizes"], a["input_split_sizes"]
        group, ranks = a["group_name"], len(out or ())
        if isinstance(given, Total) and given.what[:1] == ("counts",):
            bins = given.what[2]
            if ranks < 1 or list(out) != [bins // ranks] * ranks or list(sent) != list(out) or bins % ranks:
                raise Mixed("counts are not exchanged in equal parts")
            return Total(("received", *given.what[1:], ranks, group))
        rows = self._rows(a["input"])
        if rows.dim != 0 or ranks < 1 or len(sent) != ranks:
            raise Mixed("rows are exchanged by other numbers than their counts")
        kinds = [[self.of(size) for size in sizes] for sizes in (sent, out)]
        for key, bins, order in self._counted(kinds):
            mine = [Number(("sent", key, bins, order, ranks, i)) for i in range(ranks)]
            theirs = [Number(("got", key, bins, order, ranks, group, ranks, i)) for i in range(ranks)]
            received = ("received", key, bins, order, ranks, group)
            if kinds == [mine, theirs] and rows.order == ("sorted", order, key):
                return Rows(received, 0)
            if kinds == [theirs, mine] and rows.order == received:
                return Rows(("sorted", order, key), 0)
        raise Mixed("rows are exchanged by other numbers than their counts")

    @staticmethod
    def _counted(kinds: list[list[Any]]) -> set[tuple[Any, Any, Any]]:
        return {kind.what[1:4] for sizes in kinds for kind in sizes if isinstance(kind, Number) and len(kind.what) > 4}

    def _accumulate(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """What a sum over tokens is added to, chunk after chunk."""
        if self.of(a["self"]) is not None or not isinstance(self.of(a["other"]), Total):
            raise Mixed("a write to something else than a running sum")
        return ()


def _dtype(node: fx.Node) -> Any:
    return getattr(node.meta.get("val"), "dtype", None)


def _counts_experts(node: fx.Node, order: Order) -> bool:
    """Whether a table says, for each (rank, expert), which expert of its rank that is: 0, 1, ... again and again."""
    _, _, bins, _, ranks, _ = order
    source, times = node.args if op_name(node.target) == REPEATED and len(node.args) == 2 else (None, None)
    if not isinstance(source, fx.Node) or list(times or ()) != [ranks] or op_name(source.target) != COUNTED:
        return False
    numbers = bind(source)
    return (numbers.get("start", 0), numbers.get("end"), numbers.get("step", 1)) == (0, bins // ranks, 1)


_METHODS: dict[RowRule, Callable[[_Rules, fx.Node, dict[str, Any]], Kind]] = {
    rule: getattr(_Rules, f"_{rule.name.lower()}") for rule in RowRule
}
