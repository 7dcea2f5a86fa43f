"""Rows seen in other shapes: what views show of them, and what is put back where a view was taken.

    view(x, [4, 15, 8])             # x: Rows(("tokens", 60), 0): rows of 4 samples
    transpose(x, 0, 1)              # Rows(("tokens", 60), 1)
    view_as_complex(x)              # a view without a rule of its own: by its strides
    slice_backward(g, [60, 8], 1, 0, 4, 1)      # zeros next to rows: rows

Limits: parts of the rows are told by :mod:`commcc.verify.pieces` where they are counted, and else not at all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import fx

from commcc.graph.ops import op_name
from commcc.graph.ops.shown import shown
from commcc.verify.clones import (
    SLICED,
    Column,
    Indices,
    Kind,
    Mixed,
    Number,
    Rows,
    Total,
    folded,
    head_of,
    length,
    plain,
    same_size,
    shape_of,
    static,
)
from commcc.verify.rows import RowRules

#: What counts become when they are seen as a table of ranks and experts.
_OF_RANKS = {"counts": "counts of ranks", "received": "received of ranks", "starts": "starts of ranks"}
#: The table turned round, and that as a list: segments in the order of experts.
_OF_EXPERTS = {"received of ranks": "received of experts", "starts of ranks": "starts of experts"}
_SEGMENTS = {"received of experts": "segments", "starts of experts": "segment starts"}
_END = 2**63 - 1  # of a slice that has none


class RowViews(RowRules):
    """Rules for views, and for their inverses."""

    def _reshape(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        source, kind = a["self"], self.of(a["self"])
        old, new = shape_of(source), shape_of(node)
        sizes = next(value for name, value in a.items() if name != "self")
        if any(self.of(size) is not None for size in sizes[1:]):
            raise Mixed("a number of rows is the size of something else")
        if isinstance(kind, Total):
            return self._table(kind, old, new)
        if isinstance(kind, Indices) and len(old) == 1 and len(new) == 2 and new[1] == 1:
            return Column(kind)
        rows = self.rows_in(source)
        if rows.dim and old[: rows.dim + 1] == new[: rows.dim + 1] and all(type(n) is int for n in old[: rows.dim + 1]):
            return plain(rows, rows.dim)  # the dimensions up to the rows stay as they are
        if rows.order[0] in SLICED and all(type(n) is int for n in new):
            return folded(rows, old, new)
        if rows.dim or not new:
            raise Mixed("a reshape of what lies before the rows")
        if rows.order[0] == "tokens" and type(new[0]) is int:
            return Rows(("tokens", new[0]), 0, rows.uniform)  # any cut in front is a cut of the elements
        if not same_size(old[0], new[0]):
            raise Mixed("a reshape of rows in an order of their own")
        return plain(rows, 0)

    def _table(self, kind: Total, old: list[Any], new: list[Any]) -> Total:
        """Counts as a table of ranks and experts, and as a list."""
        head = head_of(kind)
        if old == new:
            return kind
        if len(new) == 2 and head in _OF_RANKS:
            return Total((_OF_RANKS[head], *kind.what[1:], new[0]))
        if len(new) == 1 and head in _SEGMENTS:
            return Total((_SEGMENTS[head], *kind.what[1:]))
        lists = {table: counts for counts, table in _OF_RANKS.items()}
        return Total((lists[head], *kind.what[1:-1]) if len(new) == 1 and head in lists else ())

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
        kind = self.of(source)
        if isinstance(kind, Total):
            turned = _OF_EXPERTS.get(head_of(kind)) if dims == [1, 0] else None
            return Total((turned, *kind.what[1:]) if turned else ())
        rows = self.rows_in(source)
        return plain(rows, dims.index(rows.dim))

    def _unsqueeze(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        kind = self.of(a["self"])
        if isinstance(kind, Indices) and len(shape_of(a["self"])) == 1 and a["dim"] in (1, -1):
            return Column(kind)
        if isinstance(kind, Total):
            return Total()
        rows, at = self.rows_in(a["self"]), a["dim"] % (len(shape_of(a["self"])) + 1)
        return plain(rows, rows.dim + (at <= rows.dim))

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
        return plain(rows, rows.dim - sum(dim < rows.dim and old[dim] == 1 for dim in gone))

    def _expand(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        old, kind = shape_of(a["self"]), self.of(a["self"])
        if isinstance(kind, Column):
            size = a["size"][0]
            same = self.of(size) == Number(("rows", length(kind.indices.order))) or size in (-1, old[0])
            if len(a["size"]) != 2 or not same:
                raise Mixed("an expansion to other numbers of rows")
            return kind
        if isinstance(kind, Total) and not self.cut.get(node.name) and all(type(size) is int for size in a["size"]):
            return Total()  # to the same size in every chunk: of each part, what it is of their sum
        cut = self.cut.get(node.name, ())
        if kind is None and len(cut) == 1:
            place = cut[0] - (len(a["size"]) - len(old))
            if place < 0 or old[place] == 1:  # the same row for each token, as the bias of a product has
                return Rows(("tokens", static(a["size"][cut[0]])), cut[0])
        rows = self.rows_in(a["self"])
        at = rows.dim + len(a["size"]) - len(old)
        wanted = a["size"][at]
        if isinstance(wanted, fx.Node):
            fits = self.of(wanted) == self.number_of_rows(rows.order)
        else:
            fits = wanted == -1 or (type(wanted) is int and wanted == old[rows.dim] and wanted > 1)
        if not fits or any(self.of(size) is not None for i, size in enumerate(a["size"]) if i != at):
            raise Mixed("an expansion to other numbers of rows")
        return plain(rows, at)

    def _slice(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        whole = (a.get("start") or 0, a.get("end"), a.get("step", 1)) == (0, _END, 1)
        kind = self.of(a["self"])
        if whole and kind is not None:
            return kind
        rows = self.rows_in(a["self"])
        if a["dim"] % len(shape_of(a["self"])) == rows.dim:
            raise Mixed("some of the rows are taken")
        return replace(rows, tag="")

    def _select(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        rows, dim = self._slice(node, a), a["dim"] % len(shape_of(a["self"]))
        assert isinstance(rows, Rows)
        return replace(rows, dim=rows.dim - (dim < rows.dim))

    def _unbind(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        kind, count = self.of(a["self"]), len(node.meta["val"])
        if isinstance(kind, Total) and head_of(kind) == "stack" and a.get("dim", 0) == 0:
            return tuple(Total(what) for what in kind.what[1:])
        if isinstance(kind, Total):
            return tuple(Total((*kind.what, i) if kind.what else ()) for i in range(count))
        return (self._select(node, a),) * count

    def seen(self, node: fx.Node) -> Kind | None:
        """What a view without a rule of its own shows of rows, or of a sum, by its strides."""
        kind = self.of(node.args[0]) if node.args and not self.cut.get(node.name) else None
        if not isinstance(kind, (Rows, Total)):
            return None
        view = shown(node, kind.dim if isinstance(kind, Rows) else 0)
        if view is None or (isinstance(kind, Total) and not view.adds_up):
            return None
        return Rows(kind.order, view.dim) if isinstance(kind, Rows) else Total()

    def _into(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """Rows put where a slice of each row was taken, among zeros or what was there."""
        given = [self.of(a[name]) for name in ("self", "src", "grad_output") if name in a]
        cut = self.cut.get(node.name, ())
        if all(isinstance(kind, Total) for kind in given) and not cut:
            return Total()  # among zeros, a sum stays one
        rows, dim = given[-1], a["dim"] % len(shape_of(node))
        if not isinstance(rows, Rows):
            raise Mixed("an operand that is no rows")
        selected = op_name(node.target).startswith("aten.select")
        place = rows.dim + (selected and dim <= rows.dim)
        if place == dim:
            raise Mixed("some of the rows are written")
        sizes = a.get("input_sizes", ())
        if sizes:
            counted = self.of(sizes[place]) == self.number_of_rows(rows.order)
            fits = cut == (place,) if type(sizes[place]) is int else counted and not cut
            if not fits or any(self.of(size) is not None for at, size in enumerate(sizes) if at != place):
                raise Mixed("zeros for other numbers of rows")
        elif cut or not isinstance(given[0], Rows) or (given[0].order, given[0].dim) != (rows.order, place):
            raise Mixed("rows meet rows in another order")
        return Rows(rows.order, place)
