"""The Python functions on numbers and sequences that a graph may call, by the names that FX prints.

    plain_functions()["operator.getitem"]         # operator.getitem
    bounded(operator.mul)(10**1000, 10**1000)     # ValueError: the result is too large

    transform_functions()["torch._functorch.predispatch._add_batch_dim"]

What ``vmap`` and forward-mode derivatives leave in an exported graph are functions as well: they enter and leave a
level, so that they have effects, and they are run on no shapes. Every other callable in a graph is an op. The plain
ones do nothing but compute their result, but Python computes numbers and lists of any length: sizes out of files go
through :func:`bounded`.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import math
import operator
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

OPERATORS = (
    *("add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "lshift", "rshift", "and_", "or_", "xor"),
    *("matmul", "getitem", "eq", "ne", "lt", "gt", "le", "ge", "pos", "neg", "invert", "not_", "index", "abs"),
    *("truth", "is_", "is_not"),
)
_TORCH = (
    *(f"sym_{name}" for name in ("float", "int", "ite", "max", "min", "not", "sum", "sqrt", "fresh_size")),
    *(f"_sym_{name}" for name in ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "log2")),
)
_MATH = ("ceil", "floor", "trunc", "sqrt", "log2", "cos", "sin", "tan", "acos", "asin", "atan", "log", "exp")
_BUILTINS = ("round", "abs", "int", "float", "bool", "max", "min")
#: Bits of the longest integer and items of the longest sequence that arithmetic may give: sizes have 64 bits.
LONGEST = 4096


@lru_cache(maxsize=1)
def plain_functions() -> Mapping[str, Callable[..., Any]]:
    """By printed name; those that this version of PyTorch has."""
    functions: dict[str, Any] = {f"operator.{name}": getattr(operator, name) for name in OPERATORS}
    functions.update({f"math.{name}": getattr(math, name) for name in _MATH})
    functions.update({name: getattr(builtins, name) for name in _BUILTINS})
    known = {f"torch.{name}": getattr(torch, name, None) for name in _TORCH}
    functions.update({name: function for name, function in known.items() if function is not None})
    return functions


@lru_cache(maxsize=1)
def _names() -> Mapping[int, str]:
    return {id(function): name for name, function in reversed(list(plain_functions().items()))}


def plain_name(function: Any) -> str | None:
    """The printed name of one of these functions; None for anything else."""
    return _names().get(id(function))


def takes_call(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether Python calls one of these functions with so many arguments, and these names, at all."""
    signature = _signature(function)
    try:
        return signature is None or bool(signature.bind(*args, **kwargs))
    except TypeError:
        return False


@lru_cache(maxsize=256)
def _signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except ValueError:  # as of max
        return None


@lru_cache(maxsize=1)
def transform_functions() -> Mapping[str, Callable[..., Any]]:
    """By printed name; empty where this version of PyTorch has none."""
    try:
        home = importlib.import_module("torch._functorch.predispatch")
    except ImportError:
        return {}
    functions = (value for value in vars(home).values() if inspect.isfunction(value))
    return {
        f"{home.__name__}.{function.__name__}": function
        for function in functions
        if function.__module__ == home.__name__
    }


def transform_name(function: Any) -> str | None:
    """The printed name of one of these functions; None for anything else."""
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', '')}"
    return name if transform_functions().get(name) is function else None


def bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """One of these functions, which raises ValueError where its result would be too large to be a size."""
    length = _LENGTHS.get(id(function))
    if length is None:
        return function

    @wraps(function)
    def checked(*args: Any) -> Any:
        if len(args) == 2 and length(*args) > LONGEST:
            raise ValueError("the result is too large")
        return function(*args)

    return checked


def _items(value: Any) -> int:
    """What a text or sequence holds, down to the innermost; as far as the bound."""
    if isinstance(value, str):
        return len(value)
    number, rest = 0, [value]
    while rest and number <= LONGEST:
        part = rest.pop()
        number += 1
        if isinstance(part, (list, tuple)):
            rest.extend(part)
    return number


def _joined(one: Any, other: Any) -> int:
    return sum(_items(part) for part in (one, other) if isinstance(part, (str, list, tuple)))


def _repeated(one: Any, other: Any) -> int:
    if type(one) is int and type(other) is int:
        return one.bit_length() + other.bit_length()
    times = next((part for part in (one, other) if type(part) is int), 0)
    return _joined(one, other) * times


def _taken(one: Any, which: Any) -> int:
    # Part of a list that holds one list twice has twice its items.
    return _items(one) if isinstance(which, slice) and isinstance(one, (list, tuple)) else 0


def _raised(base: Any, exponent: Any) -> int:
    if type(exponent) is not int:
        # Of symbols no number of bits is known.
        return LONGEST + 1 if isinstance(exponent, torch.SymInt) else 0
    # A power of a symbol is multiplied out.
    return exponent * (base.bit_length() if type(base) is int else 64)


def _shifted(one: Any, by: Any) -> int:
    if type(by) is not int:
        return LONGEST + 1 if isinstance(by, torch.SymInt) else 0
    return by + (one.bit_length() if type(one) is int else 0)


#: How long a result is, at most, for functions whose result can be longer than their operands.
_LENGTHS: dict[int, Callable[[Any, Any], int]] = {
    id(operator.add): _joined,
    id(operator.mul): _repeated,
    id(operator.pow): _raised,
    id(operator.lshift): _shifted,
    id(operator.getitem): _taken,
}
