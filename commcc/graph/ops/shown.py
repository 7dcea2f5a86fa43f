"""Where the rows of a tensor lie in a view of it, read off the strides that PyTorch gives the view.

    shown(view_as_complex, 0)       # f32[60, 8, 2] -> c64[60, 8]: Shown(0), row i of the view is in row i of the tensor
    shown(movedim, 0)               # (x, 0, 2): f32[60, 8, 2] -> f32[8, 2, 60]: Shown(2)

Rows are laid out one after another in memory that nothing occupies. If a view of twice as many rows is twice as long
in one dimension, that dimension steps from row to row, and all else stays within a row, then every row of the view
shows that row of the tensor, however many there are. Limits: views by schema of one tensor, of ATen and prims.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from commcc.graph.ops.names import library_of
from commcc.graph.ops.table import aliasing

if TYPE_CHECKING:
    from torch import fx

#: Rows that the shorter of both views shows where their number is a symbol.
_ROWS = 34


class Shown(NamedTuple):
    """dim: of the rows in the view. adds_up: whether the view of a sum is the sum of the views."""

    dim: int
    adds_up: bool


def shown(node: fx.Node, dim: int) -> Shown | None:
    """Where the rows along ``dim`` of its operand are in what ``node`` shows; None where the op is no such view."""
    target: Any = node.target
    operands = node.all_input_nodes
    if not isinstance(target, torch._ops.OpOverload) or library_of(target) not in ("aten", "prims"):
        return None
    schema, aliases = target._schema, aliasing(target)
    tensors = [argument for argument in schema.arguments if "Tensor" in str(argument.type)]
    if len(tensors) != 1 or len(operands) != 1 or list(aliases.views) != [tensors[0].name] or not aliases.pure:
        return None
    if len(schema.returns) != 1:
        return None
    val = operands[0].meta.get("val")
    if not isinstance(val, torch.Tensor) or not 0 <= dim < val.dim():
        return None
    sizes = [size if type(size) is int else None for size in val.shape]
    sizes[dim] = _ROWS if sizes[dim] is None else sizes[dim]
    if None in sizes or not all(sizes):
        return None
    try:
        return _placed(node, val.dtype, [int(size or 0) for size in sizes], dim)
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
        return None  # the op takes no such tensor


def _placed(node: fx.Node, dtype: torch.dtype, sizes: list[int], dim: int) -> Shown | None:
    within = prod(size for at, size in enumerate(sizes) if at != dim)
    strides, step = [0] * len(sizes), 1
    for at in reversed(range(len(sizes))):
        strides[at], step = (within, step) if at == dim else (step, step * sizes[at])

    def view(factor: int) -> Any:
        longer = [size * factor if at == dim else size for at, size in enumerate(sizes)]
        tensor = torch.empty_strided(longer, strides, dtype=dtype, device="meta")
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda _: tensor)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    once, twice = view(1), view(2)
    if not all(isinstance(result, torch.Tensor) and result.dim() == once.dim() for result in (once, twice)):
        return None
    if (once.stride(), once.storage_offset(), once.dtype) != (twice.stride(), twice.storage_offset(), twice.dtype):
        return None
    longer = [at for at, (a, b) in enumerate(zip(once.shape, twice.shape, strict=True)) if a != b]
    if len(longer) != 1 or (once.shape[longer[0]], twice.shape[longer[0]]) != (sizes[dim], sizes[dim] * 2):
        return None
    at, row = longer[0], within * dtype.itemsize
    rest = sum((size - 1) * once.stride(d) for d, size in enumerate(once.shape) if d != at)
    ends = (once.storage_offset() + rest + 1) * once.dtype.itemsize
    if once.stride(at) * once.dtype.itemsize != row or ends > row:
        return None
    # Of a complex number its two parts, or the number of those.
    parts = [(whole.to_real(), half) for whole, half in ((dtype, once.dtype), (once.dtype, dtype)) if whole.is_complex]
    return Shown(at, once.dtype == dtype or any(real == half for real, half in parts))
