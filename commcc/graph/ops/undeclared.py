"""What ops of PyTorch do that their schemas do not say.

    VIEWS["aten.unsafe_split"]           # ("self",): its results are views, and its schema says that they are not
    WRITES["aten.native_batch_norm"]     # ("running_mean", "running_var")

Planner and verifier believe these tables, so a wrong entry fools both; ``tests/test_op_facts.py`` runs every op on
small tensors and compares what happens with what stands here.
"""

from __future__ import annotations


def _entries(names: tuple[str, ...], *arguments: str, library: str = "aten") -> dict[str, tuple[str, ...]]:
    return {f"{library}.{name}": arguments for name in names}


#: Arguments in whose storage a result can be, though the schema speaks of a new one.
VIEWS: dict[str, tuple[str, ...]] = {
    **_entries(("_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "lift", "data"), "self"),
    **_entries(("atleast_1d", "atleast_2d", "atleast_3d"), "self", "tensors"),
    **_entries(("meshgrid", "broadcast_tensors"), "tensors"),
    **_entries(("set", "set_", "shallow_copy_data_"), "source"),
    "aten.unflatten_dense_tensors": ("flat",),
    "_c10d_functional._wrap_tensor_autograd": ("input",),
    "_c10d_functional.wait_tensor": ("tensor",),
    "fsdp.all_gather_copy_in": ("all_gather_output",),
    "inductor._reinterpret_tensor": ("self",),
    "inductor._alloc_from_pool": ("self",),
    "inductor.accumulate_grad_": ("variable", "variable_grad", "new_grad"),
    "operator.getitem": ("a",),
}
#: Functions of Python that may give back what they are given: an operand, or a list that holds its items.
HANDED_ON = frozenset(
    {
        *(f"operator.{name}" for name in ("pos", "add", "mul")),
        *("builtins.max", "builtins.min", "torch.sym_ite", "torch.sym_max", "torch.sym_min"),
    }
)
#: Those that make a new tensor of tensors.
JOINED_LISTS = frozenset({"operator.add", "operator.mul"})
#: Functions of Python that tell whether two values are the same object.
SAME = frozenset({"operator.is_", "operator.is_not"})
#: The same of ops that usually compute something new, and return the argument where there is nothing to do.
SOMETIMES: dict[str, tuple[str, ...]] = {
    **_entries(
        ("conj_physical", "type_as", "pin_memory", "sum_to_size", "dequantize", "to_dense", "to_sparse"), "self"
    ),
    **_entries(
        tuple(f"_cast_{kind}" for kind in ("Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")), "self"
    ),
    **_entries(("einsum", "cartesian_prod", "flatten_dense_tensors", "chain_matmul", "_to_cpu"), "tensors", "matrices"),
    **_entries(("cumprod_backward", "to_dense_backward", "to_mkldnn_backward"), "grad"),
    **_entries(("_foobar", "_test_parallel_materialize", "_remove_batch_dim", "_reshape_from_tensor"), "self"),
    **_entries(("_test_optional_filled_intlist", "_test_optional_floatlist", "_test_optional_intlist"), "values"),
    **_entries(("_saturate_weight_to_fp16",), "weight"),
    **_entries(("_nested_compute_contiguous_strides_offsets",), "nested_size"),
    **_entries(("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"), "input"),
    **_entries(("histogramdd",), "bins"),
    **_entries(("device_put",), "a", library="prims"),
    **_entries(("inductor_force_stride_order",), "input", library="prims"),
}
#: Ops that give a view where strides, dtype or device allow one, and a copy elsewhere; their schemas say a view.
MAY_COPY = frozenset(
    {
        *(f"aten.{n}" for n in ("reshape", "reshape_as", "flatten", "ravel", "contiguous", "to", "cpu")),
        *(f"aten.{n}" for n in ("resolve_conj", "resolve_neg", "coalesce", "lift", "lift_fresh", "set")),
        *("aten._autocast_to_full_precision", "aten._autocast_to_reduced_precision", "aten._sparse_broadcast_to"),
        "prims.conj",
    }
)
#: Arguments that are written, though the schema does not mark them.
WRITES: dict[str, tuple[str, ...]] = {
    **_entries(("native_batch_norm", "batch_norm", "_batch_norm_impl_index"), "running_mean", "running_var"),
    **_entries(("instance_norm", "cudnn_batch_norm", "miopen_batch_norm"), "running_mean", "running_var"),
    **_entries(("batch_norm_update_stats",), "running_mean", "running_var"),
    **_entries(("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts"), "running_mean", "running_var"),
    **_entries(("_copy_from", "_copy_from_and_resize"), "dst"),
    **_entries(("_cudnn_rnn_flatten_weight",), "weight_arr"),
    "fsdp.all_gather_copy_in": ("all_gather_output",),
    "inductor.resize_storage_bytes_": ("variable",),
    "inductor.accumulate_grad_": ("variable", "variable_grad"),
}
#: Ops that draw random numbers, or reserve some, and have no tag that says so.
RANDOM = frozenset(
    {
        *("prims.inductor_randint", "prims.inductor_random", "inductor_prims.inductor_reserve_rng_state"),
        *("aten.quantized_gru", "aten.quantized_lstm"),  # in training, if they drop anything
    }
)
#: Ops after which one argument is in the storage of another.
JOINS: dict[str, tuple[str, str]] = {
    "aten.set_": ("self", "source"),
    "aten.shallow_copy_data_": ("self", "source"),
    "aten.set_data": ("self", "new_data"),
    "inductor.accumulate_grad_": ("variable", "new_grad"),
}
#: Ops whose values depend on where elements lie in memory, or on what lies around them.
STORAGE = frozenset(
    {
        *(f"aten.{name}" for name in ("as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter", "set_")),
        *(f"aten.{name}" for name in ("resize", "resize_", "resize_as", "resize_as_", "set", "set_data")),
        "aten.shallow_copy_data_",
        *(f"aten.{name}" for name in ("_resize_output", "_resize_output_", "_reshape_alias", "_reshape_alias_copy")),
        *(f"aten.{name}" for name in ("sym_stride", "stride", "sym_storage_offset", "storage_offset")),
        *(f"aten.{name}" for name in ("is_contiguous", "is_non_overlapping_and_dense", "_debug_has_internal_overlap")),
        *("prims.as_strided", "prims.as_strided_scatter", "prims.resize"),
        *("inductor.resize_storage_bytes_", "inductor._reinterpret_tensor", "inductor._alloc_from_pool"),
    }
)
#: Ops whose values depend on the strides of their operands, though none of them says so: they are written for one
#: layout and do not ask for it.
STRIDES = frozenset(
    f"aten.{name}"
    for name in (
        *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"),
        *("adaptive_max_pool3d_backward", "_masked_softmax", "_linalg_det", "_linalg_slogdet"),
        *(*(f"_fused_{name}_" for name in ("adam", "adamw", "sgd", "adagrad")), "put", "put_", "slice_inverse"),
        *("choose_qparams_optimized", "sym_is_contiguous", "rrelu_with_noise", "rrelu_with_noise_"),
    )
)
#: Ops that ask for sizes, strides and places, never for elements.
SIZES = frozenset(
    f"aten.{name}"
    for name in (
        *("sym_size", "sym_numel", "sym_stride", "sym_storage_offset", "size", "numel", "stride", "storage_offset"),
        *("dim", "is_contiguous", "is_same_size", "is_non_overlapping_and_dense", "sym_is_contiguous"),
        "_assert_tensor_metadata",
    )
)
#: Ops that ask for dtypes alone.
DTYPES = frozenset(f"aten.{name}" for name in ("is_complex", "is_floating_point", "is_signed", "result_type"))
#: Ops that only allocate: what the result holds is undefined until it is written.
ALLOCATIONS = frozenset(
    {
        *(f"aten.{name}" for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "empty_quantized")),
        *(f"aten.{name}" for name in ("new_empty", "new_empty_strided", "_empty_affine_quantized")),
        *("prims.empty", "prims.empty_strided", "prims.empty_permuted"),
    }
)
