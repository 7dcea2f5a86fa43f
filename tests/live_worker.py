"""One rank of a training job with commcc in it: each job trains a model with and without, and compares to the bit.

    python -m torch.distributed.run --standalone --nproc-per-node 2 live_worker.py JOBS.json OUT_DIR

JOBS.json is a list of {"model", "inner", "options"}; each rank writes OUT_DIR/rankN.json with, for each job, whether
losses, gradients and parameters of all steps are equal, how many graphs were rewritten, and their launches. With
"planned": PASSES rank 0 keeps its graphs, as they came, in OUT_DIR/MODEL, plans each with ``commcc run``, and all ranks
train by these plans. With "varied": false all steps have one shape. With "refused": true it is one step with commcc
alone, and what a rank says where it refuses.
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
from time import monotonic
from typing import Any

import torch
import torch._inductor.config as inductor_config
import torch.distributed as dist
from torch import nn
from torch._dynamo import compiled_autograd
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from commcc.capture.models.llama import TINY_LLAMA
from commcc.live.backends import _over_eager, _over_inductor, backend, inductor_pass
from commcc.live.rewriting import graph_pass
from commcc.replay.compiled.inductor import order_options
from tests.live_models import MODELS, WIDTH

STEPS = 5


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


def train(name: str, mesh: Any, backend: Any, steps: int = STEPS, varied: bool = True) -> list[torch.Tensor]:
    """Losses, gradients, parameters and moments of all steps, in order.

    varied: the last step has another shape, and an evaluation without gradients comes behind it.
    """
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
        rows = 12 if varied and step == steps - 1 else 8  # another shape: it is compiled again
        for _ in range(2 if step == 1 else 1):  # gradients of two batches are added up
            with compiled_autograd._enable(torch.compile(backend=backend)) if name == "ddp" else nullcontext():
                loss = loss_of(name, compiled, rows, generator)
                loss.backward()
        kept += [loss.detach().clone(), *(whole(p.grad) for p in model.parameters() if p.requires_grad)]
        optimizer.step()
        optimizer.zero_grad()
        kept += [whole(p) for p in model.parameters()]
        kept += [whole(v) for state in optimizer.state.values() for v in state.values()]
    if varied:
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


def refused(job: dict[str, Any], mesh: Any) -> dict[str, Any]:
    """Whether a step is trained, or what is said instead, and after how many seconds."""
    began, said = monotonic(), ""
    try:
        train(job["model"], mesh, backend(inner=job["inner"], agree_timeout_s=100.0, **job["options"]), 1)
    except Exception as error:  # what a rank says is compared by the test
        said = str(error).strip().partition("\n\nSet TORCHDYNAMO")[0].removeprefix("backend='commcc' raised:\n")
    return {"error": said, "seconds": monotonic() - began}


def outcome(job: dict[str, Any], mesh: Any, out: Path) -> dict[str, Any]:
    if "refused" in job:
        return refused(job, mesh)
    if "caches" in job:
        return caches(job, mesh, out)
    if "planned" in job:
        plan_offline(job, mesh, out / job["model"])
        job["options"] = {**job["options"], "plan": str(out / job["model"] / "plans")}
    the_pass = graph_pass(**job["options"])
    ours = (_over_inductor if job["inner"] == "inductor" else _over_eager)(the_pass, 60.0)
    steps = job.get("steps", STEPS), job.get("varied", True)
    plain = train(job["model"], mesh, job["inner"], *steps)
    try:
        mine = train(job["model"], mesh, ours, *steps)
    except Exception as error:  # what a rank says is compared by the test
        traceback.print_exc()
        lines = [line for line in str(error).strip().split("\n") if not line.endswith(" raised:")]
        return {"error": lines[0]}
    apart = max((float((a - b).abs().max()) for a, b in zip(plain, mine, strict=True)), default=0.0)
    same = len(plain) == len(mine) and all(torch.equal(a, b) for a, b in zip(plain, mine, strict=True))
    launches = [[sum(end.collectives.values()) for end in (r.before, r.after)] for r in the_pass.results]
    groups = sorted({group.name for made in the_pass.outcomes for group in made.groups})
    foreseen = any(made.rounding is not None and made.rounding.results for made in the_pass.outcomes)
    return {
        "equal": same,
        "foreseen": foreseen,
        "graphs": len(the_pass.outcomes),
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
