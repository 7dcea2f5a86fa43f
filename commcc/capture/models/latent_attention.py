"""Multi-head latent attention: keys and values come out of one narrow vector per token.

::

    kv, rotary = split(wkv_a(x))                     # latent channels, and one rotated key for all heads
    key, value = split(wkv_b(norm(kv)))              # per head
    attend(cat(query, rotated query), cat(key, rotated key), value)

Queries and keys have ``channels + rotary`` channels a head, values have ``value``. Limits: queries are
not compressed; no key-value cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from commcc.capture.models.llama import RMSNorm, attend, rotate


@dataclass(frozen=True)
class LatentConfig:
    """Sizes of one attention layer; ``attention`` is ``"cuda"`` or ``"math"``, see :func:`mixed`."""

    dim: int
    heads: int
    latent: int
    channels: int
    rotary: int
    value: int
    theta: float = 10000.0
    norm_eps: float = 1e-5
    attention: str = "cuda"


def rotations(config: LatentConfig, sequence: int) -> Tensor:
    """Rotations ``exp(i * position * frequency)``, complex64 ``[sequence, rotary / 2]``."""
    steps = torch.arange(0, config.rotary, 2).float() / config.rotary
    angles = torch.outer(torch.arange(sequence).float(), 1.0 / config.theta**steps)
    return torch.polar(torch.ones_like(angles), angles)


def mixed(query: Tensor, key: Tensor, value: Tensor, how: str) -> Tensor:
    """Causal attention over ``[batch, heads, sequence, channels]``.

    ``"cuda"`` calls the op that takes values narrower than keys on a GPU, by its ATen name; its shape
    rule runs anywhere, its kernel does not. ``"math"`` runs on any device.
    """
    if how == "math":
        return attend(query, key, value, how)
    op = torch.ops.aten._scaled_dot_product_cudnn_attention.default
    result: Tensor = op(query, key, value, None, True, 0.0, True, scale=query.shape[-1] ** -0.5)[0]
    return result


class LatentAttention(nn.Module):
    """Attention whose keys and values pass through ``latent`` channels."""

    def __init__(self, config: LatentConfig) -> None:
        super().__init__()
        self.config = config
        heads, keys = config.heads, config.channels + config.rotary
        self.wq = nn.Linear(config.dim, heads * keys, bias=False)
        self.wkv_a = nn.Linear(config.dim, config.latent + config.rotary, bias=False)
        self.kv_norm = RMSNorm(config.latent, config.norm_eps)
        self.wkv_b = nn.Linear(config.latent, heads * (config.channels + config.value), bias=False)
        self.wo = nn.Linear(heads * config.value, config.dim, bias=False)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        config = self.config
        batch, sequence, _ = x.shape
        query = self.wq(x).view(batch, sequence, config.heads, -1)
        plain, turned = query.split([config.channels, config.rotary], -1)
        query = torch.cat([plain, rotate(turned, table)], -1)
        latent, shared = self.wkv_a(x).split([config.latent, config.rotary], -1)
        shared = rotate(shared.unsqueeze(2), table).expand(-1, -1, config.heads, -1)
        both = self.wkv_b(self.kv_norm(latent)).view(batch, sequence, config.heads, -1)
        key, value = both.split([config.channels, config.value], -1)
        key = torch.cat([key, shared], -1)
        result = mixed(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), config.attention)
        merged: Tensor = self.wo(result.transpose(1, 2).reshape(batch, sequence, -1))
        return merged
