"""A mixture-of-experts transformer in plain PyTorch with expert parallelism, written to be captured.

Every token goes to its ``top_k`` experts and to one shared expert. Experts are spread over the ranks of
a group, and tokens travel::

    counts   --all_to_all-->  how many rows each rank will send me      (then to the host)
    rows     --all_to_all-->  uneven, my experts' rows from every rank   "dispatch"
    experts  three grouped matmuls over the rows, sorted by expert       "compute"
    rows     --all_to_all-->  back to where they came from               "combine"

Annotations (``node.meta["custom"]``): ``EP`` with the stage, ``EP_token_count_exchange`` and
``EP_token_count_sync`` on the exchange of counts and their way to the host, ``EP_token_exchange`` on
the exchange of rows. Limits: no capacity factor, no auxiliary balancing loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.traceback import annotate

from commcc.capture.models.llama import Attention, Embedding, FeedForward, LlamaConfig, RMSNorm, rotary_table
from commcc.capture.models.tensor_parallel import NO_TENSOR_PARALLEL


@dataclass(frozen=True)
class MoEConfig:
    """``base`` gives the attention and the dense feed-forward; ``width`` is the hidden size of one expert."""

    base: LlamaConfig
    experts: int
    top_k: int
    width: int
    dense_layers: int = 1


MOE_16B = MoEConfig(
    LlamaConfig(dim=2048, layers=16, heads=16, kv_heads=4, hidden=10944, vocabulary=102400, sequence=4096),
    experts=64, top_k=6, width=1408,
)  # fmt: skip
TINY_MOE = MoEConfig(
    LlamaConfig(
        dim=32, layers=2, heads=4, kv_heads=2, hidden=64, vocabulary=128, sequence=16, batch=2, attention="math"
    ),
    experts=8, top_k=2, width=16,
)  # fmt: skip


@dataclass(frozen=True)
class ExpertParallel:
    """One rank's place in an expert-parallel group; ``group`` is the group's name."""

    degree: int
    group: Any


class Router(nn.Module):
    """Softmax scores in float32; the best ``top_k`` of each token."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.gate = nn.Linear(config.base.dim, config.experts, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = torch.softmax(self.gate(x).float(), dim=-1)
        best, chosen = torch.topk(scores, self.top_k, dim=-1)
        return best / best.sum(-1, keepdim=True), chosen


class Experts(nn.Module):
    """This rank's experts: SwiGLU as grouped matmuls over rows sorted by expert."""

    def __init__(self, config: MoEConfig, local: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(local, config.width, config.base.dim))
        self.w2 = nn.Parameter(torch.empty(local, config.base.dim, config.width))
        self.w3 = nn.Parameter(torch.empty(local, config.width, config.base.dim))

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        gate = F.silu(torch._grouped_mm(rows, self.w1.transpose(-2, -1), offs=ends))
        hidden = gate * torch._grouped_mm(rows, self.w3.transpose(-2, -1), offs=ends)
        return torch._grouped_mm(hidden, self.w2.transpose(-2, -1), offs=ends)


@dataclass(frozen=True)
class Route:
    """Where dispatched rows came from, so that ``combine`` can send them back."""

    sent: list[int]
    received: list[int]
    order: Tensor


class MoE(nn.Module):
    """Router, dispatch, experts, combine, and the shared expert next to them."""

    def __init__(self, config: MoEConfig, parallel: ExpertParallel) -> None:
        super().__init__()
        self.config, self.parallel = config, parallel
        self.local = config.experts // parallel.degree
        self.router = Router(config)
        self.experts = Experts(config, self.local)
        self.shared_expert = FeedForward(_shared(config), NO_TENSOR_PARALLEL)

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        best, chosen = self.router(x)
        flat = chosen.reshape(-1)
        order = torch.argsort(flat, stable=True)
        token = order // self.config.top_k
        with annotate({"EP": "dispatch"}):
            rows, counts, route = self.dispatch(x[token], flat)
        with annotate({"EP": "compute"}):
            rows = self.experts(rows, counts)
        with annotate({"EP": "combine"}):
            rows = self.combine(rows, route)
        weighted = rows * best.reshape(-1)[order].unsqueeze(-1).type_as(rows)
        routed = torch.zeros_like(x).index_add(0, token, weighted)
        both: Tensor = routed + self.shared_expert(x)
        return both.reshape(shape)

    def dispatch(self, rows: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Route]:
        """Send rows, sorted by expert, to the experts' ranks; what arrives is sorted by expert again."""
        degree, group = self.parallel.degree, self.parallel.group
        ones = torch.ones_like(chosen)
        counts = torch.zeros(self.config.experts, dtype=torch.int64, device=rows.device).scatter_add(0, chosen, ones)
        with annotate({"EP_token_count_exchange": "dispatch"}):
            arriving = funcol.all_to_all_single(counts, None, None, group)
            arriving = torch.ops._c10d_functional.wait_tensor(arriving)
        with annotate({"EP_token_count_sync": "dispatch"}):
            sent = _to_host(counts.view(degree, -1).sum(1))
            received = _to_host(arriving.view(degree, -1).sum(1))
        with annotate({"EP_token_exchange": "dispatch"}):
            rows = funcol.all_to_all_single_autograd(rows, received, sent, group)
        expert = torch.arange(self.local, device=rows.device).repeat(degree)
        owner = torch.repeat_interleave(expert, arriving, output_size=sum(received))
        order = torch.argsort(owner, stable=True)
        return rows[order], arriving.view(degree, -1).sum(0), Route(sent, received, order)

    def combine(self, rows: Tensor, route: Route) -> Tensor:
        """Undo ``dispatch``."""
        rows = torch.zeros_like(rows).index_copy(0, route.order, rows)
        with annotate({"EP_token_exchange": "combine"}):
            returned: Tensor = funcol.all_to_all_single_autograd(rows, route.sent, route.received, self.parallel.group)
        return returned


def _to_host(counts: Tensor) -> list[int]:
    sizes: list[int] = counts.to("cpu", non_blocking=True, copy=True).tolist()
    for size in sizes:
        torch._check(size >= 0)  # type: ignore[no-untyped-call]
    return sizes


def _shared(config: MoEConfig) -> LlamaConfig:
    base = config.base
    return LlamaConfig(
        base.dim, base.layers, base.heads, base.kv_heads, config.width, base.vocabulary, base.sequence
    )  # fmt: skip


class MoEBlock(nn.Module):
    """Attention and experts (or a dense feed-forward), each behind a norm and around a residual."""

    def __init__(self, config: MoEConfig, parallel: ExpertParallel, index: int) -> None:
        super().__init__()
        base = config.base
        self.attention = Attention(base, NO_TENSOR_PARALLEL)
        self.attention_norm = RMSNorm(base.dim, base.norm_eps)
        self.ffn_norm = RMSNorm(base.dim, base.norm_eps)
        self.dense = index < config.dense_layers
        if self.dense:
            self.feed_forward = FeedForward(base, NO_TENSOR_PARALLEL)
        else:
            self.moe = MoE(config, parallel)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), table)
        normed = self.ffn_norm(x)
        change: Tensor = self.feed_forward(normed) if self.dense else self.moe(normed)
        return x + change


class MoETransformer(nn.Module):
    """The whole model; ``forward`` returns the loss of this rank's batch."""

    def __init__(self, config: MoEConfig, parallel: ExpertParallel) -> None:
        super().__init__()
        base = config.base
        self.tok_embeddings = Embedding(base, NO_TENSOR_PARALLEL)
        self.layers = nn.ModuleDict({str(i): MoEBlock(config, parallel, i) for i in range(base.layers)})
        self.norm = RMSNorm(base.dim, base.norm_eps)
        self.output = nn.Linear(base.dim, base.vocabulary, bias=False)
        self.freqs_cis: Tensor
        self.register_buffer("freqs_cis", rotary_table(base), persistent=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x, self.freqs_cis)
        logits = self.output(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
