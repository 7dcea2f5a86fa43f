"""What values of chunks are to those of the whole, and whether a node is the clone that it is said to be.

The kind of a value says what it is made of::

    Rows(("tokens", 60), 0)        the rows of the chunks one after another, along dimension 0
    Total()                        the sum over the chunks
    Indices(("tokens", 120), "e")  where rows come from that every chunk has sorted by e

A node of AFTER is compared with the node of BEFORE of which it claims to be a clone, argument by argument::

    y_chunk0 = mm(x_chunk0, w)      is of    y = mm(x, w)      : x_chunk0 is chunk 0 of x, w is any node outside
    z_chunk0 = view(y_chunk0, [30, 4])       z = view(y, [60, 4])    : 30 is to 60 as the chunk is to the whole

What a clone reads from outside of the module is taken over as it is, and compared with BEFORE as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, Union

import torch
from torch import fx

from commcc.base import terms
from commcc.graph import ops
from commcc.graph.ops.constants import STRIDED
from commcc.graph.ops.operands import written
from commcc.graph.ops.sizes import COMPARED, DIMENSIONS, PARTS
from commcc.graph.ops.views import EXPAND, RESHAPES
from commcc.verify.arguments import bind
from commcc.verify.reshaping import to_host

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


#: How rows follow one another: ("tokens", number of rows), ("apart", blocks, number of rows in each), of each of which
#: a chunk has its slice, ("sorted", order, key), ("received", ...), ("units", order, numbers of pieces of that order).
Order: TypeAlias = "tuple[Any, ...]"


@dataclass(frozen=True)
class Rows:
    """Rows in an order, along one dimension.

    uniform: all elements are alike, so that any order of as many rows is this one, in any shape. tag: what the rows
    say: ``ids`` for numbers of (rank, expert) of rows that were received, ``local`` for the number of the expert on
    this rank, ``segments`` for numbers of (expert, rank); ``zeros``; ``empty`` for memory to which nothing was written;
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
        *kind, number = self.order
        return (*kind, number // self.share) if self.order[0] in SLICED else self.order


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


@dataclass(frozen=True)
class Claim:
    """The whole is true where it is true of every chunk, or of some: nothing but assertions may come of it."""

    some: bool = False


Kind: TypeAlias = Union[Rows, Total, Indices, Column, Inverse, Places, Number, Claim, "tuple[Any, ...]"]


class Mixed(Exception):
    """Rows that may depend on each other, or an op without a rule; the text says where."""


#: Orders of rows of which every chunk has a slice.
SLICED = ("tokens", "apart")


def blocks_of(order: Order) -> tuple[int, int]:
    """How many blocks of tokens lie one after another, and how many rows each has."""
    if order[0] not in SLICED:
        raise Mixed("rows in an order of their own")
    return (1, order[1]) if order[0] == "tokens" else (order[1], order[2])


def folded(rows: Rows, old: list[Any], new: list[Any]) -> Rows:
    """Tokens seen in another shape, as they lie in memory: what lies before them is more blocks of tokens, in whichever
    dimension they are in now.
    """
    outside, before = prod(map(static, old[: rows.dim])) * blocks_of(rows.order)[0], 1
    for dim, size in enumerate(new):
        if before * size > outside > 0:
            blocks, rest = divmod(outside, before)
            if rest or size % blocks:
                break
            return Rows(blocked(blocks, size // blocks), dim, rows.uniform)
        before *= size
    raise Mixed("a reshape of what lies before the rows")


def length(order: Order) -> Order:
    """How many rows an order has: sorting does not change that."""
    if order[0] == "apart":
        return ("tokens", order[1] * order[2])
    return length(order[1]) if order[0] == "sorted" else order


def communicated(node: fx.Node, rows: Rows) -> Rows:
    """What a collective gives of rows that it is sent: every rank does to each element what it does to it in the whole.

    Ranks lie along the first dimension of what is gathered and of what is scattered; rows along another one stay where
    they are. Rows along the first follow those of other ranks: of each rank's block a chunk has its slice.
    """
    fact = ops.collective_of(node.target)
    if fact is None or fact.coalesced or fact.out is not None:
        raise Mixed("it communicates in a way that is not known")
    if rows.order[0] not in SLICED:  # chunks of other rows need not be as long on all ranks, nor hold the same ones
        group = ops.argument(node, "group_name")
        raise Mixed(f"rows in an order of their own: that it is the same on all ranks of group '{group}' is open")
    blocks, per_block = blocks_of(rows.order)
    if fact.kind is terms.Kind.ALL_REDUCE or (
        rows.dim and fact.kind in (terms.Kind.ALL_GATHER, terms.Kind.REDUCE_SCATTER)
    ):
        return Rows(rows.order, rows.dim)
    ranks = ops.argument(node, "group_size")
    if fact.kind is terms.Kind.ALL_GATHER and type(ranks) is int and ranks > 0:
        return Rows(blocked(blocks * ranks, per_block), 0)
    if fact.kind is terms.Kind.REDUCE_SCATTER and type(ranks) is int and ranks > 0 and blocks % ranks == 0:
        return Rows(blocked(blocks // ranks, per_block), 0)
    raise Mixed("ranks get other rows of a chunk than of the whole")


def put_per_row(a: Mapping[str, Any], kind_of: Callable[[Any], Kind | None]) -> Rows | None:
    """Rows along a dimension that no index is of, added up where an index says: each without the others; None for what
    is put in another way, and may have a rule of its own.
    """
    target, values, indices, mask = kind_of(a["self"]), kind_of(a["values"]), a["indices"], a.get("mask")
    if isinstance(target, Rows) and isinstance(values, Rows) and a.get("accumulate", True) is True:
        from_right = len(shape_of(a["self"])) - target.dim
        alike = (values.order, len(shape_of(a["values"])) - values.dim) == (target.order, from_right)
        masked = [] if mask is None else shape_of(mask)
        fits = alike and (len(masked) < from_right or masked[-from_right] == 1) and target.tag != "empty"
        leading = len(indices) <= target.dim and None not in indices
        if fits and leading and all(kind_of(operand) is None for operand in (*indices, mask)):
            return Rows(target.order, target.dim)
    if mask is not None:
        raise Mixed("rows are put where a mask says")
    return None


def blocked(blocks: int, per_block: int) -> Order:
    """The order of blocks of so many rows, of each of which a chunk has its slice."""
    return ("tokens", per_block) if blocks == 1 else ("apart", blocks, per_block)


def shape_of(node: fx.Node) -> list[Any]:
    """Sizes: numbers, or expressions, which can be compared without asking for what only a run knows."""
    return [getattr(getattr(size, "node", size), "expr", size) for size in getattr(node.meta.get("val"), "shape", ())]


def static(size: object) -> int:
    if type(size) is not int:
        raise Mixed("a number of tokens that is not known")
    return size


def same_size(one: Any, other: Any) -> bool:
    return bool(type(one) is type(other) and str(one) == str(other))


def as_wide(node: fx.Node, other: fx.Node) -> bool:
    """Whether two tables have rows of the same length."""
    both = shape_of(node), shape_of(other)
    return all(len(shape) == 2 for shape in both) and same_size(both[0][1], both[1][1])


def dtype_of(node: fx.Node) -> Any:
    return getattr(node.meta.get("val"), "dtype", None)


#: Begins the tag of rows that say which numbers were chosen.
CHOSEN = "chosen "
#: Dtypes that hold the number of any expert, and of its rows.
EXACT = frozenset({torch.int32, torch.int64, torch.float32, torch.float64})


def head_of(kind: Total) -> str:
    """What a sum is of."""
    return str(kind.what[0]) if kind.what else ""


def plain(rows: Rows, dim: int) -> Rows:
    """The same rows seen in another shape: what their elements say of each other is no longer known."""
    return replace(rows, dim=dim, tag="" if rows.tag.startswith(CHOSEN) else rows.tag)


@dataclass(frozen=True)
class Part:
    """What a node of AFTER stands for: chunk ``chunk`` of a node of BEFORE; ``last`` chunks added up, from 0 to it.

    split: what made it of an activation from outside, which ``of`` names as AFTER does.
    """

    of: str
    chunk: int
    last: int | None = None
    split: fx.Node | None = None


class Unfaithful(Exception):
    """A clone that is not one; the node of AFTER, and what is wrong."""

    def __init__(self, node: fx.Node, text: str) -> None:
        super().__init__(text)
        self.node, self.text = node, text


@dataclass
class Module:
    """shares: for each chunk, its size and the whole's, along what was split first. clones: of each node, by chunk.

    scaled: which sizes are scaled as the tokens are, by node and argument. split: what was split, by the name of the
    split, with the dimension. entering: that dimension by names in BEFORE. joined, added: what was put together again,
    likewise, and what was added up. blocked: what was joined block by block, with the dimension and the shape it had.
    operands: of each node of BEFORE, what stands for them in the folded graph: a node, or the name of a whole. reads:
    names in BEFORE of what a clone reads of its own chunk.
    """

    chunks: int
    shares: tuple[tuple[int, int], ...] = ()
    clones: dict[str, dict[int, fx.Node]] = field(default_factory=dict)
    scaled: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    split: dict[str, int] = field(default_factory=dict)
    entering: dict[str, int] = field(default_factory=dict)
    joined: dict[str, int] = field(default_factory=dict)
    blocked: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    added: set[str] = field(default_factory=set)
    operands: dict[str, dict[fx.Node, fx.Node | str]] = field(default_factory=dict)
    reads: dict[fx.Node, set[str]] = field(default_factory=dict)


@dataclass
class Operands:
    """Compares the arguments of a clone with those of its original.

    A number may be scaled as the tokens are only where it is the size of the dimension that holds them.
    """

    parts: Mapping[fx.Node, Part]
    env: Mapping[fx.Node, fx.Node]
    groups: Mapping[str, str]
    node: fx.Node
    original: fx.Node
    module: Module
    chunk: int
    matched: dict[fx.Node, fx.Node | str] = field(default_factory=dict)
    scaled: dict[str, list[int]] = field(default_factory=dict)
    reads: dict[str, str] = field(default_factory=dict)

    def compare(self) -> None:
        """Raises :class:`Unfaithful` at the first difference; changes nothing of the module."""
        if self.node.target != self.original.target:
            self._refuse(ops.op_name(self.node.target), ops.op_name(self.original.target))
        own, old = bound(self.node), bound(self.original)
        if list(own) != list(old):
            self._refuse(list(own), list(old))
        for name, value in own.items():
            scaled: list[int] = []
            self.tree(value, old[name], scaled)
            if scaled:
                self._check_sizes(name, value, old[name], scaled)

    def tree(self, own: Any, old: Any, scaled: list[int], place: int = -1) -> None:
        """Compares one argument; ``scaled`` is told at which ``place`` numbers differ as the tokens do."""
        if isinstance(old, fx.Node) or isinstance(own, fx.Node):
            self._operand(own, old)
        elif isinstance(old, (list, tuple)) and isinstance(own, (list, tuple)) and len(own) == len(old):
            for at, pair in enumerate(zip(own, old, strict=True)):
                self.tree(*pair, scaled, at)
        elif isinstance(old, dict) and isinstance(own, dict) and list(own) == list(old):
            self.tree(list(own.values()), list(old.values()), scaled)
        elif (repr(own) != repr(old) or type(own) is not type(old)) and not self._same_group(own, old):
            if not self._as_tokens(own, old):
                self._refuse(own, old)
            scaled.append(place)

    def _refuse(self, own: Any, old: Any) -> NoReturn:
        text = f"has {own!r:.40}, where '{self.original.name}' has {old!r:.40} in BEFORE"
        raise Unfaithful(self.node, text)

    def _operand(self, own: Any, old: Any) -> None:
        if not isinstance(own, fx.Node) or not isinstance(old, fx.Node):
            self._not_that(own, old)
        part = self.parts.get(own)
        stands: fx.Node | str | None = self.env.get(own)
        if part is not None and part.last is None and part.chunk == self.chunk:
            # What a traced-anew AFTER calls otherwise is told by the comparison of the whole.
            outside = part.split is not None and old.name not in self.module.clones
            if part.of != old.name and not outside:
                self._not_that(own, old)
            stands = part.of if part.split is None else self.env[ops.argument(part.split, "self")]
            self.reads[old.name] = "" if part.split is None else part.split.name
        elif written(self.original) == (old,) and part == Part(self.original.name, self.chunk - 1):
            return  # a write on what the chunk before has left
        elif stands is None:
            self._not_that(own, old)
        if self.matched.setdefault(old, stands) != stands:
            self._not_that(own, old)

    def _not_that(self, own: Any, old: Any) -> NoReturn:
        text = f"has operand {own!s:.60}, where '{self.original.name}' has {old!s:.60} in BEFORE"
        raise Unfaithful(self.node, text)

    def keep(self) -> None:
        """Tell the module what this clone has; raises :class:`Unfaithful` where another chunk's has something else."""
        module, name = self.module, self.original.name
        for argument, scaled in self.scaled.items():
            if module.scaled.setdefault((name, argument), scaled) != scaled:
                raise Unfaithful(self.node, f"has other sizes scaled in '{argument}' than the clone of another chunk")
        known = module.operands.setdefault(name, self.matched)
        for old, stands in self.matched.items():
            if known.get(old) != stands:
                text = f"reads '{stands}' where the clone of another chunk reads '{known.get(old)}'"
                raise Unfaithful(self.node, text)
        for read, split in self.reads.items():
            if split and module.entering.setdefault(read, module.split[split]) != module.split[split]:
                raise Unfaithful(self.node, f"reads '{read}', which is split along another dimension than before")
        module.reads[self.node] = set(self.reads)

    def _same_group(self, own: Any, old: Any) -> bool:
        launches = ops.collective_of(self.node.target) is not None
        return launches and isinstance(own, str) and self.groups.get(own) == old

    def _as_tokens(self, own: Any, old: Any) -> bool:
        """Whether a number is to another one as the tokens of the chunk are to all tokens."""
        if type(own) is not int or type(old) is not int or not self.module.shares:
            return False
        size, whole = self.module.shares[self.chunk]
        return own * whole == old * size

    def _check_sizes(self, name: str, own: Any, old: Any, scaled: list[int]) -> None:
        """Refuse numbers that are scaled where they are not the size of the dimension that holds the tokens."""
        op = ops.op_name(self.node.target)
        if name in PARTS.get(op, ()) and self._all_parts(name, old, scaled):
            return
        if name == "stride" and op in STRIDED and self._laid_out_alike():
            return
        if COMPARED.get(op) == name and scaled == [-1]:  # that it counts tokens, the kind of the number says
            self.scaled[name] = scaled
            return
        there = self.module.scaled.get((self.original.name, name), scaled)
        self.scaled[name] = scaled
        held = self._token_dimensions(op, old)
        known = held is None or scaled[0] in held
        if self.sizes_of(op) != name or len(scaled) != 1 or there != scaled or not known:
            self._refuse(own, old)

    def _all_parts(self, name: str, old: Any, scaled: list[int]) -> bool:
        """Whether all parts of a tensor are scaled, and so is what they are parts of."""
        cut = self.node if name == "output_split_sizes" else next(iter(self.node.all_input_nodes), None)
        whole = self.original if name == "output_split_sizes" else next(iter(self.original.all_input_nodes), None)
        dim = ops.argument(self.original, "dim") if name == "split_sizes" else 0
        sizes = [size(tensor, dim) for tensor in (cut, whole)]
        known = None not in sizes and type(dim) is int
        return scaled == list(range(len(old))) and (not known or self._as_tokens(*sizes))

    @staticmethod
    def sizes_of(op: str) -> str | None:
        """The argument of an op that holds the sizes of its result."""
        return "size" if op in STRIDED else DIMENSIONS.get(op)

    def _laid_out_alike(self) -> bool:
        """Whether the tensors that two factories make are dense, with their dimensions in the same order."""
        orders = []
        for node in (self.node, self.original):
            size, stride = ops.argument(node, "size"), ops.argument(node, "stride")
            if any(type(number) is not int for number in (*size, *stride)) or len(size) != len(stride):
                return False
            order = sorted(range(len(size)), key=[-number for number in stride].__getitem__)
            # Behind every dimension lie as many elements as its stride says, and no more.
            if any(stride[d] != prod(size[e] for e in order[at + 1 :]) for at, d in enumerate(order)):
                return False
            orders.append(order)
        return orders[0] == orders[1]

    def _token_dimensions(self, op: str, sizes: Any) -> set[int] | None:
        """The sizes of a view into which the dimension with the tokens goes; None where the operand does not tell."""
        source, clone = (ops.argument(node, "self") for node in (self.original, self.node))
        if op not in RESHAPES | {EXPAND} or not isinstance(source, fx.Node) or not isinstance(clone, fx.Node):
            return None
        shapes = [getattr(node.meta.get("val"), "shape", ()) for node in (source, clone)]
        cut = [d for d, (a, b) in enumerate(zip(*shapes, strict=False)) if type(a) is not int or a != b]
        result = getattr(self.original.meta.get("val"), "shape", ())
        if len(cut) != 1 or any(type(size) is not int for size in (*shapes[0], *result)):
            return None
        if op == EXPAND:
            return {len(sizes) - len(shapes[0]) + cut[0]}
        # Rows of tokens may come apart in samples and sequences; which of them is cut, the boundary says.
        outside = prod(shapes[0][: cut[0]])
        until = outside * shapes[0][cut[0]]
        return {at for at in range(len(result)) if prod(result[:at]) < until and prod(result[: at + 1]) > outside}


def bound(node: fx.Node) -> dict[str, Any]:
    """Arguments by name; whether a copy to the host blocks is a matter of when it is read, not of what it is."""
    arguments = bind(node)
    if ops.op_name(node.target) == "aten._to_copy" and to_host(arguments):
        arguments.pop("non_blocking", None)
    return arguments


def shapes(val: Any) -> Any:
    """Shape and dtype of each tensor in a ``val``; None where some size is no number."""
    if isinstance(val, torch.Tensor):
        return (list(val.shape), val.dtype) if all(type(size) is int for size in val.shape) else None
    if isinstance(val, (tuple, list)):
        parts = [shapes(part) for part in val]
        return None if None in parts else parts
    return None


def size(node: fx.Node | None, dim: Any) -> int | None:
    """The size of a dimension of what a node gives, if it is a number."""
    shape = getattr(None if node is None else node.meta.get("val"), "shape", ())
    known = type(dim) is int and -len(shape) <= dim < len(shape) and type(shape[dim]) is int
    return shape[dim] if known else None
