"""One of four ranks that shards a model over two and copies it twice, and compares its gradients with averaged ones.

    python -m torch.distributed.run --standalone --nproc-per-node 4 shard_worker.py OUT_DIR

Each rank writes OUT_DIR/rankN.json: for each job, how much gradients differ at most, and where they are.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

import commcc

JOBS = {
    "op by op": (False, {}),
    "compiled": (True, {}),
    "in two dtypes": (True, {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}),
    "reduced in bfloat16": (True, {"reduce_dtype": torch.bfloat16}),
}
TIED = {"tied, op by op": False, "tied, compiled": True}


class Tied(nn.Module):
    """One weight of three modules: one is checkpointed, one is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = (nn.Linear(7, 7, bias=False) for _ in range(3))
        self.again.weight = self.last.weight = self.first.weight

    def forward(self, x: Any) -> Any:
        inner: Any = checkpoint(lambda y: self.again(y).tanh(), self.first(x), use_reentrant=False)
        return self.last(self.last(inner).tanh())


def compared(mesh: Any, compiled: bool, dtypes: dict[str, torch.dtype], make: Any = None) -> dict[str, Any]:
    """Seven rows do not divide by two: shards are filled up."""
    torch.manual_seed(0)
    plain = make() if make else nn.Sequential(nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 4))
    sharded = commcc.shard(copy.deepcopy(plain), mesh, **dtypes)
    model: Any = torch.compile(sharded, backend="aot_eager") if compiled else sharded
    torch.manual_seed(dist.get_rank())
    batch = torch.randn(3, 7)
    for _ in range(2):  # the first time it is traced, which counts too
        sharded.zero_grad()
        with torch.autograd.profiler.profile() as profile:
            model(batch.to(dtypes.get("param_dtype", torch.float32))).float().pow(2).mean().backward()
    plain(batch).pow(2).mean().backward()
    worst, places = 0.0, set()
    for one, other in zip(plain.parameters(), sharded.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        dist.all_reduce(one.grad)
        whole = other.grad.full_tensor()[: len(one)]
        places.add(str(other.grad.placements))
        worst = max(worst, float((whole - one.grad / dist.get_world_size()).abs().max()))
    scatters = sum("_c10d_functional::reduce_scatter" in str(event.name) for event in profile.function_events)
    return {"worst": worst, "places": sorted(places), "scatters": scatters}


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
    found = {name: compared(mesh, *job) for name, job in JOBS.items()}
    found |= {name: compared(mesh, compiled, {}, Tied) for name, compiled in TIED.items()}
    Path(sys.argv[1], f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))
    dist.barrier()  # so that no rank closes what another one still reads
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
