"""Exported programs as ``torch.export`` saves them: what :mod:`artefact_makers` makes of :mod:`artefact_models`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from artefact_models import BATCH, HEADS, RANKS, WIDTH, Feed, Function, Model, ids, printed, rows, world
from torch import Tensor, nn

if TYPE_CHECKING:
    from pathlib import Path


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

    write("mha", Function(lambda m, x: m.layer(x, x, x)[0], nn.MultiheadAttention(WIDTH, HEADS)), (rows()[:, None],))
    write("fft", lambda m, x: torch.fft.irfft(torch.fft.rfft(m.layer(x)) * 2), (rows(),))
    write("list_returned", lambda m, x: list(m.layer(x).chunk(3, 1)), (rows(),))
    write("router", _routed, (rows(),))
    write("quantized", _quantized, (rows(),))
    channels_last = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    write("channels_last", nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), (channels_last,))

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


def _routed(m: Any, x: Tensor) -> tuple[Tensor, ...]:
    scores = m.layer(x).softmax(-1)
    values, chosen = scores.topk(2)
    counts = torch.bincount(chosen.flatten(), minlength=WIDTH)
    return torch.zeros_like(scores).scatter(1, chosen, values), F.one_hot(chosen, WIDTH).sum(1), counts


def _quantized(m: Any, x: Tensor) -> Tensor:
    import torch.ao.quantization.fx._decomposed

    ops, bounds = torch.ops.quantized_decomposed, (0.1, 0, -128, 127, torch.int8)
    return ops.dequantize_per_tensor(ops.quantize_per_tensor(m.layer(x), *bounds), *bounds)


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

    @torch.compiler.nested_compile_region
    def region(x: Tensor) -> Tensor:
        return x.relu() * 2

    write = Exports(folder)
    batch = (({0: torch.export.Dim("batch", max=64)},),)
    write("cond", branches, (rows(),))
    write("cond_dynamic", branches, (rows(),), dynamic_shapes=batch)
    write("nested_region", lambda m, x: region(region(m.layer(x))), (rows(),), strict=True)
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

        def total(x: Tensor) -> Tensor:
            ops = torch.ops._c10d_functional
            result: Tensor = ops.wait_tensor(ops.all_reduce(x, "sum", group.group_name))
            return result

        def branch(m: Any, x: Tensor) -> Any:
            return torch.cond(total(m.layer(x)).sum() > 0, total, lambda y: y - total(y), (x,))

        def each_row(m: Any, x: Tensor) -> Any:
            return torch._higher_order_ops.map(lambda y: total(y) + y, m.layer(x))

        for name, inside in {"cond": branch, "map": each_row}.items():
            program = torch.export.export(Function(inside, nn.Linear(WIDTH, WIDTH)), (rows(),), strict=False)
            torch.export.save(program, folder / f"{name}_that_communicates.pt2")
