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

from artefact_models import BATCH, HEADS, LENGTH, RANKS, WIDTH, Feed, Function, Model, ids, rows, world

# torch.export


class Exports:
    """Writes exported programs into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.linear = nn.Linear(WIDTH, WIDTH)

    def __call__(self, name: str, model: Any, args: tuple[Any, ...], **options: Any) -> None:
        """Export a module, or a function of a module with a layer, and save it."""
        from torch._export.serde.serialize import SerializeError

        module = model if isinstance(model, nn.Module) else Function(model, self.linear)
        decompose = options.pop("decompose", False)
        program = torch.export.export(module, args, **{"strict": False, **options})
        program = program.run_decompositions() if decompose else program
        try:
            torch.export.save(program, self.folder / f"{name}.pt2")
        except SerializeError:  # block masks: PyTorch can export but not save them
            (self.folder / f"{name}.pt2").unlink(missing_ok=True)
            printed(self.folder, name, {"exported": program.graph_module})


def exports(folder: Path) -> None:
    """Exported models: a transformer in several ways, calling conventions, mutation, sizes from data."""
    from torch.export import Dim

    write = Exports(folder)
    sizes = ({0: Dim("batch", max=64), 1: Dim("seq", max=64)},)
    write("single_tensor", write.linear, (rows(),))
    write("strict", Model(1), (ids(),), strict=True)
    write("transformer", Model(), (ids(),))
    write("transformer_core_aten", Model(), (ids(),), decompose=True)
    write("transformer_dynamic", Model(), (ids(),), dynamic_shapes=sizes)
    write("transformer_bf16", Model(1).bfloat16(), (ids(),))
    tied = nn.Sequential(nn.Embedding(64, WIDTH), nn.Linear(WIDTH, 64, bias=False))
    tied[1].weight = tied[0].weight
    write("tied_weights", tied, (ids(),))
    write("buffers_mutated", nn.Sequential(write.linear, nn.BatchNorm1d(WIDTH)).train(), (rows(),))
    write("input_mutated", lambda _, x, y: (x.add_(y), y * 2)[1], (rows(), rows()))
    more = {"scale": rows(), "more": {"a": rows(), "b": rows()}}
    write("keywords_and_dict", Named(), (rows(),), kwargs=more)
    write("constants_returned", lambda _, x: (x * torch.tensor([2.0]), 3, None, True), (rows(),))
    write("boolean_mask", _masked, (rows(),))
    write("item_as_size", _counted, (rows(), torch.tensor(2)))
    write("dropout", nn.Sequential(write.linear, nn.Dropout(0.5)).train(), (rows(),))
    write("conv_half", nn.Conv2d(3, 4, 3).half(), (torch.randn(2, 3, 8, 8).half(),))
    lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
    write("lstm", Function(lambda m, x: m.layer(x)[0], lstm), (torch.randn(2, 4, WIDTH),))

    @torch.library.custom_op("artefact::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        return x * 2

    double.register_fake(torch.empty_like)
    write("custom_op", lambda m, x: double(m.layer(x)), (rows(),))
    joint_export(folder)


class Named(nn.Module):
    """Keywords, a dictionary as input, and nested results."""

    def forward(self, x: Tensor, *, scale: Tensor, more: dict[str, Tensor]) -> dict[str, Any]:
        return {"out": x * scale, "pair": (more["a"], x + more["b"])}


def _masked(m: Any, x: Tensor) -> Tensor:
    kept = x[x[:, 0] > 0]
    torch._check(kept.shape[0] <= BATCH)
    return m.layer(kept).sum(0)


def _counted(_: Any, x: Tensor, n: Tensor) -> Tensor:
    size = n.item()
    torch._check(size >= 0)
    torch._check(size <= BATCH)
    return x[:size].sum() + torch.zeros(size).sum()


def joint_export(folder: Path) -> None:
    """Forward and backward in one exported program."""
    from torch.export.experimental import _export_forward_backward

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Feed()

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x).square().mean()

    joint = _export_forward_backward(torch.export.export(Loss(), (rows(),), strict=True))
    torch.export.save(joint, folder / "forward_and_backward.pt2")


def higher_order_exports(folder: Path) -> None:
    """Exported programs with sub-graphs."""
    from torch._higher_order_ops import associative_scan, scan
    from torch._higher_order_ops import map as map_op
    from torch._higher_order_ops.while_loop import while_loop
    from torch.nn.attention.flex_attention import flex_attention

    def branches(m: Any, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: m.layer(y).relu(), lambda y: m.layer(y) - 1, (x,))

    def looped(_: Any, x: Tensor) -> Tensor:
        return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x))

    def cast(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = m.layer(x)
        with torch.autocast("cpu", enabled=False):
            return y.float() + m.layer(x)

    def switched(m: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = m.layer(x).relu()
        return m.layer(x) * y

    def causal(score: Tensor, _b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.where(q >= k, score, -1e9)

    def added(_: Any, x: Tensor) -> Tensor:
        return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")

    write = Exports(folder)
    write("cond", branches, (rows(),))
    write("while_loop", looped, (rows(),))
    write("map", lambda m, x: map_op(lambda y, w: y @ w, x, m.layer.weight), (rows(),))
    write("scan", lambda _, x: scan(lambda c, y: (c + y, c * y), x[0], x), (rows(),))
    write(
        "associative_scan", lambda _, x: associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic"), (rows(),)
    )
    write("vmap", lambda m, x: torch.vmap(lambda y: m.layer(y).softmax(0))(x), (rows(),))
    write("autocast", cast, (rows(),))
    write("set_grad_enabled", switched, (rows(),))
    qkv = torch.randn(3, 1, HEADS, 16, 8).unbind()
    write("flex_attention", lambda _, *x: flex_attention(*x, score_mod=causal), qkv)
    mask = qkv[0][..., 0, 0, None, None] > 0
    write("sdpa_mask", lambda _, q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), (*qkv, mask))


def distributed_exports(folder: Path) -> None:
    """Exported programs with functional collectives, and DTensors."""
    from torch.distributed._functional_collectives import all_gather_tensor, all_reduce

    with world(RANKS) as mesh:
        group = mesh.get_group()

        def reduced(m: Any, x: Tensor) -> Tensor:
            return all_reduce(m.layer(x), "sum", group)

        program = torch.export.export(Function(reduced, nn.Linear(WIDTH, WIDTH)), (rows(),), strict=False)
        torch.export.save(program, folder / "all_reduce.pt2")

        def gathered(m: Any, x: Tensor) -> Tensor:
            return F.linear(x, all_gather_tensor(m.layer.weight, 0, group))

        dynamic = ({0: torch.export.Dim("batch", min=2, max=64)},)
        program = torch.export.export(
            Function(gathered, nn.Linear(WIDTH, WIDTH)), ((rows(),),)[0], dynamic_shapes=(dynamic,), strict=False
        )
        torch.export.save(program, folder / "all_gather_dynamic.pt2")


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


def printed(folder: Path, name: str, graphs: dict[str, Any], **options: Any) -> None:
    """Each graph as ``print_readable`` shows it."""
    shown = {"include_stride": True, "include_device": True, "expanded_def": True, **options}
    for kind, graph in graphs.items():
        (folder / f"{name}_{kind}.txt").write_text(graph.print_readable(print_output=False, **shown))


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
    fused = make_fx(torch._inductor.inductor_prims.fma, tracing_mode="fake")
    printed(folder, "inductor_prims", {"step": fused(rows(), rows(), rows())})
    traced = make_fx(step, tracing_mode="symbolic")(rows(), torch.randn(WIDTH, WIDTH, requires_grad=True))
    printed(folder, "make_fx_symbolic", {"step": traced})
    post_grad(folder)


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
