"""Inputs for a graph that nobody knows anything about, and a bitwise comparison of what it gives back.

Values are small and finite, integers stay inside what their consumers index, and all depends on the
rank and the seed only. Limits: symbolic inputs must be given (run the forward that makes them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from commcc.graph.ops import op_name

if TYPE_CHECKING:
    from torch import fx

#: Consumers that use an integer tensor as an index: argument positions of the table and of the index,
#: and the dimension indexed (None: given by argument 1).
_INDEXING = {
    "aten.embedding": (0, 1, 0),
    "aten.gather": (0, 2, None),
    "aten.index_select": (0, 2, None),
    "aten.nll_loss_forward": (0, 1, 1),
    "aten.nll_loss_backward": (1, 2, 1),
}
_PASSING = ("aten.where", "aten.view", "aten.unsqueeze", "aten.reshape", "aten._to_copy", "aten.clone", "aten.alias")


def index_bound(placeholder: fx.Node) -> int:
    """Exclusive upper bound for the values of an integer input: the smallest extent it indexes, at least 1."""
    bounds, seen, stack = [], set(), [placeholder]
    while stack:
        node = stack.pop()
        for user in node.users:
            name = op_name(user.target)
            if name in _INDEXING:
                bounds.extend(_extent(user, node, *_INDEXING[name]))
            if name in _PASSING and user not in seen:
                seen.add(user)
                stack.append(user)
    return min(bounds, default=1)


def _extent(user: fx.Node, node: fx.Node, table: int, index: int, dim: int | None) -> list[int]:
    if user.args[index] is not node:
        return []
    shape = user.args[table].meta["val"].shape
    return [int(shape[user.args[1] if dim is None else dim])]


def make_input(placeholder: fx.Node, generator: torch.Generator) -> Any:
    """A value for one placeholder, on the CPU."""
    val = placeholder.meta.get("val")
    if val is None or isinstance(val, (int, float, bool)):
        return val
    if not isinstance(val, torch.Tensor):
        raise TypeError(f"{placeholder.name} is symbolic; give the forward graph that makes it")
    shape = tuple(int(size) for size in val.shape)
    if val.dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if val.dtype.is_complex:
        angle = torch.rand(shape, generator=generator) * 6.28
        return torch.polar(torch.ones(shape), angle).to(val.dtype)
    if not val.dtype.is_floating_point:
        return torch.randint(0, index_bound(placeholder), shape, generator=generator).to(val.dtype)
    noise = torch.randn(shape, generator=generator) * 0.1
    if placeholder.name.startswith("tangents") or len(shape) == 1:
        noise = noise + 1.0  # a norm's weight, or the gradient of the loss
    return _laid_out(noise.to(val.dtype), val)


def _laid_out(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``value`` with the strides of ``like``."""
    if 0 in like.stride():
        return value
    out = torch.empty_strided(value.shape, like.stride(), dtype=value.dtype)
    return out.copy_(value)


def make_inputs(graph: fx.Graph, known: dict[str, Any], seed: int) -> list[Any]:
    """Values for all placeholders in order; those named in ``known`` are taken from there."""
    out = []
    for position, node in enumerate(graph.find_nodes(op="placeholder")):
        generator = torch.Generator().manual_seed(seed * 10_007 + position)
        out.append(known[node.name] if node.name in known else make_input(node, generator))
    return out


def copied(values: list[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]


def first_difference(before: Any, after: Any, where: str) -> str | None:
    """None when both are the same to the bit, else where they first differ and how."""
    if isinstance(before, (list, tuple)):
        if not isinstance(after, (list, tuple)) or len(before) != len(after):
            return f"{where}: {len(before)} values against {after!r:.60}"
        found = (first_difference(*pair, f"{where}[{i}]") for i, pair in enumerate(zip(before, after, strict=True)))
        return next((text for text in found if text is not None), None)
    if not isinstance(before, torch.Tensor):
        return None if type(before) is type(after) and before == after else f"{where}: {before!r} against {after!r}"
    if not isinstance(after, torch.Tensor) or (before.shape, before.dtype) != (after.shape, after.dtype):
        return f"{where}: {_kind(before)} against {_kind(after)}"
    same = torch.equal(_bits(before), _bits(after))
    return None if same else f"{where}: {_kind(before)} differs by {_gap(before, after)}"


def largest_difference(before: Any, after: Any) -> float:
    """Of any two tensors' numbers, relative to the largest of the first one's."""
    if isinstance(before, (list, tuple)):
        return max((largest_difference(*pair) for pair in zip(before, after, strict=True)), default=0.0)
    if not isinstance(before, torch.Tensor) or not before.numel():
        return 0.0
    wide = torch.complex128 if before.dtype.is_complex else torch.float64
    return float((before.to(wide) - after.to(wide)).abs().max() / before.to(wide).abs().max().clamp(min=1e-30))


def has_nan(values: Any) -> bool:
    """Whether there is a NaN in it; infinities are the masks of attention."""
    if isinstance(values, (list, tuple)):
        return any(has_nan(value) for value in values)
    return isinstance(values, torch.Tensor) and bool(torch.isnan(values).any())


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)


def _kind(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)[:60]


def _gap(before: torch.Tensor, after: torch.Tensor) -> float:
    wide = torch.complex128 if before.dtype.is_complex else torch.float64
    return float((before.to(wide) - after.to(wide)).abs().max())
