"""Results that hold for some sizes only: a job runs them where its inputs are known to have these sizes.

    require_sizes(before, after)      # CommccError where nothing sees to it that inputs have the sizes of ``after``

A pass may fix a symbol, as ``ep-concretize`` does. The compiled graph is called again with other sizes, unless there
is a guard on them: so a symbol of which PyTorch knows the number gets one, as if the model had compared it. Where it is
too late for guards, as when a backward is compiled by itself, such a result is refused. A symbol of which PyTorch knows
no number (``u0``) is what the trainer says, in the pipeline or by a mark at an input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.apply.concrete import FIXED
from commcc.base.errors import CommccError
from commcc.serialization.shapes import input_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.base.terms import Json
    from commcc.graph.program import Program


def fixed_sizes(before: Program, after: Program) -> dict[str, Json]:
    """The numbers that ``after`` has in place of symbols of ``before``, by symbol."""
    was, now = _fixed(before), _fixed(after)
    return {name: number for name, number in now.items() if was.get(name) != number}


def told_sizes(sizes: Mapping[str, Json]) -> str:
    """``s77 = 4, u0 = 160``."""
    return ", ".join(f"{name} = {number}" for name, number in sizes.items())


def require_sizes(before: Program, after: Program) -> None:
    """Have a guard made for each size that was fixed; raises :class:`CommccError` where none can be."""
    sizes = dict(input_sizes(before.graph))
    for name, number in fixed_sizes(before, after).items():
        size = sizes.get(name)
        if size is None or not _holds(size, number):
            why = "nothing sees to it that this graph runs with that size only"
            raise CommccError(f"the result is for inputs with {told_sizes({name: number})}, and {why}")


def _holds(size: Any, number: Json) -> bool:
    env, symbol = size.node.shape_env, size.node.expr
    if env is None or not size.node.has_hint() or env.replace(symbol) == number:
        return True
    if size.node.hint != number or env.frozen or env._suppress_guards_tls():
        return False
    return bool(size == number) and env.replace(symbol) == number


def _fixed(program: Program) -> Mapping[str, Json]:
    fixed = program.header.get(FIXED)
    return fixed if isinstance(fixed, dict) else {}
