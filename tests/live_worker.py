"""One rank of a training job with commcc in it: each job trains a model with and without, and compares to the bit.

    python -m torch.distributed.run --standalone --nproc-per-node 2 live_worker.py JOBS.json OUT_DIR

JOBS.json is a list of {"model", "inner", "options"}; each rank writes OUT_DIR/rankN.json with, for each job, whether
losses, gradients and parameters of all steps are equal, how many graphs were rewritten, and their launches. With
"planned": PASSES rank 0 keeps its graphs, as they came, in OUT_DIR/MODEL, plans each with ``commcc run``, and all ranks
train by these plans.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as inductor_config
import torch.distributed as dist
from torch import nn
from torch._dynamo import compiled_autograd
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from commcc.capture.models.llama import TINY_LLAMA, Llama
from commcc.capture.models.tensor_parallel import TensorParallel
from commcc.capture.shards import shard
from commcc.live.backends import _over_eager, _over_inductor, inductor_pass
from commcc.live.rewriting import graph_pass
from commcc.replay.compiled.inductor import order_options

STEPS = 5
WIDTH = 16


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
    model = nn.Sequential(*(Block() for _ in range(3)))
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            shard = distribute_tensor(parameter.detach(), mesh, [Shard(0)])
            setattr(module, name, nn.Parameter(shard))
            parametrize.register_parametrization(module, name, Gathered(), unsafe=True)
    return model


def tp(mesh: Any) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = nn.Sequential(*(Block() for _ in range(3)))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


class GatheredOnRows(nn.Module):
    """A parameter in shards over the last dimension of a mesh, the same on all others."""

    def forward(self, shard: Any) -> torch.Tensor:
        return shard.redistribute(placements=[Replicate(), Replicate()]).to_local(
            grad_placements=[Partial("avg"), Partial("avg")]
        )


def hsdp(mesh: Any) -> nn.Module:
    """Shards over half of the ranks, copies on both halves."""
    half = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("copies", "shards"))
    model = nn.Sequential(*(Block() for _ in range(3)))
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
    return nn.Sequential(*(Halved(both) for _ in range(3)))


def ddp(mesh: Any) -> nn.Module:
    """Gradients are reduced in the backward, which compiled autograd hands to the backend."""
    torch._dynamo.config.optimize_ddp = "python_reducer"
    return nn.parallel.DistributedDataParallel(nn.Sequential(*(Block() for _ in range(3))))


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
    model = nn.Sequential(*(Block() for _ in range(3))).requires_grad_(False)
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
#: How many ranks in a row have the same rows of a batch, where it is not one.
ALIKE = {"tp": 1 << 30, "fsdp_tp": 2}


def whole(value: torch.Tensor) -> torch.Tensor:
    return (value.to_local() if isinstance(value, DTensor) else value).detach().clone()


def loss_of(name: str, model: Any, rows: int, generator: torch.Generator) -> Any:
    """The loss of a batch that is drawn."""
    if not name.startswith(("llama", "gpt")):
        return model(torch.randn(rows, WIDTH, generator=generator)).pow(2).mean()
    shape = (rows // 4, TINY_LLAMA.sequence)
    tokens, labels = (torch.randint(TINY_LLAMA.vocabulary, shape, generator=generator) for _ in range(2))
    return model(tokens, labels)


def train(name: str, mesh: Any, backend: Any, steps: int = STEPS) -> list[torch.Tensor]:
    """Losses, gradients, parameters and moments of all steps, in order; an evaluation without gradients at the end."""
    torch._dynamo.reset()
    torch.manual_seed(7)
    model = MODELS[name](mesh)
    if name.startswith("llama"):  # made to be captured, without numbers
        for parameter in model.parameters():
            nn.init.normal_(parameter.to_local() if isinstance(parameter, DTensor) else parameter, std=0.1)
    compiled = torch.compile(model, backend=backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    generator = torch.Generator().manual_seed(
        dist.get_rank() // 2 if name.endswith("fsdp_tp") else dist.get_rank() if not name.endswith("tp") else 0
    )
    kept: list[torch.Tensor] = []
    for step in range(steps):
        rows = 8 if step < steps - 1 else 12  # another shape: it is compiled again
        for _ in range(2 if step == 1 else 1):  # gradients of two batches are added up
            with compiled_autograd._enable(torch.compile(backend=backend)) if name == "ddp" else nullcontext():
                loss = loss_of(name, compiled, rows, generator)
                loss.backward()
        kept += [loss.detach().clone(), *(whole(p.grad) for p in model.parameters() if p.requires_grad)]
        optimizer.step()
        optimizer.zero_grad()
        kept += [whole(p) for p in model.parameters()]
        kept += [whole(v) for state in optimizer.state.values() for v in state.values()]
    with torch.no_grad():
        kept.append(loss_of(name, compiled, 8, generator).clone())
    return kept


def plan_offline(job: dict[str, Any], mesh: Any, folder: Path) -> None:
    """Write a plan of each graph that rank 0 meets."""
    rank = dist.get_rank()
    if rank == 0:
        (folder / "plans").mkdir(parents=True)
    dumping = graph_pass(pipeline="bucket{groups=all}", report_dir=folder / "graphs")
    train(job["model"], mesh, _over_eager(dumping, None))
    if rank == 0:
        for graph in sorted((folder / "graphs").glob("rank0.*.before.fx.txt")):
            plan = folder / "plans" / f"{graph.stem}.yaml"
            command = [sys.executable, "-m", "commcc", "run", str(graph), "--passes", job["planned"], "-q"]
            subprocess.run([*command, "--plan-out", str(plan)], check=True, stdout=subprocess.DEVNULL)
    dist.barrier()


def caches(job: dict[str, Any], mesh: Any, out: Path) -> dict[str, Any]:
    """Train twice; the second time rank 0 finds in its caches what it has compiled, and the others do not."""
    rank, folder, found = dist.get_rank(), out / "caches", []
    for time in range(2):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / f"rank{rank}.{0 if rank == 0 else time}")
        counters.clear()
        if job["inner"] == "hook":
            hook = inductor_pass(**job["options"])
            with inductor_config.patch({**order_options(), "post_grad_custom_post_pass": hook}):
                found.append(train(job["model"], mesh, "inductor", 1))
            hook.graph_pass.agree(30.0)
        else:
            found.append(train(job["model"], mesh, _over_inductor(graph_pass(**job["options"]), 60.0), 1))
    hits = [counters["inductor"]["fxgraph_cache_hit"], counters["aot_autograd"]["autograd_cache_hit"]]
    return {"equal": all(torch.equal(a, b) for a, b in zip(*found, strict=True)), "hits": hits}


def outcome(job: dict[str, Any], mesh: Any, out: Path) -> dict[str, Any]:
    if "caches" in job:
        return caches(job, mesh, out)
    if "planned" in job:
        plan_offline(job, mesh, out / job["model"])
        job["options"] = {**job["options"], "plan": str(out / job["model"] / "plans")}
    the_pass = graph_pass(**job["options"])
    ours = (_over_inductor if job["inner"] == "inductor" else _over_eager)(the_pass, 60.0)
    steps = job.get("steps", STEPS)
    plain = train(job["model"], mesh, job["inner"], steps)
    try:
        mine = train(job["model"], mesh, ours, steps)
    except Exception as error:  # what a rank says is compared by the test
        traceback.print_exc()
        lines = [line for line in str(error).strip().split("\n") if not line.endswith(" raised:")]
        return {"error": lines[0]}
    apart = max((float((a - b).abs().max()) for a, b in zip(plain, mine, strict=True)), default=0.0)
    same = len(plain) == len(mine) and all(torch.equal(a, b) for a, b in zip(plain, mine, strict=True))
    launches = [[sum(end.collectives.values()) for end in (r.before, r.after)] for r in the_pass.results]
    groups = sorted({group.name for made in the_pass.made for group in made.groups})
    foreseen = any(made.rounding is not None and made.rounding.results for made in the_pass.made)
    return {
        "equal": same,
        "foreseen": foreseen,
        "graphs": len(the_pass.made),
        "launches": launches,
        "compared": len(plain),
        "groups": groups,
        "apart": apart,
    }


def main() -> None:
    jobs, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    found = [outcome({**job, **job.get(f"rank{dist.get_rank()}", {})}, mesh, out) for job in jobs]
    (out / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
