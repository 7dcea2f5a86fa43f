"""Abstract values: what the verifier knows about the result of a node.

A result is a :class:`Tensor`, a size (``int`` or ``Poly``), an :class:`Opaque` term, or a tuple of these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Union

from commcc.verify.sizes import Poly, Size

if TYPE_CHECKING:
    import torch
    from torch import fx

Shape: TypeAlias = "tuple[Size, ...]"


class Meta(NamedTuple):
    """Shape, strides, dtype and device of a tensor as its ``val`` says; parts that are unknown are None."""

    shape: Shape | None
    strides: Shape | None
    dtype: torch.dtype | None
    device: str | None


UNKNOWN = Meta(None, None, None, None)


@dataclass(frozen=True)
class Opaque:
    """A value that is not a tensor and not a size, by term; ``base`` is what tensors in it are views of."""

    term: int
    base: Tensor | None = None


@dataclass(eq=False, slots=True)
class Tensor:
    """A tensor: which elements it holds, and which memory they are in.

    content: term of its elements, as they were when ``stamp`` writes had been made to its storage.
    root: number of the storage it lives in. base: the tensor it is a view of, None for one that owns its
    storage. via: the node that made the view, the number of the result and the argument that ``base``
    was given as; None when the tensor is all of ``base``.
    may_copy: ``base`` is a guess, the op may as well have copied.
    where: position in the storage, filled in on demand.
    """

    content: int
    meta: Meta
    root: int
    stamp: int = 0
    base: Tensor | None = None
    via: tuple[fx.Node, int, str] | None = None
    may_copy: bool = False
    where: Tensor | None = field(default=None, repr=False)

    @property
    def shape(self) -> Shape | None:
        return self.meta.shape

    @property
    def dtype(self) -> torch.dtype | None:
        return self.meta.dtype


Value: TypeAlias = Union[Tensor, int, Poly, Opaque, "tuple[Any, ...]"]


def is_size(value: object) -> bool:
    """Whether a value is an integer, symbolic or not."""
    return isinstance(value, (int, Poly)) and not isinstance(value, bool)


def tensors_in(value: object) -> list[Tensor]:
    """All tensors in a value, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple):
        return [tensor for part in value for tensor in tensors_in(part)]
    return []
