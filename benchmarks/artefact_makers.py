"""Graph files as PyTorch's own tools leave them, made on the CPU: what :mod:`artefacts` puts through the commands.

    python benchmarks/artefact_makers.py exports out/      # one maker, into a folder; MAKERS has all

Each maker runs in a process of its own, with the environment that its tool asks for. Ranks are those of a fake
process group, so nothing is sent. Models are small: graphs show what PyTorch writes, not how a model performs.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.insert(0, str(Path(__file__).parent))

from artefact_exports import distributed_exports, exports, higher_order_exports
from artefact_models import HEADS, LENGTH, RANKS, WIDTH, Feed, Model, ids, printed, rows, world

# Dumps of torch.compile, printed


class Captured(Exception):
    """The graphs are there; running them is not wanted."""


def compiled(
    model: Callable[..., Any], args: tuple[Any, ...], *, dynamic: bool = False, run: bool = True
) -> dict[str, Any]:
    """Graphs of AOTAutograd by name, of one training step through ``torch.compile``; FSDP2 breaks into several.

    run: also run them, for graphs that are made only then; not where exchanged numbers are sizes.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.exc import BackendCompilerFailed
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    graphs: dict[str, Any] = {}

    def keep(kind: str) -> Callable[..., Any]:
        def compiler(graph: Any, _inputs: Any) -> Any:
            graphs[f"{kind}{sum(name.startswith(kind) for name in graphs) or ''}"] = graph
            return graph.forward

        return compiler

    def partition(joint: Any, inputs: Any, **options: Any) -> Any:
        import copy

        graphs[f"joint{sum(name.startswith('joint') for name in graphs) or ''}"] = copy.deepcopy(joint)
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **options)
        if not run:
            graphs.update(fw=forward, bw=backward)
            raise Captured
        return forward, backward

    backend = aot_autograd(
        fw_compiler=keep("fw"),
        bw_compiler=keep("bw"),
        inference_compiler=keep("infer"),
        partition_fn=partition,
        decompositions=select_decomp_table(),
    )
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        try:
            out = torch.compile(model, backend=backend, dynamic=dynamic)(*args)
        except BackendCompilerFailed:
            if run:
                raise
            return graphs
        out = out[0] if isinstance(out, tuple) else out
        out = out.to_local() if hasattr(out, "to_local") else out
        if out.requires_grad:
            out.float().square().mean().backward()
    return graphs


def dumps(folder: Path) -> None:
    """DDP, SimpleFSDP, FSDP2, TP, SP, DTensor and MoE through AOTAutograd."""
    from torch.distributed._functional_collectives import all_reduce, all_to_all_single_autograd
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.nn.utils import parametrize

    printed(folder, "plain", compiled(Model(1), (ids(),)))
    printed(folder, "dynamic", compiled(Model(1), (ids(),), dynamic=True))
    # As people paste them: without strides, devices and full types.
    bare = {"include_stride": False, "include_device": False, "expanded_def": False}
    printed(folder, "bare", compiled(Feed(), (rows(),)), **bare)
    for kind, graph in compiled(Feed(), (rows(),)).items():
        (folder / f"code_{kind}.py").write_text(graph.code)
        (folder / f"graph_{kind}.txt").write_text(str(graph.graph))

    with world(RANKS) as mesh:
        group = mesh.get_group()
        feed = Feed()
        printed(folder, "functional_ddp", compiled(lambda x: all_reduce(feed(x), "sum", group), (rows(),)))

        class Gather(nn.Module):
            def forward(self, shard: Tensor) -> Tensor:
                placed = DTensor.from_local(shard, mesh, [Shard(0)], run_check=False)
                return placed.redistribute(placements=[Replicate()]).to_local()

        simple = Model(2)
        for module in list(simple.modules()):
            for name, parameter in list(module.named_parameters(recurse=False)):
                half = nn.Parameter(parameter.detach()[: parameter.shape[0] // RANKS].clone())
                setattr(module, name, half)
                parametrize.register_parametrization(module, name, Gather(), unsafe=True)
        printed(folder, "simple_fsdp", compiled(simple, (ids(),)))

        sharded = Model(2)
        for layer in sharded.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        printed(folder, "fsdp2", compiled(sharded, (ids(),)))

        def exchanged(x: Tensor, assigned: Tensor, m: nn.Module) -> Tensor:
            order = assigned.argsort(stable=True)
            counts = torch.bincount(assigned, minlength=RANKS)
            theirs = torch.ops._c10d_functional.wait_tensor(
                torch.ops._c10d_functional.all_to_all_single(counts, [1] * RANKS, [1] * RANKS, group.group_name)
            )
            sent, got = [[each[rank].item() for rank in range(RANKS)] for each in (counts, theirs)]
            for size in (*sent, *got):
                torch._check_is_size(size)
            there = all_to_all_single_autograd(x[order], got, sent, group)
            back = all_to_all_single_autograd(m(there), sent, got, group)
            return back[order.argsort()]

        assigned = torch.tensor([0, 1, 0, 1])
        printed(folder, "moe_uneven", compiled(lambda x, a: exchanged(x, a, feed), (rows(), assigned), run=False))

        def resharded(x: Tensor) -> Tensor:
            placed = DTensor.from_local(x, mesh, [Shard(0)], run_check=False)
            other = placed.redistribute(placements=[Shard(1)])
            return (other.redistribute(placements=[Replicate()]) * 2).to_local()

        printed(folder, "dtensor_redistribute", compiled(resharded, (torch.randn(8, WIDTH, requires_grad=True),)))
    tensor_parallel(folder)


def tensor_parallel(folder: Path) -> None:
    """TP and SP with ``parallelize_module``, and both on a mesh with FSDP2."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    plan = {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    with world(RANKS, names=("tp",)) as mesh:
        printed(folder, "tp", compiled(parallelize_module(Feed(), mesh, plan), (rows(),)))

        class Normed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm, self.feed = nn.LayerNorm(WIDTH), Feed()

            def forward(self, x: Tensor) -> Tensor:
                return self.feed(self.norm(x))

        wide: Any = {
            "norm": SequenceParallel(sequence_dim=1),
            "feed": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Shard(1)),
            "feed.gate": ColwiseParallel(input_layouts=Shard(1)),
            "feed.up": ColwiseParallel(input_layouts=Shard(1)),
            "feed.down": RowwiseParallel(output_layouts=Shard(1)),
        }
        x = torch.randn(2, 2 * LENGTH, WIDTH)
        printed(folder, "sp", compiled(parallelize_module(Normed(), mesh, wide), (x,)))
    with world(RANKS, RANKS, names=("dp", "tp")) as mesh:
        model = fully_shard(parallelize_module(Feed(), mesh["tp"], plan), mesh=mesh["dp"])
        printed(folder, "tp_fsdp2", compiled(model, (rows(),)))


def attention_dumps(folder: Path) -> None:
    """Flex attention, autocast, control flow, RNG and checkpointing through ``torch.compile``; make_fx; post-grad."""
    import torch._inductor.inductor_prims
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from torch.utils.checkpoint import checkpoint

    qkv = [torch.randn(1, HEADS, 128, 16, requires_grad=True) for _ in range(3)]
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cpu")
    printed(folder, "flex", compiled(lambda *x: flex_attention(*x, block_mask=mask), tuple(q.detach() for q in qkv)))

    linear = nn.Linear(WIDTH, WIDTH)

    def cast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return linear(x).relu()

    printed(folder, "autocast", compiled(cast, (rows(),)))

    def branches(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: linear(y).relu(), lambda y: linear(y) - 1, (x,))

    printed(folder, "cond", compiled(branches, (rows(),)))
    dropped = nn.Sequential(linear, nn.Dropout(0.5))
    printed(folder, "dropout", compiled(dropped, (rows(),)))
    feed = Feed()
    printed(folder, "checkpoint", compiled(lambda x: checkpoint(feed, x, use_reentrant=False), (rows(),)))

    def step(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        loss = (x @ weight).relu().square().mean()
        return loss, torch.autograd.grad(loss, weight)[0]

    traced = make_fx(step, tracing_mode="fake")(rows(), torch.randn(WIDTH, WIDTH, requires_grad=True))
    printed(folder, "make_fx", {"step": traced})
    more_dumps(folder)
    fused = make_fx(torch._inductor.inductor_prims.fma, tracing_mode="fake")
    printed(folder, "inductor_prims", {"step": fused(rows(), rows(), rows())})
    traced = make_fx(step, tracing_mode="symbolic")(rows(), torch.randn(WIDTH, WIDTH, requires_grad=True))
    printed(folder, "make_fx_symbolic", {"step": traced})
    post_grad(folder)


def more_dumps(folder: Path) -> None:
    """Regions compiled once, random numbers drawn again, an optimizer, a derivative written by hand, colours."""
    from torch.utils.checkpoint import checkpoint

    linear = nn.Linear(WIDTH, WIDTH)
    dropped = nn.Sequential(linear, nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH))

    @torch.compiler.nested_compile_region
    def region(x: Tensor) -> Tensor:
        return linear(x).relu()

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return 2 * gradient * ctx.saved_tensors[0]

    def adam(*lists: list[Tensor]) -> Tensor:
        weights, gradients, means, squares = lists
        torch._foreach_lerp_(means, gradients, 0.1)
        torch._foreach_mul_(squares, 0.99)
        torch._foreach_addcmul_(squares, gradients, gradients, value=0.01)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, 1e-8)
        torch._foreach_addcdiv_(weights, means, roots, value=-1e-3)
        return weights[0]

    printed(folder, "nested_region", compiled(lambda x: region(region(x)), (rows(),)))
    again = compiled(lambda x: checkpoint(dropped, x, use_reentrant=False), (rows(),))
    printed(folder, "checkpoint_dropout", again)
    printed(folder, "autograd_function", compiled(lambda x: Square.apply(linear(x)), (rows(),)))
    printed(folder, "adam", compiled(adam, tuple([rows() for _ in range(3)] for _ in range(4))))
    printed(folder, "coloured", {"fw": compiled(Feed(), (rows(),))["fw"]}, colored=True)


def post_grad(folder: Path) -> None:
    """Inductor's graphs after its own passes, as text; an optimizer step among them (``prims.fma``)."""
    import torch._inductor.config as inductor

    seen: list[Any] = []

    def keep(graph: Any) -> None:
        import copy

        seen.append(copy.deepcopy(graph.owning_module))

    with inductor.patch(post_grad_custom_post_pass=keep, fx_graph_cache=False):
        torch._dynamo.reset()
        model = Feed()
        torch.compile(model)(rows()).sum().backward()
        weights = [parameter.detach() for parameter in model.parameters()]
        grads = [torch.randn_like(weight) for weight in weights]

        @torch.compile
        def update(weights: list[Tensor], grads: list[Tensor]) -> None:
            torch._foreach_mul_(weights, 0.9)
            torch._foreach_addcmul_(weights, grads, grads, value=0.1)

        update(weights, grads)
    printed(folder, "post_grad", {str(number): graph for number, graph in enumerate(seen)})


# Dumps that PyTorch writes by itself when its environment says so


def training_step(_folder: Path) -> None:
    """One step through Inductor on a fake group; what is written, and where, is up to the environment."""
    from torch.distributed._functional_collectives import all_gather_tensor, all_reduce

    with world(RANKS) as mesh:
        group = mesh.get_group()
        model = Feed()

        @torch.compile
        def forward(x: Tensor) -> Tensor:
            y = F.linear(model(x), all_gather_tensor(model.gate.weight.detach()[:WIDTH], 0, group)[:WIDTH])
            return all_reduce(y.detach(), "avg", group) + y

        forward(rows()).sum().backward()
        torch.compile(model, dynamic=True)(torch.randn(6, WIDTH)).sum().backward()


def failing_step(_folder: Path) -> None:
    """A compilation that fails, for which PyTorch writes a repro and a minifier launcher."""
    import torch._inductor.config as inductor
    from torch._dynamo.exc import BackendCompilerFailed, TorchRuntimeError

    broken: Any = {"cpp.inject_relu_bug_TESTING_ONLY": "compile_error"}
    with inductor.patch(broken):
        try:
            torch.compile(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()))(rows())
        except (BackendCompilerFailed, TorchRuntimeError, RuntimeError) as error:
            print(type(error).__name__)


def no_graph(folder: Path) -> None:
    """What is no graph: any Python module, and an empty log."""
    (folder / "any_module.py").write_text(Path(__file__).read_text())
    (folder / "training.log").write_text("step 1 loss 2.3\nstep 2 loss 2.2\n")


#: By name: the function, and what the environment says; ``{}`` in a value is the maker's folder.
MAKERS: dict[str, tuple[Callable[[Path], None], dict[str, str]]] = {
    "exports": (exports, {}),
    "higher_order": (higher_order_exports, {}),
    "distributed_exports": (distributed_exports, {}),
    "dumps": (dumps, {}),
    "attention": (attention_dumps, {}),
    "logs_aot": (training_step, {"TORCH_LOGS": "aot_graphs,aot_joint_graph", "STDERR": "{}/aot_graphs.log"}),
    "logs_post": (training_step, {"TORCH_LOGS": "post_grad_graphs,graph_code", "STDERR": "{}/post_grad.log"}),
    "trace": (training_step, {"TORCH_TRACE": "{}/torch_trace"}),
    "debug": (training_step, {"TORCH_COMPILE_DEBUG": "1", "TORCH_COMPILE_DEBUG_DIR": "{}"}),
    "repro_aot": (failing_step, {"TORCHDYNAMO_REPRO_AFTER": "aot", "TORCH_COMPILE_DEBUG_DIR": "{}"}),
    "repro_aot_1": (
        failing_step,
        {"TORCHDYNAMO_REPRO_AFTER": "aot", "TORCHDYNAMO_REPRO_LEVEL": "1", "TORCH_COMPILE_DEBUG_DIR": "{}"},
    ),
    "repro_dynamo": (failing_step, {"TORCHDYNAMO_REPRO_AFTER": "dynamo", "TORCH_COMPILE_DEBUG_DIR": "{}"}),
    "refused": (no_graph, {}),
}


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    os.chdir(folder)
    MAKERS[name][0](folder)


if __name__ == "__main__":
    main()
