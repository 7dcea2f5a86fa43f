"""Graphs for any number of tokens, compared with one that was made for a number of them.

    verdict, after = verify_sized(before, after)      # before: i64[256], after: i64[u0]

AFTER is fixed to the sizes that BEFORE's inputs have, that step is verified as every other one, and what it gives is
compared with BEFORE.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from commcc import verify as verifier
from commcc.base.errors import InputError
from commcc.verify import Finding

if TYPE_CHECKING:
    from torch import fx

    from commcc.graph.program import Program
    from commcc.verify import Verdict


def verify_sized(before: Program, after: Program, *, same_constants: bool = False) -> tuple[Verdict, Program]:
    """What the verifier says, and AFTER as it was compared. same_constants: as of the verifier."""
    from commcc.apply import apply_plan
    from commcc.passes.base import PlanContext
    from commcc.passes.ep_concretize import EpConcretize

    numbers = _numbers(before, after)
    if not numbers:
        return verifier.verify(before, after, same_constants=same_constants), after
    context = PlanContext.of(after)
    try:
        plan = EpConcretize(symbols=tuple(f"{name}={number}" for name, number in numbers.items())).plan(context)
    except InputError:  # AFTER does not take these sizes: the comparison says where
        return verifier.verify(before, after, same_constants=same_constants), after
    fixed = apply_plan(after, context.index, plan)
    step = verifier.verify(after, fixed, same_constants=same_constants)
    whole = verifier.verify(before, fixed, same_constants=same_constants)
    told = ", ".join(f"{name} = {number}" for name, number in numbers.items())
    note = Finding("input", "", f"AFTER takes other sizes too: compared for {told}, which BEFORE was made for")
    gaps = (*whole.unproved, *step.unproved)
    findings = (*whole.findings, *step.findings)
    status = "different" if findings else "unproved" if gaps else "proved"
    return replace(whole, status=status, findings=findings, unproved=gaps, notes=(note, *whole.notes)), fixed


def _numbers(before: Program, after: Program) -> dict[str, int]:
    """Numbers that BEFORE's inputs have where AFTER's have a symbol; nothing where they do not agree."""
    old = {node.name: _shape(node) for node in before.graph.find_nodes(op="placeholder")}
    by_symbol: dict[str, set[int]] = {}
    for node in after.graph.find_nodes(op="placeholder"):
        for size, number in zip(_shape(node), old.get(node.name, ()), strict=False):
            expression = getattr(getattr(size, "node", None), "expr", None)
            if type(number) is int and number > 0 and getattr(expression, "is_Symbol", False):
                by_symbol.setdefault(str(expression), set()).add(number)
    agreed = {name: min(numbers) for name, numbers in by_symbol.items() if len(numbers) == 1}
    return agreed if len(agreed) == len(by_symbol) else {}


def _shape(node: fx.Node) -> tuple[Any, ...]:
    val = node.meta.get("val")
    return tuple(val.shape) if isinstance(val, torch.Tensor) else ()
