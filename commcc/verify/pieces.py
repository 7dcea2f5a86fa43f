"""Numbers of rows, and rows that are taken apart by them: one piece for each expert, or for each expert of each rank.

    n = received.tolist()                          # rows from each (rank, expert): segments 0, 1, 2, 3
    parts = split(rows, n)                         # rows of segment i
    cat([parts[0], parts[2], parts[1], parts[3]])  # rows by expert, and by rank for each of them

A number of rows is known by the segments that it counts, whatever sums and differences it was worked out by.

Limits: pieces are told where every one is as long as was counted; a split into other lengths mixes rows.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from commcc.graph.ops import op_name
from commcc.graph.ops.filled import counts_to
from commcc.graph.ops.row_wise import REPEATED, ROW_RULES, RowRule
from commcc.verify.clones import SLICED, Claim, Indices, Kind, Mixed, Number, Order, Rows, Total, length, shape_of
from commcc.verify.row_views import RowViews
from commcc.verify.rows import SEGMENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import fx

    #: What a number counts: for each of them, how many rows are of the segment, or of the expert that they are sent to.
    Counted = Counter[tuple[Any, ...]]


def number_of(counted: Counted) -> Number:
    """The one name of what is counted: all rows, those of a rank or an expert, or of a segment; else a sum of these."""
    parts = sorted(counted.elements(), key=str)
    if not parts:
        return Number(("sum",))
    head, *rest = parts[0]
    once = len(set(parts)) == len(parts) and all(part[:-1] == parts[0][:-1] for part in parts)
    if head in ("segment", "bin") and once:
        named = _named(head, tuple(rest[:-1]), sorted(part[-1] for part in parts))
        if named is not None:
            return named
    return Number(parts[0] if len(parts) == 1 else ("sum", *parts))


def _named(head: str, of: tuple[Any, ...], places: list[int]) -> Number | None:
    """Rows that are sent, ``of`` being key, bins, order and ranks, or received, with the group behind."""
    bins, order, ranks = of[1:4]
    if places == list(range(bins)):
        return Number(("rows", ("received", *of) if head == "segment" else order))
    local, first = bins // ranks, places[0]
    if bins % ranks:
        return None
    if places == list(range(first, first + local)) and first % local == 0:
        last = (ranks, first // local) if head == "segment" else (first // local,)
        return Number(("got" if head == "segment" else "sent", *of, *last))
    if head == "segment" and places == list(range(first, bins, local)) and first < local:
        return Number(("by expert", *of, ranks, first))
    return None


def counted_in(number: Number) -> Counted:
    """What a number counts."""
    head, *rest = number.what
    if head == "sum":
        return Counter(rest)
    if head == "rows" and rest[0][0] == "received":
        return Counter(("segment", *rest[0][1:], i) for i in range(rest[0][2]))
    if head == "sent" and rest[1] % rest[3] == 0:
        local = rest[1] // rest[3]
        return Counter(("bin", *rest[:4], rest[4] * local + i) for i in range(local))
    if head in ("got", "by expert") and rest[3] == rest[5] and rest[1] % rest[3] == 0:
        bins, local = rest[1], rest[1] // rest[3]
        places = range(rest[6] * local, (rest[6] + 1) * local) if head == "got" else range(rest[6], bins, local)
        return Counter(("segment", *rest[:5], i) for i in places)
    return Counter([number.what])


def _units(base: Order) -> list[Counted]:
    """The pieces of rows that were received, as they came or sorted by expert, in their order."""
    received = base[1] if base[0] == "sorted" else base
    _, _, bins, _, ranks, _ = received
    if base is received:
        return [Counter([("segment", *received[1:], i)]) for i in range(bins)]
    return [Counter(("segment", *received[1:], i) for i in range(e, bins, bins // ranks)) for e in range(bins // ranks)]


def _by_expert(received: Order) -> tuple[int, ...]:
    """Segments by expert, and by rank for each of them."""
    local = received[2] // received[4]
    return tuple(segment for expert in range(local) for segment in range(expert, received[2], local))


def _order_of(base: Order, units: tuple[int, ...]) -> Order:
    """Pieces one after another, under their one name."""
    if units == tuple(range(len(_units(base)))):
        return base
    if base[0] == "received" and units == _by_expert(base):
        return ("sorted", base, SEGMENTS)
    return ("units", base, units)


def rows_of(order: Order) -> Number:
    """How many rows there are in an order."""
    if order[0] != "units":
        return Number(("rows", length(order)))
    pieces = _units(order[1])
    return number_of(sum((pieces[unit] for unit in order[2]), Counter()))


def counts_experts(node: fx.Node, order: Order) -> bool:
    """Whether a table says, for each (rank, expert), which expert of its rank that is: 0, 1, ... again and again."""
    _, _, bins, _, ranks, _ = order
    if op_name(node.target) != REPEATED or node.args[1:] not in (([ranks],), ((ranks,),)):
        return False
    return bool(counts_to(node.all_input_nodes[0]) == bins // ranks)


def listed(node: fx.Node) -> fx.Node:
    """What a column shows of a list."""
    seen = (
        ROW_RULES.get(op_name(node.target)) in (RowRule.UNSQUEEZE, RowRule.RESHAPE) and len(node.all_input_nodes) == 1
    )
    return node.all_input_nodes[0] if seen else node


def counts_up(node: fx.Node) -> bool:
    """Whether a table is 0, 1, 2, ..."""
    return counts_to(node) is not None


class Pieces(RowViews):
    """Rules for numbers of rows, and for rows that are taken apart and put together by them."""

    @property
    def _local(self) -> set[str]:
        """Names of what says for each row which expert of this rank it is for."""
        raise NotImplementedError

    def number_of_rows(self, order: Order) -> Number:
        return rows_of(order)

    def _pieces(self, order: Order) -> tuple[Order, tuple[int, ...]]:
        """What rows are pieces of, and which, one after another."""
        if order[0] == "units":
            return order[1], order[2]
        if order[0] == "received" and order[2] % order[4] == 0:
            return order, tuple(range(order[2]))
        if order[0] == "sorted" and order[1][0] == "received" and order[1][2] % order[1][4] == 0:
            if order[2] == SEGMENTS:
                return order[1], _by_expert(order[1])
            if order[2] in self._local:
                return order, tuple(range(order[1][2] // order[1][4]))
        raise Mixed("some of the rows are taken")

    def _size_of(self, value: Any) -> Counted | None:
        """What an argument counts; None for what is no number of rows."""
        kind = self.of(value)
        if isinstance(kind, Number):
            return counted_in(kind)
        return Counter() if type(value) is int and value == 0 else None

    def _taken(self, rows: Rows, start: Counted, sizes: Iterable[Counted]) -> list[Rows]:
        """Pieces from a place on, each of which has so many rows."""
        base, units = self._pieces(rows.order)
        counts = _units(base)
        pieces, at, passed = [], 0, Counter[Any]()
        while passed != start and at < len(units):
            passed += counts[units[at]]
            at += 1
        if passed != start:
            raise Mixed("some of the rows are taken")
        for size in sizes:
            first, have = at, Counter[Any]()
            while have != size and at < len(units):
                have += counts[units[at]]
                at += 1
            if not size or have != size:
                raise Mixed("rows are split by other numbers than their counts")
            pieces.append(Rows(_order_of(base, units[first:at]), rows.dim))
        return pieces

    def _parts(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        sizes = a.get("split_sizes")
        if not any(isinstance(self.of(used), Number) for used in node.all_input_nodes):
            return (self._slice(node, a),) * len(node.meta["val"])
        rows, shape = self.rows_in(a["self"]), shape_of(a["self"])
        counted = [self._size_of(size) for size in sizes or ()]
        if a.get("dim", 0) % len(shape) != rows.dim or not counted or None in counted:
            raise Mixed("rows are split by other numbers than their counts")
        total: Counted = sum(counted, Counter())  # type: ignore[arg-type]
        if number_of(total) != rows_of(rows.order):
            raise Mixed("rows are split by other numbers than their counts")
        return tuple(self._taken(rows, Counter(), counted))  # type: ignore[arg-type]

    def _slice(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        if not any(isinstance(self.of(used), Number) for used in node.all_input_nodes):
            return super()._slice(node, a)
        rows, start, end = self.rows_in(a["self"]), self._size_of(a.get("start", 0)), self._size_of(a.get("end"))
        along = a["dim"] % len(shape_of(a["self"])) == rows.dim and a.get("step", 1) == 1
        if not along or start is None or end is None or start - end:
            raise Mixed("some of the rows are taken")
        return self._taken(rows, start, [end - start])[0]

    def _join(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        if self._all_sums(a["tensors"]):
            return Total()
        parts, dim = [self.rows_in(tensor) for tensor in a["tensors"]], a.get("dim", 0) % len(shape_of(node))
        if any(part.dim != parts[0].dim for part in parts):
            raise Mixed("rows behind rows")
        if dim != parts[0].dim and all(part.order == parts[0].order for part in parts):
            return Rows(parts[0].order, parts[0].dim)
        if dim != parts[0].dim or parts[0].order[0] not in ("units", "received", "sorted"):
            raise Mixed("rows behind rows")
        pieces = [self._pieces(part.order) for part in parts]
        units = tuple(unit for _, own in pieces for unit in own)
        if any(base != pieces[0][0] for base, _ in pieces) or len(set(units)) != len(units):
            raise Mixed("rows behind rows")
        return Rows(_order_of(pieces[0][0], units), dim)

    def _stack(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        if self._all_sums(a["tensors"]):
            known = [self.of(tensor).what for tensor in a["tensors"]]  # type: ignore[union-attr]
            return Total(("stack", *known) if a.get("dim", 0) == 0 and all(known) else ())
        parts = [self.rows_in(tensor) for tensor in a["tensors"]]
        if any((p.order, p.dim) != (parts[0].order, parts[0].dim) for p in parts):
            raise Mixed("rows meet rows in another order")
        return Rows(parts[0].order, parts[0].dim + (a.get("dim", 0) % len(shape_of(node)) <= parts[0].dim))

    # Sizes

    def _size(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        kind = self.of(a["self"])
        if isinstance(kind, Indices) and len(shape_of(a["self"])) == 1:
            return rows_of(kind.order)
        rows = self.rows_in(a["self"])
        if a.get("dim", 0) % len(shape_of(a["self"])) != rows.dim or ("dim" not in a and len(shape_of(a["self"])) > 1):
            raise Mixed("a size that is the same in every chunk")
        return rows_of(rows.order)

    def _item(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        kind = self.of(a["self"])
        head, *rest = kind.what if isinstance(kind, Total) and kind.what else ("",)
        if head in ("sent", "got"):
            return Number((head, *rest))
        # Where every rank has one expert, rows by expert are rows by rank.
        if head == "counts" and len(rest) == 4:
            return Number(("sent", *rest[:3], rest[1], rest[3]))
        if head == "received" and len(rest) == 6:
            return number_of(Counter([("segment", *rest)]))
        if head == "by expert" and len(rest) == 7 and rest[5] == rest[3] and rest[1] % rest[3] == 0:
            return number_of(counted_in(Number((head, *rest))))
        raise Mixed("the host reads what differs from chunk to chunk")

    def _add_sizes(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """Numbers of rows, and the 0 that a sum may begin with."""
        given = list(node.args[0]) if isinstance(node.args[0], (list, tuple)) else list(node.args)
        counted = self._counted(given)
        return number_of(sum(counted, Counter()))

    def _take_sizes(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """One number of rows less another one, which is a part of it."""
        whole, part = self._counted(node.args)
        if part - whole:
            raise Mixed("a number of rows is looked at")
        return number_of(whole - part)

    def _counted(self, given: Sequence[Any]) -> list[Counted]:
        counts = [self._size_of(size) for size in given]
        if None in counts or not any(isinstance(self.of(size), Number) for size in given):
            raise Mixed("a number of rows is looked at")
        return counts  # type: ignore[return-value]

    def _at_least(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """No number of rows is negative, of the whole or of a chunk; nothing else is known of both."""
        number, least = node.args
        if not isinstance(self.of(number), Number) or type(least) is not int or least > 0:
            raise Mixed("a number of rows is looked at")
        return Claim()

    def _at_most(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """Of so many rows no more are sent, of the whole as of a chunk; nothing else is known of both."""
        most, counted = node.args[1], self._counted(node.args[:1])[0]
        heads = {part[:-1] for part in counted}
        head, *more = heads or {("",)}
        rows = length(head[3]) if head[0] == "bin" and not more and max(counted.values()) == 1 else ("",)
        if rows[0] != "tokens" or type(most) is not int or most < rows[1]:
            raise Mixed("a number of rows is looked at")
        return Claim()

    def _all_of(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """That all rows are counted is true of the whole if it is of every chunk, and of its own number of rows."""
        kind, size = self.of(node.args[0]), node.args[1]
        rows = kind.what[1] if isinstance(kind, Number) and kind.what[0] == "rows" else ("",)
        if rows[0] not in SLICED or length(rows) != ("tokens", size) or node.name not in self.cut:
            raise Mixed("a number of rows is looked at")
        return Claim()
