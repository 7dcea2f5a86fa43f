"""Ops whose results are worked out from their arguments: arithmetic on sizes, regrouping, copies.

The methods of :class:`Explainer` give the value of a node, or raise :class:`Undecidable`: the op then stays a term of
its operands (:mod:`commcc.verify.tracer`). Collectives are in :mod:`commcc.verify.launches`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from commcc.graph.ops import facts
from commcc.graph.ops.arithmetic import COMPARISONS, ON_SIZES
from commcc.graph.ops.functions import plain_name, takes_call
from commcc.graph.ops.sizes import EXTENTS, RANGES
from commcc.graph.ops.views import DETACH
from commcc.verify.barriers import place
from commcc.verify.contents import (
    CAST,
    cast,
    counts,
    is_widening,
    meet,
)
from commcc.verify.hidden import opaque_in
from commcc.verify.regroup import converts, regroup
from commcc.verify.reshaping import COPY, INVALID, MAYBE, Formed
from commcc.verify.sizes import (
    Meta,
    Size,
    Undecidable,
    apply_function,
    is_apart,
    product,
)
from commcc.verify.terms import Opaque, Tensor, Value, is_size, key_of, path_of, tensors_in
from commcc.verify.trace import CONVERSION, State, Step

if TYPE_CHECKING:
    from torch import fx

    from commcc.verify.contents import Run
    from commcc.verify.terms import Terms


#: What a regrouping op calls the tensor, or the tensors, that it regroups.
_OPERANDS = ("self", "a", "tensors", "ag_ins", "rs_ins")


class Explainer(State):
    """A walk that can work out results."""

    def arithmetic(self, node: fx.Node, path: str, arguments: dict[str, Any]) -> Value | None:
        """The value of integer arithmetic, None for anything else; its ``val`` may name it, and is to say the same.

        Where sizes are fixed, what comparisons of numbers say, too.
        """
        if plain_name(node.target) is not None and not takes_call(node.target, node.args, node.kwargs):
            return None
        size, val = self._computed(path, arguments), node.meta.get("val")
        if size is None:
            return settled(self.table, path, arguments) if self.fixed else None
        self.symbols.define(val, size)
        wrong = self.symbols.mistake(val, size)
        if wrong:
            self.event("value", node, f"its val says {wrong}", ("val", size, wrong))
        return size

    def _computed(self, path: str, arguments: dict[str, Any]) -> Size | None:
        name = ON_SIZES.get(path)
        try:
            if name is not None:
                values = tuple(arguments.values())
                # It takes a list, and no numbers one by one.
                flat = values if path != "torch.sym_sum" else values[0] if isinstance(values[0], tuple) else ()
                return apply_function(name, flat, self.table.function) if flat and all(map(is_size, flat)) else None
            if path not in EXTENTS:
                return None
            tensor = arguments.get("self")
            if not isinstance(tensor, Tensor) or tensor.shape is None or self.memory.at(tensor.root).reshaped:
                return None
            return product(tensor.shape) if path == "aten.sym_numel.default" else tensor.shape[arguments["dim"]]
        except (Undecidable, IndexError, KeyError, TypeError):
            return None

    def regrouped(self, node: fx.Node, path: str, arguments: dict[str, Any]) -> Value:
        formed = regroup(self.table, path, arguments)
        if not isinstance(formed, Formed):
            return tuple(self._formed(node, part, i, arguments) for i, part in enumerate(formed))
        val = node.meta.get("val")
        if "out_dtype_ints" in arguments and formed.shape != tuple(getattr(val, "shape", ())):
            # The op numbers all dtypes that a release of PyTorch has; the graph may be of another release.
            raise Undecidable("numbers that stand for other dtypes in this PyTorch: use that which wrote the graph")
        result = self._formed(node, formed, 0, arguments)
        self.check(node, result, val)
        if formed.alias == COPY:
            self.trace.copies += 1
        elif path == f"{DETACH}.default" and node.users:
            self.trace.detached.setdefault(result.content, node.name)
        elif path == "aten.lift.default":
            self.memory.at(result.root).lifted = True
        if converts(path):
            operand = next((arguments[name] for name in _OPERANDS if name in arguments), None)
            self._note_cast(node, result.content, tensors_in(operand), arguments)
        self.host.copied(node, arguments, result)
        return result

    def _formed(self, node: fx.Node, formed: Formed, index: int, arguments: dict[str, Any]) -> Tensor:
        name = "self" if "self" in arguments else next(n for n in _OPERANDS if n in arguments)
        operand = arguments[name]
        first = operand[0] if isinstance(operand, tuple) else operand
        device = None if arguments.get("device") is not None else first.meta.device
        meta = Meta(formed.shape, formed.strides, formed.dtype, device)
        if formed.alias == COPY:
            place(self.trace, node, path_of(node.target), formed.content)
            return self.tensor(formed.content, meta, node)
        if formed.alias == INVALID:
            text = "is a view that the strides of its operand do not allow; use reshape"
            self.event("value", node, text, ("view", formed.content, formed.shape, first.meta.strides))
        result = self.tensor(formed.content, meta, node, first)
        result.via = (node, arguments, index, name)
        if formed.alias == MAYBE:
            self.memory.suppose(result, path_of(node.target))
        return result

    def _note_cast(self, node: fx.Node, content: int, operands: list[Tensor], arguments: dict[str, Any]) -> None:
        """Record the elements that an op which gives ``content`` converted, of those of its operands."""
        if not operands or all(operand.content == content for operand in operands):
            return
        work = counts(self.table, content)
        old = {source for operand in operands for source in self.table.sources_of(operand.content)}
        old.update(self.table.keys[source][1] for source in tuple(old) if is_widening(self.table, source))
        fresh = {source: n for source, n in work.items() if self.table.keys[source][0] == CAST and source not in old}
        if fresh:
            self.worked(node, fresh)
            keys = tuple((name, key_of(self.table, value)) for name, value in arguments.items())
            contents = tuple(operand.content for operand in operands)
            step = Step(node.name, path_of(node.target), CONVERSION, content, content, keys, contents, tuple(fresh))
            self.trace.steps.append(step)

    def filled(self, node: fx.Node, path: str, arguments: dict[str, Any]) -> Value:
        """``copy_`` and ``_foreach_copy_``: the targets hold the elements of the sources, converted, one by one."""
        _check_shapes(arguments)
        targets, sources = tensors_in(arguments.get("self")), tensors_in(arguments.get("src"))
        given = [arguments.get(name) for name in ("self", "src")]
        one = facts(node.target).name == "aten.copy_"
        if not all(isinstance(part, Tensor) if one else part == tuple(tensors_in(part)) for part in given):
            raise Undecidable("tensors that the op does not take")
        if len(targets) != len(sources) or not targets:
            raise Undecidable("another number of targets than of sources")
        if len(targets) > 1 and self._meet(targets, sources):
            raise Undecidable("several copies of one piece of memory, in an order that is not known")
        for target, source in zip(targets, sources, strict=True):
            _check_copy(target, source)
            apart = self.memory.where(target).content != self.memory.where(source).content
            if apart and self.memory.overlap(target, source):
                raise Undecidable("a copy within one piece of memory")
        keys = tuple((name, key_of(self.table, value)) for name, value in arguments.items())
        term = self.table.intern(("op", path, keys))
        results = []
        for target, source in zip(targets, sources, strict=True):
            now = self.memory.current(source)
            content = cast(self.table, now.content, target.dtype, ())
            self.write(node, term, [target], (content,))
            place(self.trace, node, path, content, self.memory.version(target.root))
            self._note_cast(node, content, [now], arguments)
            held = self.tensor(content, target.meta, node, target)
            results.append(held)
        self.trace.copies += 1
        return results[0] if isinstance(arguments.get("self"), Tensor) else tuple(results)

    def _meet(self, targets: list[Tensor], sources: list[Tensor]) -> bool:
        """Whether one of several targets may overlap with another one, or with what another one is to hold."""
        roots = Counter(target.root for target in targets)
        shared = {root for root, count in roots.items() if count > 1}.union(
            source.root
            for source, own in zip(sources, targets, strict=True)
            if source.root in roots and source is not own
        )
        return any(meet(self._runs(targets, root), self._runs(sources, root)) for root in sorted(shared))

    def _runs(self, tensors: list[Tensor], root: int) -> list[tuple[Run, int]]:
        """The runs of those in one storage, each with the place of its tensor; :class:`Undecidable` where unknown."""
        return [
            (run, at) for at, tensor in enumerate(tensors) if tensor.root == root for run in self.memory.runs(tensor)
        ]

    def delivered(self, node: fx.Node, twin: str, arguments: dict[str, Any]) -> Value:
        """An op that writes what another one gives, its twin, into tensors that it is handed as ``out``."""
        _check_shapes(arguments)
        fact = facts(node.target)
        outs = [tensor for name in fact.writes for tensor in tensors_in(arguments.get(name))]
        given = {name: value for name, value in arguments.items() if name not in fact.writes}
        formed = regroup(self.table, twin, given)
        parts = (formed,) if isinstance(formed, Formed) else formed
        if len(parts) != len(outs) or not outs:
            raise Undecidable("another number of targets than of results")
        sources = [tensor for value in given.values() for tensor in tensors_in(value)]
        for part, out in zip(parts, outs, strict=True):
            fits = part.shape == out.shape and part.dtype == out.dtype and is_apart(out.meta.shape, out.meta.strides)
            if not fits or any(part.alias == INVALID for part in parts):
                raise Undecidable("a target that does not fit")
            if any(out.meta.device != source.meta.device or self.memory.overlap(out, source) for source in sources):
                raise Undecidable("a copy within one piece of memory, or between devices")
        keys = tuple((name, key_of(self.table, value)) for name, value in arguments.items())
        term = self.table.intern(("op", twin, keys))
        results = []
        for part, out in zip(parts, outs, strict=True):
            self.write(node, term, [out], (part.content,))
            place(self.trace, node, twin, part.content, self.memory.version(out.root))
            held = self.tensor(part.content, out.meta, node, out)
            results.append(held)
        self.trace.copies += 1
        return results[0] if isinstance(formed, Formed) else tuple(results)


def _check_shapes(arguments: dict[str, Any]) -> None:
    """Raises :class:`Undecidable` where an argument, or one of a list, is no tensor with a shape, but may be one."""
    if opaque_in(arguments.values()):
        raise Undecidable("a tensor whose shape is not known")


def _check_copy(target: Tensor, source: Tensor) -> None:
    """Raises :class:`Undecidable` for copies whose result is not simply the converted elements."""
    if target.shape is None or target.shape != source.shape or target.dtype is None:
        raise Undecidable("a copy into another shape")
    if target.meta.device != source.meta.device or target.meta.device is None:
        raise Undecidable("a copy between devices")
    if not is_apart(target.meta.shape, target.meta.strides):
        raise Undecidable("a copy into memory that may hold an element twice")


def settled(table: Terms, path: str, arguments: dict[str, Any]) -> Value | None:
    """What a comparison of numbers says, or that an assert of what is true does nothing; None for all else."""
    values = list(arguments.values())
    if path in COMPARISONS and len(values) == 2 and all(isinstance(value, int) for value in values):
        # Of numbers `and_` and `or_` are bitwise, of what compares them they are not.
        return COMPARISONS[path](*values)  # type: ignore[no-any-return]
    if path == "torch.sym_not" and values and isinstance(values[0], bool):
        return not values[0]
    return Opaque(table.intern(("holds", path))) if _holds(path, arguments) else None


def _holds(path: str, arguments: dict[str, Any]) -> bool | None:
    if path == "aten._assert_scalar.default" and isinstance(arguments.get("self"), int):
        return bool(arguments["self"])
    size = arguments.get("size")
    if path.rpartition(".")[0] in RANGES and isinstance(size, int):
        low, high = arguments.get("min"), arguments.get("max")
        return (low is None or size >= low) and (high is None or size <= high)
    return None
