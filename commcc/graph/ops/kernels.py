"""What an op costs to run, as far as the op alone tells: nothing, one kernel, or part of a fused one.

    work_of(torch.ops.aten.view.default)        # Work.FREE
    work_of(torch.ops.aten.mul.Tensor)          # Work.FUSABLE
    work_of(torch.ops.aten.mm.default)          # Work.KERNEL

The part of the op table (:mod:`commcc.graph.ops`) that only cost models read. Limits: a reshape counts as
free here; whether it copies depends on strides (:mod:`commcc.graph.index.estimates`).
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from commcc.graph import ops
from commcc.graph.ops.undeclared import MAY_COPY

if TYPE_CHECKING:
    from torch import fx


class Work(Enum):
    """How an op runs.

    FREE: no device work (views, sizes, empty allocations). FUSABLE: a compiler would put it into one
    kernel with its neighbours (pointwise ops, casts, reductions, constants). KERNEL: a kernel of its own.
    """

    FREE = "free"
    FUSABLE = "fusable"
    KERNEL = "kernel"


_EMPTY = frozenset(
    {
        *(f"aten.{n}" for n in ("empty", "empty_like", "empty_strided", "empty_permuted")),
        *(f"aten.{n}" for n in ("new_empty", "new_empty_strided", "detach", "alias", "lift_fresh")),
        *("inductor.resize_storage_bytes_", "aten.sym_size", "aten.sym_numel", "aten.sym_stride"),
    }
)
#: Fused by compilers, though no tag of the op says so: casts, constants, and reductions of softmax and norms.
_FUSABLE = frozenset(
    {
        *(f"aten.{n}" for n in ("_to_copy", "full", "full_like", "zeros", "zeros_like", "ones", "ones_like")),
        *(f"aten.{n}" for n in ("new_zeros", "new_ones", "new_full", "scalar_tensor", "arange", "fill", "copy")),
        *(f"aten.{n}" for n in ("_softmax", "_log_softmax", "_softmax_backward_data", "native_layer_norm")),
        *(f"aten.{n}" for n in ("_log_softmax_backward_data", "_fused_rms_norm", "_fused_rms_norm_backward")),
        *(f"aten.{n}" for n in ("native_layer_norm_backward", "native_dropout", "native_dropout_backward")),
        *(f"aten.{n}" for n in ("tril", "triu", "constant_pad_nd")),
        *("prims.convert_element_type", "prims.iota", "prims.sum", "prims.amax", "prims.broadcast_in_dim"),
    }
)


#: Those whose copies fuse, as ``aten.clone`` and ``aten._to_copy`` do; the others' turn rows into columns.
FUSING_COPIES = frozenset({"aten.to", "aten.contiguous"})
#: Gives a storage another size.
RESIZE = "inductor.resize_storage_bytes_"
#: How copies of results run: a clone can be fused with what reads it.
COPIES = {"aten.clone": Work.FUSABLE, "aten.reshape": Work.KERNEL}


@lru_cache(maxsize=4096)
def work_of(target: Any) -> Work:
    """How the op runs, by its tags and schema; ops of unknown libraries are kernels."""
    name = ops.op_name(target)
    if name in _EMPTY or ops.is_wait(target) or ops.is_getitem(target):
        return Work.FREE
    fact = ops.facts(target)
    if ops.is_compute(target) or fact.writing:
        return Work.KERNEL
    if fact.views and not fact.sometimes:
        return Work.FREE
    tags = target.tags if isinstance(target, OpOverload) else ()
    if name in _FUSABLE or torch.Tag.pointwise in tags or torch.Tag.reduction in tags:
        return Work.FUSABLE
    return Work.KERNEL


@lru_cache(maxsize=4096)
def may_copy(target: Any) -> bool:
    """Whether the op returns a view where it can, and a copy where strides, dtype or device do not allow one."""
    return ops.op_name(target) in MAY_COPY or ops.facts(target).sometimes


def resized_to(node: fx.Node) -> Any:
    """The new size in bytes that a storage gets by this node; None for all other nodes."""
    if ops.op_name(node.target) != RESIZE:
        return None
    return ops.argument(node, "new_size", node.args[1] if len(node.args) > 1 else None)
