"""Ops that do something besides computing their result and writing what they say, and those known to do nothing more.

Limits: an op is pure only when its library is listed here and its schema returns something or says what it writes;
everything else is an effect.
"""

from __future__ import annotations

#: Ops with a group, or of libraries that communicate, that only compute or copy.
LOCAL_OPS = frozenset(
    {
        *("fsdp.all_gather_copy_in", "fsdp.chunk_cat", "fsdp.copy_", "fsdp.split_with_sizes_copy"),
        *("bucketing._pre_bucket_all_gather", "bucketing._pre_bucket_reduce_scatter"),
        *("device_mesh._get_submesh", "device_mesh._get_flattened_submesh"),
        *("_dtensor.mesh_get_process_group", "_c10d_functional._wrap_tensor_autograd", "c10d.check_for_nan"),
    }
)
#: Ops of PyTorch's other libraries of which the same is known as of those of the pure ones.
PURE_OPS = frozenset(
    {
        *LOCAL_OPS,
        *("inductor._mm_plus_mm", "inductor._reinterpret_tensor", "inductor._alloc_from_pool"),
        "inductor.resize_storage_bytes_",
    }
)
#: Ops of those libraries that do more all the same: they print, or change what later ops do.
ACTING = frozenset(
    f"aten.{name}"
    for name in (
        *("_print", "record_stream", "_backward", "retain_grad", "requires_grad_", "set_data", "_version"),
        "_cudnn_rnn_flatten_weight",  # it puts weights into one new storage
        *("_cufft_set_plan_cache_max_size", "_cufft_clear_plan_cache", "_propagate_xla_data", "from_file"),
    )
)
#: Reads of device data by the host: it stalls until the value is there.
NUMBERS = frozenset({"aten.item", "aten._local_scalar_dense"})
HOST_SYNCS = NUMBERS | {"aten.is_nonzero", "aten.equal"}
#: Ops whose only purpose is to fail at run time, or to tell the shape environment something.
ASSERTIONS = frozenset(
    {
        *(f"aten.{n}" for n in ("_assert_scalar", "_assert_async", "_functional_assert_scalar")),
        *(f"aten.{n}" for n in ("sym_constrain_range", "sym_constrain_range_for_size", "_assert_tensor_metadata")),
        *("aten._functional_assert_async", "aten._linalg_check_errors", "c10d.check_for_nan"),
    }
)
#: Higher-order ops that do what the graphs do that are handed to them.
BODIES = frozenset(
    f"higher_order.{name}"
    for name in (
        *("cond", "while_loop", "while_loop_stack_output", "map_impl", "scan", "associative_scan", "foreach_map"),
        *("invoke_subgraph", "invoke_quant", "invoke_quant_packed", "control_deps", "local_map_hop", "wrap"),
        *("flex_attention", "flex_attention_backward", "strict_mode", "hints_wrapper", "autograd_function_apply"),
        *("tag_activation_checkpoint", "wrap_activation_checkpoint", "wrap_with_autocast"),
        *("wrap_with_set_grad_enabled", "dynamo_bypassing_wrapper"),
    )
)
#: Those of them under which ops compute in other dtypes than their operands have.
CASTING = frozenset({"higher_order.wrap_with_autocast"})
#: Those of them that hand their operands to a graph as they are, and give what it gives.
CALLS = frozenset(
    f"higher_order.{name}"
    for name in (
        *("invoke_subgraph", "cond", "wrap", "control_deps", "hints_wrapper", "strict_mode"),
        *(
            "tag_activation_checkpoint",
            "wrap_activation_checkpoint",
            "wrap_with_autocast",
            "wrap_with_set_grad_enabled",
        ),
    )
)
#: Higher-order ops that do what the op does that is handed to them, or what a kernel does to its arguments.
WRAPPERS = frozenset(
    f"higher_order.{name}"
    for name in (
        *("auto_functionalized", "auto_functionalized_v2", "out_dtype", "inline_asm_elementwise"),
        *("triton_kernel_wrapper_functional", "triton_kernel_wrapper_mutation"),
        *("run_and_save_rng_state", "run_with_rng_state", "graphsafe_run_with_rng_state", "run_dtensor_rng_op"),
    )
)
#: Those of them that hand on copies of what the op writes: PyTorch makes them only of ops that say all of that.
CLONING = frozenset({"higher_order.auto_functionalized", "higher_order.auto_functionalized_v2"})
RANDOM_WRAPPERS = frozenset(
    f"higher_order.{name}"
    for name in (
        *("run_and_save_rng_state", "run_with_rng_state", "graphsafe_run_with_rng_state", "run_dtensor_rng_op"),
    )
)
#: Higher-order ops that write every tensor handed to them by keyword.
WRITES_KEYWORDS = frozenset({"higher_order.triton_kernel_wrapper_mutation"})
#: Ops that are not asked for the shape of their result: they would open a file, or loop over a size in Python.
UNSHAPED = frozenset(
    f"aten.{name}" for name in ("from_file", "lstm", "gru", "rnn_tanh", "rnn_relu", "_thnn_fused_lstm_cell")
)
