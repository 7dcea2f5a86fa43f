"""Ops that only regroup elements: what each one does to content, shape and strides.

``regroup(table, "aten.view.default", {"self": x, "size": (4, 8)})`` gives the result of the op as a
:class:`Formed` (a tuple of them for ``split``), computed from its arguments alone, never from the
``val`` of its node. Raises :class:`Undecidable` when shapes are unknown or symbols are in the way; the
caller then keeps the op as it is, unexplained.

Two ops lay out the buffer of a merged collective for PyTorch's own bucketing pass:
``bucketing._pre_bucket_reduce_scatter(inputs, W)`` is ``cat([x.reshape(W, -1) for x in inputs], 1).flatten()``;
``bucketing._pre_bucket_all_gather`` allocates the result of a gather over W ranks and writes the inputs,
converted, to the row of its own rank; the other rows are undefined until the gather fills them.

Limits: ops that skip elements are not here; they stay terms of their own, and so do permutations and
expansions of what is no box (:mod:`commcc.verify.reshaping`). Dtypes of ``bucketing`` ops are given as positions in a
table of the PyTorch that made the graph; the table of the PyTorch that reads it is used.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from functools import lru_cache, reduce
from typing import TYPE_CHECKING

import torch

from commcc.graph.ops.sizes import MOST_RESULTS
from commcc.graph.ops.views import REGROUPING, Regrouping
from commcc.verify import reshaping
from commcc.verify.contents import cast, reinterpret
from commcc.verify.layout import (
    cut,
    cut_all,
    intern,
    items_of,
    joined_rows,
    map_leaves,
    narrow_rows,
    row_ranges,
    rows_of,
    shifted,
    total,
)
from commcc.verify.reshaping import COPY, VIEW, Formed, dimension, known, size_in, sizes_in
from commcc.verify.sizes import Impossible, Shape, Size, Undecidable, contiguous_strides, product
from commcc.verify.terms import Item, Leaf, Loop, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from commcc.verify.layout import Rows
    from commcc.verify.reshaping import Arguments
    from commcc.verify.terms import Terms

#: The slice bound that means "to the end", whatever the size.
_END = 2**63 - 1

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
        # Rows of a sequence of loops would have to be written down one by one to see whether they are alike.
        plain = len(items) == 1 or all(isinstance(item, Leaf) for item in items)
        body = rows_of(items, outer, row) if plain else None
        if body is not None:
            content = intern(table, [Loop(outer, tuple(cut(body, begin, end, 1)), end - begin)])
        else:
            content = intern(table, narrow_rows(items, row, begin, end))
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
    if isinstance(position, int) and position == _END:
        return size
    raise Undecidable("a slice of a symbolic size")


def _slice(table: Terms, a: Arguments) -> Formed:
    tensor, shape = known(a["self"])
    dim = dimension(a["dim"], len(shape))
    step = a.get("step", 1)
    if step != 1 or isinstance(step, (float, bool)):
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
        error = Impossible if isinstance(missing, int) else Undecidable
        raise error("split sizes that do not add up")
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
    pairs = zip(contents, shapes_of, strict=True)
    return tuple(Formed(content, new, tensor.dtype, tensor.meta.strides, VIEW) for content, new in pairs)


def _split(table: Terms, a: Arguments) -> tuple[Formed, ...]:
    tensor, shape = known(a["self"])
    dim = dimension(a["dim"], len(shape))
    return _parts(table, tensor, dim, _equal(shape[dim], size_in(a["split_size"])))


def _equal(size: Size, step: Size) -> Shape:
    if not isinstance(size, int) or not isinstance(step, int) or step <= 0:
        if size == step:
            return (size,)
        if isinstance(step, int) and step <= 0:
            raise Undecidable("parts of no elements")
        count = size // step
        if not isinstance(count, int):
            raise Undecidable("a symbolic number of parts")
        _check_count(count)
        return (step,) * count
    _check_count(size // step)
    return tuple(min(step, size - start) for start in range(0, size, step)) or (0,)


def _check_count(count: int) -> None:
    if count > MOST_RESULTS:
        raise Undecidable(f"more than {MOST_RESULTS:,} parts")


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
    _check_count(count)
    return tuple(_without(_narrow(table, tensor, dim, i, 1), dim) for i in range(count))


# Joins


def _of_one_dtype(table: Terms, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Tensors of several dtypes are joined in the dtype that all of them can be promoted to."""
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) == 1 or None in dtypes:
        return tensors
    try:
        common = reduce(torch.promote_types, (tensor.dtype for tensor in tensors if tensor.dtype is not None))
    except RuntimeError as error:  # of float8 dtypes nothing is common
        raise Undecidable(str(error)) from None
    return tuple(
        Tensor(cast(table, tensor.content, common, ()), tensor.meta._replace(dtype=common), tensor.root)
        for tensor in tensors
    )


def cat(table: Terms, a: Arguments) -> Formed:
    parts = [known(tensor) for tensor in _of_one_dtype(table, a["tensors"])]
    real = [(tensor, shape) for tensor, shape in parts if len(shape) != 1 or shape[0] != 0] or parts[:1]
    dtypes = {tensor.dtype for tensor, _ in parts}
    if not real or len(dtypes) != 1 or len({len(shape) for _, shape in real}) != 1:
        raise Undecidable("tensors that do not join")
    first = real[0][1]
    dim = dimension(a["dim"], len(first))
    length: Size = 0
    for _, shape in real:
        if shape[:dim] != first[:dim] or shape[dim + 1 :] != first[dim + 1 :]:
            raise Undecidable("tensors that do not join")
        length = length + shape[dim]
    new = (*first[:dim], length, *first[dim + 1 :])
    content = _joined(table, real, product(first[:dim]), product(first[dim + 1 :]), dim)
    # By strides of dimensions of size 1 PyTorch takes what is contiguous for another format.
    plain = all(t.meta.strides == contiguous_strides(shape) for t, shape in real)
    return Formed(content, new, real[0][0].dtype, contiguous_strides(new) if plain else None, COPY)


def _joined(table: Terms, parts: list[tuple[Tensor, Shape]], outer: Size, inner: Size, dim: int) -> int:
    contents = [(items_of(table, tensor.content), shape[dim] * inner) for tensor, shape in parts]
    if outer == 1:
        return intern(table, [item for items, _ in contents for item in items])
    joined = joined_rows(contents, outer)
    if joined is not None:
        return intern(table, joined)
    bodies = [rows_of(items, outer, row) for items, row in contents]
    if all(body is not None for body in bodies):
        body = tuple(item for rows in bodies if rows is not None for item in rows)
        return intern(table, [Loop(outer, body, total(body))])
    return intern(table, _interleaved([row_ranges(items, outer, row) for items, row in contents]))


def _interleaved(parts: list[list[Rows]]) -> Iterator[Item]:
    """Row after row of all parts, in ranges of rows in which each part is alike."""
    ends = [list(itertools.accumulate(rows.number for rows in ranges)) for ranges in parts]
    start = 0
    for end in sorted({end for bounds in ends for end in bounds}):
        body: list[Item] = []
        for ranges, stops in zip(parts, ends, strict=True):
            at = bisect_right(stops, start)
            offset = start - (stops[at - 1] if at else 0)
            body.extend(map_leaves(ranges[at].body, lambda leaf, offset=offset: shifted(leaf, offset, 0)))  # type: ignore[misc]
        yield Loop(end - start, tuple(body), total(body))
        start = end


def stack(table: Terms, a: Arguments) -> Formed:
    parts = []
    for tensor in a["tensors"]:
        part, shape = known(tensor)
        formed = reshaping.unsqueeze(table, {"self": part, "dim": dimension(a["dim"], len(shape) + 1)})
        meta = part.meta._replace(shape=formed.shape, strides=formed.strides)
        parts.append(Tensor(part.content, meta, part.root))
    return cat(table, {"tensors": tuple(parts), "dim": a["dim"]})


# Buffers of merged collectives

UNDEFINED = "undefined"


@lru_cache(maxsize=1)
def _dtypes() -> tuple[torch.dtype, ...]:
    """All dtypes in the order of their names, as the op numbers them."""
    values = (getattr(torch, name) for name in dir(torch))
    return tuple(value for value in values if isinstance(value, torch.dtype))


def gather_buffer(table: Terms, a: Arguments) -> Formed:
    """``_pre_bucket_all_gather``: the buffer of an in-place gather, with one row written."""
    inputs, ranks, rank, dtype = a["ag_ins"], a["group_size"], a["rank"], a["dtype"]
    if not isinstance(dtype, torch.dtype) or not isinstance(rank, int) or not isinstance(ranks, int):
        raise Undecidable("arguments that the op does not take")
    if not 0 <= rank < ranks:
        raise Impossible("a rank outside the group")
    out_dtypes = [_dtypes()[number] for number in a["out_dtype_ints"]]
    if len(out_dtypes) != len(inputs) or not _covers(a.get("foreach_group_indices"), len(inputs)):
        raise Undecidable("inputs that are not all written")
    row: list[Item] = []
    for tensor, out in zip(inputs, out_dtypes, strict=True):
        content = reinterpret(table, cast(table, known(tensor)[0].content, out, ()), dtype)
        row.extend(items_of(table, content))
    sizes = [product(known(tensor)[1]) * out.itemsize for tensor, out in zip(inputs, out_dtypes, strict=True)]
    length = sum((size // dtype.itemsize for size in sizes), start=0)
    whole = length * ranks
    undefined = table.source((UNDEFINED, ("int", whole), str(dtype)), whole, dtype)
    before, after = Leaf(undefined, 0, length * rank, ()), length * (rank + 1)
    content = intern(table, [before, *row, Leaf(undefined, after, whole - after, ())])
    return Formed(content, (whole,), dtype, (1,), COPY)


def _covers(groups: object, count: int) -> bool:
    """Whether groups of positions, divided by -1, name every input once; None is one group of all."""
    return groups is None or (isinstance(groups, tuple) and sorted(g for g in groups if g != -1) == list(range(count)))


def scatter_buffer(table: Terms, a: Arguments) -> Formed:
    """``_pre_bucket_reduce_scatter``: what a merged reduce-scatter sends, row by row."""
    ranks, parts = size_in(a["group_size"]), []
    if isinstance(ranks, int) and ranks < 1:
        raise Impossible("a group of no ranks")
    for tensor in a["rs_ins"]:
        part, shape = known(tensor)
        if not shape or shape[0] // ranks * ranks != shape[0]:
            # PyTorch 2.15 fills it up with zeros, with or without its argument that says so; before it did not.
            raise Undecidable("an input whose rows do not divide by the group size")
        row = product(shape) // ranks
        strides = contiguous_strides((ranks, row))
        parts.append(Tensor(part.content, part.meta._replace(shape=(ranks, row), strides=strides), part.root))
    formed = cat(table, {"tensors": tuple(parts), "dim": 1})
    return formed._replace(shape=(product(formed.shape),), strides=(1,))


# All of them

_RULES: dict[Regrouping, Callable[[Terms, Arguments], Formed | tuple[Formed, ...]]] = {
    Regrouping.VIEW: reshaping.view,
    Regrouping.RESHAPE: reshaping.reshape,
    Regrouping.FLATTEN: reshaping.flatten,
    Regrouping.UNSQUEEZE: reshaping.unsqueeze,
    Regrouping.SQUEEZE: reshaping.squeeze,
    Regrouping.SQUEEZE_DIM: reshaping.squeeze_dim,
    Regrouping.SQUEEZE_DIMS: reshaping.squeeze_dims,
    Regrouping.ALIAS: reshaping.alias,
    Regrouping.CONTIGUOUS: reshaping.contiguous,
    Regrouping.CLONE: reshaping.clone,
    Regrouping.TO_COPY: reshaping.to_copy,
    Regrouping.CONVERT: reshaping.convert,
    Regrouping.VIEW_DTYPE: reshaping.view_dtype,
    Regrouping.PERMUTE: reshaping.permute,
    Regrouping.TRANSPOSE: reshaping.transpose,
    Regrouping.SWAP: reshaping.swap,
    Regrouping.EXPAND: reshaping.expand,
    Regrouping.SLICE: _slice,
    Regrouping.NARROW_OP: _narrow_op,
    Regrouping.SELECT: _select,
    Regrouping.SPLIT: _split,
    Regrouping.SPLIT_SIZES: lambda table, a: _split_with_sizes(table, {**a, "split_sizes": a["split_size"]}),
    Regrouping.SPLIT_WITH_SIZES: _split_with_sizes,
    Regrouping.CHUNK: _chunk,
    Regrouping.UNBIND: _unbind,
    Regrouping.CAT: cat,
    Regrouping.STACK: stack,
    Regrouping.GATHER_BUFFER: gather_buffer,
    Regrouping.SCATTER_BUFFER: scatter_buffer,
}
#: Rules that leave every element as it is; all others may convert them.
_MOVING = frozenset(
    {
        *(reshaping.view, reshaping.reshape, reshaping.flatten, reshaping.unsqueeze, reshaping.squeeze),
        *(reshaping.alias, reshaping.contiguous, reshaping.clone, reshaping.permute, reshaping.transpose),
        *(reshaping.swap, reshaping.expand, _slice, _narrow_op, _select),
        *(_split, _split_with_sizes, _chunk, _unbind),
    }
)


@lru_cache(maxsize=4096)
def _rule(path: str) -> tuple[Callable[[Terms, Arguments], Formed | tuple[Formed, ...]], bool] | None:
    """What an op does, and whether it copies the view that the rule makes: ``aten.split_copy.Tensor`` does."""
    name, _, overload = path.rpartition(".")
    view = path if path in REGROUPING else f"{name.removesuffix('_copy')}.{overload}"
    return (_RULES[REGROUPING[view]], view != path) if view in REGROUPING else None


def regroups(path: str) -> bool:
    """Whether :func:`regroup` knows the op called ``namespace.op.overload``."""
    return _rule(path) is not None


@lru_cache(maxsize=4096)
def converts(path: str) -> bool:
    """Whether a regrouping op may convert elements to another dtype, or bring them to another device."""
    rule = _rule(path)
    return rule is None or rule[0] not in _MOVING


def regroup(table: Terms, path: str, arguments: Arguments) -> Formed | tuple[Formed, ...]:
    """The result of a regrouping op on resolved arguments, by schema name."""
    try:
        rule, copies = _rule(path)  # type: ignore[misc]
        formed = rule(table, arguments)
        if not copies:
            return formed
        views = (formed,) if isinstance(formed, Formed) else formed
        parts = tuple(part._replace(alias=COPY, strides=contiguous_strides(part.shape)) for part in views)
        return parts[0] if isinstance(formed, Formed) else parts
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        # Files may hold calls that no op would take; such a call is kept as it is, not a crash.
        raise Undecidable("arguments that the op does not take") from error
