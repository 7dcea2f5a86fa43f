"""Models of the training jobs of :mod:`tests.live_worker`; each function gets a mesh of all ranks, and shards one."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from commcc.capture.models.llama import TINY_LLAMA, Llama
from commcc.capture.models.tensor_parallel import TensorParallel
from commcc.capture.shards import shard

WIDTH = 16
#: Of most models: compiling them takes most of the time of a test.
BLOCKS = 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Gathered(nn.Module):
    """A parameter in shards, gathered where it is used; its gradient is averaged and scattered."""

    def forward(self, shard: Any) -> torch.Tensor:
        return shard.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial("avg")])


def fsdp(mesh: Any) -> nn.Module:
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            shard = distribute_tensor(parameter.detach(), mesh, [Shard(0)])
            setattr(module, name, nn.Parameter(shard))
            parametrize.register_parametrization(module, name, Gathered(), unsafe=True)
    return model


def tp(mesh: Any) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def build(mesh: Any) -> Any:
    """For ``commcc capture``."""
    return fsdp(mesh), (torch.zeros(12, WIDTH),)


class GatheredOnRows(nn.Module):
    """A parameter in shards over the last dimension of a mesh, the same on all others."""

    def forward(self, shard: Any) -> torch.Tensor:
        return shard.redistribute(placements=[Replicate(), Replicate()]).to_local(
            grad_placements=[Partial("avg"), Partial("avg")]
        )


def hsdp(mesh: Any) -> nn.Module:
    """Shards over half of the ranks, copies on both halves."""
    half = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("copies", "shards"))
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            shard = distribute_tensor(parameter.detach(), half, [Replicate(), Shard(0)])
            setattr(module, name, nn.Parameter(shard))
            parametrize.register_parametrization(module, name, GatheredOnRows(), unsafe=True)
    return model


class GatheredRows(nn.Module):
    """A parameter cut by columns or rows for tensor parallelism, whose part is in shards over the rest."""

    def __init__(self, cut: Any) -> None:
        super().__init__()
        self.cut = cut

    def forward(self, shard: Any) -> torch.Tensor:
        return shard.redistribute(placements=[Replicate(), self.cut]).to_local(
            grad_placements=[Partial("avg"), self.cut]
        )


class Halved(nn.Module):
    """A block whose inner features are divided among ranks: a reduction at its end, and one in its backward."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.group = mesh.get_group("tp").group_name
        for name, module, cut in (("weight", self.up, Shard(0)), ("weight", self.down, Shard(1))):
            shard = distribute_tensor(getattr(module, name).detach(), mesh, [Shard(1 - cut.dim), cut])
            setattr(module, name, nn.Parameter(shard))
            parametrize.register_parametrization(module, name, GatheredRows(cut), unsafe=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return x + Summed.apply(inner, self.group)


class Summed(torch.autograd.Function):
    """The sum over ranks; what comes back is that of every rank."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor, group: str) -> torch.Tensor:
        launched = torch.ops._c10d_functional.all_reduce(x.contiguous(), "sum", group)
        return torch.ops._c10d_functional.wait_tensor(launched)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


def fsdp_tp(mesh: Any) -> nn.Module:
    both = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    return nn.Sequential(*(Halved(both) for _ in range(BLOCKS)))


def ddp(mesh: Any) -> nn.Module:
    """Gradients are reduced in the backward, which compiled autograd hands to the backend."""
    torch._dynamo.config.optimize_ddp = "python_reducer"
    return nn.parallel.DistributedDataParallel(nn.Sequential(*(Block() for _ in range(BLOCKS))))


class Exchanged(torch.autograd.Function):
    """Equal parts of the rows to every rank, and back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: str, ranks: int) -> torch.Tensor:
        ctx.to = group, ranks
        parts = [x.shape[0] // ranks] * ranks
        launched = torch.ops._c10d_functional.all_to_all_single(x.contiguous(), parts, parts, group)
        return torch.ops._c10d_functional.wait_tensor(launched)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return Exchanged.apply(gradient, *ctx.to), None, None


class Expert(nn.Module):
    """Rows go to the rank of their expert by their number, through it, and back."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.block, self.group, self.ranks = Block(), mesh.get_group().group_name, mesh.size()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        there = Exchanged.apply(x, self.group, self.ranks)
        return x + Exchanged.apply(self.block(there), self.group, self.ranks)


def moe(mesh: Any) -> nn.Module:
    """Experts of every rank, between blocks in shards."""
    blocks = list(fsdp(mesh))
    return nn.Sequential(blocks[0], Expert(mesh), blocks[1], Expert(mesh))


class Recomputed(nn.Module):
    """A block whose activations are computed again in the backward."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, x, use_reentrant=False)


class Broken(nn.Module):
    """A block behind which the graph breaks."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block(x)
        torch._dynamo.graph_break()
        return x


class Adapted(nn.Module):
    """A frozen layer with a trained one of low rank beside it."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.base = linear.requires_grad_(False)
        self.down = nn.Linear(linear.in_features, 4, bias=False)
        self.up = nn.Linear(4, linear.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def lora(mesh: Any) -> nn.Module:
    model = nn.Sequential(*(Block() for _ in range(BLOCKS))).requires_grad_(False)
    for block in model:
        block.up, block.down = Adapted(block.up), Adapted(block.down)
        shard(block, mesh)
    return model


class Convolutions(nn.Module):
    """Of rows as images of 4 x 4."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.batch, self.norm, self.out = nn.BatchNorm2d(8), nn.GroupNorm(2, 8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.batch(self.first(x.view(-1, 1, 4, 4))))
        x = x + torch.relu(self.norm(self.second(x)))
        return self.out(nn.functional.max_pool2d(x, 2).mean((2, 3)))


def conv(mesh: Any) -> nn.Module:
    return shard(Convolutions(), mesh)


def checkpointed(mesh: Any) -> nn.Module:
    return nn.Sequential(*(Recomputed(block) for block in fsdp(mesh)))


def broken(mesh: Any) -> nn.Module:
    return nn.Sequential(*(Broken(block) for block in fsdp(mesh)))


def llama(mesh: Any) -> nn.Module:
    """A small Llama-3 in shards, its blocks one by one."""
    model = Llama(TINY_LLAMA)
    for block in model.layers.values():
        shard(block, mesh)
    return shard(model, mesh)


def llama_hsdp(mesh: Any) -> nn.Module:
    return llama(init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("copies", "shards")))


def llama_tp(mesh: Any) -> nn.Module:
    """Heads, inner channels and words are divided over two ranks, the sequence between them."""
    both = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    parallel = TensorParallel(2, both["tp"].get_local_rank(), both["tp"].get_group().group_name)
    return Llama(TINY_LLAMA, parallel)


def llama_fsdp_tp(mesh: Any) -> nn.Module:
    both = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    return shard(llama_tp(mesh), both["dp"])


def llama_ddp(mesh: Any) -> nn.Module:
    return shard(Llama(TINY_LLAMA), mesh, replicate=True)


class Again(nn.Module):
    """A block of the Llama whose activations are computed again, what tensor parallelism sends among them."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, x, table, use_reentrant=False)


def llama_checkpointed_fsdp_tp(mesh: Any) -> nn.Module:
    both = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    model = llama_tp(mesh)
    for name, block in list(model.layers.items()):
        model.layers[name] = Again(shard(block, both["dp"]))
    return shard(model, both["dp"])


def checkpointed_fsdp_tp(mesh: Any) -> nn.Module:
    """Blocks of DTensors over two ranks, in shards over the others."""
    both = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    return nn.Sequential(*(Recomputed(shard(block, both["dp"])) for block in tp(both["tp"])))


class Gpt(nn.Module):
    """Its head is its embedding; attention is PyTorch's own."""

    def __init__(self) -> None:
        super().__init__()
        words, places = TINY_LLAMA.vocabulary, TINY_LLAMA.sequence
        self.words, self.places = nn.Embedding(words, WIDTH), nn.Embedding(places, WIDTH)
        self.layers = nn.ModuleList(GptBlock() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class GptBlock(nn.Module):
    """A bias of keys would have a gradient of zero, whose roundings alone Adam divides by their own size."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attend, self.then = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH, bias=False), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.attend(self.norm(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.then(x + mixed.transpose(1, 2).flatten(2))


def gpt(mesh: Any) -> nn.Module:
    model = Gpt()
    for layer in model.layers:
        shard(layer, mesh)
    return shard(model, mesh)


MODELS = {
    "fsdp": fsdp,
    "tp": tp,
    "checkpointed": checkpointed,
    "broken": broken,
    "hsdp": hsdp,
    "fsdp_tp": fsdp_tp,
    "ddp": ddp,
    "moe": moe,
    "lora": lora,
    "conv": conv,
    "llama": llama,
    "llama_hsdp": llama_hsdp,
    "llama_tp": llama_tp,
    "llama_fsdp_tp": llama_fsdp_tp,
    "llama_ddp": llama_ddp,
    "llama_checkpointed_fsdp_tp": llama_checkpointed_fsdp_tp,
    "checkpointed_fsdp_tp": checkpointed_fsdp_tp,
    "gpt": gpt,
}
