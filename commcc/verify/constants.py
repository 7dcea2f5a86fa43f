"""What graphs refer to by name: constants must be the same in both programs.

Limits: constants without values (fake tensors) are compared by shape and dtype alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from commcc.verify.subgraphs import find

if TYPE_CHECKING:
    from commcc.graph.program import Program
    from commcc.verify.causes import Pair


def compare_attributes(pair: Pair, before: Program, after: Program) -> None:
    """Constants that both graphs read must be equal."""
    for name in pair.after.constants:
        old, new = find(before.root, name), find(after.root, name)
        if old is new:
            continue
        if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
            problem = _unequal(old, new)
            if problem:
                pair.report.differs("value", name, f"constant has {problem}")
        elif type(old) is not type(new):
            pair.report.differs("value", name, "constant is of another type than in BEFORE")
        else:
            pair.report.gap("value", name, f"constants of type {type(new).__qualname__} cannot be compared")


def _unequal(old: torch.Tensor, new: torch.Tensor) -> str:
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        return "another shape or dtype than in BEFORE"
    plain = type(old) in (torch.Tensor, torch.nn.Parameter) and type(new) in (torch.Tensor, torch.nn.Parameter)
    if plain and old.device.type == new.device.type == "cpu":
        same = (
            torch.equal(old.detach().view(torch.uint8), new.detach().view(torch.uint8))
            if old.ndim
            else bool(old == new)
        )
        return "" if same else "other values than in BEFORE"
    return ""


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Bit patterns, so that NaN equals itself and -0.0 differs from 0.0."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
