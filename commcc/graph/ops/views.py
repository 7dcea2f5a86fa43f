"""Ops that only look at their operand in another way, move its elements, or change their dtype.

"aten.view" in RESHAPES
"aten.slice" in TAKING            # only a part of the operand is in the result
"""

from __future__ import annotations

from enum import Enum, auto

#: Another shape for all elements in their order.
RESHAPES = frozenset({"aten.view", "aten.reshape", "aten._unsafe_view"})
EXPAND = "aten.expand"
#: Views, by overload, that PyTorch refuses of what is conjugated or negated only when it is read.
BITWISE = frozenset({"aten.view_as_real.default", "aten.view.dtype", "aten.view_as_complex.default"})
CASTS = frozenset({"aten._to_copy", "prims.convert_element_type"})
#: Parts of the operand.
SPLITS = frozenset({"aten.split_with_sizes", "aten.split"})
TAKING = SPLITS | {f"aten.{name}" for name in ("slice", "select", "narrow", "chunk", "unbind", "slice_backward")}
#: Several operands in one result.
GATHERING = frozenset({"aten.cat", "aten.stack"})
#: Dimensions and elements in other places, or a gradient of that; values as they are.
LAYOUT = (
    (TAKING | GATHERING | CASTS)
    | {f"aten.{name}" for name in ("t", "transpose", "permute", "unsqueeze", "squeeze", "expand")}
    | {f"aten.{name}" for name in ("detach", "alias", "clone", "contiguous", "view_as_complex", "view_as_real")}
    | {f"aten.{name}" for name in ("_conj", "conj", "resolve_conj", "_conj_physical", "select_backward")}
    | {"aten.lift_fresh_copy", "aten.squeeze_copy", "_c10d_functional.wait_tensor"}
)
#: Ops that hand on numbers of their operands, whatever they do to its shape.
PASSING = (
    RESHAPES
    | (LAYOUT - {"_c10d_functional.wait_tensor", "aten._conj_physical", "aten._conj", "aten.conj"})
    | {f"aten.{name}" for name in ("flatten", "unflatten", "to", "repeat", "as_strided", "flip", "pin_memory")}
    | {"operator.getitem", "prims.device_put", "prims.view_of"}
)
#: Ops of one tensor that leave its elements in their (row-major) order, whatever they do to each.
IN_ORDER = RESHAPES | CASTS | {f"aten.{name}" for name in ("clone", "contiguous", "mul", "div", "neg")}
#: What keeps a gradient from its operand; graphs of AOTAutograd, which have no gradients to come, have it as a view.
DETACH = "aten.detach"
#: Views that may show all of their argument as it is.
SHOWING = RESHAPES | {f"aten.{name}" for name in ("detach", "alias", "slice", "squeeze", "permute", "t")}


class Regrouping(Enum):
    """How an op of which every element of the result is an element of an operand, or one converted, finds it."""

    VIEW = auto()
    RESHAPE = auto()
    FLATTEN = auto()
    UNSQUEEZE = auto()
    SQUEEZE = auto()
    SQUEEZE_DIM = auto()
    SQUEEZE_DIMS = auto()
    ALIAS = auto()
    CONTIGUOUS = auto()
    CLONE = auto()
    TO_COPY = auto()
    CONVERT = auto()
    VIEW_DTYPE = auto()
    PERMUTE = auto()
    TRANSPOSE = auto()
    SWAP = auto()
    EXPAND = auto()
    SLICE = auto()
    NARROW_OP = auto()
    SELECT = auto()
    SPLIT = auto()
    SPLIT_SIZES = auto()
    SPLIT_WITH_SIZES = auto()
    CHUNK = auto()
    UNBIND = auto()
    CAT = auto()
    STACK = auto()
    GATHER_BUFFER = auto()
    SCATTER_BUFFER = auto()


#: By op and overload.
REGROUPING: dict[str, Regrouping] = {
    "aten.view.default": Regrouping.VIEW,
    "aten._unsafe_view.default": Regrouping.VIEW,
    "aten.reshape.default": Regrouping.RESHAPE,
    "aten.flatten.using_ints": Regrouping.FLATTEN,
    "aten.unsqueeze.default": Regrouping.UNSQUEEZE,
    "aten.squeeze.default": Regrouping.SQUEEZE,
    "aten.squeeze.dim": Regrouping.SQUEEZE_DIM,
    "aten.squeeze.dims": Regrouping.SQUEEZE_DIMS,
    "aten.alias.default": Regrouping.ALIAS,
    "aten.detach.default": Regrouping.ALIAS,
    "aten.lift.default": Regrouping.ALIAS,
    "_c10d_functional._wrap_tensor_autograd.default": Regrouping.ALIAS,
    "aten.contiguous.default": Regrouping.CONTIGUOUS,
    "aten.clone.default": Regrouping.CLONE,
    "aten._to_copy.default": Regrouping.TO_COPY,
    "prims.convert_element_type.default": Regrouping.CONVERT,
    "aten.view.dtype": Regrouping.VIEW_DTYPE,
    "aten.permute.default": Regrouping.PERMUTE,
    "aten.transpose.int": Regrouping.TRANSPOSE,
    "aten.t.default": Regrouping.SWAP,
    "aten.expand.default": Regrouping.EXPAND,
    "aten.slice.Tensor": Regrouping.SLICE,
    "aten.narrow.default": Regrouping.NARROW_OP,
    "aten.select.int": Regrouping.SELECT,
    "aten.split.Tensor": Regrouping.SPLIT,
    "aten.split.sizes": Regrouping.SPLIT_SIZES,
    "aten.split_with_sizes.default": Regrouping.SPLIT_WITH_SIZES,
    "aten.unsafe_split.Tensor": Regrouping.SPLIT,
    "aten.unsafe_split_with_sizes.default": Regrouping.SPLIT_WITH_SIZES,
    "aten.unsafe_chunk.default": Regrouping.CHUNK,
    "aten.chunk.default": Regrouping.CHUNK,
    "aten.unbind.int": Regrouping.UNBIND,
    "aten.cat.default": Regrouping.CAT,
    "aten.stack.default": Regrouping.STACK,
    "bucketing._pre_bucket_all_gather.default": Regrouping.GATHER_BUFFER,
    "bucketing._pre_bucket_reduce_scatter.default": Regrouping.SCATTER_BUFFER,
}
#: Of these, views that PyTorch gives of every tensor, however it lies in memory.
BY_INDEX = frozenset(
    path
    for path, how in REGROUPING.items()
    if how
    in {
        *(Regrouping.ALIAS, Regrouping.PERMUTE, Regrouping.TRANSPOSE, Regrouping.SWAP, Regrouping.EXPAND),
        *(Regrouping.SLICE, Regrouping.NARROW_OP, Regrouping.SELECT, Regrouping.UNBIND, Regrouping.CHUNK),
        *(Regrouping.SPLIT, Regrouping.SPLIT_SIZES, Regrouping.SPLIT_WITH_SIZES, Regrouping.UNSQUEEZE),
        *(Regrouping.SQUEEZE, Regrouping.SQUEEZE_DIM, Regrouping.SQUEEZE_DIMS),
    }
) - {"aten.lift.default"}
