"""Trains a small Llama twice, as it is and by plans that commcc made of it beforehand, and compares.

On a laptop, without a GPU and without any ranks:

    commcc capture examples/train_llama.py:build --mesh dp=2 --level aot -o out/graphs
    commcc run out/graphs --passes 'bucket{groups=all},reorder' -o out/tuned --plan-out out/plan

In the job:

    torchrun --nproc-per-node 2 examples/train_llama.py --plan out/plan

Without ``--plan`` the job plans for itself (``--preset``). On GPUs leave out ``--level``, and give
``--inner inductor``. The last
line says whether all losses are the same to the bit.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import commcc

WIDTH, HEADS, LAYERS, WORDS, LENGTH, ROWS = 64, 4, 4, 256, 32, 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(rows, length, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention = Attention()
        self.gate, self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        h = self.mlp_norm(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.logits = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor, next_tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.logits(self.norm(x)).flatten(0, 1), next_tokens.flatten())


def build(mesh: DeviceMesh) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """The sharded model and inputs as it gets them; ``commcc capture`` calls this function too."""
    torch.manual_seed(0)
    model = Llama()
    for layer in model.layers:
        commcc.shard(layer, mesh["dp"])
    commcc.shard(model, mesh["dp"])
    tokens, next_tokens = (torch.zeros(ROWS, LENGTH, dtype=torch.int64) for _ in range(2))  # two inputs, not one twice
    return model, (tokens, next_tokens)


def train(mesh: DeviceMesh, backend: object, device: str, steps: int) -> tuple[list[float], float]:
    """Losses of all steps, and the median seconds of one."""
    torch._dynamo.reset()
    model, _ = build(mesh)
    compiled = torch.compile(model.to(device), backend=backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    numbers = torch.Generator().manual_seed(dist.get_rank())
    losses, seconds = [], []
    for _ in range(steps):
        began = time.perf_counter()
        words = torch.randint(WORDS, (ROWS, LENGTH + 1), generator=numbers).to(device)
        loss = compiled(words[:, :-1].contiguous(), words[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
    return losses, sorted(seconds[1:])[len(seconds[1:]) // 2]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", help="a folder of plans; planned in the job without it")
    parser.add_argument("--preset", default="auto")
    parser.add_argument("--inner", default="aot_eager", choices=["aot_eager", "inductor"])
    parser.add_argument("--steps", type=int, default=10)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    mesh = init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("dp",))
    options = {"plan": given.plan} if given.plan else {"preset": given.preset}
    plain, before = train(mesh, given.inner, device, given.steps)
    ours, after = train(mesh, commcc.backend(inner=given.inner, on_refusal="raise", **options), device, given.steps)
    if dist.get_rank() == 0:
        print(f"as it is     {before * 1e3:8.1f} ms a step, last loss {plain[-1]:.6f}")
        print(f"with commcc  {after * 1e3:8.1f} ms a step, last loss {ours[-1]:.6f}")
        print("losses are", "equal to the bit" if plain == ours else "not equal to the bit")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
