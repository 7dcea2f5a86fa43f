"""What runs in place of ops that have no kernel on the CPU, none in float64, or a slow one in Python.

    aten._scaled_dot_product_flash_attention(q, k, v)     ->   matmul, mask, softmax, matmul
    aten._grouped_mm(rows, weights, ends)                 ->   one matmul for each group

They compute the same function with other roundings; both graphs of a comparison get the same one.
Formulas: attention is softmax(scale * q k^T + mask) v with log-sum-exp L over each row; backward, with
P = exp(scale * q k^T - L): dv = P^T do, dS = P * (do v^T - rowsum(do * o)), dq = scale * dS k, dk = scale * dS^T q
(Dao, FlashAttention-2, 2023, section 2.3).

Limits: no dropout, no nested tensors; random states that attention returns are zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from commcc.graph.ops import argument_names, op_name

if TYPE_CHECKING:
    from collections.abc import Callable

Tensor = torch.Tensor

_PREFIX = "aten._scaled_dot_product_"
#: Forward ops, by whether they return sequence lengths and maximal lengths.
_FORWARD = {
    f"{_PREFIX}flash_attention": True,
    f"{_PREFIX}cudnn_attention": True,
    f"{_PREFIX}efficient_attention": False,
}
_BACKWARD = {f"{name}_backward": name for name in _FORWARD}


def stand_in(target: Any, *, wide: bool) -> Callable[..., Any] | None:
    """What to call in place of an op; None for the op itself. wide: floating point is float64."""
    name = op_name(target)
    if name in _FORWARD:
        return lambda *args, **kwargs: _attention(_bound(target, args, kwargs), lengths=_FORWARD[name])
    if name in _BACKWARD:
        return lambda *args, **kwargs: _attention_backward(_bound(target, args, kwargs))
    if name == "aten._grouped_mm" and wide:
        return lambda *args, **kwargs: grouped_product(_bound(target, args, kwargs))
    return None


def converted(a: Tensor, dtype: torch.dtype) -> Tensor:
    """``prims.convert_element_type``, which runs in Python and takes a host ten times as long as its two ops do."""
    return torch.empty_like(a, dtype=dtype).copy_(a)


def _bound(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    defaults = {a.name: a.default_value for a in target._schema.arguments if a.has_default_value()}
    return {**defaults, **dict(zip(argument_names(target), args, strict=False)), **kwargs}


def grouped_product(a: dict[str, Any]) -> Tensor:
    """``_grouped_mm``: of rows and a stack of matrices, of a stack and columns, or of two matrices along their sum."""
    one, other, ends = a["self"], a["mat2"], a["offs"]
    if ends is None:
        plain: Tensor = torch.bmm(one, other)
        return plain
    stops = ends.tolist()
    spans = list(zip([0, *stops[:-1]], stops, strict=True))
    if one.dim() == 2 and other.dim() == 3:
        out: Tensor = one.new_zeros(one.shape[0], other.shape[-1])
        for i, (start, stop) in enumerate(spans):
            out[start:stop] = one[start:stop] @ other[i]
        return out
    if one.dim() == 3:
        out = other.new_zeros(one.shape[1], other.shape[-1])
        for i, (start, stop) in enumerate(spans):
            out[:, start:stop] = one[i] @ other[:, start:stop]
        return out
    return torch.stack([one[:, start:stop] @ other[start:stop] for start, stop in spans])


def _attention(a: dict[str, Any], *, lengths: bool) -> tuple[Any, ...]:
    if a["dropout_p"]:
        raise NotImplementedError("attention with dropout has no stand-in on the CPU")
    query, key, value = a["query"], a["key"], a["value"]
    scores = _scores(a, query, key)
    log_sums = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - log_sums.unsqueeze(-1))
    out = (weights @ _spread(value, query).to(weights.dtype)).to(query.dtype)
    # The CUDA kernels lay their result out as (batch, length, heads, size).
    out = out.transpose(1, 2).contiguous().transpose(1, 2)
    state, nothing = torch.zeros(2, dtype=torch.int64), query.new_empty(0)
    if lengths:
        return out, log_sums, None, None, query.shape[2], key.shape[2], state, state.new_zeros(()), nothing
    return out, log_sums, state.new_zeros(()), state.new_zeros(())


def _attention_backward(a: dict[str, Any]) -> tuple[Any, ...]:
    if a["dropout_p"]:
        raise NotImplementedError("attention with dropout has no stand-in on the CPU")
    query, key, value = a["query"], a["key"], a["value"]
    given: Tensor = a["grad_out"] if "grad_out" in a else a["grad_out_"]
    scores = _scores(a, query, key)
    wide = scores.dtype
    # cuDNN's log-sum-exp has one dimension more, the memory-efficient kernel's is padded to a multiple of 32.
    sums = a["logsumexp"].reshape(*scores.shape[:2], -1)[..., : scores.shape[2], None]
    weights = torch.exp(scores - sums.to(wide))
    grad, out = given.to(wide), a["out"].to(wide)
    by_weight = grad @ _spread(value, query).to(wide).transpose(-1, -2)
    by_score = weights * (by_weight - (grad * out).sum(-1, keepdim=True)) * _scale(a, query)
    results = (
        by_score @ _spread(key, query).to(wide),
        _gathered(by_score.transpose(-1, -2) @ query.to(wide), key),
        _gathered(weights.transpose(-1, -2) @ grad, value),
    )
    grads = [r.to(like.dtype) for r, like in zip(results, (query, key, value), strict=True)]
    laid_out = tuple(r.transpose(1, 2).contiguous().transpose(1, 2) for r in grads)
    return (*laid_out, None) if "grad_input_mask" in a else laid_out


def _scores(a: dict[str, Any], query: Tensor, key: Tensor) -> Tensor:
    """Scaled and masked products of queries and keys, in float32 at least."""
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(wide) @ _spread(key, query).to(wide).transpose(-1, -2) * _scale(a, query)
    bias = a.get("attn_bias")
    if bias is not None and bias.numel():
        scores = scores + bias
    if a["is_causal"]:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(ahead, float("-inf"))
    return scores


def _scale(a: dict[str, Any], query: Tensor) -> float:
    return float(query.shape[-1] ** -0.5 if a["scale"] is None else a["scale"])


def _spread(tensor: Tensor, query: Tensor) -> Tensor:
    """Keys or values, each head repeated for the queries that share it."""
    times = query.shape[1] // tensor.shape[1]
    return tensor if times == 1 else tensor.repeat_interleave(times, 1)


def _gathered(grad: Tensor, like: Tensor) -> Tensor:
    """A gradient of repeated heads, summed over those that are one."""
    times = grad.shape[1] // like.shape[1]
    return grad if times == 1 else grad.reshape(grad.shape[0], -1, times, *grad.shape[2:]).sum(2)
