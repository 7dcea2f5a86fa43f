"""Shape facts from ``node.meta["val"]``, without asking a symbolic size for its value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from commcc.graph.index.graph import Tensor
from commcc.graph.index.hints import MAX_NUMBER

if TYPE_CHECKING:
    from commcc.graph.index.hints import SizeHints


class TensorTable:
    """Makes :class:`Tensor` facts; equal facts share one object, which keeps big graphs small."""

    def __init__(self, hints: SizeHints) -> None:
        self._seen: dict[Tensor, Tensor] = {}
        self._alike: dict[Any, Tensor] = {}
        self._texts: dict[Any, str] = {}
        self._hints = hints

    def of(self, val: Any) -> Tensor | None:
        """Facts of a tensor value, None for anything else."""
        if not isinstance(val, torch.Tensor):
            return None
        alike = (val.shape, val.stride(), val.dtype, val.device)
        try:
            known = self._alike.get(alike)
        except TypeError:  # symbols have no hash
            return self._build(val)
        if known is None:
            known = self._alike[alike] = self._build(val)
        return known

    def _build(self, val: torch.Tensor) -> Tensor:
        shape = tuple(size if isinstance(size, int) else self._text(size) for size in val.shape)
        tensor = Tensor(
            dtype=str(val.dtype).removeprefix("torch."),
            itemsize=val.dtype.itemsize,
            shape=shape,
            device=str(val.device),
            numel=self._numel(val),
            contiguous=_contiguous(val),
        )
        return self._seen.setdefault(tensor, tensor)

    def _text(self, size: torch.SymInt) -> str:
        """As it is printed; printing takes long, and sizes repeat."""
        expr = getattr(size.node, "expr", size)
        if expr not in self._texts:
            self._texts[expr] = str(size)
        return self._texts[expr]

    def parts(self, val: Any) -> tuple[Tensor | None, ...]:
        """Facts of the elements of a tuple value; empty for anything else."""
        return tuple(map(self.of, val)) if isinstance(val, (tuple, list)) else ()

    def _numel(self, val: torch.Tensor) -> int | None:
        total = 1
        for size in val.shape:
            value = self._hints.value(size)
            if value is None:
                return None
            total *= value
        return total if total <= MAX_NUMBER else None


def _contiguous(val: torch.Tensor) -> bool:
    step = 1
    for size, stride in zip(reversed(val.shape), reversed(val.stride()), strict=True):
        if not isinstance(size, int) or not isinstance(stride, int):
            return True
        if size != 1 and stride != step:
            return False
        step *= size
    return True
