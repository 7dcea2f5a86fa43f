"""Matrix products, attention and convolutions: ops with a FLOP formula, and what is expensive besides."""

from __future__ import annotations

_ATTENTION = (
    *(
        f"aten._scaled_dot_product_{name}attention{suffix}"
        for name in ("flash_", "efficient_", "cudnn_", "fused_", "math_")
        for suffix in ("", "_backward", "_for_cpu", "_for_cpu_backward")
    ),
    "aten._scaled_dot_product_fused_attention_overrideable",
    "aten._scaled_dot_product_fused_attention_overrideable_backward",
    *(f"aten._{name}_attention_{way}" for name in ("flash", "efficient") for way in ("forward", "backward")),
    *("higher_order.flex_attention", "higher_order.flex_attention_backward", "aten.scaled_dot_product_attention"),
)
#: An all-gather and the products of its result, products and the reduce-scatter of theirs.
GATHER_MATMUL, MATMUL_SCATTER = "symm_mem.fused_all_gather_matmul", "symm_mem.fused_matmul_reduce_scatter"
#: What stands around those where they are written out.
AROUND_FUSED = frozenset({"aten.reshape", "aten.slice", "aten.cat", "_c10d_functional.wait_tensor"})
#: Ops with a FLOP formula: the matmul family, attention, convolution, grouped matmul.
COMPUTE = frozenset(
    {
        *(f"aten.{n}" for n in ("mm", "addmm", "bmm", "baddbmm", "mv", "dot", "addmv", "linear", "matmul", "einsum")),
        *(f"aten.{n}" for n in ("_scaled_mm", "_grouped_mm", "_scaled_grouped_mm", "_int_mm")),
        *(f"aten.{n}" for n in ("convolution", "_convolution", "cudnn_convolution", "convolution_overrideable")),
        *(f"aten.{n}" for n in ("convolution_backward", "_slow_conv2d_forward")),
        *_ATTENTION,
        *(GATHER_MATMUL, MATMUL_SCATTER),
    }
)
#: Products that something is added to, by what they are without it.
WITH_ADDITION = {"aten.addmm": "aten.mm", "aten.baddbmm": "aten.bmm"}
#: Products whose results lie in order, however their operands do.
DENSE = frozenset({*WITH_ADDITION, *WITH_ADDITION.values()})
#: Products with a bias as their first operand.
BIASED = frozenset({*WITH_ADDITION, "aten.addmv"})
#: Products of groups of rows, whose ends ``offs`` says.
GROUPED = frozenset({"aten._grouped_mm", "aten._scaled_grouped_mm"})
#: What attention is made of where it is written out.
SCORES = frozenset({"aten.bmm", "aten.baddbmm", "aten.matmul", "aten._softmax", "aten.softmax"})
#: Ops whose results are kept for the backward pass where others are computed again.
KEPT = frozenset(
    {
        *("aten.mm", "aten._grouped_mm", "aten._scaled_dot_product_cudnn_attention", "aten.bmm", "aten.topk"),
        *("aten.sort", "aten.histc", "aten._local_scalar_dense", "aten.sym_size", "aten.sym_numel"),
        "_c10d_functional.all_to_all_single",
    }
)
