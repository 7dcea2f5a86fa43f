"""Ops that take the caller's word for which memory they read or write: sizes that fit, indices within them.

Each was seen to end the process, or to read or write out of bounds, when it was given tensors that do not belong
together, or is known to take strides and offsets as they come. A graph of a file may hold any of that, so replay runs
one of them only behind a check (:mod:`commcc.graph.ops.guards`).
"""

from __future__ import annotations

_VIEWS = ("_reshape_alias", "_reshape_alias_copy", "_nested_view_from_buffer", "_nested_view_from_buffer_copy")
_SPARSE = (
    *(f"_sparse_{kind}_tensor_unsafe" for kind in ("coo", "csr", "csc", "bsr", "bsc", "compressed")),
    *("_convert_indices_from_coo_to_csr", "_convert_indices_from_csr_to_coo", "_padded_dense_to_jagged_forward"),
    *("_jagged_to_padded_dense_forward", "_nested_compute_contiguous_strides_offsets", "_pad_packed_sequence"),
)
_NORMALISING = (
    *("native_batch_norm", "native_batch_norm_backward", "batch_norm_backward", "_batch_norm_impl_index_backward"),
    *("_native_batch_norm_legit", "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training"),
    *("_batch_norm_with_update", "_batch_norm_with_update_functional", "_batch_norm_no_update"),
    *("_weight_norm", "_weight_norm_interface", "_weight_norm_interface_backward"),
)
_POOLING = (
    *("_adaptive_avg_pool2d_backward", "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward"),
    *("fractional_max_pool2d_backward", "fractional_max_pool3d_backward", "max_pool2d_with_indices_backward"),
    *("max_pool3d_with_indices_backward", "reflection_pad1d_backward", "replication_pad1d_backward"),
)
_EMBEDDING = (
    *("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only", "_embedding_bag_backward"),
    *("_embedding_bag_dense_backward", "_embedding_bag_sparse_backward", "_embedding_bag_per_sample_weights_backward"),
)
_GRADIENTS = (
    *("_log_softmax_backward_data", "_softmax_backward_data", "_masked_softmax_backward", "_cdist_backward"),
    *("_pdist_backward", "_segment_reduce_backward", "segment_reduce", "binary_cross_entropy_backward"),
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"),
    *("_convolution_double_backward", "unfold_backward", "_thnn_differentiable_gru_cell_backward"),
    "_thnn_differentiable_lstm_cell_backward",
)
_INNER = (
    *("_cholesky_solve_helper", "_compute_linear_combination", "_cummax_helper", "_cummin_helper", "_logcumsumexp"),
    *("_fft_c2c", "_fft_c2r", "_fft_r2c", "_new_zeros_with_same_feature_meta", "_nnpack_spatial_convolution"),
    *("_add_batch_dim", "_stack", "_dyn_quant_matmul_4bit", "_transform_bias_rescale_qkv", "smooth_l1_loss_backward"),
    *("_chunk_cat", "_foreach_copy", "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"),
    *(f"quantized_{kind}_cell" for kind in ("lstm", "gru", "rnn_relu", "rnn_tanh")),
    *(f"_sobol_engine_{step}" for step in ("draw", "ff_", "scramble_", "initialize_state_")),
    *(f"_fused_{name}{place}" for name in ("adam", "adamw", "sgd", "adagrad") for place in ("", "_")),
)
UNCHECKED = frozenset(
    {
        *(f"aten.{name}" for name in (*_VIEWS, *_SPARSE, *_NORMALISING, *_POOLING, *_EMBEDDING, *_GRADIENTS, *_INNER)),
        *("inductor._reinterpret_tensor", "inductor._alloc_from_pool", "fsdp.chunk_cat"),
    }
)
