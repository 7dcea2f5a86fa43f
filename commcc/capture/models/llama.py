"""A Llama-3 transformer in plain PyTorch, written to be captured.

Grouped-query attention, rotary embeddings (complex form), RMSNorm, SwiGLU, an output projection that
is not tied to the embedding, and the cross-entropy loss inside ``forward``, so that one traced call
holds a whole training step::

    loss = Llama(LLAMA3_8B)(tokens, labels)          # tokens, labels: i64[batch, sequence]

Limits: no key-value cache and no generation. ``attention="flash"`` calls the CUDA attention op by its
ATen name, whose shape rule runs anywhere but whose kernel does not; ``"math"`` runs on any device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from commcc.capture.models.tensor_parallel import NO_TENSOR_PARALLEL, TensorParallel


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of a model; all heads have ``dim // heads`` channels."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    sequence: int
    batch: int = 1
    rope_theta: float = 500000.0
    norm_eps: float = 1e-5
    attention: str = "flash"

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


LLAMA3_8B = LlamaConfig(
    dim=4096, layers=32, heads=32, kv_heads=8, hidden=14336, vocabulary=128256, sequence=8192
)  # fmt: skip
TINY_LLAMA = LlamaConfig(
    dim=32, layers=2, heads=4, kv_heads=2, hidden=64, vocabulary=128, sequence=16, batch=2, attention="math"
)  # fmt: skip


def rotary_table(config: LlamaConfig) -> Tensor:
    """Rotations ``exp(i * position * frequency)``, complex64 ``[sequence, head_dim / 2]``."""
    steps = torch.arange(0, config.head_dim, 2).float() / config.head_dim
    angles = torch.outer(torch.arange(config.sequence).float(), 1.0 / config.rope_theta**steps)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Apply the rotations to ``[batch, sequence, heads, head_dim]``, in float32 as the table is."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * table[None, :, None, :]).flatten(3).type_as(x)


def attend(query: Tensor, key: Tensor, value: Tensor, how: str) -> Tensor:
    """Causal attention over ``[batch, heads, sequence, head_dim]``."""
    scale = query.shape[-1] ** -0.5
    if how == "flash":
        op = torch.ops.aten._scaled_dot_product_flash_attention.default
        result: Tensor = op(query, key, value, 0.0, True, scale=scale)[0]
        return result
    scores = torch.matmul(query, key.transpose(-2, -1)) * scale
    length = query.shape[-2]
    future = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    weights = torch.softmax(scores.masked_fill(future, float("-inf")).float(), dim=-1).type_as(value)
    return torch.matmul(weights, value)


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """``[batch, sequence, heads, head_dim]`` with each head ``times`` times in a row."""
    batch, sequence, heads, channels = x.shape
    expanded = x[:, :, :, None, :].expand(batch, sequence, heads, times, channels)
    return expanded.reshape(batch, sequence, heads * times, channels)


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return normed.type_as(x) * self.weight


class Attention(nn.Module):
    """Grouped-query attention; under tensor parallelism every rank holds a share of the heads."""

    def __init__(self, config: LlamaConfig, parallel: TensorParallel) -> None:
        super().__init__()
        self.config, self.parallel = config, parallel
        self.heads, self.kv_heads = config.heads // parallel.degree, config.kv_heads // parallel.degree
        width = config.head_dim
        self.wq = nn.Linear(config.dim, self.heads * width, bias=False)
        self.wk = nn.Linear(config.dim, self.kv_heads * width, bias=False)
        self.wv = nn.Linear(config.dim, self.kv_heads * width, bias=False)
        self.wo = nn.Linear(self.heads * width, config.dim, bias=False)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        x = self.parallel.gather_sequence(x)
        batch, sequence, _ = x.shape
        query = self.wq(x).view(batch, sequence, self.heads, -1)
        key = self.wk(x).view(batch, sequence, self.kv_heads, -1)
        value = self.wv(x).view(batch, sequence, self.kv_heads, -1)
        query, key = rotate(query, table), rotate(key, table)
        times = self.heads // self.kv_heads
        key, value = repeat_heads(key, times), repeat_heads(value, times)
        mixed = attend(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), self.config.attention)
        mixed = mixed.transpose(1, 2).reshape(batch, sequence, -1)
        return self.parallel.scatter_sequence(self.wo(mixed))


class FeedForward(nn.Module):
    """SwiGLU: ``w2(silu(w1 x) * w3 x)``."""

    def __init__(self, config: LlamaConfig, parallel: TensorParallel) -> None:
        super().__init__()
        hidden = config.hidden // parallel.degree
        self.parallel = parallel
        self.w1 = nn.Linear(config.dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, config.dim, bias=False)
        self.w3 = nn.Linear(config.dim, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.parallel.gather_sequence(x)
        return self.parallel.scatter_sequence(self.w2(F.silu(self.w1(x)) * self.w3(x)))


class TransformerBlock(nn.Module):
    """Attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, config: LlamaConfig, parallel: TensorParallel) -> None:
        super().__init__()
        self.attention = Attention(config, parallel)
        self.feed_forward = FeedForward(config, parallel)
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), table)
        residual: Tensor = x + self.feed_forward(self.ffn_norm(x))
        return residual


class Embedding(nn.Module):
    """Token embedding; under tensor parallelism every rank holds a range of the vocabulary."""

    def __init__(self, config: LlamaConfig, parallel: TensorParallel) -> None:
        super().__init__()
        self.parallel = parallel
        self.weight = nn.Parameter(torch.empty(config.vocabulary // parallel.degree, config.dim))

    def forward(self, tokens: Tensor) -> Tensor:
        if self.parallel.degree == 1:
            return F.embedding(tokens, self.weight)
        rows = self.weight.shape[0]
        local = tokens - self.parallel.rank * rows
        foreign = (local < 0) | (local >= rows)
        embedded = F.embedding(local.masked_fill(foreign, 0), self.weight)
        return self.parallel.scatter_sequence(embedded.masked_fill(foreign.unsqueeze(-1), 0.0))


class Llama(nn.Module):
    """The whole model; ``forward`` returns the loss of one batch."""

    def __init__(self, config: LlamaConfig, parallel: TensorParallel = NO_TENSOR_PARALLEL) -> None:
        super().__init__()
        self.config, self.parallel = config, parallel
        self.tok_embeddings = Embedding(config, parallel)
        self.layers = nn.ModuleDict({str(i): TransformerBlock(config, parallel) for i in range(config.layers)})
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.output = nn.Linear(config.dim, config.vocabulary // parallel.degree, bias=False)
        self.freqs_cis: Tensor
        self.register_buffer("freqs_cis", rotary_table(config), persistent=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x, self.freqs_cis)
        logits = self.parallel.replicate_last(self.output(self.parallel.gather_sequence(self.norm(x))))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
