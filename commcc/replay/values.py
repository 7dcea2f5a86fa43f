"""Values of a run: leaves of nested results, bits, poison, and how the CPU is set up for all of it.

leaves([(a, b), None])        # [a, b, None]
bits_equal(a, b)              # to the bit, NaN included
poison(buffer, real)          # nothing in buffer is what real holds
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from commcc.serialization.attributes import element_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class RankResults:
    """What one rank has after a run: outputs in order, nested ones flattened, and the inputs that were written."""

    outputs: list[Any]
    written: dict[str, Any] = field(default_factory=dict)

    def on_cpu(self) -> RankResults:
        """The same where every rank can read it, once it is there."""
        return RankResults(
            [_on_cpu(value) for value in self.outputs], {name: _on_cpu(value) for name, value in self.written.items()}
        )


def _on_cpu(value: Any) -> Any:
    # What has given its memory back has nothing to copy.
    return value.cpu() if isinstance(value, torch.Tensor) and not is_freed(value) else value


def leaves(value: Any) -> list[Any]:
    """All that is in nested lists, tuples and dictionaries, in order."""
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    if isinstance(value, dict):
        return [leaf for key in value for leaf in leaves(value[key])]
    return [value]


def tensors_in(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def storage(tensor: torch.Tensor) -> int:
    """Which storage a tensor lives in; views of one have the same."""
    result: int = tensor.untyped_storage()._cdata
    return result


def extent(tensor: torch.Tensor) -> range:
    """From the first to the last byte of a tensor in its storage."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin, elements = tensor.storage_offset(), last + 1 if tensor.numel() else 0
    return range(begin * tensor.element_size(), (begin + elements) * tensor.element_size())


def overlap(one: range, other: range) -> bool:
    """Whether two extents have bytes in common."""
    return bool(one) and bool(other) and one.start < other.stop and other.start < one.stop


def is_freed(tensor: torch.Tensor) -> bool:
    """Whether a program gave the tensor's memory back (``resize_storage_bytes_`` to 0)."""
    return bool(tensor.numel()) and tensor.untyped_storage().nbytes() == 0


def bits_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    return torch.equal(element_bytes(one), element_bytes(other))


def poison(buffer: torch.Tensor, real: torch.Tensor) -> None:
    """Fill a buffer with what is not a number, or with the largest integer; never with ``real``."""
    if buffer.dtype.is_floating_point or buffer.dtype.is_complex:
        buffer.fill_(float("nan"))
    elif buffer.dtype == torch.bool:
        buffer.copy_(real.logical_not())
    else:
        largest = torch.iinfo(buffer.dtype).max
        buffer.copy_(torch.where(real == largest, largest - 1, largest))


def _end_levels(depth: int) -> None:
    functorch = torch._C._functorch
    try:
        functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
    except RuntimeError:  # PyTorch 2.11 asserts afterwards that a level is left
        if functorch.get_dynamic_layer_stack_depth() != depth:
            raise


@contextmanager
def quiet_cpu() -> Iterator[None]:
    """One thread and PyTorch's own kernels: results do not depend on the machine's cores, nor on what else runs.

    oneDNN picks kernels by what the processor advertises, which some virtual machines do not keep. Levels of vmap that
    a graph enters and never leaves end here.
    """
    threads, enabled = torch.get_num_threads(), torch._C._get_mkldnn_enabled()
    levels = torch._C._functorch.get_dynamic_layer_stack_depth()
    torch.set_num_threads(1)
    torch._C._set_mkldnn_enabled(False)
    try:
        with torch.no_grad():
            yield
    finally:
        _end_levels(levels)
        torch._C._set_mkldnn_enabled(enabled)
        torch.set_num_threads(threads)
