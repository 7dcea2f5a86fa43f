"""Ops of PyTorch's own bucketing pass that lay out the buffer of a merged collective.

``bucketing._pre_bucket_reduce_scatter(inputs, W)`` is ``cat([x.reshape(W, -1) for x in inputs], 1).flatten()``.
``bucketing._pre_bucket_all_gather`` allocates the result of a gather over W ranks and writes the inputs,
converted, to the row of its own rank; the other rows are undefined until the gather fills them.

Limits: dtypes are given as positions in a table of the PyTorch that made the graph; the table of the
PyTorch that reads it is used.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from commcc.verify.elements import cast, reinterpret
from commcc.verify.joins import cat
from commcc.verify.layout import Leaf, intern, items_of
from commcc.verify.shapes import COPY, Formed, known, size_in
from commcc.verify.sizes import Impossible, Size, Undecidable, product
from commcc.verify.strides import contiguous_strides
from commcc.verify.values import Tensor

if TYPE_CHECKING:
    from commcc.verify.layout import Item
    from commcc.verify.shapes import Arguments
    from commcc.verify.table import Terms

UNDEFINED = "undefined"


@lru_cache(maxsize=1)
def _dtypes() -> tuple[torch.dtype, ...]:
    """All dtypes in the order of their names, as the op numbers them."""
    found = (getattr(torch, name) for name in dir(torch))
    return tuple(each for each in found if isinstance(each, torch.dtype))


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
    length = sum((_elements(tensor, out, dtype) for tensor, out in zip(inputs, out_dtypes, strict=True)), start=0)
    whole = length * ranks
    undefined = table.source((UNDEFINED, ("int", whole), str(dtype)), whole, dtype)
    before, after = Leaf(undefined, 0, length * rank, ()), length * (rank + 1)
    content = intern(table, [before, *row, Leaf(undefined, after, whole - after, ())])
    return Formed(content, (whole,), dtype, (1,), COPY)


def _elements(tensor: Tensor, out: torch.dtype, dtype: torch.dtype) -> Size:
    numel = product(known(tensor)[1])
    return numel * out.itemsize // dtype.itemsize


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
        row = product(shape) // ranks
        if row * ranks != product(shape):
            raise Impossible("an input that does not divide by the group size")
        strides = contiguous_strides((ranks, row))
        parts.append(Tensor(part.content, part.meta._replace(shape=(ranks, row), strides=strides), part.root))
    formed = cat(table, {"tensors": tuple(parts), "dim": 1})
    return formed._replace(shape=(product(formed.shape),), strides=(1,))
