"""Routed experts over an expert-parallel group, annotated as trainers that overlap their exchanges do.

All of it works on rows, ``x`` f32/bf16 ``[tokens, dim]``, and every step is one of these stages::

    router, shared experts, experts, weighting                    EP: compute
    counts --all_to_all--> wait                                   EP: dispatch, EP_token_count_exchange: dispatch
    wait, sums, two copies to the host, items                     EP: dispatch, EP_token_count_sync: dispatch
    rows   --all_to_all--> wait                                   EP: dispatch, EP_token_exchange: dispatch
    rows   --all_to_all--> wait                                   EP: combine, EP_token_exchange: combine

The first copy to the host does not block, the second does, so that both are there behind it. The bias
that balances the load changes which experts are chosen, not their weights; how many rows each expert
got is added up in a buffer. Limits: no capacity factor; the bias itself is updated elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.traceback import annotate


@dataclass(frozen=True)
class RoutedConfig:
    """``width`` is the hidden size of one expert; ``shared`` experts see every token."""

    dim: int
    experts: int
    shared: int
    top_k: int
    width: int


@dataclass(frozen=True)
class ExpertGroup:
    """The expert-parallel group of a rank: how many ranks, and what it is called."""

    degree: int
    name: str


class _Exchange(torch.autograd.Function):
    """An uneven all-to-all of rows with its waits; its gradient travels back with the splits exchanged."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, received: list[int], sent: list[int], group: str, waits: int) -> Any:
        ctx.splits, ctx.group, ctx.waits = (sent, received), group, waits
        return _travelled(rows, received, sent, group, waits)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        back, forth = ctx.splits
        rows = _travelled(gradients[0].contiguous(), back, forth, ctx.group, ctx.waits)
        return rows, None, None, None, None


def _travelled(rows: Tensor, received: list[int], sent: list[int], group: str, waits: int) -> Tensor:
    ops = torch.ops._c10d_functional
    rows = ops.all_to_all_single(rows, received, sent, group)
    for _ in range(waits):
        rows = ops.wait_tensor(rows)
    return rows


class SwiGLU(nn.Module):
    """``w2(silu(w1 x) * w3 x)``."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return result


class BalancedRouter(nn.Module):
    """Softmax scores in float32; the best ``top_k`` experts of each token by score plus bias."""

    def __init__(self, config: RoutedConfig) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.gate = nn.Linear(config.dim, config.experts, bias=False)

    def forward(self, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        scores = torch.softmax(self.gate(x).float(), dim=-1)
        _, chosen = torch.topk(scores + bias, self.top_k, dim=-1)
        return scores.gather(1, chosen), chosen


class GroupedExperts(nn.Module):
    """This rank's experts: SwiGLU as grouped matmuls over rows sorted by expert."""

    def __init__(self, config: RoutedConfig, local: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(local, config.width, config.dim))
        self.w2 = nn.Parameter(torch.empty(local, config.dim, config.width))
        self.w3 = nn.Parameter(torch.empty(local, config.width, config.dim))

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        gate = F.silu(torch._grouped_mm(rows, self.w1.transpose(-2, -1), offs=ends))
        hidden = gate * torch._grouped_mm(rows, self.w3.transpose(-2, -1), offs=ends)
        return torch._grouped_mm(hidden, self.w2.transpose(-2, -1), offs=ends)


@dataclass(frozen=True)
class Way:
    """Where dispatched rows came from, so that ``combine`` can send them back."""

    sent: list[int]
    received: list[int]
    order: Tensor


class RoutedExperts(nn.Module):
    """Router, dispatch, experts, combine, and the shared experts next to them."""

    #: How often an exchange is waited for.
    waits = 1

    def __init__(self, config: RoutedConfig, group: ExpertGroup) -> None:
        super().__init__()
        self.config, self.group = config, group
        self.local = config.experts // group.degree
        self.router = BalancedRouter(config)
        self.experts = GroupedExperts(config, self.local)
        self.shared_experts = SwiGLU(config.dim, config.width * config.shared)
        self.expert_bias: Tensor
        self.tokens_per_expert: Tensor
        self.register_buffer("expert_bias", torch.zeros(config.experts))
        self.register_buffer("tokens_per_expert", torch.zeros(config.experts), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        with annotate({"EP": "compute"}):
            both: Tensor = self._routed(x) + self.shared_experts(x)
            return both

    def _routed(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x, self.expert_bias)
        flat = chosen.reshape(-1)
        counts = self.count(flat)
        with torch.no_grad():
            self.tokens_per_expert.add_(counts)
        order = torch.argsort(flat, stable=True)
        token = order // self.config.top_k
        rows, here, way = self.dispatch(x[token], counts.to(torch.int64))
        rows = self.combine(self.experts(rows, here), way)
        weighted = rows * weights.reshape(-1)[order].unsqueeze(-1).type_as(rows)
        return self.add_up(x, token, weighted)

    def count(self, chosen: Tensor) -> Tensor:
        """How many rows each expert gets."""
        return torch.histc(chosen.float(), self.config.experts, 0, self.config.experts)

    def put_back(self, rows: Tensor, order: Tensor) -> Tensor:
        """Rows at the places that ``order`` says."""
        return torch.zeros_like(rows).index_copy(0, order, rows)

    def add_up(self, x: Tensor, token: Tensor, rows: Tensor) -> Tensor:
        """Rows added up by their token, in the shape of ``x``."""
        return torch.zeros_like(x).index_add(0, token, rows)

    def exchange(self, rows: Tensor, received: list[int], sent: list[int], label: str) -> Tensor:
        """Rows that this rank gets for those that it sends."""
        rows = rows.contiguous()
        with annotate({"EP_token_exchange": label}):
            arrived: Tensor = _Exchange.apply(  # type: ignore[no-untyped-call]
                rows, received, sent, self.group.name, self.waits
            )
        return arrived

    def dispatch(self, rows: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Way]:
        """Send rows, sorted by expert, to the experts' ranks; what arrives is sorted by expert again."""
        with annotate({"EP": "dispatch"}):
            arriving, sent, received = self._sizes(counts)
            rows = self.exchange(rows, received, sent, "dispatch")
            expert = torch.arange(self.local, device=rows.device).repeat(self.group.degree)
            owner = torch.repeat_interleave(expert, arriving, output_size=rows.shape[0])
            order = torch.argsort(owner, stable=True)
            return rows[order], arriving.view(self.group.degree, -1).sum(0), Way(sent, received, order)

    def _sizes(self, counts: Tensor) -> tuple[Tensor, list[int], list[int]]:
        """Rows for each of my experts from every rank; rows sent to and received from each rank, on the host."""
        ops, degree = torch.ops._c10d_functional, self.group.degree
        even = [self.local] * degree
        with annotate({"EP_token_count_exchange": "dispatch"}):
            launched = ops.all_to_all_single(counts, even, even, self.group.name)
            with annotate({"EP_token_count_sync": "dispatch"}):
                arriving = ops.wait_tensor(launched)
        with annotate({"EP_token_count_sync": "dispatch"}):
            sent = counts.view(degree, -1).sum(1).to("cpu", non_blocking=True, copy=True)
            received = arriving.view(degree, -1).sum(1).to("cpu", non_blocking=False, copy=True)
            return arriving, _items(sent), _items(received)

    def combine(self, rows: Tensor, way: Way) -> Tensor:
        """Undo ``dispatch``."""
        with annotate({"EP": "combine"}):
            return self.exchange(self.put_back(rows, way.order), way.sent, way.received, "combine")


def _items(counts: Tensor) -> list[int]:
    sizes: list[int] = counts.tolist()
    for size in sizes:
        torch._check(size >= 0)  # type: ignore[no-untyped-call]
    return sizes
