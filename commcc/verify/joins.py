"""Ops that put tensors after one another: what ``cat`` and ``stack`` make of contents.

::

    cat(table, {"tensors": (x, y), "dim": 0})      # the elements of x, then those of y

Raises :class:`Undecidable` for tensors whose shapes are unknown or do not join.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import torch

from commcc.verify import shapes
from commcc.verify.cutting import explicit_rows, rows_of
from commcc.verify.elements import cast
from commcc.verify.layout import Items, Loop, intern, items_of, total
from commcc.verify.shapes import COPY, Formed, dimension, known
from commcc.verify.sizes import Size, Undecidable, product
from commcc.verify.strides import contiguous_strides, is_contiguous
from commcc.verify.values import Shape, Tensor

if TYPE_CHECKING:
    from commcc.verify.shapes import Arguments
    from commcc.verify.table import Terms


def _of_one_dtype(table: Terms, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Tensors of several dtypes are joined in the dtype that all of them can be promoted to."""
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) == 1 or None in dtypes:
        return tensors
    common = reduce(torch.promote_types, (tensor.dtype for tensor in tensors if tensor.dtype is not None))
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
    plain = all(t.meta.strides is not None and is_contiguous(shape, t.meta.strides) for t, shape in real)
    return Formed(content, new, real[0][0].dtype, contiguous_strides(new) if plain else None, COPY)


def _joined(table: Terms, parts: list[tuple[Tensor, Shape]], outer: Size, inner: Size, dim: int) -> int:
    contents = [(items_of(table, tensor.content), shape[dim] * inner) for tensor, shape in parts]
    if outer == 1:
        return intern(table, [item for items, _ in contents for item in items])
    bodies = [rows_of(items, outer, row) for items, row in contents]
    if all(body is not None for body in bodies):
        body = tuple(item for each in bodies if each is not None for item in each)
        return intern(table, [Loop(outer, body, total(body))])
    rows = [explicit_rows(items, outer, row) for items, row in contents]
    return intern(table, _interleaved(rows))


def _interleaved(rows: list[list[Items]]) -> Items:
    return tuple(item for row in zip(*rows, strict=True) for each in row for item in each)


def stack(table: Terms, a: Arguments) -> Formed:
    parts = []
    for tensor in a["tensors"]:
        part, shape = known(tensor)
        formed = shapes.unsqueeze(table, {"self": part, "dim": dimension(a["dim"], len(shape) + 1)})
        meta = part.meta._replace(shape=formed.shape, strides=formed.strides)
        parts.append(Tensor(part.content, meta, part.root))
    return cat(table, {"tensors": tuple(parts), "dim": a["dim"]})
