"""Strides: which reshapes are views, and whether two tensors are laid out alike.

::

    view_strides((4, 8), (8, 1), (32,))    # (1,)
    view_strides((4, 8), (16, 1), (32,))   # None: only a copy has this shape

Limits: symbolic strides are compared structurally; what cannot be decided raises ``Undecidable``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.verify.sizes import Poly, Size, Undecidable, product

if TYPE_CHECKING:
    from commcc.verify.values import Shape


def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides, as PyTorch makes them (empty dimensions count as one)."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (1 if size == 0 else size)
    return tuple(reversed(strides))


def relevant(shape: Shape, strides: Shape) -> Shape:
    """The strides that decide where elements are: those of dimensions of one element are set to 0."""
    if 0 in shape:
        return (0,) * len(shape)
    if 1 not in shape:
        return strides
    return tuple(0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True))


def is_contiguous(shape: Shape, strides: Shape) -> bool:
    plain = contiguous_strides(shape)
    return strides == plain or relevant(shape, strides) == relevant(shape, plain)


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
            _refuse_symbols(taken, count)
            return None
    while position >= 0:
        result.append(result[-1] if result else 1)
        position -= 1
    return tuple(reversed(result))


def _is_short(taken: Size, count: Size) -> bool:
    if isinstance(taken, int) and isinstance(count, int):
        return taken < count
    return taken != count


def _refuse_symbols(taken: Size, count: Size) -> None:
    if isinstance(taken, Poly) or isinstance(count, Poly):
        raise Undecidable("strides of symbolic sizes")


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
