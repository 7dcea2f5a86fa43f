"""The Python functions on numbers and sequences that a graph may call, by the names that FX prints.

    plain_functions()["operator.getitem"]         # operator.getitem

Every other callable in a graph is an op. None of these does anything but compute its result.
"""

from __future__ import annotations

import builtins
import math
import operator
from functools import lru_cache
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


@lru_cache(maxsize=1)
def plain_functions() -> Mapping[str, Callable[..., Any]]:
    """By printed name; those that this version of PyTorch has."""
    found: dict[str, Any] = {f"operator.{name}": getattr(operator, name) for name in OPERATORS}
    found.update({f"math.{name}": getattr(math, name) for name in _MATH})
    found.update({name: getattr(builtins, name) for name in _BUILTINS})
    known = {f"torch.{name}": getattr(torch, name, None) for name in _TORCH}
    found.update({name: function for name, function in known.items() if function is not None})
    return found


@lru_cache(maxsize=1)
def _names() -> Mapping[int, str]:
    return {id(function): name for name, function in reversed(list(plain_functions().items()))}


def plain_name(function: Any) -> str | None:
    """The printed name of one of these functions; None for anything else."""
    return _names().get(id(function))
