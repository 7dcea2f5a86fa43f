"""Permutations and expansions: ops that walk the elements of their argument in another order, or again.

A content that is one run of a source, however strided, is a box: sizes and strides, outermost first. Such a
content is permuted by permuting the box::

    x = 12 elements of a source, shape (3, 4)      box (3, 4) with strides (4, 1)
    permute(x, [1, 0])                             box (4, 3) with strides (1, 4):  4 * (3 * (x[0:1]+4)+1)

and is the same content however it was reached. Limits: contents made of several runs that no box holds, and
symbolic sizes, raise :class:`Undecidable`; the op then stays a term of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from commcc.verify.layout import MAX_DEPTH, Item, Leaf, Loop, intern, items_of
from commcc.verify.shapes import VIEW, Formed, dimension, known, sizes_in
from commcc.verify.sizes import Impossible, Size, Undecidable

if TYPE_CHECKING:
    from commcc.verify.shapes import Arguments
    from commcc.verify.table import Terms
    from commcc.verify.values import Shape, Tensor


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
            sort = Impossible if isinstance(old, int) and isinstance(size, int) else Undecidable
            raise sort("an expansion of a dimension of several elements")
    strides = tensor.meta.strides
    laid = None
    if strides is not None:
        kept = (0 if size != old else stride for size, old, stride in zip(new[added:], shape, strides, strict=True))
        laid = (*((0,) * added), *kept)
    if new[added:] == shape and all(size == 1 for size in new[:added]):
        return Formed(tensor.content, new, tensor.dtype, laid, VIEW)
    start, source, axes = _axes_of(table, tensor)
    repeated = [[Axis(_int(size), 0)] for size in new[:added]]
    for size, old, inner in zip(new[added:], shape, axes, strict=True):
        repeated.append(inner if size == old else [Axis(_int(size), 0)])
    content = _content(table, source, start, [axis for each in repeated for axis in each])
    return Formed(content, new, tensor.dtype, laid, VIEW)


# Boxes


def _axes_of(table: Terms, tensor: Tensor) -> tuple[int, int, list[list[Axis]]]:
    """First element, source, and the axes of each dimension of a tensor whose content is one box."""
    _, shape = known(tensor)
    sizes = [_int(size) for size in shape]
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
        times.append(_int(items[0].times))
        items = items[0].body
    if len(items) != 1 or not isinstance(items[0], Leaf):
        raise Undecidable("elements that are not one box")
    leaf = items[0]
    axes = [Axis(count, _int(stride)) for count, stride in zip(times, leaf.strides, strict=True)]
    return _int(leaf.start), leaf.source, [*axes, Axis(_int(leaf.length), 1)]


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


def _int(size: Size) -> int:
    if not isinstance(size, int):
        raise Undecidable("a symbolic size")
    return size
