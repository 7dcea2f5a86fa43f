"""Shape facts from ``node.meta["val"]``, without asking a symbolic size for its value."""

from __future__ import annotations

from typing import Any

import torch

from commcc.index.graph import Tensor


class TensorTable:
    """Makes :class:`Tensor` facts; equal facts share one object, which keeps big graphs small."""

    def __init__(self) -> None:
        self._seen: dict[Tensor, Tensor] = {}

    def of(self, val: Any) -> Tensor | None:
        """Facts of a tensor value, None for anything else."""
        if not isinstance(val, torch.Tensor):
            return None
        shape = tuple(size if isinstance(size, int) else str(size) for size in val.shape)
        made = Tensor(
            dtype=str(val.dtype).removeprefix("torch."),
            itemsize=val.dtype.itemsize,
            shape=shape,
            device=str(val.device),
            numel=_numel(val),
            contiguous=_contiguous(val),
        )
        return self._seen.setdefault(made, made)


def _contiguous(val: torch.Tensor) -> bool:
    step = 1
    for size, stride in zip(reversed(val.shape), reversed(val.stride()), strict=True):
        if not isinstance(size, int) or not isinstance(stride, int):
            return True
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _numel(val: torch.Tensor) -> int | None:
    total = 1
    for size in val.shape:
        value = size if isinstance(size, int) else hint_of(size)
        if value is None:
            return None
        total *= value
    return total


def hint_of(size: Any) -> int | None:
    """The example value of a symbolic size, None when it has none (unbacked)."""
    node = getattr(size, "node", None)
    hint = getattr(node, "_hint", None)
    if hint is None:
        hint = getattr(node, "hint", None) if node is not None and not _unbacked(node) else None
    return int(hint) if isinstance(hint, (int, float)) else None


def _unbacked(node: Any) -> bool:
    has_hint = getattr(node, "has_hint", None)
    return not (callable(has_hint) and has_hint())
