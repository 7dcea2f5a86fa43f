"""Fake tensors for new nodes, without running an op.

Shapes of merged forms are known, so each value is made directly as a view of nothing: a ``meta``
tensor that carries the device and the fake mode of a member's value. Faster by an order of
magnitude than running the ops under the fake mode, and nothing is asked of the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from commcc.base.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Sequence


def fake_like(
    like: torch.Tensor,
    shape: Sequence[int],
    dtype: torch.dtype | None = None,
    *,
    stride: Sequence[int] | None = None,
    offset: int = 0,
) -> torch.Tensor:
    """A tensor of ``shape`` on the device of ``like``; contiguous unless strides are given (elements)."""
    dtype = dtype or like.dtype
    strides = tuple(stride) if stride is not None else contiguous_strides(shape)
    with torch._C._DisableTorchDispatch():
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
        base = torch.empty(offset + extent, dtype=dtype, device="meta")
        meta = base.as_strided(tuple(shape), strides, offset)
    if not isinstance(like, FakeTensor):
        return meta
    return FakeTensor(like.fake_mode, meta, like.device)


def reshaped(val: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The value of ``aten.reshape``: a view where strides allow one, else a contiguous copy."""
    if is_contiguous(val):
        return fake_like(val, shape)
    with torch._C._DisableTorchDispatch():
        meta = torch.empty_strided(tuple(val.shape), tuple(val.stride()), dtype=val.dtype, device="meta")
        try:
            stride = meta.reshape(tuple(shape)).stride()
        except RuntimeError:
            what = f"a value of shape {list(val.shape)} cannot have the shape {list(shape)}, as the graph has it"
            raise GraphError(what, hint="shapes in the graph contradict one another") from None
    return fake_like(val, shape, stride=stride)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """In elements; of sizes that are known at run time only nothing is asked."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size) if type(size) is int else torch.sym_max(1, size)  # type: ignore[no-untyped-call]
    return tuple(reversed(strides))


def is_contiguous(val: torch.Tensor) -> bool:
    """Whether its strides are surely those of a fresh tensor, whatever sizes turn out to be."""
    pairs = zip(val.stride(), contiguous_strides(val.shape), strict=True)
    return all(statically_known_true(one == other) for one, other in pairs)
