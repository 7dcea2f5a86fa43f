"""One rank of a training job with commcc in it: each job trains a model with and without, and compares to the bit.

    python -m torch.distributed.run --standalone --nproc-per-node 2 live_worker.py JOBS.json OUT_DIR

JOBS.json is a list of {"model", "inner", "options"}; each rank writes OUT_DIR/rankN.json with, for each job, whether
losses, gradients and parameters of all steps are equal, how many graphs were rewritten, and their launches. With
"planned": PASSES rank 0 keeps its graphs, as they came, in OUT_DIR/MODEL, plans each with ``commcc run``, and all ranks
train by these plans.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from commcc.live.backends import _over_eager, _over_inductor
from commcc.live.rewriting import graph_pass

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


def checkpointed(mesh: Any) -> nn.Module:
    return nn.Sequential(*(Recomputed(block) for block in fsdp(mesh)))


def broken(mesh: Any) -> nn.Module:
    return nn.Sequential(*(Broken(block) for block in fsdp(mesh)))


MODELS = {"fsdp": fsdp, "tp": tp, "checkpointed": checkpointed, "broken": broken}


def whole(value: torch.Tensor) -> torch.Tensor:
    return (value.to_local() if isinstance(value, DTensor) else value).detach().clone()


def train(name: str, mesh: Any, backend: Any) -> list[torch.Tensor]:
    """Losses, gradients and parameters of all steps, in order; an evaluation without gradients at the end."""
    torch._dynamo.reset()
    torch.manual_seed(7)
    model = MODELS[name](mesh)
    compiled = torch.compile(model, backend=backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    generator = torch.Generator().manual_seed(dist.get_rank() if name != "tp" else 0)
    kept: list[torch.Tensor] = []
    for step in range(STEPS):
        rows = 8 if step < STEPS - 1 else 12  # another shape: it is compiled again
        for _ in range(2 if step == 1 else 1):  # gradients of two batches are added up
            loss = compiled(torch.randn(rows, WIDTH, generator=generator)).pow(2).mean()
            loss.backward()
        kept += [loss.detach().clone(), *(whole(p.grad) for p in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
        kept += [whole(p) for p in model.parameters()]
    with torch.no_grad():
        kept.append(compiled(torch.ones(8, WIDTH)).clone())
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


def outcome(job: dict[str, Any], mesh: Any, out: Path) -> dict[str, Any]:
    if "planned" in job:
        plan_offline(job, mesh, out / job["model"])
        job["options"] = {**job["options"], "plan": str(out / job["model"] / "plans")}
    the_pass = graph_pass(**job["options"])
    ours = (_over_inductor if job["inner"] == "inductor" else _over_eager)(the_pass, 60.0)
    plain = train(job["model"], mesh, job["inner"])
    try:
        mine = train(job["model"], mesh, ours)
    except Exception as error:  # what a rank says is compared by the test
        return {"error": str(error).strip().split("\n")[0]}
    same = len(plain) == len(mine) and all(torch.equal(a, b) for a, b in zip(plain, mine, strict=True))
    launches = [[sum(end.collectives.values()) for end in (r.before, r.after)] for r in the_pass.results]
    groups = sorted({group.name for made in the_pass.made for group in made.groups})
    return {
        "equal": same, "graphs": len(the_pass.made), "launches": launches, "compared": len(plain), "groups": groups
    }  # fmt: skip


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
