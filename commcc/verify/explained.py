"""Ops whose results are worked out from their arguments: arithmetic on sizes, regrouping, conversions, copies.

Every method gives the value of a node, or raises :class:`Undecidable`: the op then stays a term of its operands
(:mod:`commcc.verify.tracer`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.graph.ops.arithmetic import ON_SIZES
from commcc.graph.ops.sizes import EXTENTS
from commcc.verify.contents import CAST, cast, counts, is_widening
from commcc.verify.regroup import regroup
from commcc.verify.reshaping import COPY, INVALID, MAYBE, Formed
from commcc.verify.sizes import Size, Undecidable, apply_function, product
from commcc.verify.terms import Meta, Tensor, Value, is_size, key_of, path_of, tensors_in
from commcc.verify.trace import CONVERSION, State, Step

if TYPE_CHECKING:
    from torch import fx

#: What a regrouping op calls the tensor, or the tensors, that it regroups.
_OPERANDS = ("self", "a", "tensors", "ag_ins", "rs_ins")


class Explainer(State):
    """A walk that can work out results."""

    def arithmetic(self, path: str, arguments: dict[str, Any]) -> Size | None:
        """The value of integer arithmetic, None for anything else."""
        name = ON_SIZES.get(path)
        try:
            if name is not None:
                values = list(arguments.values())
                flat = (
                    values[0] if path == "torch.sym_sum" and values and isinstance(values[0], tuple) else tuple(values)
                )
                return apply_function(name, flat, self.table.function) if flat and all(map(is_size, flat)) else None
            if path not in EXTENTS:
                return None
            tensor = arguments.get("self")
            if not isinstance(tensor, Tensor) or tensor.shape is None:
                return None
            return product(tensor.shape) if path == "aten.sym_numel.default" else tensor.shape[arguments["dim"]]
        except (Undecidable, IndexError, KeyError, TypeError):
            return None

    def regrouped(self, node: fx.Node, path: str, arguments: dict[str, Any]) -> Value:
        formed = regroup(self.table, path, arguments)
        if not isinstance(formed, Formed):
            return tuple(self._formed(node, part, i, arguments) for i, part in enumerate(formed))
        made = self._formed(node, formed, 0, arguments)
        self.check(node, made, node.meta.get("val"))
        if formed.alias == COPY:
            self.trace.copies += 1
        operand = next((arguments[name] for name in _OPERANDS if name in arguments), None)
        self._note_cast(node, made.content, tensors_in(operand), arguments)
        self.host.copied(path, node, arguments, made)
        return made

    def _formed(self, node: fx.Node, formed: Formed, index: int, arguments: dict[str, Any]) -> Tensor:
        name = next((n for n in _OPERANDS if n in arguments), "self")
        operand = arguments[name]
        first = operand[0] if isinstance(operand, tuple) else operand
        device = None if arguments.get("device") is not None else first.meta.device
        meta = Meta(formed.shape, formed.strides, formed.dtype, device)
        if formed.alias == COPY:
            return self.tensor(formed.content, meta, node)
        if formed.alias == INVALID:
            text = "is a view that the strides of its operand do not allow; use reshape"
            self.event("value", node, text, ("view", formed.content, formed.shape, first.meta.strides))
        made = self.tensor(formed.content, meta, node, first)
        made.via = (node, arguments, index, name)
        made.may_copy = formed.alias == MAYBE or first.may_copy
        return made

    def _note_cast(self, node: fx.Node, made: int, operands: list[Tensor], arguments: dict[str, Any]) -> None:
        """Record the elements that an op which made the content ``made`` of its operands converted."""
        if not operands or all(operand.content == made for operand in operands):
            return
        work = counts(self.table, made)
        old = {source for operand in operands for source in self.table.sources_of(operand.content)}
        old.update(self.table.keys[source][1] for source in tuple(old) if is_widening(self.table, source))
        fresh = {source: n for source, n in work.items() if self.table.keys[source][0] == CAST and source not in old}
        if fresh:
            self.worked(node, fresh)
            keys = tuple((name, key_of(self.table, value)) for name, value in arguments.items())
            contents = tuple(operand.content for operand in operands)
            step = Step(node.name, path_of(node.target), CONVERSION, made, made, keys, contents, tuple(fresh))
            self.trace.steps.append(step)

    def filled(self, node: fx.Node, path: str, arguments: dict[str, Any]) -> Value:
        """``copy_`` and ``_foreach_copy_``: the targets hold the elements of the sources, converted, one by one."""
        targets, sources = tensors_in(arguments.get("self")), tensors_in(arguments.get("src"))
        if len(targets) != len(sources) or not targets:
            raise Undecidable("another number of targets than of sources")
        for target, source in zip(targets, sources, strict=True):
            _check_copy(target, source)
            apart = self.memory.where(target).content != self.memory.where(source).content
            if apart and self.memory.overlap(target, source):
                raise Undecidable("a copy within one piece of memory")
        keys = tuple((name, key_of(self.table, value)) for name, value in arguments.items())
        term = self.table.intern(("op", path, keys))
        made = []
        for target, source in zip(targets, sources, strict=True):
            now = self.memory.current(source)
            content = cast(self.table, now.content, target.dtype, ())
            self.write(node, term, [target], (content,))
            self._note_cast(node, content, [now], arguments)
            held = self.tensor(content, target.meta, node, target)
            held.may_copy = target.may_copy
            made.append(held)
        self.trace.copies += 1
        return made[0] if isinstance(arguments.get("self"), Tensor) else tuple(made)


def _check_copy(target: Tensor, source: Tensor) -> None:
    """Raises :class:`Undecidable` for copies whose result is not simply the converted elements."""
    if target.shape is None or target.shape != source.shape or target.dtype is None:
        raise Undecidable("a copy into another shape")
    if target.meta.device != source.meta.device or target.meta.device is None:
        raise Undecidable("a copy between devices")
