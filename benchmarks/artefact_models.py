"""Small models of which :mod:`artefact_makers` makes graphs: a transformer as people write it, and one rank of many."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RANKS = 2
WIDTH, HEADS, LENGTH, BATCH = 32, 4, 8, 4


class Norm(nn.Module):
    """RMS norm in float32, as transformers writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Feed(nn.Module):
    """A gated feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Attention(nn.Module):
    """Causal attention with rotary positions, which are worked out without gradients and without autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.v, self.o = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("frequencies", 10000.0 ** -(torch.arange(0, WIDTH // HEADS, 2) / (WIDTH // HEADS)))

    @torch.no_grad()
    def _angles(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", enabled=False):
            positions = torch.arange(x.shape[1], device=x.device).float()
            angles = torch.outer(positions, self.frequencies)
            angles = torch.cat((angles, angles), -1)
            return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = self._angles(x)
        heads = [layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.q, self.k, self.v)]
        turned = []
        for each in heads[:2]:
            one, other = each.chunk(2, -1)
            turned.append(each * cos + torch.cat((-other, one), -1) * sin)
        out = F.scaled_dot_product_attention(*turned, heads[2], is_causal=True)
        return self.o(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed = Attention(), Feed()
        self.norm_1, self.norm_2 = Norm(), Norm()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.feed(self.norm_2(x))


class Model(nn.Module):
    """Token ids to logits."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList([Block() for _ in range(layers)])
        self.head = nn.Linear(WIDTH, 64, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Function(nn.Module):
    """A function as a module, with what it needs of parameters in ``layer``."""

    def __init__(self, call: Callable[..., Any], layer: nn.Module | None = None) -> None:
        super().__init__()
        self.call = call
        if layer is not None:
            self.layer = layer

    def forward(self, *args: Any) -> Any:
        return self.call(self, *args)


def ids() -> Tensor:
    return torch.randint(64, (BATCH, LENGTH))


def rows() -> Tensor:
    return torch.randn(BATCH, WIDTH)


@contextmanager
def world(*shape: int, names: tuple[str, ...] = ("dp",)) -> Iterator[Any]:
    """A device mesh over ranks that only pretend to send."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    size = 1
    for each in shape:
        size *= each
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield init_device_mesh("cpu", shape, mesh_dim_names=names)
    finally:
        dist.destroy_process_group()
        torch._dynamo.reset()


def printed(folder: Path, name: str, graphs: dict[str, Any], **options: Any) -> None:
    """Each graph as ``print_readable`` shows it."""
    shown = {"include_stride": True, "include_device": True, "expanded_def": True, **options}
    for kind, graph in graphs.items():
        (folder / f"{name}_{kind}.txt").write_text(graph.print_readable(print_output=False, **shown))
