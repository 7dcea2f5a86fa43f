"""Collectives as traces name and describe them.

    kind_of("_allgather_base"), kind_of("reduce_scatter_tensor_coalesced")   # ALL_GATHER, REDUCE_SCATTER
    of_message({"Collective name": "allreduce", "In msg nelems": 1024, "dtype": "Float", ...})

For NCCL, PyTorch describes each collective in a ``record_param_comms`` op, whose arguments the profiler
copies to the kernel (kineto, ``output_json.cpp``): ``In msg nelems`` counts the elements of this rank's
input, all tensors of a coalesced collective together. For gloo the collective itself is an event
``gloo:all_reduce`` on a thread of its own, with the inputs' shapes; what it does not say is the group.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from commcc.base.terms import Kind
from commcc.timing.cost.profiles.dtypes import ITEM_BYTES, message_dtype, tensor_dtype
from commcc.timing.cost.profiles.measured import CollectiveKey

if TYPE_CHECKING:
    from collections.abc import Mapping

GLOO: Final = "gloo:"
#: Larger sizes are no sizes of a message, and would only make arithmetic slow.
_MOST = 1 << 62
_NAME = re.compile(
    r"(allgather|reducescatter|allreduce|alltoall|broadcast)(base|intotensor|tensor|single|v|oop|coalesced)*"
)
_KINDS: Final[dict[str, Kind]] = {str(kind).replace("_", ""): kind for kind in Kind}
_NCCL_KERNEL = re.compile(r"(void )?(nccl|rccl|msccl)", re.IGNORECASE)


def kind_of(name: object) -> Kind | None:
    """The kind behind a name of PyTorch's backends; None for barriers, sends and what has no kind here."""
    if not isinstance(name, str) or len(name) > 100:
        return None
    match = _NAME.fullmatch(name.lower().replace("_", ""))
    return _KINDS[match[1]] if match is not None else None


def is_kernel(name: str, args: Mapping[str, Any]) -> bool:
    """Whether a GPU kernel is a collective's: it overlaps the compute and belongs to no op's time."""
    return "Collective name" in args or _NCCL_KERNEL.match(name) is not None


def of_message(args: Mapping[str, Any]) -> tuple[str, CollectiveKey] | None:
    """Process group (name and ranks) and key of a described collective; None when it is not complete."""
    kind = kind_of(args.get("Collective name"))
    elements, size = args.get("In msg nelems"), args.get("Group size")
    dtype = message_dtype(args.get("dtype"))
    if kind is None or dtype is None or not _is_size(elements) or not _is_size(size) or size == 0:
        return None
    group = f"{args.get('Process Group Name', '')} {args.get('Process Group Ranks', '')}"
    return group, CollectiveKey(kind, size, elements * ITEM_BYTES[dtype])


def of_gloo(name: str, args: Mapping[str, Any]) -> tuple[Kind, int] | None:
    """Kind and input bytes of a ``gloo:*`` event; None when they are not known."""
    kind = kind_of(name.removeprefix(GLOO))
    shapes, types = args.get("Input Dims"), args.get("Input type")
    if kind is None or not isinstance(shapes, list) or not isinstance(types, list) or len(shapes) != len(types):
        return None
    total = 0
    for shape, type_name in zip(shapes, types, strict=True):
        dtype = tensor_dtype(type_name)
        if dtype is None or not isinstance(shape, list) or not all(map(_is_size, shape)):
            return None
        total += prod(shape) * ITEM_BYTES[dtype]
    return (kind, total) if shapes and total < _MOST else None


def _is_size(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < _MOST
