"""Tensor parallelism with sequence-parallel activations, as explicit collectives (Megatron's scheme).

A module that holds a share of the heads or of the hidden channels gathers its input along the sequence
and reduce-scatters its output::

    x = parallel.gather_sequence(x)        # [b, s / t, d] -> [b, s, d]
    y = parallel.scatter_sequence(w(x))    # sums over the group, [b, s, d] -> [b, s / t, d]

Limits: sizes must divide by the degree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed._functional_collectives as funcol
from torch import Tensor

_SEQUENCE = 1


class _ReplicateLast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, parallel: TensorParallel) -> Any:
        ctx.parallel = parallel
        ops = torch.ops._c10d_functional
        stacked = ops.wait_tensor(ops.all_gather_into_tensor(x, parallel.degree, parallel.group))
        return torch.cat(stacked.chunk(parallel.degree), -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0].chunk(ctx.parallel.degree, -1)[ctx.parallel.rank], None


@dataclass(frozen=True)
class TensorParallel:
    """One rank's place in a tensor-parallel group; ``group`` is the group's name, unused for degree 1."""

    degree: int = 1
    rank: int = 0
    group: Any = ""

    def gather_sequence(self, x: Tensor) -> Tensor:
        """All-gather along the sequence; its gradient is a reduce-scatter."""
        if self.degree == 1:
            return x
        whole: Tensor = funcol.all_gather_tensor_autograd(x, _SEQUENCE, self.group)
        return whole

    def scatter_sequence(self, x: Tensor) -> Tensor:
        """Sum over the group and keep this rank's part of the sequence."""
        if self.degree == 1:
            return x
        part: Tensor = funcol.reduce_scatter_tensor_autograd(x, "sum", _SEQUENCE, self.group)
        return part

    def replicate_last(self, x: Tensor) -> Tensor:
        """All-gather along the last dimension (the vocabulary of the logits), for replicated use.

        What follows is the same on every rank, so the gradient is this rank's slice and no sum.
        """
        if self.degree == 1:
            return x
        whole: Tensor = _ReplicateLast.apply(x, self)  # type: ignore[no-untyped-call]
        return whole


NO_TENSOR_PARALLEL = TensorParallel()
