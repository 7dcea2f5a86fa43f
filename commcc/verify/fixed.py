"""Sizes that AFTER was fixed to: BEFORE is then compared for inputs of that size.

    header of AFTER: "fixed": {"u0": 160}
    x: f32[u0, 8]   s = sym_size(x, 0)   _assert_scalar(s >= 2)      is what x: f32[160, 8] is in AFTER

A claim of AFTER, said with the verdict. Symbols are believed where they are a whole size of an input of BEFORE,
or an input. Comparisons of numbers are evaluated, and asserts of what is true do nothing.

Limits: arithmetic other than that of :mod:`commcc.verify.calls` is taken from the values in BEFORE.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from commcc.verify.values import Opaque

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import fx

    from commcc.graph.program import Program
    from commcc.verify.trace import Tracer
    from commcc.verify.values import Value
    from commcc.verify.verdict import Report

_KEY = "fixed"
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    **{f"operator.{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"operator.{name}": getattr(operator, name) for name in ("and_", "or_")},
}
_ASSERT = "aten._assert_scalar.default"
_RANGES = ("aten.sym_constrain_range.default", "aten.sym_constrain_range_for_size.default")


def fixed_sizes(before: Program, after: Program, report: Report) -> dict[str, int]:
    """Numbers that AFTER has for symbols of BEFORE's inputs; those that cannot be are findings."""
    old, new = _claims(before), _claims(after)
    there = _input_symbols(before.graph)
    found: dict[str, int] = {}
    for name, number in new.items():
        if old.get(name) == number:
            continue
        if name in old:
            report.differs("input", "", f"'{name:.40}' is fixed to {number!r:.40}, in BEFORE to {old[name]!r:.40}")
        elif type(number) is not int or number < 1 or name not in there:
            report.differs(
                "input", "", f"'{name:.40}' is fixed to {number!r:.40}, and is no size of an input of BEFORE"
            )
        else:
            found[name] = number
            report.note("input", "", f"compared for {name} = {number} only, which AFTER is fixed to")
    return found


def _claims(program: Program) -> Mapping[str, Any]:
    claims = program.header.get(_KEY)
    return {str(name): number for name, number in claims.items()} if isinstance(claims, dict) else {}


def _input_symbols(graph: fx.Graph) -> set[str]:
    found: set[str] = set()
    for node in graph.nodes:
        if node.op != "placeholder":
            continue
        val = node.meta.get("val")
        sizes = (*val.shape, *val.stride()) if isinstance(val, torch.Tensor) else (val,)
        symbols = (getattr(getattr(size, "node", None), "expr", None) for size in sizes)
        found.update(str(symbol) for symbol in symbols if getattr(symbol, "is_Symbol", False))
    return found


def settle(tracer: Tracer, path: str, arguments: dict[str, Any]) -> Value | None:
    """What a comparison of numbers says, or that an assert of what is true does nothing; None for all else."""
    values = list(arguments.values())
    if path in _COMPARISONS and len(values) == 2 and all(isinstance(value, int) for value in values):
        return bool(_COMPARISONS[path](*values))
    if path == "torch.sym_not" and values and isinstance(values[0], bool):
        return not values[0]
    return Opaque(tracer.table.intern(("holds", path))) if _holds(path, arguments) else None


def _holds(path: str, arguments: dict[str, Any]) -> bool | None:
    if path == _ASSERT and isinstance(arguments.get("self"), int):
        return bool(arguments["self"])
    size = arguments.get("size")
    if path in _RANGES and isinstance(size, int):
        low, high = arguments.get("min"), arguments.get("max")
        return (low is None or size >= low) and (high is None or size <= high)
    return None
