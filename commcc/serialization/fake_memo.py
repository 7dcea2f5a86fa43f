"""Shapes that ops give, worked out once: alike layers, chunks and passes ask for the same again and again.

    history = History(ctx, whole=True)
    value = history.once(op, args, kwargs, run)      # run() where nothing like it has run before

A result is remembered where the op and what its operands look like decide it, and made anew; of views only in a
context whose history is whole, where they look at all of their memory from its beginning. Sizes may be symbols where
the history of a :class:`~commcc.serialization.shapes.ShapeContext` is whole: contexts to which the same happened know
the same of symbols that have the same name. What tells its context something (a new symbol, a range, an assertion)
runs in every context, and becomes part of its history.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from commcc.graph.ops import facts
from commcc.graph.ops.libraries import SHAPED
from commcc.serialization.shapes import span

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from torch._ops import OpOverload

    from commcc.serialization.shapes import ShapeContext

_MOST_KEPT = 20_000
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PLAIN = (int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
#: By key: the kind of sequence that it gives, or None, and how each tensor lies in memory.
_results: dict[Hashable, tuple[type | None, list[tuple[Any, ...]]]] = {}
#: Numbers of histories, by the number before and what happened then. No number is given twice.
_histories: dict[Hashable, int] = {}
_numbers = count(1)


class _Unknown(Exception):
    """A value that says more than can be compared."""


class History:
    """What a context has been told of its symbols. whole: from its beginning; else symbols are not remembered."""

    def __init__(self, ctx: ShapeContext, *, whole: bool = False) -> None:
        self.ctx, self.whole, self.number = ctx, whole, 0
        self._known = self._learned()

    def add(self, event: Hashable) -> None:
        """Something happened to the context's symbols, the same wherever the same had happened before."""
        if len(_histories) >= _MOST_KEPT:
            _histories.clear()
        told = (self.number, event)
        self.number = _histories[told] if told in _histories else _histories.setdefault(told, next(_numbers))
        self._known = self._learned()

    def once(self, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[[], Any]) -> Any:
        """What ``run`` gives for this call, or what it gave for one like it."""
        if self._learned() != self._known:
            self._unknown()
        key = self._key(op, args, kwargs)
        stays = op.namespace in SHAPED and (
            self.whole or all(result.alias_info is None for result in op._schema.returns)
        )
        known = _results.get(key) if stays and key is not None else None
        if known is not None:
            many, tensors = known
            number, tensor = self.ctx.integer, self.ctx.tensor
            copies = [tensor([*map(number, shape)], [*map(number, stride)], *kind) for shape, stride, *kind in tensors]
            return copies[0] if many is None else many(copies)
        try:
            value = run()
        finally:
            learned = self._learned() != self._known
            if learned and key is None:
                self._unknown()
            elif learned:
                self.add(key)
        if stays and key is not None and not learned:
            _remember(key, value, symbols=self.whole)
        return value

    def _unknown(self) -> None:
        """Something happened that nobody can compare."""
        self.number, self._known = next(_numbers), self._learned()

    def _learned(self) -> tuple[Any, ...]:
        """What the context knows of symbols now, to be compared with what it knows later."""
        if not self.whole:
            return ()
        env = self.ctx.shape_env
        counters = (env._version_counter, env.unbacked_symint_counter, env.unbacked_symfloat_counter)
        asserted = (len(env.guards), env.num_deferred_runtime_asserts, len(env.replacements))
        return (*counters, *asserted, tuple(env.var_to_range.items()))

    def _key(self, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable | None:
        """All that the results can depend on; None where that is not known."""
        if facts(op).storage:
            return None
        try:
            return (op, torch.get_default_dtype(), self.number, self._told(args), self._told(kwargs))
        except _Unknown:
            return None

    def _told(self, value: Any) -> Hashable:
        if isinstance(value, FakeTensor):
            if value.constant is not None or value.layout is not torch.strided or value.is_conj() or value.is_neg():
                raise _Unknown
            numbers = (*value.shape, *value.stride(), value.storage_offset())
            sizes = numbers if all(type(number) is int for number in numbers) else tuple(map(self._told, numbers))
            return (value.dim(), sizes, value.dtype, value.device)
        if isinstance(value, (list, tuple)):
            return (type(value), *map(self._told, value))
        if isinstance(value, Mapping):
            return tuple((name, self._told(item)) for name, item in value.items())
        if isinstance(value, _SYMBOLIC) and self.whole:
            return (type(value), value.node.expr)
        if not isinstance(value, _PLAIN):
            raise _Unknown
        return (type(value), value)


def _remember(key: Hashable, value: Any, *, symbols: bool) -> None:
    """Keep a result for later calls, where it is made of dense tensors of its own alone.

    symbols: sizes may be symbols. What makes a symbol (``nonzero``) is run in every context, or that has none of it.
    """
    many = type(value) if type(value) in (list, tuple) else None
    tensors = [_lies(leaf, symbols=symbols) for leaf in ((value,) if many is None else value)]
    if None in tensors:
        return
    if len(_results) >= _MOST_KEPT:
        _results.clear()
    _results[key] = (many, [tensor for tensor in tensors if tensor is not None])


def _lies(value: Any, *, symbols: bool) -> tuple[Any, ...] | None:
    """Sizes and strides as numbers or, with ``symbols``, expressions; dtype and device."""
    if not isinstance(value, FakeTensor) or value.constant is not None or value.layout is not torch.strided:
        return None
    offset = value.storage_offset()
    if type(offset) is not int or offset or value.requires_grad or value.is_conj() or value.is_neg():
        return None
    shape, stride = value.shape, value.stride()
    if all(type(number) is int for number in (*shape, *stride)):
        # A view of a part of its memory would be as large as that part.
        held = value.untyped_storage().nbytes()
        if type(held) is not int or 0 in shape or span(shape, stride) * value.element_size() != held:
            return None
        return (tuple(shape), stride, value.dtype, value.device)
    if not symbols:
        return None
    known = [[getattr(getattr(n, "node", n), "expr", n) for n in numbers] for numbers in (shape, stride)]
    return (*map(tuple, known), value.dtype, value.device)
