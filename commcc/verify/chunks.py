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

from dataclasses import replace
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from commcc.graph import ops
from commcc.graph.annotations import CHUNK, ORIGINAL, REGION, ROLE
from commcc.graph.copying import copy_node
from commcc.graph.ops.collective_table import EXCHANGE
from commcc.graph.ops.decomposed import SIZES
from commcc.graph.ops.operands import rewritten, written
from commcc.graph.ops.sizes import COMPARED, NUMBERED
from commcc.graph.ops.views import RESHAPES
from commcc.serialization.fake_ops import Evaluator, UnknownValue
from commcc.serialization.propagate import context_of, quiet
from commcc.verify.between import Between
from commcc.verify.clones import SLICED, Mixed, Module, Operands, Part, Rows, Total, Unfaithful, shapes, size
from commcc.verify.clones import folded as folded_rows
from commcc.verify.sizes import strides_of
from commcc.verify.tokens import kinds_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from commcc.graph.program import Program
    from commcc.verify.verdict import Report


def folded(before: Program, after: Program, report: Report, groups: Mapping[str, str] | None = None) -> Program | None:
    """AFTER with its chunks folded back, itself when it has none; None when a claim is wrong, which is reported.

    groups: which process groups of AFTER stand for another one of BEFORE.
    """
    names: dict[str, fx.Node] = {}
    claims = {node: None for node in after.graph.nodes if _key(node, REGION) is not None}
    if claims:
        names = {node.name: node for node in before.graph.nodes}
        # What BEFORE has cut already is compared as it is.
        cut = {name for name, node in names.items() if _key(node, REGION) is not None}
        claims = {node: None for node in claims if node.name not in cut}
    clones = [node for node in claims if _key(node, ROLE) == "body"]
    if not clones:
        return after
    try:
        fold = _Fold(before, claims, clones, groups or {}, Evaluator(context_of(after.graph)))
        with quiet():
            graph = fold.run(after.graph)
    except Unfaithful as error:
        originals = ((names.get(str(_key(clone, ORIGINAL))), clone) for clone in clones)
        of_another = (c for o, c in originals if o is None or o.op != "call_function" or o.target != c.target)
        strange = next(of_another, None)
        if strange is None:
            report.differs("value", error.node.name, error.text)
        else:  # names of another trace say nothing of this one
            of = f"'{strange.name}' is said to be a clone of '{_key(strange, ORIGINAL)!s:.60}', which BEFORE has not"
            report.gap("value", error.node.name, f"{error.text}; AFTER was cut from another trace than BEFORE: {of}")
        return None
    between = Between(after.graph.nodes)
    for root, module in fold.modules.items():
        text = f"'{root}' is cut in {module.chunks} chunks ({len(module.clones)} nodes each, cloned faithfully)"
        mixed = fold.mixed(module) or between.crossed(module.clones.values())
        if mixed:
            report.gap(
                "value", "", f"{text}: that its tokens do not depend on each other was not proved, {mixed}; run both"
            )
        else:
            report.note("value", "", f"{text}; its tokens do not depend on each other")
    return replace(after, graph=graph)


def _key(node: fx.Node, key: str) -> Any:
    custom = node.meta.get("custom")
    value = node.meta.get(key)
    return value if value is not None or not isinstance(custom, dict) else custom.get(key)


#: Nodes of BEFORE that a clone is compared with, where that which it names does not fit.
_MOST_TRIED = 64


class _Fold:
    """One folding. parts: what nodes at and inside a module stand for. env: folded nodes, of what AFTER has outside.
    whole: those of the clones, by their name in BEFORE. meant: what is meant by the names that clones give. copied: of
    which node of BEFORE something is put together, or copied.
    """

    def __init__(
        self,
        before: Program,
        claims: dict[fx.Node, None],
        clones: list[fx.Node],
        groups: Mapping[str, str],
        evaluator: Evaluator,
    ) -> None:
        self.before, self.root = {node.name: node for node in before.graph.nodes}, before.root
        self.claims, self.groups, self.evaluator = claims, groups, evaluator
        self.modules: dict[str, Module] = {}
        for node in clones:
            module = self.modules.setdefault(str(_key(node, REGION)), Module(0))
            chunk = _key(node, CHUNK)
            if type(chunk) is not int or not 0 <= chunk < len(clones):
                raise Unfaithful(node, f"is a clone of chunk {chunk!r:.20}, which there is not")
            module.chunks = max(module.chunks, chunk + 1)
        for node in claims:  # sizes before a split are scaled as well
            cut = self.modules.get(str(_key(node, REGION)))
            if cut is not None and ops.op_name(node.target) == "aten.split_with_sizes" and _key(node, CHUNK) is None:
                self._split(node, cut)
        self.parts: dict[fx.Node, Part] = {}
        self.whole: dict[str, fx.Node] = {}
        self.meant: dict[str, fx.Node] = {}
        #: Names of all nodes of BEFORE that have clones, in any module.
        self.cloned: set[str] = set()
        #: Nodes of BEFORE by the op that they call.
        self.calling: dict[str, list[fx.Node]] = {}
        for node in before.graph.nodes:
            if node.op == "call_function":
                self.calling.setdefault(ops.op_name(node.target), []).append(node)
        self.outside: set[str] = set()
        self.copied: dict[fx.Node, str] = {}
        #: Chunks seen in another shape, with that shape; what joins them, with the node of BEFORE that they are of.
        self.seen: dict[fx.Node, tuple[Part, list[int]]] = {}
        self.blocks: dict[fx.Node, str] = {}
        self.env: dict[fx.Node, fx.Node] = {}
        self.graph = fx.Graph()
        #: What was put together once, in new memory.
        self.given: set[str] = set()

    def run(self, after: fx.Graph) -> fx.Graph:
        graph = self.graph
        self.outside = {node.name for node in after.nodes if node not in self.claims}
        for node in after.nodes:
            if node not in self.claims:
                self._check_operands(node)
                self.env[node] = copy_node(graph, node, self.env)
                continue
            module = self.modules.get(str(_key(node, REGION)))
            if module is None:
                raise Unfaithful(node, "belongs to a module that is not cut")
            if _key(node, ROLE) == "body":
                self._clone(graph, node, module)
            else:
                try:
                    self._boundary(node, module)
                except (TypeError, ValueError, IndexError, KeyError, AttributeError):
                    raise Unfaithful(
                        node, "is at the boundary of a module, with arguments that make no sense"
                    ) from None
        for module in self.modules.values():
            short = next((clones for clones in module.clones.values() if len(clones) != module.chunks), None)
            if short is not None:
                raise Unfaithful(next(iter(short.values())), f"has no clone in each of {module.chunks} chunks")
        return graph

    def mixed(self, module: Module) -> str:
        """Where the tokens of a module may depend on each other; empty when they do not."""
        body = {name: self.before[name] for name in self.before if name in module.clones}
        cut = {name: dims for (name, what), dims in module.scaled.items() if what in SIZES}
        cut |= {
            name: [0]
            for (name, what) in module.scaled
            if (NUMBERED | COMPARED).get(ops.op_name(self.before[name].target)) == what
        }
        try:
            kinds, written = kinds_of(
                body, module.entering, lambda name: self._own_operands(module, name), cut, self.root
            )
        except Mixed as reason:
            return str(reason)
        except GuardOnDataDependentSymNode as asked:
            return f"it depends on a size that is known at run time only: {asked.cond}"
        moved = self._moved(module, written)
        if moved:
            return moved
        sliced = ((n, kind) for n, kind in kinds.items() if isinstance(kind, Rows) and kind.order[0] in SLICED)
        cut_rows = {name: kind for name, kind in sliced if kind.tag != "empty"}
        rows = {name: kind for name, kind in cut_rows.items() if kind.order[0] == "tokens"}
        again = [name for name in module.entering if name in module.clones]
        for name in again:  # put together, and split again
            if name not in rows or rows[name].dim != module.entering[name]:
                return f"at '{name}': it is split again, and is not rows in the order of the tokens"
        for name, kind in cut_rows.items():
            for chunk, clone in module.clones.get(name, {}).items():
                part, whole = module.shares[chunk]
                # A size that is known at run time only is that of rows which are counted.
                counted = size(clone, kind.dim) is None and size(self.before[name], kind.dim) is None
                if not counted and (size(clone, kind.dim) or 0) * whole != prod(kind.order[1:]) * part:
                    return f"at '{name}': its chunks are cut along another dimension"
        for name, dim in module.joined.items():
            if name not in rows or rows[name].dim != dim:
                return f"at '{name}': its chunks are joined, and are not rows in the order of the tokens"
        apart = next((name for name in module.blocked if not self._in_blocks(module, name, cut_rows)), None)
        if apart is not None:
            return f"at '{apart}': its chunks are joined block by block, and do not lie so"
        sums = (name for name in module.added if not isinstance(kinds.get(name), Total))
        return next((f"at '{name}': its chunks are added up, and are no sums over tokens" for name in sums), "")

    def _in_blocks(self, module: Module, name: str, rows: Mapping[str, Rows]) -> bool:
        """Whether the chunks of a value lie side by side in the shape in which they were joined."""
        (dim, sizes), shape = module.blocked[name], list(self.before[name].meta["val"].shape)
        try:
            side = folded_rows(rows[name], shape, sizes)
        except (KeyError, Mixed):
            return False
        return (side.order[0], side.dim) == ("tokens", dim) and prod(shape) == prod(sizes)

    def _moved(self, module: Module, written: Mapping[str, Collection[str]]) -> str:
        """A read that has changed places with a write in place in some chunk, which the folded graph would not show."""
        old = {name: at for at, name in enumerate(self.before)}
        new = {node: at for at, node in enumerate(self.claims)}
        for writer, group in written.items():
            writes = module.clones[writer]
            for reader in module.clones:
                if reader == writer or not any(used.name in group for used in self.before[reader]._input_nodes):
                    continue
                reads = module.clones[reader]
                if any((new[reads[c]] < new[writes[c]]) != (old[reader] < old[writer]) for c in writes):
                    return f"at '{reader}': some chunk reads it where '{writer}' has not written, or has"
            last = max(new[node] for node in writes.values())
            early = next((node for node, of in self.copied.items() if of in group and new[node] < last), None)
            if early is not None:
                return f"at '{early.name}': reads what '{writer}' has not written yet"
        return ""

    def _own_operands(self, module: Module, name: str) -> set[str]:
        """Operands that every clone of a node reads of its own chunk."""
        clones = module.clones[name]
        own = [module.reads[clone] for clone in clones.values()]
        if any(reads - {name} != own[0] - {name} for reads in own):
            raise Mixed(f"at '{name}': some chunks read what others read the whole of")
        return own[0] - {name}

    def _check_operands(self, node: fx.Node) -> None:
        """A node outside reads whole values; the last of a chain of writes is one."""
        for used in node._input_nodes:
            if used in self.env:
                continue
            part = self.parts.get(used)
            module = self.modules.get(str(_key(used, REGION)))
            original = None if part is None or part.split is not None else self.before.get(part.of)
            chained = original is not None and bool(written(original))
            if part is None or module is None or not chained or part.chunk != module.chunks - 1:
                raise Unfaithful(node, f"reads '{used.name}', which is of one chunk, where BEFORE reads the whole")
            self.env[used] = self.whole[part.of]

    def _clone(self, graph: fx.Graph, node: fx.Node, module: Module) -> None:
        chunk = _key(node, CHUNK)
        match = self._original(node, module, chunk)
        original = match.original
        seen = module.clones.setdefault(original.name, {})
        self.cloned.add(original.name)
        if chunk in seen:
            raise Unfaithful(node, f"is clone {chunk} of '{original.name}', and so is '{seen[chunk].name}'")
        seen[chunk] = node
        match.keep()
        self._check_value(node, original)
        self.parts[node] = Part(original.name, chunk)
        if len(seen) == module.chunks:
            matched = module.operands[original.name]
            operands = {old: self.whole[new] if isinstance(new, str) else new for old, new in matched.items()}
            whole = self.whole[original.name] = copy_node(graph, original, operands)
            while whole.name in self.outside:  # where AFTER was traced anew, it may call another node so
                whole.name += "_whole"

    def _original(self, node: fx.Node, module: Module, chunk: int) -> Operands:
        """The node of BEFORE that a clone is of: the one that it names or, where a graph was traced anew and has other
        names, the first one that it fits.
        """
        label = str(_key(node, ORIGINAL))
        named = self.before.get(label)
        failed = Unfaithful(node, f"is no clone of '{label:.60}' in BEFORE")
        for original in [self.meant[label]] if label in self.meant else self._candidates(node, named):
            match = Operands(self.parts, self.env, self.groups, node, original, module, chunk)
            try:
                match.compare()
            except Unfaithful as error:
                failed = error if original is named else failed
                continue
            self.meant[label] = original
            return match
        raise failed

    def _candidates(self, node: fx.Node, named: fx.Node | None) -> Iterator[fx.Node]:
        """Nodes of BEFORE with the op of a clone, that which it names first; of the others those that read the same."""
        if named is not None and named.op == "call_function" and named.target == node.target:
            yield named
        parts = [self.parts[used] for used in node.all_input_nodes if used in self.parts]
        own = next((part.of for part in parts if part.split is None), None)
        near = self.calling.get(ops.op_name(node.target), ()) if own is None else self.before[own].users
        alike = (call for call in near if call.op == "call_function" and call.target == node.target)
        # Only so many are tried: AFTER may be traced anew, and then many nodes fit.
        yield from islice((n for n in alike if n is not named and n.name not in self.cloned), _MOST_TRIED)

    def _check_value(self, node: fx.Node, original: fx.Node) -> None:
        """A clone gives a tensor of the shape and dtype that its ``val`` says, from those of its operands."""
        asked = ops.argument(node, Operands.sizes_of(ops.op_name(node.target)) or "")
        shape = getattr(node.meta.get("val"), "shape", None)
        if isinstance(asked, (list, tuple)) and shape is not None:  # told apart even where operands have unknown sizes
            pairs = [(a, b) for a, b in zip(asked, shape, strict=False) if type(a) is int and a != -1]
            if len(asked) != len(shape) or any(type(b) is not int or a != b for a, b in pairs):
                raise Unfaithful(node, f"asks for {list(asked)!s:.60}, its val says {list(shape)!s:.60}")
        said = shapes(node.meta.get("val"))
        sent, rows = ops.argument(node, "input_split_sizes"), size(next(iter(node.all_input_nodes), None), 0)
        parts = isinstance(sent, (list, tuple)) and all(type(count) is int for count in sent)
        if ops.op_name(node.target) == EXCHANGE and parts and rows is not None and sum(sent) != rows:
            raise Unfaithful(node, f"sends {sent!s:.60} of {rows} rows")
        if said is None or any(shapes(used.meta.get("val")) is None for used in node._input_nodes):
            return
        try:
            result = self._evaluated(node)
        except UnknownValue as reason:
            try:
                self._evaluated(original)
            except UnknownValue:
                return  # what this op gives is not known
            raise Unfaithful(node, f"cannot run on the operands that it has: {reason}") from None
        if shapes(result) not in (None, said):
            raise Unfaithful(node, f"gives {shapes(result)!s:.60}, its val says {said!s:.60}")

    def _evaluated(self, node: fx.Node) -> Any:
        return self.evaluator.run(node.target, *fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"]))

    def _boundary(self, node: fx.Node, module: Module) -> None:
        op = ops.op_name(node.target)
        self.copied.update((node, self.parts[used].of) for used in node.all_input_nodes if used in self.parts)
        first = node.args[0] if node.args else None
        if op == "aten.split_with_sizes" and isinstance(first, fx.Node) and first in self.env:
            dim = ops.argument(node, "dim", 0) % max(len(getattr(first.meta.get("val"), "shape", ())), 1)
            module.split[node.name] = dim
            return
        if op == "operator.getitem" and isinstance(first, fx.Node) and first in self.claims:
            split = ops.argument(first, "self")
            self.parts[node] = Part(self.env[split].name, int(str(node.args[1])), split=first)
        elif op == "aten.clone" and isinstance(first, fx.Node) and first in self.parts:
            if rewritten(node):
                raise Unfaithful(node, "copies what is written afterwards")
            self.parts[node] = self.parts[first]
        elif op in RESHAPES and isinstance(first, fx.Node):
            self._reshaped(node, first)
        elif op == "aten.cat":
            joined = first if isinstance(first, (list, tuple)) else ()
            if joined and joined[0] in self.seen:
                self._joined_blocks(node, module, list(joined))
            else:
                self._joined(node, module, [self.parts.get(part) for part in joined])
        elif op == "aten.add" and len(node.args) == 2 and not node.kwargs:
            self._added(node, module)
        else:
            raise Unfaithful(node, f"({op}) is at the boundary of a module that is cut, where it has no business")

    def _split(self, node: fx.Node, module: Module) -> None:
        sizes = ops.argument(node, "split_sizes")
        whole = sum(sizes) if isinstance(sizes, (list, tuple)) and all(type(s) is int for s in sizes) else 0
        shares = tuple((size, whole) for size in sizes) if whole else ()
        equal = all(a * d == b * c for (a, b), (c, d) in zip(shares, module.shares, strict=False))
        if len(shares) != module.chunks or (module.shares and not equal):
            raise Unfaithful(node, f"splits into {sizes!s:.60}, not as the module's other activations are")
        module.shares = module.shares or shares

    def _joined(self, node: fx.Node, module: Module, parts: list[Part | None]) -> None:
        first = parts[0] if parts else None
        self._check_shape(node, node, first)
        wanted = [] if first is None else [Part(first.of, chunk) for chunk in range(module.chunks)]
        if first is None or parts != wanted or first.of not in self.whole:
            raise Unfaithful(node, "does not join all chunks of one value in order")
        dim = ops.argument(node, "dim", 0) % max(len(getattr(node.meta.get("val"), "shape", ())), 1)
        if module.joined.setdefault(first.of, dim) != dim:
            raise Unfaithful(node, "joins along another dimension than before")
        self.env[node] = self._put_together(node, first.of)

    def _put_together(self, node: fx.Node, of: str) -> fx.Node:
        """What stands for a whole that is put together in new memory: the node of BEFORE where that has memory of its
        own, laid out alike, and nothing else was made of it; a copy elsewhere.
        """
        whole, val, old = self.whole[of], node.meta.get("val"), self.before[of].meta.get("val")
        fact = ops.facts(whole.target)
        own = not (fact.views or fact.writing) and of not in self.given
        self.given.add(of)
        # In words: comparing symbols would decide what they are.
        lies = [str(strides_of(held)) for held in (val, old) if isinstance(held, torch.Tensor)]
        if own and len(lies) == 2 and lies[0] == lies[1]:
            return whole
        # A sum lies as what is added up, if that is dense; what is joined lies in order.
        form = torch.preserve_format if ops.op_name(node.target) == "aten.add" else torch.contiguous_format
        copied = self.graph.call_function(torch.ops.aten.clone.default, (whole,), {"memory_format": form})
        copied.name, copied.meta = f"{node.name}_whole", dict(node.meta)
        return copied

    def _reshaped(self, node: fx.Node, source: fx.Node) -> None:
        """Rows in blocks are joined with a dimension for the blocks, which goes again afterwards."""
        part, of = self.parts.get(source), self.blocks.get(source)
        sizes = ops.argument(node, "size", ops.argument(node, "shape"))
        known = isinstance(sizes, (list, tuple)) and all(type(length) is int and length > 0 for length in sizes)
        if known and part is not None and part.last is None and part.split is None:
            self.seen[node] = (part, list(sizes))
        elif known and of is not None and list(sizes) == list(self.before[of].meta["val"].shape):
            self.env[node] = self._put_together(node, of)
        else:
            raise Unfaithful(node, f"sees {source.name!r:.60} as {sizes!s:.60}, where it has no business")

    def _joined_blocks(self, node: fx.Node, module: Module, joined: list[Any]) -> None:
        seen = [self.seen.get(view) for view in joined]
        (first, sizes), dim = self.seen[joined[0]], ops.argument(node, "dim", 0)
        wanted = [Part(first.of, chunk) for chunk in range(module.chunks)]
        whole = [pair[1][dim] if pair and type(dim) is int and 0 <= dim < len(pair[1]) else 0 for pair in seen]
        total = [sum(whole) if at == dim else size for at, size in enumerate(sizes)]
        shares = [
            pair is not None and pair[1] == [*total[:dim], size, *total[dim + 1 :]] and size * of == sum(whole) * share
            for pair, size, (share, of) in zip(seen, whole, module.shares, strict=False)
        ]
        complete = [pair and pair[0] for pair in seen] == wanted and len(module.shares) == module.chunks
        if not complete or first.of not in self.whole or not all(shares):
            raise Unfaithful(node, "does not join all chunks of one value in order, block by block")
        if module.blocked.setdefault(first.of, (dim, total)) != (dim, total):
            raise Unfaithful(node, "joins along another dimension than before")
        self.blocks[node] = first.of

    def _check_shape(self, node: fx.Node, result: Any, part: Part | None) -> None:
        """What is whole, or a part of a sum, has the shape that BEFORE has."""
        old = None if part is None or part.split is not None else self.before[part.of].meta.get("val")
        own = result.meta.get("val")
        if not isinstance(old, torch.Tensor) or not isinstance(own, torch.Tensor):
            return
        # How long it is that only a run can tell, the kind of the value says.
        pairs = [(a, b) for a, b in zip(own.shape, old.shape, strict=False) if type(a) is type(b) is int]
        if len(own.shape) != len(old.shape) or any(a != b for a, b in pairs):
            raise Unfaithful(node, f"makes {list(own.shape)} where BEFORE has {list(old.shape)}")

    def _check_strides(self, node: fx.Node) -> None:
        """A sum lies as PyTorch lays out what is added up."""
        said = strides_of(node.meta["val"]) if isinstance(node.meta.get("val"), torch.Tensor) else None
        if said is None or any(shapes(held.meta.get("val")) is None for held in (node, *node.all_input_nodes)):
            return
        try:
            given = strides_of(self._evaluated(node))
        except UnknownValue as reason:
            raise Unfaithful(node, f"cannot add up what it has: {reason}") from None
        if given != said:
            raise Unfaithful(node, f"lies in memory with strides {given}, its val says {said}")

    def _added(self, node: fx.Node, module: Module) -> None:
        total, part = (self.parts.get(arg) for arg in node.args if isinstance(arg, fx.Node))
        before = None if total is None else total.chunk if total.last is None else total.last
        if (
            total is None
            or part is None
            or part.last is not None
            or total.of != part.of
            or part.chunk != (before or 0) + 1
        ):
            raise Unfaithful(node, "does not add up all chunks of one value in order")
        if total.last is None and total.chunk != 0:
            raise Unfaithful(node, "does not begin with the first chunk")
        self._check_shape(node, node.args[1], part)
        self._check_strides(node)
        self.parts[node] = Part(part.of, 0, part.chunk)
        if part.chunk == module.chunks - 1:
            self.env[node] = self._put_together(node, part.of)
            module.added.add(part.of)
