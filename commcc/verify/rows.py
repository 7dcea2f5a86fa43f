"""What ops do to rows: how each result of a module is made of the results of its chunks.

    x                   Rows(("tokens", 60), 0)      the chunks one after another, along dimension 0
    mm(x, w)            Rows(("tokens", 60), 0)      row by row
    mm(x.t(), y)        Total()                      the sum over the chunks
    sum(x, [0])         Total()
    softmax(x, 0)       Mixed                        looks from one row at another

:mod:`commcc.verify.row_views` adds the rules for other shapes of rows, :mod:`commcc.verify.tokens` those for rows that
are picked, exchanged and put back.

Limits: an op without a rule mixes rows, and so does a rule whose premises are not seen to hold.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from commcc.graph.ops import aliasing, is_getitem, op_name
from commcc.graph.ops.constants import REPLACING
from commcc.graph.ops.counting import marks
from commcc.graph.ops.decomposed import parts_of
from commcc.graph.ops.flexible import FLEX
from commcc.graph.ops.names import constants_of
from commcc.graph.ops.row_wise import LINEAR_IN_ALL, LINEAR_IN_ONE, ROW_RULES, RowRule, is_elementwise, is_reduction
from commcc.graph.ops.twins import functional
from commcc.serialization.propagate import quiet
from commcc.verify.arguments import bind
from commcc.verify.attention import attended, is_attention
from commcc.verify.clones import (
    CHOSEN,
    EXACT,
    SLICED,
    Indices,
    Inverse,
    Kind,
    Mixed,
    Number,
    Order,
    Places,
    Rows,
    Total,
    dtype_of,
    head_of,
    length,
    same_size,
    shape_of,
)
from commcc.verify.contents import adds_up, is_whole
from commcc.verify.entangled import named

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

#: What a table of ranks and experts becomes when it is summed along a dimension.
_SUMMED = {("counts of ranks", 1): "sent", ("received of ranks", 1): "got", ("received of ranks", 0): "by expert"}
#: Sums of all counts up to each, and of all before it.
_UNTIL = {"by expert": "ends", "received": "received ends", "segments": "segment ends"}
_BEFORE = {("received ends", "received"): "starts", ("segment ends", "segments"): "own starts"}
#: The key of rows that are in the order of experts, and of ranks for each of them.
SEGMENTS = "#segments"


def _op(node: fx.Node) -> str:
    return str(getattr(node.target, "qualified_name", node.target))


#: What is counted among no more than so many is exact in 32 bits, and so are sums of a dozen of such counts.
_FEW = 1 << 20
#: Rules that keep all elements, one after another.
_SAME_ELEMENTS = frozenset({RowRule.KEEP, RowRule.RESHAPE, RowRule.UNSQUEEZE, RowRule.SQUEEZE})


class RowRules:
    """kinds: by name of the node. own: names of operands that the node at hand reads of its own chunk. root: holds the
    graphs that ops are handed.
    """

    def __init__(self, cut: Mapping[str, Collection[int]], root: nn.Module | None = None) -> None:
        self.cut = {name: tuple(dims) for name, dims in cut.items()}
        self.root = nn.Module() if root is None else root
        self.kinds: dict[str, Kind] = {}
        self.own: Collection[str] = ()
        self.entered: set[str] = set()
        #: Names that share a storage, by each of them; those of nodes that write in place, with the names they change.
        self.sharing: dict[str, set[str]] = {}
        self.written: dict[str, set[str]] = {}
        self._versions: Counter[str] = Counter()
        self.within: frozenset[Any] = frozenset()  # ops that these nodes are part of

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
            kind = self._apply_rule(node)
            self._check_parts(node, kind)
            self._share_storage(node)
            self._write(node, kind)
            return kind
        except Mixed as reason:
            raise Mixed(f"at '{node.name}' ({_op(node)}): {reason}") from None
        except (
            AttributeError,
            IndexError,
            KeyError,
            TypeError,
            ValueError,
            ArithmeticError,
        ):  # a file may say anything
            raise Mixed(f"at '{node.name}' ({_op(node)}): arguments that the op does not take") from None

    def _check_parts(self, node: fx.Node, kind: Kind) -> None:
        """Raises where the dtype of a sum says that it is not the sum of what the chunks have."""
        if not isinstance(kind, Total) or ROW_RULES.get(op_name(node.target)) is RowRule.GROUPED:
            return  # the groups of rows that are multiplied are counts, and no part of the sum
        for used in node.all_input_nodes:
            given, old, new = self.of(used), dtype_of(used), dtype_of(node)
            if not isinstance(given, Total) or (given.what and old in EXACT and new in EXACT):
                continue  # how many rows there are fits whatever holds such numbers
            if not adds_up(old, new):
                how = f"may have wrapped around in {str(old).removeprefix('torch.')}" if is_whole(old) else "is rounded"
                raise Mixed(f"a sum over tokens {how} before the chunks are added up")

    def _apply_rule(self, node: fx.Node) -> Kind:
        if is_getitem(node.target):
            return self._part(node)
        arguments = {**bind(node), **constants_of(node.target)}
        name = op_name(node.target)
        target = functional(node.target)
        if self.of(arguments.get("self")) is not None:  # in place on what is the chunk's own: what the twin gives
            name = op_name(node.target if target is node.target else target)
        rule = ROW_RULES.get(name)
        kinds = [(used, self.of(used)) for used in node.all_input_nodes]
        numbers = [kind.what for _, kind in kinds if isinstance(kind, Number)]
        if numbers and (stepped := self._stepped(node)) is not None:
            return stepped
        if numbers and (rule is None or not rule.takes_sizes):
            raise Mixed("a number of rows is looked at")
        fills = name in REPLACING or rule in (RowRule.PUT_ROWS, RowRule.COPY_ROWS)
        for used, kind in kinds:
            if isinstance(kind, Rows) and kind.tag == "empty" and not (fills and used is arguments.get("self")):
                raise Mixed("memory that nothing was written to")
        self._check_places(arguments.get("indices", arguments.get("index")))
        if rule is not None:
            result: Kind = getattr(self, f"_{rule.name.lower()}")(node, arguments)
            return result
        if name in REPLACING:
            return self._replaced(arguments)
        if is_elementwise(target):
            return self.elementwise(node, name)
        if is_reduction(target):
            return self._reduce(node, arguments)
        if is_attention(target) or name in FLEX:
            return attended(node, self.of, self.root)
        return self.seen(node) or self._composed(node)

    def _check_places(self, index: Any) -> None:
        """A mask is as long as what it is a mask of, which a chunk's is not, and lets through nobody knows how many."""
        for place in index if isinstance(index, (list, tuple)) else [index]:
            if self.of(place) is not None and dtype_of(place) in (torch.bool, torch.uint8):
                raise Mixed("rows are taken where a mask of theirs says")

    def _stepped(self, node: fx.Node) -> Number | None:
        """A number of rows and a constant more or less, as a range over it is written: ``(n - 0 + 1 - 1) // 1``."""
        if len(node.args) != 2 or type(node.args[1]) is not int or node.kwargs:
            return None
        kind, step, target = self.of(node.args[0]), node.args[1], node.target
        if not isinstance(kind, Number):
            return None
        what, more = kind.what[1:] if kind.what[0] == "stepped" else (kind.what, 0)
        if target in (operator.floordiv, operator.mul) and step == 1 and not more:
            return kind
        if target not in (operator.add, operator.sub):
            return None
        more += step if target is operator.add else -step
        return Number(("stepped", what, more)) if more else Number(what)

    def seen(self, node: fx.Node) -> Kind | None:
        """What a view without a rule of its own gives; None where an op is no view."""
        raise NotImplementedError

    def _composed(self, node: fx.Node) -> Kind:
        """What the ops give that PyTorch says an op is made of, if all that it reads of its own chunk is rows."""
        kinds = {used.name: self.of(used) for used in node.all_input_nodes}
        rows = {name: replace(kind, tag="") for name, kind in kinds.items() if isinstance(kind, Rows)}
        # Some ops are said to be made of themselves.
        known = node.target not in self.within and all(kind is None or name in rows for name, kind in kinds.items())
        places = {name: kind.dim for name, kind in rows.items()}
        with quiet():
            parts = parts_of(node, places, self.cut.get(node.name, ())) if rows and known else None
        if parts is None:
            raise Mixed("no rule says what it does to rows")
        inner = type(self)(parts.cut)
        inner.within = self.within | {node.target}
        given = zip(parts.graph.find_nodes(op="placeholder"), parts.operands, strict=True)
        inner.kinds = {stand.name: rows[used.name] for stand, used in given if used.name in rows}
        inner.entered = set(inner.kinds)
        for part in parts.graph.nodes:
            if part.op == "output":
                results: Any = part.args[0]
                break
            inner.own = {used.name for used in part.all_input_nodes} & set(inner.kinds)
            if part.op != "call_function" or not (inner.own or part.name in parts.cut):
                continue
            ends = all(user.op == "output" for user in part.users)
            sums = [used for used in part.all_input_nodes if isinstance(inner.of(used), Total)]
            total = bool(sums) and not any(is_whole(dtype_of(used)) for used in sums)
            # Rounding its own result is part of what an op does, as it is of a product.
            rounds = ends and total and ROW_RULES.get(op_name(part.target)) is RowRule.KEEP
            inner.kinds[part.name] = Total() if rounds else inner.kind(part)
        orders = {kind.order for kind in rows.values()}

        def result(part: Any) -> Kind:
            kind = inner.kinds.get(part.name, ()) if isinstance(part, fx.Node) else ()
            if isinstance(kind, Rows) and (kind.order in orders or kind.order[0] == "tokens"):
                return Rows(kind.order, kind.dim)
            return Total() if isinstance(kind, Total) else ()  # nothing that may be used

        composed = tuple(map(result, results)) if isinstance(results, (list, tuple)) else result(results)
        if composed == ():
            raise Mixed("no rule says what it does to rows")
        return composed

    def _replaced(self, a: dict[str, Any]) -> Kind:
        """All of a tensor becomes a number, or what another one holds."""
        rows, source = self.rows_in(a["self"]), a.get("src", a.get("value", 0))
        if not isinstance(source, fx.Node):
            return replace(rows, uniform=True, tag={0: "zeros", 1: "ones"}.get(source, ""))
        other = self.of(source)
        if not isinstance(other, Rows) or (other.dim, length(other.order)) != (rows.dim, length(rows.order)):
            raise Mixed("every chunk is filled with another number")
        if not same_size(shape_of(source), shape_of(a["self"])):
            raise Mixed("it is filled again and again with the same rows")
        return replace(other, tag="")

    def _share_storage(self, node: fx.Node) -> None:
        a = bind(node)
        names = named(a, ("a",) if is_getitem(node.target) else aliasing(node.target).views)
        views = [a.get(name) for name in names]
        group = {node.name}
        for source in views:
            for used in source if isinstance(source, (list, tuple)) else [source]:
                if isinstance(used, fx.Node) and used.name in self.own:
                    group |= self.sharing.get(used.name, {used.name})
        self.sharing.update(dict.fromkeys(group, group))

    def _write(self, node: fx.Node, kind: Kind) -> None:
        """What is written in place is another value from now on, under all of its names."""
        aliases, a = aliasing(node.target), bind(node)
        targets = [a.get(name) for name in named(a, aliases.writes)]
        if aliases.pure or (ROW_RULES.get(op_name(node.target)) is RowRule.ACCUMULATE and self.of(a["self"]) is None):
            return
        own = [target for target in targets if isinstance(target, fx.Node) and target.name in self.own]
        group = self.sharing[node.name]
        if len(targets) != 1 or not own or len(group - set(self.written)) != 2 or group & self.entered:
            raise Mixed("a write to what others share")
        self.written[node.name] = group
        for name in group:
            self.kinds[name] = kind
            self._versions[name] += 1

    def origin(self, node: fx.Node) -> str:
        """The name of what conversions convert and views show, if they keep the numbers of experts apart, in order.

        What makes integers of fractions does not; of numbers that were integers before it does.
        """
        cut: fx.Node | None = None
        while ROW_RULES.get(op_name(node.target)) in _SAME_ELEMENTS and dtype_of(node) in EXACT:
            source = node.all_input_nodes[0]
            if cut is None and dtype_of(source).is_floating_point and not dtype_of(node).is_floating_point:
                cut = node
            node = source
        if cut is not None and dtype_of(node).is_floating_point:
            node = cut
        version = self._versions[node.name]
        return f"{node.name} after {version}" if version else node.name

    def rows_in(self, value: object, what: str = "an operand") -> Rows:
        kind = self.of(value)
        if not isinstance(kind, Rows):
            raise Mixed(f"{what} that is no rows")
        return kind

    def rows_for(self, target: fx.Node, source: object) -> Rows:
        """Rows that are put into a tensor one by one. With fewer dimensions they would be broadcast, and a chunk of one
        row to other places than rows of the whole.
        """
        if len(shape_of(source)) != len(shape_of(target)):  # type: ignore[arg-type]
            raise Mixed("rows with other dimensions than what they are put into")
        return self.rows_in(source)

    def number_of_rows(self, order: Order) -> Number:
        """How many rows an order has, as the host knows them."""
        return Number(("rows", length(order)))

    # Rows that stay where they are

    def _keep(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        source = a[next(iter(a))]
        kind = self.of(source)
        if kind is None or isinstance(kind, (Number, tuple)):
            raise Mixed("an operand that is no rows")
        return kind

    def _all_sums(self, values: Sequence[Any]) -> bool:
        return bool(values) and all(isinstance(self.of(value), Total) for value in values)

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
        single = all(size == 1 for value, kind in kinds if kind is None for size in shape_of(value))
        return Rows(firm[0].order, rank + end, single and all(kind.uniform for _, kind in rows))

    def _linear(self, node: fx.Node, name: str, given: list[Any]) -> Kind:
        """A sum over tokens that is added to another one, or multiplied by what is the same in every chunk."""
        whole = len(given) == len(node.args) and all(isinstance(kind, Total) for kind in given)
        if name in LINEAR_IN_ALL and whole:
            pair = name == "aten.sub" and len(given) == 2 and not node.kwargs and given[0].what[1:] == given[1].what[1:]
            before = _BEFORE.get((head_of(given[0]), head_of(given[1]))) if pair else None
            return Total((before, *given[0].what[1:]) if before else ())
        # The square of a sum is no sum of squares: the sum may be one of the operands only, and once.
        sums = [value for value in (*node.args, *node.kwargs.values()) if self.of(value) is not None]
        if name in LINEAR_IN_ONE and len(given) == len(sums) == 1:
            return Total()
        share = name == "aten.div" and bind(node).get("rounding_mode") is None
        if share and len(given) == 1 and sums == [node.args[0]] and getattr(dtype_of(node), "is_floating_point", False):
            return Total()  # not rounded to whole numbers
        raise Mixed("a sum over tokens goes through what is not linear")

    def _along(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        """Ops along another dimension than that of the rows."""
        tensors = [value for value in a.values() if isinstance(value, fx.Node)]
        if all(isinstance(self.of(value), Total) for value in tensors) and op_name(node.target).endswith("cumsum"):
            what = self.of(tensors[0]).what  # type: ignore[union-attr]
            until = _UNTIL.get(what[0]) if what and len(shape_of(tensors[0])) == 1 else None
            return Total((until, *what[1:]) if until else ())
        rows = [self.rows_in(value) for value in tensors]
        dim = a.get("dim", -1) % len(shape_of(tensors[0]))
        firm = next((r for r in rows if not r.uniform), rows[0])
        alike = (r.uniform and length(r.order) == length(firm.order) for r in rows)
        if any(r.dim != firm.dim or not (r.order == firm.order or same) for r, same in zip(rows, alike, strict=True)):
            raise Mixed("rows meet rows in another order")
        if dim == firm.dim:
            raise Mixed("it works along the rows")
        result = Rows(firm.order, firm.dim)
        return (result, result) if isinstance(node.meta.get("val"), (tuple, list)) else result

    def _sort(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        order, shape = self.of(a["self"]), shape_of(a["self"])
        if isinstance(order, Indices) and order.share == 1 and len(shape) == 1 and not a.get("descending"):
            return (Places(order.order, frozenset({"row"})), Inverse(order))
        rows = self.rows_in(a["self"])
        if a.get("dim", -1) % len(shape) != rows.dim:
            return self._along(node, {"self": a["self"], "dim": a.get("dim", -1)})
        if len(shape) != 1 or a.get("descending"):
            raise Mixed("it works along the rows")
        indices = Indices(rows.order, self.origin(a["self"]), local=rows.tag == "local")
        return (Rows(indices.sorted, 0), indices)

    def _reduce(self, node: fx.Node, a: dict[str, Any]) -> Kind:
        kind, shape = self.of(a["self"]), shape_of(a["self"])
        dims = a.get("dim", a.get("dims"))
        listed = dims if isinstance(dims, (list, tuple)) else [] if dims is None else [dims]
        chosen = {d % len(shape) for d in listed} or None
        summed = op_name(node.target) == "aten.sum"
        if isinstance(kind, Total) and summed:
            what = _SUMMED.get((head_of(kind), *chosen)) if chosen is not None and len(chosen) == 1 else None
            return Total((what, *kind.what[1:]) if what else ())
        rows = self.rows_in(a["self"])
        if chosen is None or rows.dim in chosen:
            if summed and rows.tag.startswith(CHOSEN) and not rows.dim and (count := marks(shape, chosen)) is not None:
                return self._chosen(node, rows, shape[-1], count)
            if summed and rows.tag.startswith(CHOSEN) and (rows.dim, chosen, len(shape)) == (1, {1}, 2):
                return self._chosen(node, rows, shape[0], 1)
            if summed:
                return Total(("how many",) if _counted(node, a["self"], shape, chosen) else ())
            raise Mixed("it works along the rows")
        lost = 0 if a.get("keepdim") else sum(dim < rows.dim for dim in chosen)
        result = Rows(rows.order, rows.dim - lost)
        several = node.meta.get("val")
        return (result,) * len(several) if isinstance(several, (list, tuple)) else result

    def _chosen(self, node: fx.Node, rows: Rows, numbers: Any, per_row: int) -> Kind:
        """How often each number was chosen; no row chooses one twice, or exchanges by these counts would not fit."""
        key, _, several = rows.tag.removeprefix(CHOSEN).rpartition(" of ")
        if dtype_of(node) not in EXACT or rows.order[0] not in SLICED:
            return Total()
        return Total(("counts", key, numbers, (*rows.order[:-1], rows.order[-1] * per_row * int(several))))


def _counted(node: fx.Node, of: fx.Node, shape: list[Any], dims: set[int] | None) -> bool:
    """Whether a sum counts what holds, among so few that no type of EXACT rounds it, or the sum over all chunks."""
    sizes = [shape[dim] for dim in dims or range(len(shape))]
    known = [size for size in sizes if type(size) is int]
    counts = dtype_of(of) is torch.bool and dtype_of(node) is torch.int64
    return counts and len(known) == len(sizes) and math.prod(known) <= _FEW
