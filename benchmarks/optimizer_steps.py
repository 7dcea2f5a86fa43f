"""Whole training steps with an optimizer in shards in the graph (ZeRO-1 and ZeRO-2), as the samples have none.

    python benchmarks/optimizer_steps.py [--model 8b] [--stage 1] [--ranks 64] [--micro-batches 1] [--out FOLDER]
    python benchmarks/against_overlap.py FOLDER/*.gz --passes reorder --passes 'bucket{strategy=auto},reorder'

Parameters in bfloat16 are whole on every rank. Gradients are reduce-scattered, behind the last micro-batch (stage 1) or
behind each (stage 2), and clipped by their norm over all ranks; Adam updates a shard of each parameter in float32,
which is gathered and written over the parameter. Traced with fake tensors and fake ranks, without Dynamo.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from commcc.capture.capturing import make_portable
from commcc.capture.importing import from_graph_module
from commcc.capture.models.llama import LLAMA3_8B, TINY_LLAMA, Llama
from commcc.capture.models.tensor_parallel import NO_TENSOR_PARALLEL
from commcc.capture.world import Layout, World, fake_world
from commcc.serialization import save

MODELS = {
    "tiny": TINY_LLAMA,
    "1b": replace(LLAMA3_8B, dim=2048, layers=16, hidden=8192),
    "8b": LLAMA3_8B,
}
c10d = torch.ops._c10d_functional
Tensors = dict[str, torch.Tensor]


class Step:
    """One step of a model. options: of the command line."""

    def __init__(self, options: argparse.Namespace, world: World) -> None:
        self.stage, self.ranks, self.group = options.stage, options.ranks, world.group_name("dp")
        self.config = MODELS[options.model]
        self.model = Llama(self.config, NO_TENSOR_PARALLEL)
        self.batches = options.micro_batches

    def inputs(self) -> tuple[Any, ...]:
        """Parameters, shards of them in float32, both moments, the count of steps, tokens and what comes next."""
        whole = {name: p.detach().to(torch.bfloat16) for name, p in self.model.named_parameters()}
        shards = [
            {name: torch.zeros(p.shape[0] // self.ranks, *p.shape[1:]) for name, p in whole.items()} for _ in range(3)
        ]
        tokens = torch.zeros(2, self.batches, self.config.batch, self.config.sequence, dtype=torch.int64)
        return whole, *shards, torch.zeros(()), tokens[0], tokens[1]

    def __call__(
        self, whole: Tensors, shards: Tensors, first: Tensors, second: Tensors, count: torch.Tensor, *batches: Any
    ) -> torch.Tensor:
        """The norm of the gradients; everything else is updated in place."""
        gradients: list[torch.Tensor] = []
        for tokens, wanted in zip(*batches, strict=True):
            held = {name: value.detach().requires_grad_() for name, value in whole.items()}
            with torch.enable_grad():
                loss = functional_call(self.model, held, (tokens, wanted))
            own = torch.autograd.grad(loss, list(held.values()))
            more = [self.scattered(each) if self.stage == 2 else each for each in own]
            gradients = [a + b for a, b in zip(gradients, more, strict=True)] if gradients else more
        if self.stage == 1:
            gradients = [self.scattered(each) for each in gradients]
        squares = torch.stack([each.square().sum() for each in gradients]).sum()
        norm = c10d.wait_tensor(c10d.all_reduce(squares, "sum", self.group)).sqrt()
        factor = (1 / (norm + 1e-6)).clamp(max=1)
        count.add_(1)
        for name, gradient in zip(whole, gradients, strict=True):
            clipped = gradient * factor
            first[name].lerp_(clipped, 0.1)
            second[name].mul_(0.95).addcmul_(clipped, clipped, value=0.05)
            shards[name].addcdiv_(first[name], (second[name] / (1 - 0.95**count)).sqrt_().add_(1e-8), value=-1e-4)
            sent = shards[name].to(torch.bfloat16)
            whole[name].copy_(c10d.wait_tensor(c10d.all_gather_into_tensor(sent, self.ranks, self.group)))
        return norm

    def scattered(self, gradient: torch.Tensor) -> torch.Tensor:
        """This rank's part of the mean."""
        return c10d.wait_tensor(c10d.reduce_scatter_tensor(gradient.float(), "avg", self.ranks, self.group))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", choices=MODELS, default="8b")
    parser.add_argument("--stage", type=int, choices=(1, 2), default=1)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/optimizers"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with fake_world(Layout((("dp", options.ranks),))) as world, FakeTensorMode():
        step = Step(options, world)
        graph_module = make_fx(step, tracing_mode="fake")(*step.inputs())
        program = from_graph_module(graph_module, world.groups(), {"mesh": world.header()})
    make_portable(program, "cuda:0", 0)
    path = options.out / f"llama_{options.model}_zero{options.stage}_{options.ranks}x{options.micro_batches}.fx.txt.gz"
    save(program, path)
    print(f"{path}  {len(program.graph.nodes):,} nodes")


if __name__ == "__main__":
    main()
