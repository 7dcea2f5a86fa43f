"""Reshapes, copies, permutations and expansions: ops that walk the elements of one argument, in order or not.

Each function takes the term table and the arguments of an op by schema name, and returns the result as
a :class:`Formed`, computed from the arguments alone, never from the ``val`` of the node::

    reshape(table, {"self": x, "shape": (4, -1)})     # same content, shape (4, 8)
    view_strides((4, 8), (8, 1), (32,))              # (1,)
    view_strides((4, 8), (16, 1), (32,))             # None: only a copy has this shape

A content that is one run of a source, however strided, is a box: sizes and strides, outermost first. Such a
content is permuted by permuting the box, and is the same content however it was reached::

    x = 12 elements of a source, shape (3, 4)      box (3, 4) with strides (4, 1)
    permute(x, [1, 0])                             box (4, 3) with strides (1, 4):  4 * (3 * (x[0:1]+4)+1)

Limits: unknown shapes, symbols that are in the way and, for permutations and expansions, contents made of several
runs that no box holds raise :class:`Undecidable`; the op then stays a term of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from commcc.verify.contents import cast, reinterpret
from commcc.verify.layout import MAX_DEPTH, intern, items_of
from commcc.verify.sizes import (
    Impossible,
    Poly,
    Shape,
    Size,
    Undecidable,
    contiguous_strides,
    is_contiguous,
    is_dense,
    number,
    product,
)
from commcc.verify.terms import Item, Leaf, Loop, Tensor, is_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.verify.terms import Terms

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


def view_strides(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Strides of a view of ``new`` shape with the same elements; None when only a copy can have it."""
    if 0 in new:
        return contiguous_strides(new)
    if is_contiguous(shape, strides):
        return contiguous_strides(new)
    result: list[Size] = []
    position = len(new) - 1
    for count, step in reversed(_blocks(shape, strides)):
        taken: Size = 1
        while position >= 0 and (new[position] == 1 or _is_short(taken, count)):
            result.append(taken * step)
            taken = taken * new[position]
            position -= 1
        if taken != count:
            if isinstance(taken, Poly) or isinstance(count, Poly):
                raise Undecidable("strides of symbolic sizes")
            return None
    while position >= 0:
        result.append(result[-1] if result else 1)
        position -= 1
    return tuple(reversed(result))


def _is_short(taken: Size, count: Size) -> bool:
    if isinstance(taken, int) and isinstance(count, int):
        return taken < count
    return taken != count


def _blocks(shape: Shape, strides: Shape) -> list[tuple[Size, Size]]:
    """Runs of dimensions that are one dimension in memory, as (elements, innermost stride)."""
    blocks: list[tuple[Size, Size]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if blocks and blocks[-1][1] == size * stride:
            blocks[-1] = (blocks[-1][0] * size, stride)
        else:
            blocks.append((size, stride))
    return blocks or [(product(shape), 1)]


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
    if any(isinstance(size, int) and size < -1 for size in new) or new.count(-1) > 1:
        raise Impossible("sizes below zero")
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
    if first > last:
        raise Impossible("a dimension that begins behind its end")
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
    dims = a["dim"] if "dim" in a else tuple(range(len(shape)))
    chosen = {dimension(dim, len(shape)) for dim in dims}
    if len(chosen) != len(dims):
        raise Impossible("a dimension that is named twice")
    if any(not isinstance(shape[dim], int) for dim in chosen):
        raise Undecidable("a symbolic dimension that may be 1")
    keep = [dim for dim in range(len(shape)) if dim not in chosen or shape[dim] != 1]
    formed = _reshaped(tensor, tuple(shape[dim] for dim in keep), must_view=True)
    strides = tensor.meta.strides
    return formed if strides is None else formed._replace(strides=tuple(strides[dim] for dim in keep))


def squeeze_dim(table: Terms, a: Arguments) -> Formed:
    return squeeze(table, {"self": a["self"], "dim": (size_in(a["dim"]),)})


def squeeze_dims(table: Terms, a: Arguments) -> Formed:
    return squeeze(table, {"self": a["self"], "dim": sizes_in(a["dim"])})


def alias(_table: Terms, a: Arguments) -> Formed:
    tensor, shape = known(a["self"])
    return Formed(tensor.content, shape, tensor.dtype, tensor.meta.strides, VIEW)


def contiguous(_table: Terms, a: Arguments) -> Formed:
    tensor, shape = known(a["self"])
    strides = tensor.meta.strides
    wanted = a.get("memory_format", torch.contiguous_format)
    # Schemas give their default as a number.
    plain = wanted is torch.contiguous_format or (type(wanted) is int and wanted == 0)
    if not plain:
        _check_format(wanted, len(shape))
    if not plain or strides is None:
        return Formed(tensor.content, shape, tensor.dtype, None, MAYBE)
    if is_contiguous(shape, strides):
        return Formed(tensor.content, shape, tensor.dtype, strides, VIEW)
    return Formed(tensor.content, shape, tensor.dtype, contiguous_strides(shape), COPY)


# Same shape, copied


#: How many dimensions formats are for that are not for any number of them.
_RANKS = {torch.channels_last: 4, torch.channels_last_3d: 5}


def _check_format(memory_format: object, rank: int) -> None:
    """Raises :class:`Undecidable` for what is no format of tensors of this rank."""
    if not isinstance(memory_format, torch.memory_format):
        raise Undecidable("arguments that the op does not take")
    if _RANKS.get(memory_format, rank) != rank:
        raise Impossible("a format of tensors with another number of dimensions")


def _copied_strides(tensor: Tensor, memory_format: object) -> Shape | None:
    shape, strides = tensor.shape, tensor.meta.strides
    if memory_format is not None and shape is not None:
        _check_format(memory_format, len(shape))
    if shape is None or strides is None:
        return None
    if memory_format is torch.contiguous_format:
        return contiguous_strides(shape)
    if memory_format not in (None, torch.preserve_format):
        return None
    # Strides of dimensions of size 1 stay as they are: they decide what PyTorch takes a tensor's format for.
    return strides if is_contiguous(shape, strides) or is_dense(shape, strides) else None


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
    """Whether a conversion brings its operand to the host (:class:`commcc.verify.trace.HostCopies`)."""
    device = a.get("device")
    return device is not None and torch.device(device).type == "cpu"


def convert(table: Terms, a: Arguments) -> Formed:
    return to_copy(table, {"self": a["a"], "dtype": a["dtype"]})


def view_dtype(table: Terms, a: Arguments) -> Formed:
    tensor, shape = known(a["self"])
    dtype, old = a["dtype"], tensor.dtype
    if old is None or (old.itemsize != dtype.itemsize and not shape):
        raise Undecidable("a tensor whose dtype is not known")
    laid = tensor.meta.strides
    if old.itemsize != dtype.itemsize and (laid is None or not is_contiguous(shape, laid)):
        raise Undecidable("bytes of a tensor that is not contiguous")
    content = reinterpret(table, tensor.content, dtype)
    if old.itemsize == dtype.itemsize:
        return Formed(content, shape, dtype, tensor.meta.strides, VIEW)
    last = shape[-1] * old.itemsize // dtype.itemsize
    new = (*shape[:-1], last)
    strides = tensor.meta.strides
    plain = strides is not None and is_contiguous(shape, strides)
    return Formed(content, new, dtype, contiguous_strides(new) if plain else None, VIEW)


# Another order of elements


class Axis(NamedTuple):
    """``size`` steps of ``stride`` elements of the source."""

    size: int
    stride: int


def transpose(table: Terms, a: Arguments) -> Formed:
    tensor, shape = known(a["self"])
    order = list(range(len(shape)))
    first, second = dimension(a["dim0"], len(shape)), dimension(a["dim1"], len(shape))
    order[first], order[second] = order[second], order[first]
    return _permuted(table, tensor, order)


def swap(table: Terms, a: Arguments) -> Formed:
    """``t``: a matrix transposed; anything with fewer dimensions is left as it is."""
    tensor, shape = known(a["self"])
    if len(shape) > 2:
        raise Impossible("more than two dimensions")
    return _permuted(table, tensor, list(reversed(range(len(shape)))))


def permute(table: Terms, a: Arguments) -> Formed:
    tensor, shape = known(a["self"])
    order = [dimension(dim, len(shape)) for dim in a["dims"]]
    if sorted(order) != list(range(len(shape))):
        raise Impossible("dimensions that are not each named once")
    return _permuted(table, tensor, order)


def _permuted(table: Terms, tensor: Tensor, order: list[int]) -> Formed:
    _, shape = known(tensor)
    new = tuple(shape[dim] for dim in order)
    strides = tensor.meta.strides
    laid = None if strides is None else tuple(strides[dim] for dim in order)
    if _keeps_order(shape, order):
        return Formed(tensor.content, new, tensor.dtype, laid, VIEW)
    start, source, axes = _axes_of(table, tensor)
    content = _content(table, source, start, [axis for dim in order for axis in axes[dim]])
    return Formed(content, new, tensor.dtype, laid, VIEW)


def _keeps_order(shape: Shape, order: list[int]) -> bool:
    """Whether only dimensions of one element change places."""
    moved = [dim for dim in order if shape[dim] != 1]
    return moved == sorted(moved)


def expand(table: Terms, a: Arguments) -> Formed:
    """A broadcast: dimensions of one element, and new ones in front, repeat."""
    tensor, shape = known(a["self"])
    wanted = sizes_in(a["size"])
    added = len(wanted) - len(shape)
    if added < 0:
        raise Impossible("fewer dimensions than the operand has")
    new = (*wanted[:added], *(old if size == -1 else size for size, old in zip(wanted[added:], shape, strict=True)))
    for size, old in zip(new[added:], shape, strict=True):
        if old not in (1, size):
            error = Impossible if isinstance(old, int) and isinstance(size, int) else Undecidable
            raise error("an expansion of a dimension of several elements")
    strides = tensor.meta.strides
    laid = None
    if strides is not None:
        kept = (0 if size != old else stride for size, old, stride in zip(new[added:], shape, strides, strict=True))
        laid = (*((0,) * added), *kept)
    if new[added:] == shape and all(size == 1 for size in new[:added]):
        return Formed(tensor.content, new, tensor.dtype, laid, VIEW)
    start, source, axes = _axes_of(table, tensor)
    repeated = [[Axis(number(size, "a symbolic size"), 0)] for size in new[:added]]
    for size, old, inner in zip(new[added:], shape, axes, strict=True):
        repeated.append(inner if size == old else [Axis(number(size, "a symbolic size"), 0)])
    content = _content(table, source, start, [axis for dim_axes in repeated for axis in dim_axes])
    return Formed(content, new, tensor.dtype, laid, VIEW)


# Boxes


def _axes_of(table: Terms, tensor: Tensor) -> tuple[int, int, list[list[Axis]]]:
    """First element, source, and the axes of each dimension of a tensor whose content is one box."""
    _, shape = known(tensor)
    sizes = [number(size, "a symbolic size") for size in shape]
    if 0 in sizes:
        raise Undecidable("a tensor without elements")
    start, source, box = _box(items_of(table, tensor.content))
    left = [axis for axis in reversed(box) if axis.size != 1]
    axes = [_take(left, size) for size in reversed(sizes)]
    return start, source, axes[::-1]


def _take(left: list[Axis], size: int) -> list[Axis]:
    """The innermost axes that make up a dimension, outermost first; ``left`` keeps the rest, innermost first."""
    taken: list[Axis] = []
    while size > 1:
        if not left:
            raise Undecidable("a shape that does not fit its elements")
        axis = left.pop(0)
        if axis.size > size:
            if axis.size % size:
                raise Undecidable("a dimension that cuts a run of elements unevenly")
            left.insert(0, Axis(axis.size // size, axis.stride * size))
            axis = Axis(size, axis.stride)
        elif size % axis.size:
            raise Undecidable("a dimension that cuts a run of elements unevenly")
        taken.append(axis)
        size //= axis.size
    return taken[::-1]


def _box(items: tuple[Item, ...]) -> tuple[int, int, list[Axis]]:
    times: list[int] = []
    while len(items) == 1 and isinstance(items[0], Loop):
        times.append(number(items[0].times, "a symbolic size"))
        items = items[0].body
    if len(items) != 1 or not isinstance(items[0], Leaf):
        raise Undecidable("elements that are not one box")
    leaf = items[0]
    axes = [Axis(count, number(stride, "a symbolic size")) for count, stride in zip(times, leaf.strides, strict=True)]
    return number(leaf.start, "a symbolic size"), leaf.source, [*axes, Axis(number(leaf.length, "a symbolic size"), 1)]


def _content(table: Terms, source: int, start: int, axes: list[Axis]) -> int:
    """The content that walks a box."""
    merged: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if merged and merged[-1].stride == axis.size * axis.stride:
            merged[-1] = Axis(merged[-1].size * axis.size, axis.stride)
        else:
            merged.append(axis)
    length = merged.pop().size if merged and merged[-1].stride == 1 else 1
    if len(merged) >= MAX_DEPTH:
        raise Undecidable("a layout with too many nested loops")
    item: Item = Leaf(source, start, length, tuple(axis.stride for axis in merged))
    row: Size = length
    for axis in reversed(merged):
        item = Loop(axis.size, (item,), row)
        row = row * axis.size
    return intern(table, [item])
