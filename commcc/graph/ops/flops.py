"""How many FLOPs ops of the matmul family take, on plain shapes; those of PyTorch's own formulas aside.

    own_formula(torch.ops.aten._grouped_mm.default)((shapes of the arguments), shape of the result)

PyTorch's formulas are those of ``torch.utils.flop_counter``. As there, attention counts every query against every
key, also under a causal mask.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch

from commcc.graph.ops.names import argument, argument_names, op_name
from commcc.graph.ops.products import GATHER_MATMUL, MATMUL_SCATTER

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx


def own_formula(target: Any) -> Callable[[Any, Any], int] | None:
    """FLOPs from the shapes of arguments and result; None for an op that PyTorch has a formula for, or none at all."""
    return _OWN.get(op_name(target))


def is_unmasked(node: fx.Node) -> bool:
    """Whether an attention op says that every query sees every key; one that does not say may have a causal mask."""
    known = argument_names(node.target)
    if "is_causal" in known:
        return argument(node, "is_causal", False) is False
    return "custom_mask_type" in known and argument(node, "custom_mask_type", None) == 0


def formulas() -> Any:
    """PyTorch's module of FLOP formulas; untyped, and slow to import."""
    from torch.utils import flop_counter

    return flop_counter


def _product(args: Any, out: Any) -> int:
    """``[..., M, K] x [..., K, N]``: 2 for each element of the result and each of K."""
    return 2 * int(prod(out)) * int(args[0][-1])


def _by_second(args: Any, out: Any) -> int:
    """The same where the second argument is the one that is summed over: ``linear``, ``addmv``."""
    return 2 * int(prod(out)) * int(args[1][-1])


def _grouped(args: Any, _out: Any) -> int:
    """``[M, K] x [G, K, N]``, ``[M, K] x [K, N]`` cut along K, ``[G, M, K] x [K, N]``: each row meets one group."""
    a, b = args[0], args[1]
    batches = int(a[0]) if len(a) == 3 and len(b) == 3 else 1
    return 2 * batches * int(a[-2]) * int(a[-1]) * int(b[-1])


def _attention(args: Any, _out: Any) -> int:
    query, key, value = args[:3]
    return int(formulas().sdpa_flop_count(query, _per_head(key, query), _per_head(value, query)))


def _attention_backward(args: Any, _out: Any) -> int:
    grad, query, key, value = args[:4]
    keys, values = _per_head(key, query), _per_head(value, query)
    return int(formulas().sdpa_backward_flop_count(grad, query, keys, values))


def _flexible_backward(args: Any, out: Any) -> int:
    """The gradient comes behind the operands there."""
    return _attention_backward((args[5], *args[:3]), out)


def _per_head(shape: Any, query: Any) -> Any:
    """Keys or values that several heads of the query share, once for each: some versions' formulas want that."""
    shared = len(shape) == len(query) == 4 and query[1] % max(1, shape[1]) == 0
    return torch.Size((shape[0], query[1], *shape[2:])) if shared else shape


def _gathered_products(args: Any, out: Any) -> int:
    """The matmuls of a fused op: ``[..., M, K] x [K, N]`` for each right operand."""
    return sum(2 * int(prod(result)) * int(args[0][-1]) for result in out[1])


def _scattered_product(args: Any, _out: Any) -> int:
    return 2 * int(prod(args[0])) * int(args[1][-1])


_OWN: dict[str, Callable[[Any, Any], int]] = {
    "aten.linear": _by_second,
    GATHER_MATMUL: _gathered_products,
    MATMUL_SCATTER: _scattered_product,
    "aten.matmul": _product,
    "aten.mv": _product,
    "aten.dot": _product,
    "aten.addmv": _by_second,
    "aten._int_mm": _product,
    "aten._grouped_mm": _grouped,
    "aten._scaled_grouped_mm": _grouped,
    "aten.scaled_dot_product_attention": _attention,
    "higher_order.flex_attention": _attention,
    "higher_order.flex_attention_backward": _flexible_backward,
    "aten._scaled_dot_product_math_attention": _attention,
    "aten._scaled_dot_product_attention_math": _attention,
    "aten._scaled_dot_product_flash_attention": _attention,
    "aten._scaled_dot_product_flash_attention_backward": _attention_backward,
    "aten._scaled_dot_product_efficient_attention": _attention,
    "aten._scaled_dot_product_efficient_attention_backward": _attention_backward,
    "aten._scaled_dot_product_cudnn_attention": _attention,
    "aten._scaled_dot_product_cudnn_attention_backward": _attention_backward,
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten._scaled_dot_product_fused_attention_overrideable": _attention,
    "aten._scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
}
