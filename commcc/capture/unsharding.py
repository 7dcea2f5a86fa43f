"""How a shard becomes a whole parameter, and the whole gradient a shard's: three parametrizations.

::

    Cast            f32 -> bf16                                    owned by this rank alone
    Unshard         DTensor.redistribute and to_local              as SimpleFSDP writes it
    PlainUnshard    cast, all_gather, wait; cast, all_reduce, reduce_scatter   spelt out

Limits: parameters are kept in float32 and cut along dimension 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate

if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True)
class Precision:
    """Parameters and gradients are kept in float32, computed with in ``compute``, reduced in ``reduce``."""

    compute: torch.dtype = torch.bfloat16
    reduce: torch.dtype = torch.float32


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.scale, None


def _scaled(x: Tensor, scale: float) -> Tensor:
    if scale == 1.0:
        return x
    scaled: Tensor = _ScaleGradient.apply(x, scale)  # type: ignore[no-untyped-call]
    return scaled


class Cast(nn.Module):
    """A parameter that this rank owns alone: compute precision, nothing gathered."""

    def __init__(self, scale: float, precision: Precision) -> None:
        super().__init__()
        self.scale, self.precision = scale, precision

    def forward(self, parameter: Tensor) -> Tensor:
        return _scaled(parameter.to(self.precision.compute), self.scale)


class Unshard(nn.Module):
    """A DTensor; ``gradient`` says per mesh axis how the gradient is reduced."""

    def __init__(self, gradient: tuple[Placement, ...], scale: float, precision: Precision) -> None:
        super().__init__()
        self.gradient, self.scale, self.precision = gradient, scale, precision

    def forward(self, shard: DTensor) -> Tensor:
        whole = shard.redistribute(
            placements=[Replicate()] * shard.device_mesh.ndim,
            forward_dtype=self.precision.compute,
            backward_dtype=self.precision.reduce,
        ).to_local(grad_placements=self.gradient)
        return _scaled(whole, self.scale)


@dataclass(frozen=True)
class PlainPlacing:
    """Process groups of a plain shard.

    shards: (size, group) of the axis it is cut over, or None.
    copies: (reduction, group) of each axis that holds copies.
    """

    shards: tuple[int, str] | None
    copies: tuple[tuple[str, str], ...]
    scale: float


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: Tensor, placing: PlainPlacing, precision: Precision) -> Any:
        ctx.placing, ctx.precision = placing, precision
        whole = shard.to(precision.compute)
        if placing.shards is not None:
            ops = torch.ops._c10d_functional
            whole = ops.wait_tensor(ops.all_gather_into_tensor(whole, *placing.shards))
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ops, placing = torch.ops._c10d_functional, ctx.placing
        gradient = gradients[0].to(ctx.precision.reduce)
        for reduction, group in placing.copies:
            gradient = ops.wait_tensor(ops.all_reduce(gradient, reduction, group))
        if placing.shards is not None:
            gradient = ops.wait_tensor(ops.reduce_scatter_tensor(gradient, "avg", *placing.shards))
        return gradient.to(torch.float32), None, None


class PlainUnshard(nn.Module):
    """A plain tensor and explicit collectives."""

    def __init__(self, placing: PlainPlacing, precision: Precision) -> None:
        super().__init__()
        self.placing, self.precision = placing, precision

    def forward(self, shard: Tensor) -> Tensor:
        whole: Tensor = _Gather.apply(shard, self.placing, self.precision)  # type: ignore[no-untyped-call]
        return _scaled(whole, self.placing.scale)
