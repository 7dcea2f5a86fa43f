"""Routed experts as a trainer with a library of its own writes them: in place where it can, waiting twice, a custom op.

    commcc_samples::ordered_scatter_add(zeros, index, rows)     # aten.scatter_add(zeros, 0, index, rows), in order

Sums of rows are made by the op, counts and permutations in place (``scatter_add_``, ``index_copy_``), and what travels
between ranks is waited for where it arrives and where it is used. Importing this module registers the op
(``--import commcc.capture.models.library``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from commcc.capture.models.routed import RoutedExperts


@torch.library.custom_op("commcc_samples::ordered_scatter_add", mutates_args=())
def ordered_scatter_add(zeros: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """``zeros`` with every row added to the row that ``index`` says, one after the other."""
    return zeros.scatter_add(0, index, rows)


@ordered_scatter_add.register_fake
def _(zeros: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    del index, rows
    return torch.empty_like(zeros)


def _keep_index(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    del output
    ctx.save_for_backward(inputs[1])


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, Tensor]:
    (index,) = ctx.saved_tensors
    return gradient, None, gradient.gather(0, index)


ordered_scatter_add.register_autograd(_gradients, setup_context=_keep_index)


class LibraryExperts(RoutedExperts):
    """:class:`RoutedExperts` with these habits; it computes the same."""

    waits = 2

    def count(self, chosen: Tensor) -> Tensor:
        counts = torch.zeros(self.config.experts, dtype=torch.int64, device=chosen.device)
        return counts.scatter_add_(0, chosen, torch.empty_like(chosen).fill_(1))

    def put_back(self, rows: Tensor, order: Tensor) -> Tensor:
        return torch.zeros_like(rows).index_copy_(0, order, rows)

    def add_up(self, x: Tensor, token: Tensor, rows: Tensor) -> Tensor:
        index = token.unsqueeze(-1).expand_as(rows)
        result: Tensor = torch.ops.commcc_samples.ordered_scatter_add(torch.zeros_like(x), index, rows)
        return result
