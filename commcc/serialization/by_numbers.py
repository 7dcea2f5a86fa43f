"""Shapes of ops that want to know sizes which nobody knows before the run.

    constant_pad_nd(x, [0, 0, 0, 8])       # x: f32[u0, 64];  PyTorch asks whether u0 is some number, and gives up
    by_numbers(evaluator, op, args, {})    # f32[u1, 64]: 64 whatever u0 is, and a size that depends on it

The op is run for several sets of numbers in the place of the symbols. A size of the result that is the same for all is
that number; one that is a size of an operand for all is that size; any other is a new symbol.

Limits: sizes that are not known are taken to be large and even. An op that no two sets
of numbers suit has no shape.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import _constrain_range_for_size
from torch.utils import _pytree as pytree

from commcc.serialization.fake_ops import Evaluator, UnknownValue
from commcc.serialization.shapes import contiguous_stride

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import sympy

#: Numbers for the first symbol, and how much larger each further one is; no larger where an op wants equal sizes.
_TRIALS = ((3840, 480), (5280, 720), (3840, 0), (5280, 0))
_WANTED = 2


def by_numbers(evaluator: Evaluator, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of ``target``; :class:`UnknownValue` where numbers do not help either."""
    names = sorted({symbol for leaf in pytree.tree_leaves((args, kwargs)) for symbol in _symbols(leaf)}, key=str)
    if not names or not isinstance(target, OpOverload):
        raise UnknownValue("no size of its operands is a symbol")
    runs: list[tuple[dict[sympy.Symbol, int], Any]] = []
    for first, step in _TRIALS:
        numbers = {name: first + place * step for place, name in enumerate(names)}
        own = pytree.tree_map(partial(_numbered, evaluator, numbers), (list(args), dict(kwargs)))
        try:
            runs.append((numbers, evaluator.run(target, *own)))
        except UnknownValue:
            continue
        if len(runs) == _WANTED:
            break
    if len(runs) < _WANTED:
        raise UnknownValue(f"{target} runs for no numbers in the place of {', '.join(map(str, names))}")
    sizes = [size for leaf in pytree.tree_leaves((args, kwargs)) for size in _sizes(leaf) if _symbols(size)]
    # Of several sizes with the same numbers the first operand's stands for all.
    known = {tuple(_number(size, numbers) for numbers, _ in runs): size for size in reversed(sizes)}
    results = [pytree.tree_flatten(result) for _, result in runs]
    if any(spec != results[0][1] for _, spec in results):
        raise UnknownValue("how many results it has depends on sizes that are not known")
    leaves = [_joined(evaluator, values, known) for values in zip(*(flat for flat, _ in results), strict=True)]
    return pytree.tree_unflatten(leaves, results[0][1])


def _sizes(leaf: Any) -> tuple[Any, ...]:
    return (*leaf.shape, *leaf.stride()) if isinstance(leaf, torch.Tensor) else (leaf,)


def _symbols(leaf: Any) -> Iterable[sympy.Symbol]:
    return [s for size in _sizes(leaf) if isinstance(size, torch.SymInt) for s in size.node.expr.free_symbols]


def _number(size: Any, numbers: Mapping[sympy.Symbol, int]) -> Any:
    return int(size.node.expr.xreplace(numbers)) if isinstance(size, torch.SymInt) else size


def _numbered(evaluator: Evaluator, numbers: Mapping[sympy.Symbol, int], leaf: Any) -> Any:
    if not isinstance(leaf, FakeTensor):
        return _number(leaf, numbers)
    shape, stride = ([_number(size, numbers) for size in sizes] for sizes in (leaf.shape, leaf.stride()))
    return evaluator.ctx.tensor(shape, stride, leaf.dtype, leaf.device)


def _joined(evaluator: Evaluator, values: Sequence[Any], known: Mapping[tuple[Any, ...], Any]) -> Any:
    """One result, or part of one, of all runs."""
    first = values[0]
    if isinstance(first, (int, torch.SymInt)) and not isinstance(first, bool):
        return _size(evaluator, values, known)
    if not isinstance(first, FakeTensor):
        return first
    if len({len(tensor.shape) for tensor in values}) > 1:
        raise UnknownValue("how many dimensions it has depends on sizes that are not known")
    shape = [_size(evaluator, sizes, known) for sizes in zip(*(tensor.shape for tensor in values), strict=True)]
    return evaluator.ctx.tensor(shape, contiguous_stride(shape), first.dtype, first.device)


def _size(evaluator: Evaluator, sizes: Sequence[Any], known: Mapping[tuple[Any, ...], Any]) -> Any:
    if len(set(map(str, sizes))) == 1 and isinstance(sizes[0], int):
        return sizes[0]
    plain = tuple(size if isinstance(size, int) else None for size in sizes)
    if plain in known:
        return known[plain]
    fresh = evaluator.ctx.shape_env.create_unbacked_symint()
    _constrain_range_for_size(fresh)
    return fresh
