"""Shapes of ops that want to know sizes which nobody knows before the run.

    constant_pad_nd(x, [0, 0, 0, 8])       # x: f32[u0, 64];  PyTorch asks whether u0 is some number, and gives up
    by_numbers(evaluator, op, args, {})    # f32[u1, 64]: 64 whatever u0 is, and a size that depends on it

The op is run for several sets of numbers in the place of the symbols. A size of the result that is the same for all is
that number; one that is a size of an operand for all is that size; any other is a new symbol.

Limits: sizes that are not known are taken to be large and even. An op that no two sets
of numbers suit has no shape.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import _constrain_range_for_size
from torch.utils import _pytree as pytree

from commcc.base.errors import InputError
from commcc.graph.index.hints import is_explosive
from commcc.serialization.fake_ops import Evaluator, UnknownValue
from commcc.serialization.shapes import contiguous_stride

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias

    Numbers: TypeAlias = Mapping[sympy.Symbol, int]

#: Numbers for the first symbol, and how much larger each further one is; no larger where an op wants equal sizes.
_TRIALS = ((3840, 480), (5280, 720), (3840, 0), (5280, 0))
#: The same for what may hold only where sizes are small, or the first ones the largest, or where they are equal.
_DIFFERENT = (*_TRIALS[:2], (15360, -960), (96, 24))
_EQUAL = (*_TRIALS[2:], (24, 0))
_WANTED = 2


def by_numbers(evaluator: Evaluator, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of ``target``; :class:`UnknownValue` where numbers do not help either."""
    names = _names((args, kwargs))
    if not names or not isinstance(target, OpOverload):
        raise UnknownValue("no size of its operands is a symbol")
    runs = _runs(evaluator, target, (list(args), dict(kwargs)), _trials(names, _TRIALS), most=_WANTED)
    if len(runs) < _WANTED:
        raise UnknownValue(f"{target} runs for no numbers in the place of {', '.join(map(str, names))}")
    sizes = [size for leaf in pytree.tree_leaves((args, kwargs)) for size in _sizes(leaf) if _symbols(size)]
    # Of several sizes with the same numbers the first operand's stands for all.
    known = {tuple(_number(size, numbers) for numbers, _, _ in runs): size for size in reversed(sizes)}
    results = [pytree.tree_flatten(result) for _, result, _ in runs]
    if any(spec != results[0][1] for _, spec in results):
        raise UnknownValue("how many results it has depends on sizes that are not known")
    leaves = [_joined(evaluator, values, known) for values in zip(*(flat for flat, _ in results), strict=True)]
    return pytree.tree_unflatten(leaves, results[0][1])


def evaluations(
    evaluator: Evaluator,
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    said: Any,
    fixed: Mapping[str, int],
) -> list[tuple[Numbers, Any, Any]]:
    """What an op gives with numbers in the place of symbols, and what is ``said`` of it with the same numbers in it.

    First for the example values, if the file has them, then for others in the range of each symbol; those that do not
    suit the op are left out. Once where no size of its operands is a symbol, but for those of which the number is
    ``fixed``.
    """
    leaves = pytree.tree_leaves((args, kwargs))
    if any(isinstance(leaf, (torch.SymFloat, torch.SymBool)) for leaf in leaves):
        raise UnknownValue("a number that nobody knows before the run")
    env, names = evaluator.ctx.shape_env, _names(leaves)
    known = {name: fixed[str(name)] for name in _names((leaves, said)) if str(name) in fixed}
    if not names and not known:
        return [({}, evaluator.run_open(target, args, kwargs), said)]
    if known.keys() >= set(names):
        return _runs(evaluator, target, (args, kwargs), [known], said)
    names = _names((leaves, said))
    examples = {name: int(env.backed_var_to_val[name]) for name in names if name in env.backed_var_to_val}

    def runs(settings: Iterable[tuple[int, int]]) -> list[tuple[Numbers, Any, Any]]:
        trials: list[Numbers] = [{**examples, **known}] if len(examples) == len(names) else []
        for numbers in ({**trial, **known} for trial in _trials(names, settings)):
            ranges = [(env.var_to_range.get(name), number) for name, number in numbers.items()]
            if all(known is None or known.lower <= number <= known.upper for known, number in ranges):
                trials.append(numbers)
        return _runs(evaluator, target, (args, kwargs), trials, said)

    # Of equal sizes PyTorch has one symbol, unless it was not asked.
    return runs(_DIFFERENT) or runs(_EQUAL)


def _trials(names: Sequence[sympy.Symbol], settings: Iterable[tuple[int, int]]) -> list[Numbers]:
    return [{name: max(first + place * step, 1) for place, name in enumerate(names)} for first, step in settings]


def _runs(
    evaluator: Evaluator,
    target: Any,
    arguments: Any,
    trials: Iterable[Numbers],
    said: Any = (),
    most: int | None = None,
) -> list[tuple[Numbers, Any, Any]]:
    """The first sets of numbers for which an op runs, its results, and what is said of these with the same numbers."""
    runs: list[tuple[Numbers, Any, Any]] = []
    for numbers in trials:
        if len(runs) == most:
            break
        with contextlib.suppress(UnknownValue, InputError):
            args, kwargs = _with(evaluator, numbers, arguments)
            runs.append((numbers, evaluator.run_open(target, args, kwargs), _with(evaluator, numbers, said)))
    return runs


def _names(values: Any) -> list[sympy.Symbol]:
    return sorted({symbol for leaf in pytree.tree_leaves(values) for symbol in _symbols(leaf)}, key=str)


def _sizes(leaf: Any) -> tuple[Any, ...]:
    return (*leaf.shape, *leaf.stride()) if isinstance(leaf, torch.Tensor) else (leaf,)


def _symbols(leaf: Any) -> Iterable[sympy.Symbol]:
    return [s for size in _sizes(leaf) if isinstance(size, torch.SymInt) for s in size.node.expr.free_symbols]


def _number(size: Any, numbers: Numbers) -> Any:
    if not isinstance(size, torch.SymInt):
        return size
    expression = size.node.expr
    if any(map(is_explosive, sympy.preorder_traversal(expression))):
        raise UnknownValue("a power of sizes that may be too large to compute")
    try:
        value = expression.xreplace(numbers)
        return size if getattr(value, "free_symbols", None) else int(value)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise UnknownValue(f"a size that has no value: {str(error)[:80]}") from None


def _with(evaluator: Evaluator, numbers: Numbers, values: Any) -> Any:
    """The same values with numbers in the place of their symbols."""

    def numbered(leaf: Any) -> Any:
        if not isinstance(leaf, FakeTensor):
            return _number(leaf, numbers)
        shape, stride = ([_number(size, numbers) for size in sizes] for sizes in (leaf.shape, leaf.stride()))
        return evaluator.ctx.tensor(shape, stride, leaf.dtype, leaf.device)

    return pytree.tree_map(numbered, values)


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
