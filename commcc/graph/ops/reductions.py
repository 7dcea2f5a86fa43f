"""Ops that work along dimensions: what they sum up, sort, or normalise."""

from __future__ import annotations

#: One number for many, over dimensions.
REDUCING = frozenset(
    f"aten.{n}"
    for n in (
        *("sum", "mean", "amax", "amin", "prod", "var", "std", "var_mean", "linalg_vector_norm", "all", "any"),
        *("argmax", "argmin", "logsumexp", "max", "min", "norm", "count_nonzero"),
    )
)
#: Elements in another order along a dimension.
SORTING = frozenset({"aten.sort", "aten.argsort", "aten.flip", "aten.roll"})
#: As many numbers as before, each from all those along one dimension.
ALONG = SORTING | {
    f"aten.{n}"
    for n in (
        *("_softmax", "_log_softmax", "softmax", "cumsum", "cumprod", "topk"),
        *("_softmax_backward_data", "_log_softmax_backward_data", "logcumsumexp", "cummax", "cummin"),
    )
}
#: Parts of names of ops that normalise over features.
NORMS = ("layer_norm", "rms_norm", "group_norm")
