"""Libraries of ops by their names in ``torch.ops``: which are PyTorch's, which only compute, which module has them."""

from __future__ import annotations

#: Libraries of PyTorch whose ops compute, or communicate within the job: a graph of a file may run them.
RUNNABLE = frozenset(
    {
        *("aten", "prims", "c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor"),
        *("inductor", "inductor_prims", "bucketing", "fsdp", "symm_mem", "quantized_decomposed"),
    }
)
#: Libraries whose ops have shape functions that do nothing else.
SHAPED = (RUNNABLE - {"c10d", "bucketing"}) | {"rngprims"}
#: Libraries whose schemas, with :mod:`commcc.graph.ops.undeclared`, say all that their ops do.
PURE = frozenset({"aten", "prims", "inductor_prims", "rngprims", "quantized_decomposed", "_c10d_functional"})
#: Libraries whose schemas are believed where they say what an op reads, writes and returns: PyTorch's. What stands in
#: the schema of any other library was never compared with what its kernels do.
BELIEVED = RUNNABLE | PURE | {"streams", "device_mesh"}
#: Libraries of collectives alone.
COLLECTIVE = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional"})
#: Libraries of collectives whose schemas do not say what is written to.
UNTOLD = COLLECTIVE - {"_c10d_functional_autograd"}
#: Libraries whose ops were run to see what they do (``tests/test_op_facts.py``).
TESTED = frozenset({"aten", "prims"})
#: Libraries whose ops communicate, unless something else is known of one.
COMMUNICATING = COLLECTIVE | {"symm_mem", "_dtensor", "nccl", "torchcomms"}
#: Libraries of PyTorch that never communicate, whatever their ops are called.
LOCAL = frozenset({"aten", "prims", "inductor", "inductor_prims", "higher_order", "operator", "fsdp"})
#: Libraries that PyTorch brings along.
OWN = RUNNABLE | SHAPED | COMMUNICATING | LOCAL
#: Libraries whose ops decide about all that comes before or after them, and what they do.
FENCES = {
    "streams": "orders streams",
    "mempool": "begins or ends a memory pool",
    "torch._functorch": "enters or leaves a level of vmap or of derivatives",
}
#: Libraries that PyTorch brings along, all of them: no file says anything of their ops.
NATIVE = (
    OWN
    | BELIEVED
    | frozenset(FENCES)
    | frozenset(
        {
            *("_native", "_quantized", "_test", "debug_mode_ops", "debugprims", "export", "mkl", "mkldnn"),
            *(
                "mkldnn_prepacked",
                "onednn",
                "prim",
                "profiler",
                "quantization",
                "quantized",
                "sparse",
                "static_runtime",
            ),
            *("torch", "cuda", "cudagraphs", "inductor_quantized", "nested", "xpu"),
        }
    )
)
#: Libraries whose ops write without reading unless their name ends in ``_``.
UNDERSCORED = frozenset({"aten", "prims", "fsdp", "inductor"})
#: Python's functions on numbers.
ARITHMETIC = frozenset({"operator", "math", "builtins", "torch"})

#: Modules that register the ops of a library, or one higher-order op; tried in this order.
REGISTERED_BY: dict[str, tuple[str, ...]] = {
    "_c10d_functional": ("torch.distributed._functional_collectives",),
    "_c10d_functional_autograd": ("torch.distributed._functional_collectives",),
    "c10d_functional": ("torch.distributed._functional_collectives",),
    "_dtensor": ("torch.distributed.tensor",),
    # The second needs the first: it makes meshes known as arguments of ops.
    "device_mesh": ("torch.distributed.tensor", "torch.distributed._ops.device_mesh"),
    "fsdp": (
        "torch.distributed.fsdp._fully_shard._fsdp_collectives",
        "torch.distributed.fsdp._fully_shard._fsdp_param",
    ),
    "symm_mem": ("torch.distributed._symmetric_memory",),
    "prims": ("torch._prims", "torch._inductor.inductor_prims"),
    "rngprims": ("torch._prims.rng_prims",),
    "inductor": ("torch._inductor.inductor_prims",),
    "bucketing": ("torch._inductor.fx_passes.bucketing",),
    "streams": ("torch._dynamo.variables.streams",),
    "quantized_decomposed": ("torch.ao.quantization.fx._decomposed",),
    "higher_order.flex_attention": ("torch._higher_order_ops.flex_attention",),
    "higher_order.flex_attention_backward": ("torch._higher_order_ops.flex_attention",),
    "higher_order.control_deps": ("torch._inductor.fx_passes.control_dependencies",),
    "higher_order.triton_kernel_wrapper_mutation": ("torch._higher_order_ops.triton_kernel_wrap",),
    "higher_order.triton_kernel_wrapper_functional": ("torch._higher_order_ops.triton_kernel_wrap",),
    "higher_order": (
        *("torch._higher_order_ops", "torch._prims.rng_prims", "torch._higher_order_ops.effects"),
        *("torch._higher_order_ops.triton_kernel_wrap", "torch.distributed.tensor"),
    ),
}
#: Those that ``torch.export.load`` does not import by itself.
IMPORTED_BY_NAME = frozenset(
    {
        *("torch._inductor.fx_passes.bucketing", "torch._inductor.fx_passes.control_dependencies"),
        *("torch._inductor.inductor_prims", "torch.ao.quantization.fx._decomposed"),
        "torch.distributed._ops.device_mesh",
    }
)


def fenced(name: str) -> str | None:
    """Why nothing may move across an op of this name; None where its library does not say so."""
    return next((why for library, why in FENCES.items() if name.startswith(f"{library}.") or name == library), None)
