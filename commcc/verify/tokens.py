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
counted by ``histc`` or ``bincount`` and exchanged by these counts, on equal numbers of experts for each rank; what
else mixes rows is not decided, and is named. The counts of a rank are taken to fit its rows: else the exchange fails.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from commcc.graph.ops import Aliasing, aliasing, collective_of, only_computes, op_name
from commcc.graph.ops.constants import ZEROS
from commcc.graph.ops.counting import BY_LENGTH, bins_of, is_as_long, marked, spans_data
from commcc.graph.ops.filled import counts_to, is_filled
from commcc.verify.arguments import bind
from commcc.verify.clones import (
    CHOSEN,
    EXACT,
    SLICED,
    Claim,
    Column,
    Indices,
    Inverse,
    Kind,
    Mixed,
    Number,
    Order,
    Places,
    Rows,
    Total,
    as_wide,
    blocks_of,
    communicated,
    dtype_of,
    length,
    put_per_row,
    shape_of,
    static,
)
from commcc.verify.contents import adds_up, is_whole
from commcc.verify.pieces import Pieces, counts_experts, counts_up, listed
from commcc.verify.rows import SEGMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


def kinds_of(
    body: Mapping[str, fx.Node],
    entering: Mapping[str, int],
    reads: Callable[[str], Collection[str]],
    cut: Mapping[str, Collection[int]],
    root: nn.Module | None = None,
) -> tuple[dict[str, Kind], dict[str, set[str]]]:
    """The kind of every value of a module, and what shares the storage that is written, by the nodes that write; raises
    :class:`Mixed` at the first value that has no kind.

    body: the nodes that were cut, by name, in order. entering: what was split, and along which dimension. reads: the
    names of the operands that a node reads of its own chunk; all others are the same for all chunks. cut: dimensions of
    factories that are cut, by name. root: holds the graphs that ops are handed.
    """
    rules = Dispatch(cut, root)
    same: set[str] = set()
    for name, node in body.items():
        rules.own = set(reads(name)) - same
        if not rules.own and name not in cut and _is_same(node):
            same.add(name)
            continue
        for used in (u for u in node.all_input_nodes if u.name in entering and u.name in rules.own):
            if used.name in body:
                continue
            dim = entering[used.name]
            if dim >= len(shape_of(used)):
                raise Mixed(f"'{used.name}' has no dimension {dim}")
            rules.kinds[used.name] = Rows(("tokens", static(shape_of(used)[dim])), dim)
            rules.entered.add(used.name)
        rules.kinds[name] = rules.kind(node)
    return rules.kinds, rules.written


class Dispatch(Pieces):
    """Rules for products, rows by index, and numbers of rows."""

    def _composed(self, node: fx.Node) -> Kind:
        """A collective, or an op of which PyTorch says what it is made of."""
        known = collective_of(node.target) is not None
        return communicated(node, self.rows_in(node.args[0])) if known else super()._composed(node)

    # Products

    def _product(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        left, right = self.of(a["self"]), self.of(a["mat2"])
        if isinstance(left, Rows) and left.dim == 0 and right is None:
            return Rows(left.order, 0)
        if left is None and isinstance(right, Rows) and right.dim == 1:
            return Rows(right.order, 1)
        both = isinstance(left, Rows) and isinstance(right, Rows)
        if both and (left.dim, right.dim) == (1, 0) and left.order == right.order:  # type: ignore[union-attr]
            return Total()
        raise Mixed("a product of other things than rows and weights")

    def _batched(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        left, right = self.of(a["self"]), self.of(a["mat2"])
        if isinstance(left, Rows) and isinstance(right, Rows) and left == right and left.dim == 0:
            return Rows(left.order, 0)
        if isinstance(left, Rows) and left.dim == 1 and right is None:
            return Rows(left.order, 1)
        if left is None and isinstance(right, Rows) and right.dim == 2:
            return Rows(right.order, 2)
        both = isinstance(left, Rows) and isinstance(right, Rows)
        if both and (left.dim, right.dim) == (2, 1) and left.order == right.order:  # type: ignore[union-attr]
            return Total()
        raise Mixed("a product of other things than rows and weights")

    def _grouped(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """Rows in the order of their experts, each times the matrix of its expert."""
        left, right, ends = (self.of(a[name]) for name in ("self", "mat2", "offs"))
        if not isinstance(left, Rows) or not isinstance(ends, Total) or ends.what[:1] != ("ends",) or a.get("bias"):
            raise Mixed("groups of rows that are not those of the experts")
        if left.order[0] != "sorted" or left.order[1] != ("received", *ends.what[1:-1]):
            raise Mixed("groups of rows that are not those of the experts")
        if left.order[2] not in self._local | {SEGMENTS} or ends.what[-1] != ends.what[4]:
            raise Mixed("groups of rows that are not those of the experts")
        if left.dim == 0 and right is None and len(shape_of(a["mat2"])) == 3 and len(shape_of(a["self"])) == 2:
            return Rows(left.order, 0)
        if left.dim == 1 and isinstance(right, Rows) and right.dim == 0 and left.order == right.order:
            return Total()
        raise Mixed("a product of other things than rows and weights")

    @property
    def _local(self) -> set[str]:
        """Names of what says for each row which expert of this rank it is for."""
        return {
            k.key
            for kind in self.kinds.values()
            if isinstance(kind, tuple)
            for k in kind
            if isinstance(k, Indices) and k.local
        }

    def elementwise(self, node: fx.Node, name: str) -> Kind:
        """Numbers compared with 0, 1, 2, ... say which one was chosen."""
        a = bind(node)
        if name == "aten.div" and a.get("rounding_mode") == "floor" and isinstance(self.of(a["self"]), Indices):
            return self._share(node, a)
        given = [kind for kind in map(self.of, node.all_input_nodes) if kind is not None]
        claims = [kind for kind in given if isinstance(kind, Claim)]
        if claims:
            return self._claims(node, name, claims)
        places = [kind for kind in given if isinstance(kind, Places)]
        if places and len(places) == len(given):
            return self._places(node, name, places)
        kind = super().elementwise(node, name)
        if name == "aten.eq" and isinstance(kind, Rows) and len(node.all_input_nodes) == 2:
            own, table = node.all_input_nodes
            along = len(shape_of(own)) >= 2 and shape_of(own)[-1] == 1 and len(shape_of(table)) == 1
            if along and self.of(table) is None and counts_up(table):
                return replace(kind, tag=f"{CHOSEN}{self.origin(own)} of 1")
            across = len(shape_of(own)) == len(shape_of(table)) == 2 and shape_of(own)[0] == shape_of(table)[1] == 1
            if across and kind.dim == 1 and self.of(table) is None and counts_up(listed(table)):
                return replace(kind, tag=f"{CHOSEN}{self.origin(own)} of 1")
        return kind

    def _claims(self, node: fx.Node, name: str, given: list[Claim]) -> Claim:
        """The contrary of what holds of some row holds of all; two things hold of all rows where each of them does."""
        some = given[0].some
        alike = len(given) == len(node.args) and all(claim.some == some for claim in given)
        if alike and name == "aten.logical_not":
            return Claim(not some)
        if alike and name == ("aten.logical_or" if some else "aten.logical_and"):
            return given[0]
        raise Mixed("what holds of all rows, or of any, is looked at")

    def _places(self, node: fx.Node, name: str, given: list[Places]) -> Kind:
        """Places are added up; from where rows of an expert begin, one after another, is where they come from."""
        sign = "-" if name == "aten.sub" else ""
        if not (sign or name == "aten.add") or len(given) != 2 or len(node.args) != 2 or node.kwargs:
            raise Mixed("numbers of rows, or their order, are looked at")
        first, second = given
        order = next((kind.order for kind in given if kind.order[0] == "sorted"), first.order)
        parts = first.parts | {f"{sign}{part}" for part in second.parts}
        if any(length(kind.order) != length(order) for kind in given) or len(parts) != sum(len(g.parts) for g in given):
            raise Mixed("numbers of other rows are added up")
        if any(kind.order[0] == "sorted" and kind.order != order for kind in given):
            raise Mixed("numbers of other rows are added up")
        if parts == {"start", "row", "-own start"}:
            return Indices(length(order), SEGMENTS, local=True)
        return Places(order, frozenset(parts))

    # Rows by index

    def _pick(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """Along the rows only whole rows, each from one place."""
        where, table = self.of(a["index"]), self.of(a["self"])
        if not isinstance(where, Column):
            return self._along(node, {name: value for name, value in a.items() if name != "sparse_grad"})
        if a["dim"] != 0 or not as_wide(a["self"], a["index"]):
            raise Mixed("some elements of rows are taken from where others are")
        return self._picked(table, where.indices)

    def _picked(self, table: Kind | None, where: Kind | None) -> Kind:
        order = table.order if isinstance(table, Rows) and table.dim == 0 else None
        if isinstance(where, Indices) and order == where.into():
            return Rows(where.sorted, 0)
        if isinstance(where, Inverse) and order == where.indices.sorted:
            return Rows(where.indices.order, 0)
        raise Mixed("rows are taken from where others are")

    def _pick_rows(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        table: Kind | None = self.of(a["self"])
        index: Any = a.get("index", a.get("indices"))
        if isinstance(index, (list, tuple)):
            (index,) = index
        where = self.of(index)
        if a.get("dim", 0) % max(len(shape_of(a["self"])), 1):
            raise Mixed("an index of another dimension than that of the rows")
        if table is None and isinstance(where, Rows) and len(shape_of(index)) == 1:
            local = where.tag == "ids" and counts_experts(a["self"], where.order)
            same = where.tag == SEGMENTS and counts_up(a["self"])
            return Rows(where.order, 0, tag="local" if local else SEGMENTS if same else "")
        starts = _STARTS.get(table.what[0]) if isinstance(table, Total) and table.what else None
        if starts and isinstance(where, Rows) and (where.tag, len(shape_of(index))) == (SEGMENTS, 1):
            if where.order != _in_segments(table.what):  # type: ignore[union-attr]
                raise Mixed("rows of other segments")
            return Places(where.order, frozenset({starts}))
        return self._picked(table, where)

    def _scatter(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """Elements of each row; ones among zeros say which were chosen."""
        where, src = self.of(a["index"]), a.get("src")
        if isinstance(where, Column):
            whole = a["dim"] == 0 and "reduce" not in a and isinstance(src, fx.Node) and as_wide(src, a["index"])
            if not whole or not as_wide(a["self"], a["index"]):
                raise Mixed("some elements of rows are put where others were")
            return self._put(a["self"], where.indices, src, added=False)
        kind, source = self._along(node, a), self.of(a["self"])
        several = marked(a, shape_of(node), shape_of(a["index"]))
        zeros = isinstance(source, Rows) and (source.tag, source.dim) == ("zeros", 0)
        if zeros and several is not None and isinstance(kind, Rows):
            return replace(kind, tag=f"{CHOSEN}{self.origin(a['index'])} of {several}")
        return kind

    def _scatter_add(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """Along the rows only whole rows, each to one place."""
        where = self.of(a["index"])
        if a["dim"] == 0 and (isinstance(self.of(a["self"]), Total) or self._nothing(a["self"])):
            return self._collected(a["self"], a["index"], a["src"])
        if not isinstance(where, Column):
            return self._along(node, a)
        if a["dim"] != 0 or not (as_wide(a["self"], a["index"]) and as_wide(a["src"], a["index"])):
            raise Mixed("some elements of rows are put where others were")
        return self._put(a["self"], where.indices, a["src"], added=True)

    def _nothing(self, node: Any) -> bool:
        """Whether a tensor that all chunks share is zeros: to each chunk its own, if nobody writes to it."""
        if not isinstance(node, fx.Node) or self.of(node) is not None or not is_filled(node, 0):
            return False
        return all(aliasing(user.target) == Aliasing() and only_computes(user.target) for user in node.users)

    def _collected(self, target: fx.Node, index: Any, source: Any) -> Kind:
        """Rows added up by a number of their own; ones, to zeros, count how many rows have each number."""
        base = Total(("zeros",)) if self._nothing(target) else self.of(target)
        numbers, rows = self.rows_in(index), self.rows_for(target, source)
        if len(shape_of(index)) != 1 or (rows.order, rows.dim) != (numbers.order, 0):
            raise Mixed("rows are added up by numbers of others")
        zeros = isinstance(base, Total) and base.what == ("zeros",)
        counted = zeros and rows.tag == "ones" and len(shape_of(source)) == 1
        if not counted or dtype_of(target) not in EXACT or numbers.order[0] not in SLICED:
            return Total()
        return Total(("counts", self.origin(index), shape_of(target)[0], numbers.order))

    def _put_rows(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        rows = put_per_row(a, self.of)
        if rows is not None:
            return rows
        index = a["indices"][0] if len(a["indices"]) == 1 else None
        if isinstance(self.of(a["values"]), Places):
            return self._inverse(a, index)
        if (isinstance(self.of(a["self"]), Total) or self._nothing(a["self"])) and a.get("accumulate"):
            return self._collected(a["self"], index, a["values"])
        return self._put(a["self"], self.of(index), a["values"], added=bool(a.get("accumulate")))

    def _inverse(self, a: dict[str, Any], index: Any) -> Inverse:
        """The number of each row put where the row comes from: where each row went."""
        where, numbers, target = self.of(index), self.of(a["values"]), self.of(a["self"])
        assert isinstance(numbers, Places)
        fits = isinstance(where, Indices) and where.share == 1 and isinstance(target, Rows) and target.dim == 0
        fits = fits and all(len(shape_of(operand)) == 1 for operand in (index, a["self"], a["values"]))
        if not fits or a.get("accumulate") or numbers.parts != {"row"}:
            raise Mixed("numbers of rows are put where others were")
        if not length(where.order) == length(numbers.order) == length(target.order):  # type: ignore[union-attr]
            raise Mixed("numbers of rows are put where others were")
        return Inverse(where)  # type: ignore[arg-type]

    def _copy_rows(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        if a["dim"] != 0:
            raise Mixed("an index of another dimension than that of the rows")
        return self._put(a["self"], self.of(a["index"]), a["source"], added=False)

    def _add_rows(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        if a["dim"] != 0:
            raise Mixed("an index of another dimension than that of the rows")
        if (isinstance(self.of(a["self"]), Total) or self._nothing(a["self"])) and a.get("alpha", 1) == 1:
            return self._collected(a["self"], a["index"], a["source"])
        return self._put(a["self"], self.of(a["index"]), a["source"], added=True)

    def _put(self, target: Any, where: Kind | None, source: Any, *, added: bool) -> Kind:
        """Rows back to where they came from; several for one place are added up."""
        base, rows = self.rows_in(target), self.rows_for(target, source)
        back = where.indices.sorted if isinstance(where, Inverse) else None
        goal = where.into() if isinstance(where, Indices) else back
        comes = where.sorted if isinstance(where, Indices) else None if back is None else where.indices.order  # type: ignore[union-attr]
        if goal is None or rows.dim != 0 or rows.order != comes or base.dim != 0:
            raise Mixed("rows are put where others were")
        overwritten = base.tag == "empty" and not added
        fits = length(base.order) == length(goal) if base.uniform or overwritten else base.order == goal
        several = isinstance(where, Indices) and where.share != 1
        if not fits or (several and not added) or (base.tag == "empty" and added):
            raise Mixed("rows are put where others were")
        return Rows(goal, 0)

    def _share(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        where, by = self.of(a["self"]), a["other"]
        if not isinstance(where, Indices):
            return self.elementwise(node, op_name(node.target))
        if where.share != 1 or type(by) is not int or by < 1 or where.order[0] not in SLICED or where.order[-1] % by:
            raise Mixed("an index that is no longer one")
        return replace(where, share=by)

    # Numbers of rows

    def _count(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """How many rows go to each expert: one bin for each number."""
        rows, bins = self.rows_in(a["self"]), bins_of(a)
        if len(shape_of(a["self"])) != 1 or rows.order[0] not in SLICED or spans_data(a):
            raise Mixed("it counts something else than rows by expert")
        if op_name(node.target) == BY_LENGTH and not is_as_long(node, bins):
            raise Mixed("which numbers there are says how long it is")
        return Total(("counts", self.origin(a["self"]), bins, rows.order) if bins is not None else ())

    def _repeat(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """The number of each (rank, expert), once for every row that came from there."""
        kind = self.of(a.get("repeats"))
        if isinstance(kind, Total) and kind.what[:1] == ("segments",) and "self" not in a:
            return Rows(_in_segments(kind.what), 0, tag=SEGMENTS)
        if not isinstance(kind, Total) or kind.what[:1] != ("received",) or "repeats" not in a or "self" in a:
            raise Mixed("it repeats something else than what was counted")
        return Rows(kind.what, 0, tag="ids")

    def _like(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        if self.of(a.get("fill_value")) is not None:
            raise Mixed("every chunk is filled with another number")
        kind = self.of(a["self"])
        if isinstance(kind, Indices) and len(shape_of(a["self"])) == 1:
            return _filled_rows(node, Rows(kind.order, 0))
        return _filled_rows(node, self.rows_in(a["self"]))

    def _filled(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """A tensor whose elements are all alike: which dimension is cut, its clones say."""
        if self.of(a.get("fill_value")) is not None:
            raise Mixed("every chunk is filled with another number")
        sizes = [(at, self.of(size)) for at, size in enumerate(a["size"]) if self.of(size) is not None]
        if len(sizes) == 1 and isinstance(sizes[0][1], Number) and sizes[0][1].what[0] == "rows":
            return _filled_rows(node, Rows(sizes[0][1].what[1], sizes[0][0]))
        cut = self.cut.get(node.name, ())
        if not sizes and not cut and op_name(node.target) in ZEROS:
            return Total(("zeros",))  # zeros of each chunk, to which something is added
        if sizes or len(cut) != 1:
            raise Mixed("a tensor of sizes that are not those of rows")
        return _filled_rows(node, Rows(("tokens", static(a["size"][cut[0]])), cut[0]))

    def _range(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """The number of each row: of those that were received, or of a chunk's own."""
        rows = self.of(end := counts_to(node))
        if node.name in self.cut and type(end) is int:
            return Places(("tokens", end), frozenset({"row"}))
        if not isinstance(rows, Number) or rows.what[0] != "rows":
            raise Mixed("rows are numbered from somewhere else")
        return Places(rows.what[1], frozenset({"row"}))

    def _exchange(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """Counts in equal parts, or rows by what was counted."""
        given, out, sent = self.of(a["input"]), a["output_split_sizes"], a["input_split_sizes"]
        group, ranks = a["group_name"], len(out or ())
        if isinstance(given, Total) and given.what[:1] == ("counts",):
            bins = given.what[2]
            if ranks < 1 or list(out) != [bins // ranks] * ranks or list(sent) != list(out) or bins % ranks:
                raise Mixed("counts are not exchanged in equal parts")
            return Total(("received", *given.what[1:], ranks, group))
        if isinstance(given, Total) and given.what[:1] == ("counts of ranks",):
            if ranks < 1 or given.what[-1] != ranks or list(out) != [1] * ranks or list(sent) != list(out):
                raise Mixed("counts are not exchanged in equal parts")
            return Total(("received of ranks", *given.what[1:-1], ranks, group, ranks))
        rows = self.rows_in(a["input"])
        if all(type(size) is int for size in (*(out or ()), *(sent or ()))) and ranks and len(sent) == ranks:
            return self._exchanged_by_place(rows, list(out), list(sent))
        if rows.dim != 0 or ranks < 1 or len(sent) != ranks:
            raise Mixed("rows are exchanged by other numbers than their counts")
        kinds = [[self.of(size) for size in sizes] for sizes in (sent, out)]
        counted = {k.what[1:4] for side in kinds for k in side if isinstance(k, Number) and len(k.what) > 4}
        for key, bins, order in counted:
            mine = [Number(("sent", key, bins, order, ranks, i)) for i in range(ranks)]
            theirs = [Number(("got", key, bins, order, ranks, group, ranks, i)) for i in range(ranks)]
            received = ("received", key, bins, order, ranks, group)
            if kinds == [mine, theirs] and rows.order == ("sorted", order, key):
                return Rows(received, 0)
            if kinds == [theirs, mine] and rows.order == received:
                return Rows(("sorted", order, key), 0)
        raise Mixed("rows are exchanged by other numbers than their counts")

    def _exchanged_by_place(self, rows: Rows, out: list[int], sent: list[int]) -> Rows:
        """Of the tokens of every rank a chunk has the same slice: in another dimension than that which is exchanged, or
        as blocks of which every rank gets as many.
        """
        blocks, per_block = blocks_of(rows.order)
        equal = out == sent == [blocks // len(out) * per_block] * len(out) and blocks % len(out) == 0
        if rows.dim == 0 and not equal:
            raise Mixed("rows are exchanged by their place, which is another one in a chunk")
        return Rows(rows.order, rows.dim)

    def _select(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """One of several sums, by a number that is the same in every chunk."""
        kind, at, shape = self.of(a["self"]), a.get("index"), shape_of(a["self"])
        if not isinstance(kind, Total):
            return super()._select(node, a)
        if type(at) is not int:
            raise Mixed("some of the sums are taken")
        known = kind.what and len(shape) == 1 and type(shape[0]) is int and -shape[0] <= at < shape[0]
        return Total((*kind.what, at % shape[0]) if known else ())

    def _every(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """Whether something holds of all rows, or of any: it does if it does in every chunk, or in some."""
        rows, dims, rank = self.rows_in(a["self"]), a.get("dim"), len(shape_of(a["self"]))
        listed = range(rank) if dims is None else dims if isinstance(dims, (list, tuple)) else [dims]
        if rows.dim not in [dim % rank for dim in listed]:
            return self._reduce(node, a)
        return Claim(op_name(node.target) == "aten.any")

    def _claim(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        if self.of(a["self"]) != Claim():
            raise Mixed("an assertion about something else than all rows")
        return ()

    def _accumulate(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """What a sum over tokens is added to, chunk after chunk."""
        added = self.of(a["other"])
        if self.of(a["self"]) is not None or not isinstance(added, Total):
            raise Mixed("a write to something else than a running sum")
        old, new = (dtype_of(a[name]) for name in ("other", "self"))
        if not (adds_up(old, new) or (added.what and {old, new} <= EXACT)):
            how = "may have wrapped around" if is_whole(old) else "is rounded"
            raise Mixed(f"a sum over tokens {how} before the chunks are added up")
        return ()


def _is_same(node: fx.Node) -> bool:
    """Whether a node that reads nothing of its own chunk is the same in all of them: it works something out, no more.

    Zeros are left to the rule of theirs: each chunk adds up in its own.
    """
    name, tags = op_name(node.target), getattr(node.target, "tags", ())
    if name in ZEROS or "empty" in name or node.op != "call_function" or torch.Tag.nondeterministic_seeded in tags:
        return False
    return hasattr(node.target, "_schema") and not aliasing(node.target).writes and collective_of(node.target) is None


#: What the sums of counts before each are to the rows of a segment.
_STARTS = {"segment starts": "start", "own starts": "own start"}


def _in_segments(what: tuple[Any, ...]) -> Order:
    """Rows by expert, and by rank for each: what was received, if the table of counts has a line for each rank."""
    if what[-1] != what[4]:
        raise Mixed("a table of counts that has other lines than ranks")
    return ("sorted", ("received", *what[1:-1]), SEGMENTS)


def _filled_rows(node: fx.Node, rows: Rows) -> Rows:
    """Rows of a factory: all alike, or not written to."""
    numbers = {"zeros": is_filled(node, 0), "ones": is_filled(node, 1), "empty": "empty" in op_name(node.target)}
    tag = next((tag for tag, holds in numbers.items() if holds), "")
    return replace(rows, uniform=tag != "empty", tag=tag)
