"""Reshapes and copies: ops whose result holds the elements of their argument in the same order.

Each function takes the term table and the arguments of an op by schema name, and returns the result as
a :class:`Formed`, computed from the arguments alone, never from the ``val`` of the node::

    reshape(table, {"self": x, "shape": (4, -1)})     # same content, shape (4, 8)

Raises :class:`Undecidable` when a shape is unknown or symbols are in the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from commcc.verify.elements import cast, reinterpret
from commcc.verify.sizes import Impossible, Size, Undecidable, product
from commcc.verify.strides import contiguous_strides, is_contiguous, view_strides
from commcc.verify.values import Shape, Tensor, is_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.verify.table import Terms

    Arguments: TypeAlias = Mapping[str, Any]

VIEW = "view"
COPY = "copy"
MAYBE = "maybe"
INVALID = "invalid"


class Formed(NamedTuple):
    """The result of a regrouping op.

    alias: ``view`` of its argument, a fresh ``copy``, ``maybe`` when strides do not say which, or
    ``invalid`` when no view of that shape exists. strides: None when they are not known.
    """

    content: int
    shape: Shape
    dtype: torch.dtype | None
    strides: Shape | None
    alias: str


def known(tensor: object) -> tuple[Tensor, Shape]:
    if not isinstance(tensor, Tensor) or tensor.shape is None:
        raise Undecidable("a tensor whose shape is not known")
    return tensor, tensor.shape


def sizes_in(value: object) -> Shape:
    if not isinstance(value, tuple) or not all(is_size(size) for size in value):
        raise Undecidable("sizes that are not integers")
    return value


def size_in(value: object, default: Size | None = None) -> Size:
    if value is None and default is not None:
        return default
    if not is_size(value):
        raise Undecidable("a size that is not an integer")
    return value  # type: ignore[return-value]


def dimension(value: object, rank: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -rank <= value < rank:
        raise Impossible("a dimension out of range")
    return value % rank


# Same elements, another shape


def _reshaped(tensor: Tensor, shape: Shape, *, must_view: bool) -> Formed:
    strides, alias = None, MAYBE
    if tensor.shape is not None and tensor.meta.strides is not None:
        try:
            strides = view_strides(tensor.shape, tensor.meta.strides, shape)
            alias = VIEW if strides is not None else INVALID if must_view else COPY
            strides = strides if strides is not None else contiguous_strides(shape)
        except Undecidable:
            pass
    if must_view and alias == MAYBE:
        alias = VIEW
    return Formed(tensor.content, shape, tensor.dtype, strides, alias)


def _new_shape(tensor: Tensor, wanted: object) -> Shape:
    _, shape = known(tensor)
    new = sizes_in(wanted)
    numel = product(shape)
    if new.count(-1) == 1:
        rest = product(size for size in new if size != -1)
        if isinstance(numel, int) and isinstance(rest, int) and (rest == 0 or numel % rest):
            raise Impossible("a shape that does not hold the elements")
        return tuple(numel // rest if size == -1 else size for size in new)
    wanted_numel = product(new)
    if isinstance(numel, int) and isinstance(wanted_numel, int) and wanted_numel != numel:
        raise Impossible("a shape that does not hold the elements")
    if wanted_numel != numel:
        raise Undecidable("a shape that may not hold the elements")
    return new


def view(_table: Terms, a: Arguments) -> Formed:
    return _reshaped(a["self"], _new_shape(a["self"], a["size"]), must_view=True)


def reshape(_table: Terms, a: Arguments) -> Formed:
    return _reshaped(a["self"], _new_shape(a["self"], a["shape"]), must_view=False)


def flatten(_table: Terms, a: Arguments) -> Formed:
    tensor, shape = known(a["self"])
    if not shape:
        return _reshaped(tensor, (1,), must_view=False)
    first, last = dimension(a["start_dim"], len(shape)), dimension(a["end_dim"], len(shape))
    new = (*shape[:first], product(shape[first : last + 1]), *shape[last + 1 :])
    return _reshaped(tensor, new, must_view=False)


def unsqueeze(_table: Terms, a: Arguments) -> Formed:
    tensor, shape = known(a["self"])
    dim = dimension(a["dim"], len(shape) + 1)
    formed = _reshaped(tensor, (*shape[:dim], 1, *shape[dim:]), must_view=True)
    if tensor.meta.strides is None:
        return formed
    strides = tensor.meta.strides
    step = strides[dim] * shape[dim] if dim < len(shape) else 1
    return formed._replace(strides=(*strides[:dim], step, *strides[dim:]))


def squeeze(_table: Terms, a: Arguments) -> Formed:
    tensor, shape = known(a["self"])
    wanted = a.get("dim")
    dims = tuple(range(len(shape))) if wanted is None else wanted if isinstance(wanted, tuple) else (wanted,)
    chosen = {dimension(dim, len(shape)) for dim in dims}
    if any(not isinstance(shape[dim], int) for dim in chosen):
        raise Undecidable("a symbolic dimension that may be 1")
    keep = [dim for dim in range(len(shape)) if dim not in chosen or shape[dim] != 1]
    formed = _reshaped(tensor, tuple(shape[dim] for dim in keep), must_view=True)
    strides = tensor.meta.strides
    return formed if strides is None else formed._replace(strides=tuple(strides[dim] for dim in keep))


def alias(_table: Terms, a: Arguments) -> Formed:
    tensor, shape = known(a["self"])
    return Formed(tensor.content, shape, tensor.dtype, tensor.meta.strides, VIEW)


def contiguous(_table: Terms, a: Arguments) -> Formed:
    tensor, shape = known(a["self"])
    strides = tensor.meta.strides
    plain = a.get("memory_format") in (None, torch.contiguous_format)
    if not plain or strides is None:
        return Formed(tensor.content, shape, tensor.dtype, None, MAYBE)
    if is_contiguous(shape, strides):
        return Formed(tensor.content, shape, tensor.dtype, strides, VIEW)
    return Formed(tensor.content, shape, tensor.dtype, contiguous_strides(shape), COPY)


# Same shape, copied


def _copied_strides(tensor: Tensor, memory_format: object) -> Shape | None:
    shape, strides = tensor.shape, tensor.meta.strides
    if shape is None or strides is None:
        return None
    if memory_format is torch.contiguous_format:
        return contiguous_strides(shape)
    kept = memory_format in (None, torch.preserve_format) and is_contiguous(shape, strides)
    return contiguous_strides(shape) if kept else None


def clone(_table: Terms, a: Arguments) -> Formed:
    tensor, shape = known(a["self"])
    return Formed(tensor.content, shape, tensor.dtype, _copied_strides(tensor, a.get("memory_format")), COPY)


#: What a conversion may be asked for.
_CONVERSION: dict[str, type | tuple[type, ...]] = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "device": (torch.device, str),
    "pin_memory": bool,
    "non_blocking": bool,
}


def to_copy(table: Terms, a: Arguments) -> Formed:
    tensor, shape = known(a["self"])
    for name, kinds in _CONVERSION.items():
        if a.get(name) is not None and not isinstance(a[name], kinds):
            raise Undecidable("arguments that the op does not take")
    how = tuple((name, str(a[name])) for name in ("layout", "device", "pin_memory") if a.get(name) is not None)
    if a.get("non_blocking") and not to_host(a):
        how = (*how, ("non_blocking", "True"))
    dtype = a.get("dtype")
    content = cast(table, tensor.content, dtype, how)
    return Formed(content, shape, dtype or tensor.dtype, _copied_strides(tensor, a.get("memory_format")), COPY)


def to_host(a: Arguments) -> bool:
    """Whether a conversion brings its operand to the host; :mod:`commcc.verify.host` checks when it is there."""
    device = a.get("device")
    return device is not None and torch.device(device).type == "cpu"


def convert(table: Terms, a: Arguments) -> Formed:
    return to_copy(table, {"self": a["a"], "dtype": a["dtype"]})


def view_dtype(table: Terms, a: Arguments) -> Formed:
    tensor, shape = known(a["self"])
    dtype, old = a["dtype"], tensor.dtype
    if old is None or (old.itemsize != dtype.itemsize and not shape):
        raise Undecidable("a tensor whose dtype is not known")
    content = reinterpret(table, tensor.content, dtype)
    if old.itemsize == dtype.itemsize:
        return Formed(content, shape, dtype, tensor.meta.strides, VIEW)
    last = shape[-1] * old.itemsize // dtype.itemsize
    new = (*shape[:-1], last)
    strides = tensor.meta.strides
    plain = strides is not None and is_contiguous(shape, strides)
    return Formed(content, new, dtype, contiguous_strides(new) if plain else None, VIEW)
