"""A transformer of DeepSeek-V3's kind in plain PyTorch: latent attention, and experts behind the first layers.

Blocks hold ``[batch, sequence, dim]``; experts see rows ``[tokens, dim]``, so that tokens are the first
dimension of everything inside ``layers.N.moe``::

    loss = DeepSeek(TINY_DEEPSEEK, ExpertGroup(2, "0"))(tokens, labels)      # i64[batch, sequence]

Limits: one group of experts for routing, no prediction of a second token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.traceback import annotate

from commcc.capture.models.latent_attention import LatentAttention, LatentConfig, rotations
from commcc.capture.models.llama import RMSNorm
from commcc.capture.models.routed import ExpertGroup, RoutedConfig, RoutedExperts, SwiGLU


@dataclass(frozen=True)
class DeepSeekConfig:
    """``hidden`` is the width of the dense layers, which come first. library: experts of
    :class:`commcc.capture.models.library.LibraryExperts`.
    """

    attention: LatentConfig
    routed: RoutedConfig
    layers: int
    dense_layers: int
    hidden: int
    vocabulary: int
    sequence: int
    batch: int
    library: bool = False

    @property
    def dim(self) -> int:
        return self.attention.dim


#: The 16-billion-parameter model's sizes.
DEEPSEEK_16B = DeepSeekConfig(
    LatentConfig(dim=2048, heads=16, latent=512, channels=128, rotary=64, value=128),
    RoutedConfig(dim=2048, experts=64, shared=2, top_k=6, width=1408),
    layers=27, dense_layers=1, hidden=10944, vocabulary=102400, sequence=4096, batch=4,
)  # fmt: skip
#: 60 tokens divide into 2, 3, 4 and 5 chunks.
TINY_DEEPSEEK = DeepSeekConfig(
    LatentConfig(dim=32, heads=4, latent=16, channels=8, rotary=4, value=8, attention="math"),
    RoutedConfig(dim=32, experts=8, shared=2, top_k=2, width=16),
    layers=3, dense_layers=1, hidden=64, vocabulary=128, sequence=30, batch=2,
)  # fmt: skip


class DeepSeekBlock(nn.Module):
    """Attention and experts (or a dense feed-forward), each behind a norm and around a residual."""

    def __init__(self, config: DeepSeekConfig, group: ExpertGroup, index: int) -> None:
        super().__init__()
        eps = config.attention.norm_eps
        self.attention = LatentAttention(config.attention)
        self.attention_norm = RMSNorm(config.dim, eps)
        self.ffn_norm = RMSNorm(config.dim, eps)
        self.dense = index < config.dense_layers
        if self.dense:
            self.feed_forward = SwiGLU(config.dim, config.hidden)
        else:
            self.moe = _experts(config, group)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), table)
        normed = self.ffn_norm(x)
        change: Tensor
        if self.dense:
            change = self.feed_forward(normed)
        else:
            change = self.moe(normed.reshape(-1, normed.shape[-1])).view(x.shape)
        return x + change


def _experts(config: DeepSeekConfig, group: ExpertGroup) -> RoutedExperts:
    if not config.library:
        return RoutedExperts(config.routed, group)
    # It registers an op, which is for those graphs alone.
    from commcc.capture.models.library import LibraryExperts

    return LibraryExperts(config.routed, group)


class DeepSeek(nn.Module):
    """The whole model; ``forward`` returns the loss of this rank's batch."""

    def __init__(self, config: DeepSeekConfig, group: ExpertGroup) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(config.vocabulary, config.dim)
        self.layers = nn.ModuleDict({str(i): DeepSeekBlock(config, group, i) for i in range(config.layers)})
        self.norm = RMSNorm(config.dim, config.attention.norm_eps)
        self.output = nn.Linear(config.dim, config.vocabulary, bias=False)
        self.freqs_cis: Tensor
        self.register_buffer("freqs_cis", rotations(config.attention, config.sequence), persistent=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x, self.freqs_cis)
        logits = self.output(self.norm(x))
        with annotate({"module_fqn": "loss"}):
            return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
