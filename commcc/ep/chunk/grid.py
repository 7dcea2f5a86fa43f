"""How the tokens of a region lie in its tensors, and how they are cut.

    grid = infer([(60, 32)], "batch")        # tokens are rows: Grid(extent=60, ...)
    grid.dim_of((120, 32))                   # 0: two rows for each token
    parts(60, 4)                             # (15, 15, 15, 15)
    parts(60, 7)                             # (8, 8, 8, 8, 8, 8, 12): the rest is in the last

``batch`` cuts dimension 0: samples of a tensor ``[batch, sequence, ...]``, or rows where both are folded into one.
``seq`` cuts dimension 1 of such a tensor, and rows where they are folded already. Limits: one extent for a region;
a dimension may hold a whole multiple of it, token by token; rows of several samples that come in folded are not cut
by ``seq``, those that are folded inside are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Shape = Sequence[object]


@dataclass(frozen=True)
class Grid:
    """extent: what is cut, in units. inner: tokens in a unit. outer: size of what lies before the cut dimension."""

    extent: int
    inner: int = 1
    outer: int = 1
    axis: int = 0

    def dim_of(self, shape: Shape) -> int | None:
        """The dimension of a tensor from outside in which the tokens lie; None when it holds none."""
        if any(type(size) is not int for size in shape[:2]):
            return None
        if self.axis and len(shape) > 1 and shape[0] == self.outer and shape[1] == self.extent:
            return 1
        if not shape or (self.axis and self.outer != 1):
            return None
        first = shape[0]
        return 0 if first == self.extent or self.multiple(first, self.inner) else None

    def factory_dim(self, shape: Shape) -> int | None:
        """As :meth:`dim_of`, for tensors that hold no data: one number for each sample tells nothing of tokens."""
        if len(shape) == 1 and self.inner > 1 and type(shape[0]) is int and shape[0] == self.extent:
            return None
        if self.axis and self.outer > 1 and shape and self.dim_of(shape) is None:
            return 0 if self.multiple(shape[0], self.outer) else None  # samples and sequence, folded
        return self.dim_of(shape)

    def multiple(self, size: object, of: int = 1) -> bool:
        """Whether a size is a whole number of units, ``of`` at a time."""
        return isinstance(size, int) and size > 0 and size % (self.extent * of) == 0

    def scaled(self, size: int, part: int) -> int:
        """What is left of ``size`` in a chunk of ``part`` units."""
        return size // self.extent * part


def infer(shapes: Iterable[Shape], policy: str) -> Grid | None:
    """The grid of a region from the shapes of the activations that enter it; None when there is nothing to cut."""
    known = [shape for shape in shapes if len(shape) > 1 and all(isinstance(size, int) for size in shape[:2])]
    wide = [(int(str(s[0])), int(str(s[1]))) for s in known if len(s) > 2]
    if policy == "seq" and wide:
        (batch, tokens), _ = Counter(wide).most_common(1)[0]
        return Grid(tokens, outer=batch, axis=1)
    sizes = [int(str(shape[0])) for shape in known]
    if not sizes:
        return None
    extent = min(sizes)
    # Masks have dimensions for heads or blocks where activations have tokens.
    return Grid(extent, inner=max((tokens for batch, tokens in wide if batch == extent), default=1))


def parts(extent: int, chunks: int) -> tuple[int, ...]:
    """Sizes of the chunks: all equal, but that the last one has the rest too."""
    size = extent // chunks
    return (*(size for _ in range(chunks - 1)), extent - size * (chunks - 1))
