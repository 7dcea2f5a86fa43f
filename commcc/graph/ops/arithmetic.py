"""Ops on elements: which are linear, which add numbers up, which want them positive."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ADDITIVE = frozenset({"aten.add", "aten.sub"})
SCALING = frozenset({"aten.mul", "aten.div"})
#: Sums of two tensors, however they are written.
ADDITIONS = frozenset({"aten.add", "aten.add_", "aten._foreach_add"})
#: Sums of a number and something above zero, as moments of an optimizer are.
GROWING = frozenset({"aten.add", "aten.addcmul"})
#: Ops on elements that no tag of PyTorch marks as such.
ELEMENTWISE = frozenset({"aten.fill", "aten.zero", "aten.copy", "aten.floor_divide", "aten.one_hot", "aten.bucketize"})
#: Ops that keep numbers apart from what a mask rules out: the name of the mask.
MASKS = {"aten.where": "condition", "aten.masked_fill": "mask"}
#: Which argument must be above zero.
POSITIVE = {
    **{f"aten.{name}": "self" for name in ("log", "log2", "log10", "sqrt", "rsqrt", "reciprocal")},
    **{f"aten.{name}": "other" for name in ("div", "true_divide", "fmod", "remainder", "floor_divide")},
}
#: Python's arithmetic on sizes, by what it computes.
ON_SIZES = {
    **{f"operator.{name}": name for name in ("add", "sub", "mul", "neg", "floordiv", "mod")},
    "torch.sym_sum": "add",
    "torch.sym_max": "max",
    "torch.sym_min": "min",
}
#: Python's comparisons of sizes, and what joins their answers.
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    f"operator.{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_")
}
#: Ops that add numbers up, so that the order in which they do decides how the result is rounded.
SUMS = frozenset(
    {
        *(f"aten.{n}" for n in ("sum", "mean", "var", "var_mean", "prod", "cumsum", "add", "add_", "_foreach_add")),
        *(f"aten.{n}" for n in ("index_put", "index_put_", "index_add", "index_add_", "scatter_add", "scatter_reduce")),
        *(f"aten.{n}" for n in ("embedding_dense_backward", "_unsafe_masked_index_put_accumulate", "nll_loss_forward")),
        *(f"aten.{n}" for n in ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data")),
        *("torch.sym_sum", "aten.addcmul", "aten.addcdiv", "prims.sum", "prims.fma"),
    }
)
