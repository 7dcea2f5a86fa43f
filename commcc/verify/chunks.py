"""Modules that AFTER cut in chunks: folded back, clone by clone, so that the rest can be compared as ever.

    split = split_with_sizes(x, [30, 30])
    y_chunk0 = mm(split[0], w)   y_chunk1 = mm(split[1], w)     is what    y = mm(x, w)    is in BEFORE
    y = cat([y_chunk0, y_chunk1])

AFTER's annotations claim which node each clone is of, and which chunk it belongs to. What is checked: every node has
one clone in every chunk; a clone is the same op on the same operands, those of its own chunk where they are cut; its
numbers are equal, but for the size of the one dimension that holds the tokens, which is scaled as they are; it gives
what its ``val`` says, from what the ``val`` of its operands say, where sizes are numbers; splits,
concatenations and sums take all chunks in order; a write to what the chunks share is made on what the chunk before
has left. What is illegal in AFTER as it stands (a read before a wait, or before a copy to the host is there) is
looked for before folding.

That a module does to every chunk what it does to the whole, since its tokens do not depend on each other, is proved
by :mod:`commcc.verify.tokens`, or is a gap.

Limits: of ops on sizes that are known only at run time, what a clone gives is not worked out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.graph import ops
from commcc.graph.annotations import CHUNK, ORIGINAL, REGION, ROLE
from commcc.graph.ops.constants import STRIDED
from commcc.graph.ops.sizes import DIMENSIONS, PARTS
from commcc.graph.ops.views import EXPAND, RESHAPES
from commcc.graph.program import copy_node
from commcc.serialization.fake_ops import Evaluator, UnknownValue
from commcc.serialization.propagate import context_of, quiet
from commcc.verify.reshaping import to_host
from commcc.verify.rows import Mixed, Rows, Total
from commcc.verify.terms import bind
from commcc.verify.tokens import kinds_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.graph.program import Program
    from commcc.verify.verdict import Report


@dataclass(frozen=True)
class _Part:
    """What a node of AFTER stands for: chunk ``chunk`` of a node of BEFORE; ``last`` chunks added up, from 0 to it."""

    of: str
    chunk: int
    last: int | None = None


class _Unfaithful(Exception):
    """A clone that is not one; the node of AFTER, and what is wrong."""

    def __init__(self, node: fx.Node, text: str) -> None:
        super().__init__(text)
        self.node, self.text = node, text


@dataclass
class _Module:
    """shares: for each chunk, its size and the whole's, along what was split first. clones: of each node, by chunk.

    scaled: which sizes are scaled as the tokens are, by node and argument. entering: names of what was split, with the
    dimension. joined, added: what was put together again, likewise, and what was added up.
    """

    chunks: int
    shares: tuple[tuple[int, int], ...] = ()
    clones: dict[str, dict[int, fx.Node]] = field(default_factory=dict)
    scaled: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    entering: dict[str, int] = field(default_factory=dict)
    joined: dict[str, int] = field(default_factory=dict)
    added: set[str] = field(default_factory=set)


def folded(before: Program, after: Program, report: Report, groups: Mapping[str, str] | None = None) -> Program | None:
    """AFTER with its chunks folded back, itself when it has none; None when a claim is wrong, which is reported.

    groups: which process groups of AFTER stand for another one of BEFORE.
    """
    names = {node.name: node for node in before.graph.nodes}
    claims = {node: None for node in after.graph.nodes if node.name not in names and _key(node, REGION) is not None}
    clones = [node for node in claims if _key(node, ROLE) == "body"]
    if not clones:
        return after
    try:
        fold = _Fold(names, claims, clones, groups or {}, Evaluator(context_of(after.graph)))
        with quiet():
            graph = fold.run(after.graph)
    except _Unfaithful as found:
        report.differs("value", found.node.name, found.text)
        return None
    for root, module in fold.modules.items():
        text = f"'{root}' is cut in {module.chunks} chunks ({len(module.clones)} nodes each, cloned faithfully)"
        mixed = fold.mixed(module)
        if mixed:
            report.gap(
                "value", "", f"{text}: that its tokens do not depend on each other was not proved, {mixed}; run both"
            )
        else:
            report.note("value", "", f"{text}; its tokens do not depend on each other")
    return replace(after, graph=graph)


def _key(node: fx.Node, key: str) -> Any:
    custom = node.meta.get("custom")
    found = node.meta.get(key)
    return found if found is not None or not isinstance(custom, dict) else custom.get(key)


class _Fold:
    """One folding. parts: what nodes at and inside a module stand for. whole: folded nodes by their name in BEFORE."""

    def __init__(
        self,
        before: dict[str, fx.Node],
        claims: dict[fx.Node, None],
        clones: list[fx.Node],
        groups: Mapping[str, str],
        evaluator: Evaluator,
    ) -> None:
        self.before, self.claims, self.groups, self.evaluator = before, claims, groups, evaluator
        self.modules: dict[str, _Module] = {}
        for node in clones:
            module = self.modules.setdefault(str(_key(node, REGION)), _Module(0))
            chunk = _key(node, CHUNK)
            if type(chunk) is not int or not 0 <= chunk < len(clones):
                raise _Unfaithful(node, f"is a clone of chunk {chunk!r:.20}, which there is not")
            module.chunks = max(module.chunks, chunk + 1)
        for node in claims:  # sizes before a split are scaled as well
            cut = self.modules.get(str(_key(node, REGION)))
            if cut is not None and ops.op_name(node.target) == "aten.split_with_sizes" and _key(node, CHUNK) is None:
                self._split(node, cut)
        self.parts: dict[fx.Node, _Part] = {}
        self.whole: dict[str, fx.Node] = {}
        self.env: dict[fx.Node, fx.Node] = {}

    def run(self, after: fx.Graph) -> fx.Graph:
        graph = fx.Graph()
        for node in after.nodes:
            if node not in self.claims:
                self._check_operands(node)
                self.env[node] = self.whole[node.name] = copy_node(graph, node, self.env)
                continue
            module = self.modules.get(str(_key(node, REGION)))
            if module is None:
                raise _Unfaithful(node, "belongs to a module that is not cut")
            if _key(node, ROLE) == "body":
                self._clone(graph, node, module)
            else:
                self._boundary(node, module)
        for module in self.modules.values():
            short = next((found for found in module.clones.values() if len(found) != module.chunks), None)
            if short is not None:
                raise _Unfaithful(next(iter(short.values())), f"has no clone in each of {module.chunks} chunks")
        return graph

    def mixed(self, module: _Module) -> str:
        """Where the tokens of a module may depend on each other; empty when they do not."""
        body = {name: self.before[name] for name in self.before if name in module.clones}
        cut = {name: dims for (name, what), dims in module.scaled.items() if what == "size"}
        try:
            kinds = kinds_of(body, module.entering, lambda name: self._own_operands(module.clones[name], name), cut)
        except Mixed as reason:
            return str(reason)
        rows = {n: kind for n, kind in kinds.items() if isinstance(kind, Rows) and kind.order[0] == "tokens"}
        for name, kind in rows.items():
            for chunk, clone in module.clones.get(name, {}).items():
                size, whole = module.shares[chunk]
                if (_size(clone, kind.dim) or 0) * whole != kind.order[1] * size:
                    return f"at '{name}': its chunks are cut along another dimension"
        for name, dim in module.joined.items():
            if name not in rows or rows[name].dim != dim:
                return f"at '{name}': its chunks are joined, and are not rows in the order of the tokens"
        sums = (name for name in module.added if not isinstance(kinds.get(name), Total))
        return next((f"at '{name}': its chunks are added up, and are no sums over tokens" for name in sums), "")

    def _own_operands(self, clones: dict[int, fx.Node], name: str) -> set[str]:
        """Operands that every clone of a node reads of its own chunk."""
        own = [{self.parts[used].of for used in clone._input_nodes if used in self.parts} for clone in clones.values()]
        if any(each - {name} != own[0] - {name} for each in own):
            raise Mixed(f"at '{name}': some chunks read what others read the whole of")
        return own[0] - {name}

    def _check_operands(self, node: fx.Node) -> None:
        """A node outside reads whole values; the last of a chain of writes is one."""
        for used in node._input_nodes:
            if used in self.env:
                continue
            part = self.parts.get(used)
            module = self.modules.get(str(_key(used, REGION)))
            chained = part is not None and bool(_written(self.before.get(part.of)))
            if part is None or module is None or not chained or part.chunk != module.chunks - 1:
                raise _Unfaithful(node, f"reads '{used.name}', which is of one chunk, where BEFORE reads the whole")
            self.env[used] = self.whole[part.of]

    def _clone(self, graph: fx.Graph, node: fx.Node, module: _Module) -> None:
        chunk, original = _key(node, CHUNK), self.before.get(str(_key(node, ORIGINAL)))
        if original is None or original.op != "call_function" or node.target is not original.target:
            raise _Unfaithful(node, f"is no clone of '{_key(node, ORIGINAL)!s:.60}' in BEFORE")
        seen = module.clones.setdefault(original.name, {})
        if chunk in seen:
            raise _Unfaithful(node, f"is clone {chunk} of '{original.name}', and so is '{seen[chunk].name}'")
        seen[chunk] = node
        _Operands(self, node, original, module, chunk).compare()
        self._check_value(node, original)
        self.parts[node] = _Part(original.name, chunk)
        if len(seen) == module.chunks:
            missing = [used.name for used in original._input_nodes if used.name not in self.whole]
            if missing:
                raise _Unfaithful(node, f"stands before '{missing[0]}', which BEFORE's '{original.name}' reads")
            by_node = {used: self.whole[used.name] for used in original._input_nodes}
            self.whole[original.name] = copy_node(graph, original, by_node)

    def _check_value(self, node: fx.Node, original: fx.Node) -> None:
        """A clone gives a tensor of the shape and dtype that its ``val`` says, from those of its operands."""
        asked = ops.argument(node, _Operands.sizes_of(ops.op_name(node.target)) or "")
        shape = getattr(node.meta.get("val"), "shape", None)
        if isinstance(asked, (list, tuple)) and shape is not None:  # told apart even where operands have unknown sizes
            pairs = [(a, b) for a, b in zip(asked, shape, strict=False) if type(a) is int and a != -1]
            if len(asked) != len(shape) or any(type(b) is not int or a != b for a, b in pairs):
                raise _Unfaithful(node, f"asks for {list(asked)!s:.60}, its val says {list(shape)!s:.60}")
        said = _shapes(node.meta.get("val"))
        if said is None or any(_shapes(used.meta.get("val")) is None for used in node._input_nodes):
            return
        try:
            made = self._evaluated(node)
        except UnknownValue as reason:
            try:
                self._evaluated(original)
            except UnknownValue:
                return  # what this op gives is not known
            raise _Unfaithful(node, f"cannot run on the operands that it has: {reason}") from None
        if _shapes(made) not in (None, said):
            raise _Unfaithful(node, f"gives {_shapes(made)!s:.60}, its val says {said!s:.60}")

    def _evaluated(self, node: fx.Node) -> Any:
        return self.evaluator.run(node.target, *fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"]))

    def _boundary(self, node: fx.Node, module: _Module) -> None:
        op = ops.op_name(node.target)
        first = node.args[0] if node.args else None
        if op == "aten.split_with_sizes" and isinstance(first, fx.Node) and first in self.env:
            dim = ops.argument(node, "dim", 0) % max(len(getattr(first.meta.get("val"), "shape", ())), 1)
            if module.entering.setdefault(self.env[first].name, dim) != dim:
                raise _Unfaithful(node, "splits along another dimension than before")
            return
        if op == "operator.getitem" and isinstance(first, fx.Node) and first in self.claims:
            split = ops.argument(first, "self")
            self.parts[node] = _Part(self.env[split].name, int(str(node.args[1])))
        elif op == "aten.clone" and isinstance(first, fx.Node) and first in self.parts:
            self.parts[node] = self.parts[first]
        elif op == "aten.cat":
            joined = first if isinstance(first, (list, tuple)) else ()
            self._joined(node, module, [self.parts.get(part) for part in joined])
        elif op == "aten.add" and len(node.args) == 2 and not node.kwargs:
            self._added(node, module)
        else:
            raise _Unfaithful(node, f"({op}) is at the boundary of a module that is cut, where it has no business")

    def _split(self, node: fx.Node, module: _Module) -> None:
        sizes = ops.argument(node, "split_sizes")
        whole = sum(sizes) if isinstance(sizes, (list, tuple)) and all(type(s) is int for s in sizes) else 0
        shares = tuple((size, whole) for size in sizes) if whole else ()
        equal = all(a * d == b * c for (a, b), (c, d) in zip(shares, module.shares, strict=False))
        if len(shares) != module.chunks or (module.shares and not equal):
            raise _Unfaithful(node, f"splits into {sizes!s:.60}, not as the module's other activations are")
        module.shares = module.shares or shares

    def _joined(self, node: fx.Node, module: _Module, parts: list[_Part | None]) -> None:
        first = parts[0] if parts else None
        self._check_shape(node, node, first)
        wanted = [] if first is None else [_Part(first.of, chunk) for chunk in range(module.chunks)]
        if first is None or parts != wanted or first.of not in self.whole:
            raise _Unfaithful(node, "does not join all chunks of one value in order")
        dim = ops.argument(node, "dim", 0) % max(len(getattr(node.meta.get("val"), "shape", ())), 1)
        if module.joined.setdefault(first.of, dim) != dim:
            raise _Unfaithful(node, "joins along another dimension than before")
        self.env[node] = self.whole[first.of]

    def _check_shape(self, node: fx.Node, made: Any, part: _Part | None) -> None:
        """What is whole, or a part of a sum, has the shape that BEFORE has."""
        old = None if part is None else self.before[part.of].meta.get("val")
        own = made.meta.get("val")
        if isinstance(old, torch.Tensor) and isinstance(own, torch.Tensor) and tuple(own.shape) != tuple(old.shape):
            raise _Unfaithful(node, f"makes {list(own.shape)} where BEFORE has {list(old.shape)}")

    def _added(self, node: fx.Node, module: _Module) -> None:
        total, part = (self.parts.get(arg) for arg in node.args if isinstance(arg, fx.Node))
        before = None if total is None else total.chunk if total.last is None else total.last
        if (
            total is None
            or part is None
            or part.last is not None
            or total.of != part.of
            or part.chunk != (before or 0) + 1
        ):
            raise _Unfaithful(node, "does not add up all chunks of one value in order")
        if total.last is None and total.chunk != 0:
            raise _Unfaithful(node, "does not begin with the first chunk")
        self._check_shape(node, node.args[1], part)
        self.parts[node] = _Part(part.of, 0, part.chunk)
        if part.chunk == module.chunks - 1:
            self.env[node] = self.whole[part.of]
            module.added.add(part.of)


@dataclass
class _Operands:
    """Compares the arguments of a clone with those of its original.

    A number may be scaled as the tokens are only where it is the size of the dimension that holds them.
    """

    fold: _Fold
    node: fx.Node
    original: fx.Node
    module: _Module
    chunk: int

    def compare(self) -> None:
        """Raises :class:`_Unfaithful` at the first difference."""
        own, old = _bound(self.node), _bound(self.original)
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
        elif (own != old or type(own) is not type(old)) and not self._same_group(own, old):
            if not self._as_tokens(own, old):
                self._refuse(own, old)
            scaled.append(place)

    def _refuse(self, own: Any, old: Any) -> None:
        text = f"has {own!r:.40}, where '{self.original.name}' has {old!r:.40} in BEFORE"
        raise _Unfaithful(self.node, text)

    def _operand(self, own: Any, old: Any) -> None:
        if isinstance(own, fx.Node) and isinstance(old, fx.Node):
            part = self.fold.parts.get(own)
            if own in self.fold.env and self.fold.env[own].name == old.name:
                return
            if part is not None and part.last is None and part.of == old.name and part.chunk == self.chunk:
                return
            written = old in _written(self.original)
            if written and part == _Part(self.original.name, self.chunk - 1):
                return
        raise _Unfaithful(self.node, f"has operand {own!s:.60}, where '{self.original.name}' has {old!s:.60} in BEFORE")

    def _same_group(self, own: Any, old: Any) -> bool:
        launches = ops.collective_of(self.node.target) is not None
        return launches and isinstance(own, str) and self.fold.groups.get(own) == old

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
        there = self.module.scaled.setdefault((self.original.name, name), scaled)
        held = self._token_dimensions(op, old)
        known = held is None or scaled[0] in held
        if self.sizes_of(op) != name or len(scaled) != 1 or there != scaled or not known:
            self._refuse(own, old)

    def _all_parts(self, name: str, old: Any, scaled: list[int]) -> bool:
        """Whether all parts of a tensor are scaled, and so is what they are parts of."""
        cut = self.node if name == "output_split_sizes" else next(iter(self.node.all_input_nodes), None)
        whole = self.original if name == "output_split_sizes" else next(iter(self.original.all_input_nodes), None)
        dim = ops.argument(self.original, "dim") if name == "split_sizes" else 0
        sizes = [_size(each, dim) for each in (cut, whole)]
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


def _bound(node: fx.Node) -> dict[str, Any]:
    """Arguments by name; whether a copy to the host blocks is a matter of when it is read, not of what it is."""
    arguments = bind(node)
    if ops.op_name(node.target) == "aten._to_copy" and to_host(arguments):
        arguments.pop("non_blocking", None)
    return arguments


def _shapes(val: Any) -> Any:
    """Shape and dtype of each tensor in a ``val``; None where some size is no number."""
    if isinstance(val, torch.Tensor):
        return (list(val.shape), val.dtype) if all(type(size) is int for size in val.shape) else None
    if isinstance(val, (tuple, list)):
        parts = [_shapes(part) for part in val]
        return None if None in parts else parts
    return None


def _size(node: fx.Node | None, dim: Any) -> int | None:
    """The size of a dimension of what a node gives, if it is a number."""
    shape = getattr(None if node is None else node.meta.get("val"), "shape", ())
    known = type(dim) is int and -len(shape) <= dim < len(shape) and type(shape[dim]) is int
    return shape[dim] if known else None


def _written(node: fx.Node | None) -> list[Any]:
    """Operands that a node writes to."""
    if node is None or node.op != "call_function":
        return []
    return [ops.argument(node, name) for name in ops.aliasing(node.target).writes]
