"""Terms: every value of both graphs as a number, equal values as equal numbers.

A term is a tuple that is kept once::

    table = Terms()
    x = table.source(("input", "primals_1"), numel=32, dtype=torch.float32)
    y = table.source(("op", "aten.relu.default", (x,)), numel=32, dtype=torch.float32)

A *source* is a term that stands for an array of elements in row-major order; the *content* of a tensor
is a source, or a layout term that says which elements of which sources follow one another (see
:mod:`commcc.verify.layout`). One table serves both graphs, so comparing values is comparing numbers.

The result of a node is a :class:`Tensor`, a size (``int`` or ``Poly``), an :class:`Opaque` term, or a tuple of
these. Arguments are bound by name (:mod:`commcc.verify.arguments`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Union

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from commcc.graph.index.waits import begun_elsewhere
from commcc.graph.ops import OpaqueOp, facts, op_name
from commcc.graph.ops.twins import functional
from commcc.verify.arguments import signature_of
from commcc.verify.sizes import Meta, Poly, Shape, Size, Undecidable, product

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commcc.graph.program import Program
    from commcc.verify.sizes import PlainMeta

LAYOUT = "layout"


class Leaf(NamedTuple):
    """``length`` elements of ``source`` from ``start``; one stride for each loop around it, outermost first."""

    source: int
    start: Size
    length: Size
    strides: tuple[Size, ...]


class Loop(NamedTuple):
    """``times`` repetitions of the body, which is ``row`` elements long."""

    times: Size
    body: tuple[Leaf | Loop, ...]
    row: Size


Item: TypeAlias = Leaf | Loop
Items: TypeAlias = "tuple[Item, ...]"


@dataclass(frozen=True)
class Summary:
    """What calling a sub-graph does besides computing its outputs. state: it writes to constants of its own.

    fence: it waits for what it is given, or does what is not known: nothing moves across it.
    shares: shapes of what it returns in the storage of what it is given, of something else that it returns, or of its
    constants; None stands for any shape. keeps: constants are among them.
    """

    random: bool = False
    effects: bool = False
    writes: bool = False
    state: bool = False
    shares: frozenset[Shape | None] = frozenset()
    keeps: bool = False
    fence: bool = False

    def __or__(self, other: Summary) -> Summary:
        return Summary(
            self.random or other.random,
            self.effects or other.effects,
            self.writes or other.writes,
            self.state or other.state,
            self.shares | other.shares,
            self.keeps or other.keeps,
            self.fence or other.fence,
        )


#: Of a graph that is not known.
ANYTHING = Summary(random=True, effects=True, writes=True, state=True, shares=frozenset({None}), keeps=True, fence=True)


class Op:
    """What all calls of a target have in common.

    path: the op with its overload. twin: that of the op which computes what this one writes, its own where it writes
    nothing. does: what it does besides computing its results.
    """

    __slots__ = ("does", "fact", "path", "signature", "target", "twin")

    def __init__(self, target: Any, *, fence: bool = False) -> None:
        self.target = target
        fact = facts(target)
        self.path = path_of(target)
        self.twin = path_of(functional(target)) if fact.writes else self.path
        self.fact = fact = replace(fact, wait=False, barrier=True, writes=fact.views) if fence else fact
        self.signature = signature_of(target)
        unknown = fact.effect or fact.barrier
        effects = unknown or fact.host_sync or fact.assertion
        self.does = Summary(fact.random, effects, state=unknown, fence=fact.barrier)


class Terms:
    """Hash-consed terms, with the number of elements and the dtype of those that are sources.

    plain_metas: what tensors without symbols say. undecided: terms made because something could not be decided; a
    difference that involves one is a gap in the proof. metas: shapes, strides and dtypes that nodes with this term had.
    strides: how the operands of ops were laid out in the first graph, by the op's term. lying: terms there that say so
    themselves, since results may depend on it. believed: strides that only a ``val`` says, by op and operands.
    judged: calls that :mod:`commcc.verify.annotations` looked at. same: contents of other normal forms that are one.
    summaries, signatures: what sub-graphs do, take and give, by term. fixed_inputs: of those of the first graph, inputs
    of which fixed sizes decide what is known. subgraphs: their terms, by identity.
    one_root: both graphs refer to the same objects, so that constants need not be looked into. group_sizes: what BEFORE
    declares of the groups of both. in_flight: inputs that BEFORE waits for, as AFTER then must.
    """

    def __init__(self, *, one_root: bool = False, in_flight: frozenset[str] = frozenset()) -> None:
        self.one_root = one_root
        self.in_flight = in_flight
        self.group_sizes: dict[str, int | None] = {}
        self._ids: dict[tuple[Any, ...], int] = {}
        self.keys: list[tuple[Any, ...]] = []
        self._numel: dict[int, Size] = {}
        self.dtype: dict[int, torch.dtype] = {}
        self.undecided: dict[int, str] = {}
        self.metas: dict[int, list[Meta]] = {}
        self.strides: dict[int, set[tuple[Shape | None, ...]]] = {}
        self.lying: set[int] = set()
        self.judged: set[tuple[Any, ...]] = set()
        self.signatures: dict[int, tuple[list[Meta], ...]] = {}
        self.fixed_inputs: dict[int, list[list[Value | None]]] = {}
        self.believed: dict[tuple[Any, ...], list[Shape]] = {}
        self.plain_metas: dict[PlainMeta, Meta] = {}
        self.summaries: dict[int, Summary] = {}
        self.same: dict[int, int] = {}
        self.subgraphs: dict[int, tuple[int, object]] = {}
        self._sources: dict[int, tuple[int, ...]] = {}
        self._foreign: dict[int, tuple[int, Any]] = {}
        self._ops: dict[int, Op] = {}
        self._fence: Op | None = None

    @classmethod
    def of(cls, before: Program, after: Program) -> Terms:
        """The terms of two graphs that are compared."""
        in_flight = frozenset(source.name for source in begun_elsewhere(before.graph.nodes).values())
        table = cls(one_root=before.root is after.root, in_flight=in_flight)
        # A size that only AFTER declares is a claim, which may not turn a reduction of BEFORE into a copy.
        table.group_sizes = {**dict.fromkeys(after.groups), **{name: g.size for name, g in before.groups.items()}}
        return table

    def as_declared(self, other: Terms) -> bool:
        """Whether both begin with the same declarations."""
        return all(getattr(self, name) == getattr(other, name) for name in ("one_root", "in_flight", "group_sizes"))

    def copy(self) -> Terms:
        """The same terms under the same numbers; what is added to one is not in the other."""
        copy = Terms()
        for name, held in vars(self).items():
            kept: Any = type(held)(held) if isinstance(held, (dict, list, set)) else held
            if isinstance(held, dict):  # of single values, or of lists and sets of them
                kept = {key: type(item)(item) if isinstance(item, (list, set)) else item for key, item in held.items()}
            setattr(copy, name, kept)
        return copy

    def intern(self, key: tuple[Any, ...]) -> int:
        """The number of a term; equal keys give equal numbers. Constants in keys carry their type."""
        term = self._ids.get(key)
        if term is None:
            term = self._ids[key] = len(self.keys)
            self.keys.append(key)
        return term

    def op(self, target: Any) -> Op:
        """What is known of a target; looked up by identity, since ops take long to hash."""
        op = self._ops.get(id(target))
        if op is None:
            op = self._ops[id(target)] = Op(target)
        return op

    def fence(self, target: Any) -> Op:
        """A wait for what an unknown op began: who knows what it makes of its operand."""
        if self._fence is None:
            self._fence = Op(target, fence=True)
        return self._fence

    def source(self, key: tuple[Any, ...], numel: Size | None, dtype: torch.dtype | None) -> int:
        """A term that is an array; the first caller's number of elements and dtype stand."""
        term = self.intern(key)
        if numel is not None:
            self._numel.setdefault(term, numel)
        if dtype is not None:
            self.dtype.setdefault(term, dtype)
        return term

    def describe(self, source: int, meta: Meta) -> None:
        """Fill in the number of elements and the dtype of a source that is such a tensor; the first caller's stand."""
        if meta.shape is not None and source not in self._numel:
            self._numel[source] = product(meta.shape)
        if meta.dtype is not None:
            self.dtype.setdefault(source, meta.dtype)

    def function(self, name: str, operands: tuple[Size, ...]) -> int:
        """The term of an arithmetic function of sizes that has no simpler form; others may be the same function."""
        term = self.intern(("function", name, tuple(("int", o) for o in operands)))
        self.undecided.setdefault(term, "arithmetic of symbolic sizes")
        return term

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

    def layout_of(self, content: int) -> Items | None:
        """The items of a layout term, None for a source."""
        key = self.keys[content]
        return key[1] if key[0] == LAYOUT else None

    def parts_of(self, term: int) -> tuple[int, ...]:
        """The terms that a term is made of."""
        key = self.keys[term]
        if key[0] == LAYOUT:
            return self.sources_of(term)
        if key[0] == "op":
            around = (part for place in key[3:4] for shape in place for part in (shape[0], shape[3]))
            return (*(part for _, argument in key[2] for part in _terms_in(argument)), *around)
        if len(key) > 1 and key[0] == "reduce_scatter" and not isinstance(key[1], int):
            return tuple(source for source, _ in key[1])
        return tuple(key[at] for at in _PARTS.get(key[0], ()) if at < len(key) and isinstance(key[at], int))

    def sources_of(self, content: int) -> tuple[int, ...]:
        """Every source that a content reads, in the order of first use."""
        sources = self._sources.get(content)
        if sources is None:
            items = self.layout_of(content)
            if items is None:
                sources = (content,)
            elif len(items) == 1 and type(items[0]) is Leaf:  # as most are
                sources = (items[0].source,)
            else:
                sources = tuple(dict.fromkeys(leaf.source for leaf in leaves(items)))
            self._sources[content] = sources
        return sources


#: Where terms stand in the keys of terms, by kind.
_PARTS = {
    **dict.fromkeys(("array", "out", "cast", "bits", "all_gather", "reduce_scatter", "all_reduce", "broadcast"), (1,)),
    **dict.fromkeys(("initial", "early", "size"), (1,)),
    **dict.fromkeys(("draw", "call"), (2,)),
    "load": (1, 4),
    "write": (1, 2, 3, 4),
}


def _terms_in(key: Any) -> Iterator[int]:
    """The terms in an argument given as a key."""
    if isinstance(key, Poly):
        yield from (term for monomial, _ in key.terms for term in monomial)
    elif isinstance(key, tuple) and key and key[0] in ("tensor", "value"):
        yield key[1]
    elif isinstance(key, tuple) and key and key[0] in ("list", "int", "dict", "slice"):
        whole = key[0] in ("list", "slice")
        parts = key[1] if whole else (key[1],) if key[0] == "int" else [part for _, part in key[1]]
        for part in parts:
            yield from _terms_in(part)


def leaves(items: Items) -> list[Leaf]:
    """All runs, those inside loops once."""
    runs: list[Leaf] = []
    for item in items:
        if isinstance(item, Leaf):
            runs.append(item)
        else:
            runs.extend(leaves(item.body))
    return runs


# Values


@dataclass(frozen=True)
class Opaque:
    """No tensor and no size, by term, and by number of the call that gave it; ``base``: what tensors in it view."""

    term: int
    base: Tensor | None = None
    made: int = 0


@dataclass(eq=False, slots=True)
class Tensor:
    """A tensor: which elements it holds, and which memory they are in.

    content: term of its elements, as they were when ``stamp`` writes had been made to its storage.
    root: number of the storage it lives in. base: the tensor it is a view of, None for one that owns its
    storage. via: the node that made the view, its arguments, the number of the result and the argument that
    ``base`` was given as; None when the tensor is all of ``base``.
    may_copy: ``base`` is a guess, since an op may as well have copied: which one (:meth:`Memory.suppose`), 0 for none.
    where: position in the storage, filled in on demand.
    """

    content: int
    meta: Meta
    root: int
    stamp: int = 0
    base: Tensor | None = None
    via: tuple[fx.Node, dict[str, Any], int, str] | None = None
    may_copy: int = 0
    where: Tensor | None = field(default=None, repr=False)

    @property
    def shape(self) -> Shape | None:
        return self.meta.shape

    @property
    def dtype(self) -> torch.dtype | None:
        return self.meta.dtype


Value: TypeAlias = Union[Tensor, int, Poly, Opaque, "tuple[Any, ...]"]


def is_size(value: object) -> bool:
    """Whether a value is an integer, symbolic or not."""
    return isinstance(value, (int, Poly)) and not isinstance(value, bool)


def tensors_in(value: object) -> list[Tensor]:
    """All tensors in a value, in order."""
    if type(value) is Tensor:
        return [value]
    if isinstance(value, tuple):
        return [tensor for part in value for tensor in tensors_in(part)]
    return []


def all_tensors(value: Any) -> list[Tensor]:
    """All tensors in an argument, in order, those in dicts too."""
    if not isinstance(value, dict):
        return tensors_in(value)
    tensors: list[Tensor] = []
    for part in value.values():
        if type(part) is Tensor:
            tensors.append(part)
        elif isinstance(part, (tuple, dict)):
            tensors.extend(all_tensors(part))
    return tensors


# Arguments

_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format)
TARGETS = (OpOverload, OpOverloadPacket, HigherOrderOperator, OpaqueOp)


@lru_cache(maxsize=4096)
def path_of(target: Any) -> str:
    """The op with its overload: ``aten.mm.default``."""
    if isinstance(target, OpOverload):
        return str(target)
    if isinstance(target, OpaqueOp):
        return target.qualified_name
    return op_name(target)


def key_of(table: Terms, value: Any) -> tuple[Any, ...]:
    """A resolved argument as a key; constants carry their type, so that ``1``, ``1.0`` and ``True`` differ."""
    if type(value) is Tensor:
        meta = value.meta
        return ("tensor", value.content, meta[0], meta[2])
    if value is None:
        return ("none",)
    if isinstance(value, (bool, float, complex)):
        return (type(value).__name__, repr(value))
    if isinstance(value, (int, Poly)):
        return ("int", value)
    if isinstance(value, str):
        return ("str", value)
    if isinstance(value, (tuple, list)):
        return ("list", tuple(key_of(table, part) for part in value))
    if isinstance(value, Opaque):
        return ("value", value.term)
    return _rare_key(table, value)


def _rare_key(table: Terms, value: Any) -> tuple[Any, ...]:
    if isinstance(value, _CONSTANTS):
        return (type(value).__name__, str(value))
    if isinstance(value, dict):
        parts = sorted(value.items(), key=lambda entry: repr(entry[0]))
        return ("dict", tuple((repr(name), key_of(table, part)) for name, part in parts))
    if isinstance(value, slice):
        return ("slice", tuple(key_of(table, part) for part in (value.start, value.stop, value.step)))
    if isinstance(value, TARGETS):
        return ("op", path_of(value))
    if value is Ellipsis:
        return ("ellipsis",)
    return ("value", table.foreign(value))
