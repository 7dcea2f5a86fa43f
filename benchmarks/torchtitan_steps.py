"""Train steps of torchtitan's graph trainer, as it traces them, and as its own passes leave them.

    pip install torchtitan                      # 0.3 was tried, with the PyTorch that it asks for
    python benchmarks/torchtitan_steps.py graph_trainer.llama3:graph_trainer_llama3_debugmodel --dp 8 -o out/titan
    commcc run out/titan/traced.fx.txt --preset auto

No GPU and no cluster: parameters are on the meta device, the process group is fake, and tensors are on a device of
PyTorch's for backends in Python, which is written as ``cuda:0``. One file for each pass that changes the graph, named
by its number and name; ``--last`` writes what comes before its bucketing, and the end.

Limits: torchtitan's own modules are patched where they ask for a device. Context parallelism is not traced.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

DEVICE = "fakegpu"
_BUCKETING = "bucketing"


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("config", help="MODULE:FUNCTION below torchtitan.experiments")
    parser.add_argument("--flavor", help="of the model, as 8B, in place of that of the configuration")
    parser.add_argument("--attention", default="flex", help="of such a flavor")
    for axis in ("dp", "replicate", "tp", "ep"):
        parser.add_argument(f"--{axis}", type=int, default=1)
    parser.add_argument("--batch", type=int, help="samples of each rank")
    parser.add_argument("--sequence", type=int)
    parser.add_argument("--last", action="store_true")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    sys.setrecursionlimit(100_000)
    given.output.mkdir(parents=True, exist_ok=True)
    _without_a_gpu(given.dp * given.replicate * given.tp)
    config, dims = _configured(given)
    traced, graph = _traced(config, dims)
    _write(graph, given.output / "traced.fx.txt")
    passes = importlib.import_module("torchtitan.experiments.graph_trainer.passes")
    todo = passes.compile_time_passes(traced, config, parallel_dims=dims, include_inductor=False)
    for number, each in enumerate(todo, 1):
        name, before = passes._get_pass_name(each), None if given.last else graph.code
        if given.last and _BUCKETING in name:
            _write(graph, given.output / "before_bucketing.fx.txt")
        graph = each(graph, list(traced.example_inputs))
        if before is not None and graph.code != before:
            _write(graph, given.output / f"{number:02}_{name}.fx.txt")
    _write(graph, given.output / "end.fx.txt")


def _without_a_gpu(ranks: int) -> None:
    """A device that computes nothing, which flex attention takes for a GPU, and a group of ranks that send nothing."""
    from torch.nn.attention import flex_attention
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(DEVICE)
    anything: Any = flex_attention
    anything._validate_device = lambda *_: None
    autocast: Any = torch.autocast
    torch.autocast = lambda device_type, **options: autocast(  # type: ignore[assignment, misc]
        "cuda" if device_type == DEVICE else device_type, **options
    )
    for place in ("tools.utils", "distributed.parallel_dims", "models.common.token_dispatcher"):
        importlib.import_module(f"torchtitan.{place}").device_type = DEVICE  # type: ignore[attr-defined]
    tracer: Any = importlib.import_module("torchtitan.experiments.graph_trainer.make_fx_tracer")

    def fake(mode: Any, value: torch.Tensor, *, input_name: str) -> torch.Tensor:
        del input_name
        with mode:
            return torch.empty_strided(
                value.size(), value.stride(), dtype=value.dtype, device=DEVICE, requires_grad=value.requires_grad
            )

    tracer._fakeify_input = fake
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)  # type: ignore[no-untyped-call]


def _configured(given: argparse.Namespace) -> tuple[Any, Any]:
    """torchtitan's configuration of a job, and its meshes."""
    utils = importlib.import_module("torchtitan.distributed.utils")
    module, function = given.config.split(":")
    config = getattr(importlib.import_module(f"torchtitan.experiments.{module}.config_registry"), function)()
    if given.flavor:
        registry = importlib.import_module(f"torchtitan.experiments.{module}").model_registry
        config.model_spec = registry(given.flavor, attn_backend=given.attention)
    parallel = config.parallelism
    parallel.data_parallel_shard_degree, parallel.data_parallel_replicate_degree = given.dp, given.replicate
    parallel.tensor_parallel_degree, parallel.expert_parallel_degree = given.tp, given.ep
    config.training.local_batch_size = given.batch or config.training.local_batch_size
    config.training.seq_len = given.sequence or config.training.seq_len
    config.compile.disable_passes = ["cudagraph_pass"]
    utils.set_spmd_backend(parallel.spmd_backend)
    world = given.dp * given.replicate * given.tp
    sizes = {"dp_shard": given.dp, "dp_replicate": given.replicate, "cp": 1, "tp": given.tp, "pp": 1, "ep": given.ep}
    known = importlib.import_module("torchtitan.distributed")
    dims = known.ParallelDims(**sizes, world_size=world, spmd_backend=parallel.spmd_backend)
    dims.build_mesh()
    return config, dims


def _traced(config: Any, dims: Any) -> tuple[Any, torch.fx.GraphModule]:
    """What torchtitan's tracer says of the step, and its graph."""
    trainer = importlib.import_module("torchtitan.experiments.graph_trainer.trainer")
    tracer = importlib.import_module("torchtitan.experiments.graph_trainer.make_fx_tracer")
    common = importlib.import_module("torchtitan.experiments.graph_trainer.common_utils")
    losses = importlib.import_module("torchtitan.components.loss")
    spec, training = config.model_spec, config.training
    spec.model.update_from_config(config=config)
    dtype = importlib.import_module("torchtitan.config").TORCH_DTYPE_MAP[training.dtype]
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    with torch.device("meta"):
        model = spec.model.build()
    torch.set_default_dtype(usual)
    model = spec.parallelize_fn(
        model,
        parallel_dims=dims,
        training=training,
        parallelism=config.parallelism,
        compile_config=config.compile,
        ac_config=config.activation_checkpoint,
        dump_folder="",
    )
    model.train()
    loss = config.loss.build(compile_config=config.compile)
    if isinstance(loss, losses.ChunkedLossWrapper):
        loss.set_lm_head(model.lm_head)
        model._skip_lm_head = True
    shape = training.local_batch_size, training.seq_len
    tokens, labels = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    positions = torch.arange(shape[1], dtype=torch.int32).expand(shape)
    named: dict[str, Any] = {"positions": positions}
    attention = getattr(getattr(spec.model, "first_attention", None), "inner_attention", None)
    if type(attention).__qualname__.startswith(("FlexAttention", "VarlenAttention")):
        named["attention_masks"] = model.get_attention_masks(positions=positions)
    common.maybe_register_blockmask_pytree_node()
    counted = torch.tensor(tokens.numel() * dims.dp_shard * dims.dp_replicate)
    parallel = torch.distributed.tensor.parallel.loss_parallel() if dims.tp > 1 else nullcontext()
    with parallel:
        step = trainer.make_fwd_bwd_step(model, loss)
        traced = tracer.minimal_fx_tracer(step, module=model)(tokens, labels, counted, named)
    return traced, traced.gm


def _write(graph: torch.fx.GraphModule, file: Path) -> None:
    """As torchtitan dumps graphs."""
    text = graph.print_readable(
        print_output=False,
        include_stride=True,
        include_device=True,
        expanded_def=True,
        additional_meta=["autograd_backward"],
    )
    text = text.replace(f"{DEVICE}:0", "cuda:0").replace(f"type='{DEVICE}'", "type='cuda'")
    file.write_text(text)
    print(f"{file}  {len(graph.graph.nodes)} nodes", flush=True)


if __name__ == "__main__":
    main()
