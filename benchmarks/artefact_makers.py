"""Graph files as PyTorch's own tools leave them, made on the CPU: what :mod:`artefacts` puts through the commands.

    python benchmarks/artefact_makers.py exports out/      # one maker, into a folder; MAKERS has all

Each maker runs in a process of its own, with the environment that its tool asks for. Ranks are those of a fake
process group, so nothing is sent. Models are small: graphs show what PyTorch writes, not how a model performs.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RANKS = 2
WIDTH, HEADS, LENGTH, BATCH = 32, 4, 8, 4


# Models


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


# torch.export


def exports(folder: Path) -> None:
    """Higher-order ops, calling conventions, mutation, sizes: each a ``.pt2``."""
    from torch._export.serde.serialize import SerializeError
    from torch._higher_order_ops import associative_scan, map as map_op, scan
    from torch._higher_order_ops.while_loop import while_loop
    from torch.export import Dim
    from torch.nn.attention.flex_attention import flex_attention

    linear = nn.Linear(WIDTH, WIDTH)

    def write(name: str, model: nn.Module, args: tuple[Any, ...], **options: Any) -> None:
        decompose = options.pop("decompose", False)
        program = torch.export.export(model, args, **{"strict": False, **options})
        program = program.run_decompositions() if decompose else program
        try:
            torch.export.save(program, folder / f"{name}.pt2")
        except SerializeError:  # block masks: PyTorch can export but not save them
            (folder / f"{name}.pt2").unlink(missing_ok=True)
            printed(folder, name, {"exported": program.graph_module})

    write("single_tensor", linear, (rows(),))
    write("strict", Model(1), (ids(),), strict=True)
    write("transformer", Model(), (ids(),))
    write("transformer_core_aten", Model(), (ids(),), decompose=True)
    write(
        "transformer_dynamic", Model(), (ids(),), dynamic_shapes=({0: Dim("batch", max=64), 1: Dim("seq", max=64)},)
    )
    write("transformer_bf16", Model(1).bfloat16(), (ids(),))

    def branches(m: Any, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: m.layer(y).relu(), lambda y: m.layer(y) - 1, (x,))

    write("cond", Function(branches, linear), (rows(),))
    loop = Function(lambda _, x: while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x)))
    write("while_loop", loop, (rows(),))
    write("map", Function(lambda m, x: map_op(lambda y, w: y @ w, x, m.layer.weight), linear), (rows(),))
    write("scan", Function(lambda _, x: scan(lambda c, y: (c + y, c * y), x[0], x)), (rows(),))
    added = Function(lambda _, x: associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic"))
    write("associative_scan", added, (rows(),))

    def cast(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = m.layer(x)
        with torch.autocast("cpu", enabled=False):
            return y.float() + m.layer(x)

    def switched(m: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = m.layer(x).relu()
        return m.layer(x) * y

    write("autocast", Function(cast, linear), (rows(),))
    write("set_grad_enabled", Function(switched, linear), (rows(),))
    qkv = torch.randn(3, 1, HEADS, 16, 8).unbind()
    write(
        "flex_attention",
        Function(lambda _, *x: flex_attention(*x, score_mod=lambda s, b, h, q, k: torch.where(q >= k, s, -1e9))),
        qkv,
    )
    write("sdpa_mask", Function(lambda _, q, k, v, m: F.scaled_dot_product_attention(q, k, v, m)), (*qkv, qkv[0][..., 0, 0, None, None] > 0))

    tied = nn.Sequential(nn.Embedding(64, WIDTH), nn.Linear(WIDTH, 64, bias=False))
    tied[1].weight = tied[0].weight
    write("tied_weights", tied, (ids(),))
    write("buffers_mutated", nn.Sequential(linear, nn.BatchNorm1d(WIDTH)).train(), (rows(),))
    write("input_mutated", Function(lambda _, x, y: (x.add_(y), y * 2)[1]), (rows(), rows()))

    class Named(nn.Module):
        def forward(self, x: Tensor, *, scale: Tensor, more: dict[str, Tensor]) -> dict[str, Any]:
            return {"out": x * scale, "pair": (more["a"], x + more["b"])}

    write(
        "keywords_and_dict", Named(), (rows(),), kwargs={"scale": rows(), "more": {"a": rows(), "b": rows()}}
    )
    write("constants_returned", Function(lambda _, x: (x * torch.tensor([2.0]), 3, None, True)), (rows(),))

    def chosen(m: Any, x: Tensor) -> Tensor:
        kept = x[x[:, 0] > 0]
        torch._check(kept.shape[0] <= BATCH)
        return m.layer(kept).sum(0)

    def counted(_: Any, x: Tensor, n: Tensor) -> Tensor:
        size = n.item()
        torch._check_is_size(size)
        torch._check(size <= BATCH)
        return x[:size].sum() + torch.zeros(size).sum()

    write("boolean_mask", Function(chosen, linear), (rows(),))
    write("item_as_size", Function(counted), (rows(), torch.tensor(2)))
    write("dropout", nn.Sequential(linear, nn.Dropout(0.5)).train(), (rows(),))
    write("conv_half", nn.Conv2d(3, 4, 3).half(), (torch.randn(2, 3, 8, 8).half(),))
    write("lstm", Function(lambda m, x: m.layer(x)[0], nn.LSTM(WIDTH, WIDTH, batch_first=True)), (torch.randn(2, 4, WIDTH),))

    @torch.library.custom_op("artefact::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        return x * 2

    double.register_fake(torch.empty_like)
    write("custom_op", Function(lambda m, x: double(m.layer(x)), linear), (rows(),))

    from torch.export.experimental import _export_forward_backward

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Feed()

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x).square().mean()

    joint = _export_forward_backward(torch.export.export(Loss(), (rows(),), strict=True))
    torch.export.save(joint, folder / "forward_and_backward.pt2")


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
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
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
        printed(folder, "functional_ddp", compiled(lambda x, m=Feed(): all_reduce(m(x), "sum", group), (rows(),)))

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

        feed = Feed()
        assigned = torch.tensor([0, 1, 0, 1])
        printed(folder, "moe_uneven", compiled(lambda x, a: exchanged(x, a, feed), (rows(), assigned), run=False))

        def resharded(x: Tensor) -> Tensor:
            placed = distribute_tensor(x, mesh, [Shard(0)])
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
        loss_parallel,
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
        head = parallelize_module(nn.Linear(WIDTH, 64), mesh, ColwiseParallel(use_local_output=False))

        def loss(x: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(head(x), labels)

        with loss_parallel():
            printed(folder, "loss_parallel", compiled(loss, (rows(), torch.randint(64, (BATCH,)))))
    with world(RANKS, RANKS, names=("dp", "tp")) as mesh:
        model = fully_shard(parallelize_module(Feed(), mesh["tp"], plan), mesh=mesh["dp"])
        printed(folder, "tp_fsdp2", compiled(model, (rows(),)))


def attention_dumps(folder: Path) -> None:
    """Flex attention, autocast, control flow, RNG and checkpointing through ``torch.compile``; make_fx; post-grad."""
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
