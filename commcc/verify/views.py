"""Ops that only regroup elements: what each one does to content, shape and strides.

``regroup(table, "aten.view.default", {"self": x, "size": (4, 8)})`` gives the result of the op as a
:class:`Formed` (a tuple of them for ``split``), computed from its arguments alone, never from the
``val`` of its node. Raises :class:`Undecidable` when shapes are unknown or symbols are in the way; the
caller then keeps the op as it is, unexplained.

Limits: ops that skip elements are not here; they stay terms of their own, and so do permutations and
expansions of what is no box (:mod:`commcc.verify.strided`).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from commcc.verify import joins, shapes, strided
from commcc.verify.cutting import cut, cut_all, explicit_rows, rows_of
from commcc.verify.layout import Loop, intern, items_of
from commcc.verify.prebucket import gather_buffer, scatter_buffer
from commcc.verify.shapes import VIEW, Formed, dimension, known, size_in, sizes_in
from commcc.verify.sizes import Impossible, Size, Undecidable, product

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.verify.shapes import Arguments
    from commcc.verify.table import Terms
    from commcc.verify.values import Shape, Tensor

#: Slice bounds from here on mean "to the end".
_FAR = 2**31

# Parts


def _narrow(table: Terms, tensor: Tensor, dim: int, start: Size, length: Size) -> Formed:
    _, shape = known(tensor)
    _check_range(start, length, shape[dim])
    inner = product(shape[dim + 1 :])
    outer = product(shape[:dim])
    begin, end, row = start * inner, (start + length) * inner, shape[dim] * inner
    items = items_of(table, tensor.content)
    new = (*shape[:dim], length, *shape[dim + 1 :])
    if outer == 1:
        content = intern(table, cut(items, begin, end))
    else:
        body = rows_of(items, outer, row)
        if body is not None:
            content = intern(table, [Loop(outer, tuple(cut(body, begin, end, 1)), end - begin)])
        else:
            pieces = [item for each in explicit_rows(items, outer, row) for item in cut(each, begin, end)]
            content = intern(table, pieces)
    return Formed(content, new, tensor.dtype, tensor.meta.strides, VIEW)


def _check_range(start: Size, length: Size, size: Size) -> None:
    """Symbolic ranges are checked where the cut is made: only at boundaries."""
    if any(isinstance(n, int) and n < 0 for n in (start, length)):
        raise Impossible("a negative range")
    end = start + length
    if isinstance(end, int) and isinstance(size, int) and end > size:
        raise Impossible("a range that ends past the tensor")


def _clamped(value: object, default: Size, size: Size) -> Size:
    """A slice bound as a position; bounds that a symbolic size might clamp are not decided."""
    position = size_in(value, default)
    if isinstance(position, int) and isinstance(size, int):
        return min(max(position + size if position < 0 else position, 0), size)
    if position in (0, size):
        return position
    if isinstance(position, int) and position >= _FAR:
        return size
    raise Undecidable("a slice of a symbolic size")


def _slice(table: Terms, a: Arguments) -> Formed:
    tensor, shape = known(a["self"])
    dim = dimension(a["dim"], len(shape))
    if a.get("step", 1) != 1:
        raise Undecidable("a slice with a step")
    start = _clamped(a.get("start"), 0, shape[dim])
    end = _clamped(a.get("end"), shape[dim], shape[dim])
    if isinstance(start, int) and isinstance(end, int):
        end = max(start, end)
    elif start != 0 and end != shape[dim]:
        raise Undecidable("a slice of a symbolic size")
    return _narrow(table, tensor, dim, start, end - start)


def _narrow_op(table: Terms, a: Arguments) -> Formed:
    tensor, shape = known(a["self"])
    dim = dimension(a["dim"], len(shape))
    start = size_in(a["start"])
    if isinstance(start, int) and start < 0:
        start = start + shape[dim]
    return _narrow(table, tensor, dim, start, size_in(a["length"]))


def _select(table: Terms, a: Arguments) -> Formed:
    tensor, shape = known(a["self"])
    dim, index = dimension(a["dim"], len(shape)), size_in(a["index"])
    if isinstance(index, int) and index < 0:
        index = index + shape[dim]
    return _without(_narrow(table, tensor, dim, index, 1), dim)


def _without(formed: Formed, dim: int) -> Formed:
    strides = formed.strides
    return formed._replace(
        shape=(*formed.shape[:dim], *formed.shape[dim + 1 :]),
        strides=None if strides is None else (*strides[:dim], *strides[dim + 1 :]),
    )


def _parts(table: Terms, tensor: Tensor, dim: int, lengths: Shape) -> tuple[Formed, ...]:
    """Neighbouring parts that tile the dimension, all cut in one walk when the rows are alike."""
    _, shape = known(tensor)
    missing = shape[dim] - sum(lengths, start=0)
    if missing != 0 or any(isinstance(n, int) and n < 0 for n in lengths):
        sort = Impossible if isinstance(missing, int) else Undecidable
        raise sort("split sizes that do not add up")
    outer, inner = product(shape[:dim]), product(shape[dim + 1 :])
    items = items_of(table, tensor.content)
    runs = [length * inner for length in lengths]
    if outer == 1:
        contents = [intern(table, part) for part in cut_all(items, runs)]
    else:
        body = rows_of(items, outer, shape[dim] * inner)
        if body is None:
            starts = itertools.accumulate(lengths, initial=0)
            return tuple(_narrow(table, tensor, dim, start, n) for start, n in zip(starts, lengths, strict=False))
        parts = zip(cut_all(body, runs, 1), runs, strict=True)
        contents = [intern(table, [Loop(outer, tuple(part), run)]) for part, run in parts]
    shapes_of = [(*shape[:dim], length, *shape[dim + 1 :]) for length in lengths]
    made = zip(contents, shapes_of, strict=True)
    return tuple(Formed(content, new, tensor.dtype, tensor.meta.strides, VIEW) for content, new in made)


def _split(table: Terms, a: Arguments) -> tuple[Formed, ...]:
    tensor, shape = known(a["self"])
    dim, wanted = dimension(a["dim"], len(shape)), a["split_size"]
    if isinstance(wanted, tuple):
        return _parts(table, tensor, dim, sizes_in(wanted))
    return _parts(table, tensor, dim, _equal(shape[dim], size_in(wanted)))


def _equal(size: Size, step: Size) -> Shape:
    if not isinstance(size, int) or not isinstance(step, int) or step <= 0:
        if size == step:
            return (size,)
        if isinstance(step, int) and step <= 0:
            raise Undecidable("parts of no elements")
        count = size // step
        if not isinstance(count, int):
            raise Undecidable("a symbolic number of parts")
        return (step,) * count
    return tuple(min(step, size - start) for start in range(0, size, step)) or (0,)


def _chunk(table: Terms, a: Arguments) -> tuple[Formed, ...]:
    tensor, shape = known(a["self"])
    dim = dimension(a["dim"], len(shape))
    size, count = shape[dim], size_in(a["chunks"])
    if not isinstance(size, int) or not isinstance(count, int) or count <= 0 or size == 0:
        raise Undecidable("a symbolic number of parts")
    return _parts(table, tensor, dim, _equal(size, -(-size // count)))


def _split_with_sizes(table: Terms, a: Arguments) -> tuple[Formed, ...]:
    tensor, shape = known(a["self"])
    return _parts(table, tensor, dimension(a["dim"], len(shape)), sizes_in(a["split_sizes"]))


def _unbind(table: Terms, a: Arguments) -> tuple[Formed, ...]:
    tensor, shape = known(a["self"])
    dim = dimension(a["dim"], len(shape))
    count = shape[dim]
    if not isinstance(count, int):
        raise Undecidable("a symbolic number of parts")
    return tuple(_without(_narrow(table, tensor, dim, i, 1), dim) for i in range(count))


_OPS: dict[str, Callable[[Terms, Arguments], Formed | tuple[Formed, ...]]] = {
    "aten.view.default": shapes.view,
    "aten._unsafe_view.default": shapes.view,
    "aten.reshape.default": shapes.reshape,
    "aten.flatten.using_ints": shapes.flatten,
    "aten.unsqueeze.default": shapes.unsqueeze,
    "aten.squeeze.default": shapes.squeeze,
    "aten.squeeze.dim": shapes.squeeze,
    "aten.squeeze.dims": shapes.squeeze,
    "aten.alias.default": shapes.alias,
    "aten.detach.default": shapes.alias,
    "_c10d_functional._wrap_tensor_autograd.default": shapes.alias,
    "aten.contiguous.default": shapes.contiguous,
    "aten.clone.default": shapes.clone,
    "aten._to_copy.default": shapes.to_copy,
    "prims.convert_element_type.default": shapes.convert,
    "aten.view.dtype": shapes.view_dtype,
    "aten.permute.default": strided.permute,
    "aten.transpose.int": strided.transpose,
    "aten.t.default": strided.swap,
    "aten.expand.default": strided.expand,
    "aten.slice.Tensor": _slice,
    "aten.narrow.default": _narrow_op,
    "aten.select.int": _select,
    "aten.split.Tensor": _split,
    "aten.split.sizes": _split,
    "aten.split_with_sizes.default": _split_with_sizes,
    "aten.chunk.default": _chunk,
    "aten.unbind.int": _unbind,
    "aten.cat.default": joins.cat,
    "aten.stack.default": joins.stack,
    "bucketing._pre_bucket_all_gather.default": gather_buffer,
    "bucketing._pre_bucket_reduce_scatter.default": scatter_buffer,
}


def regroups(path: str) -> bool:
    """Whether :func:`regroup` knows the op called ``namespace.op.overload``."""
    return path in _OPS


def regroup(table: Terms, path: str, arguments: Arguments) -> Formed | tuple[Formed, ...]:
    """The result of a regrouping op on resolved arguments, by schema name."""
    try:
        return _OPS[path](table, arguments)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        # Files may hold calls that no op would take; such a call is kept as it is, not a crash.
        raise Undecidable("arguments that the op does not take") from error
