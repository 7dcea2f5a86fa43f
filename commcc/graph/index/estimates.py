"""Fills :class:`commcc.graph.index.graph.Estimates`: buffers and their bytes, work, FLOPs, sizes by hint."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any

from commcc.graph.index.graph import Estimates
from commcc.graph.index.storage import assign_storages
from commcc.graph.index.tensors import TensorTable
from commcc.graph.index.work import flops, work
from commcc.graph.ops import is_compute
from commcc.graph.ops.kernels import Work, may_copy, resized_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx

    from commcc.graph.index.graph import Tensor
    from commcc.graph.index.hints import SizeHints

Buffers = tuple[tuple[int, ...], ...]


def estimate(
    nodes: list[fx.Node],
    number: dict[fx.Node, int],
    storages: Buffers,
    tensors: Sequence[Tensor | None],
    hints: SizeHints,
    mixed: frozenset[int] = frozenset(),
) -> Estimates:
    """All facts of the nodes that only matter for costs. mixed: nodes whose results may be in any operand's storage;
    memory of their own is assumed for them.
    """
    table = TensorTable(hints)
    elements = {i: table.parts(node.meta.get("val")) for i, node in enumerate(nodes)}
    parts = {i: facts for i, facts in elements.items() if facts}
    kinds = tuple(map(work, nodes))
    copies = frozenset(i for i, n in enumerate(nodes) if kinds[i] is not Work.FREE and may_copy(n.target))
    copies |= mixed
    buffers = assign_storages(nodes, number, copies=copies) if copies else storages
    counts = {i: flops(n, hints) for i, n in enumerate(nodes) if n.op == "call_function" and is_compute(n.target)}
    resizes = {i: resized_to(n) for i, n in enumerate(nodes) if n.op == "call_function"}
    return Estimates(
        parts=parts,
        buffers=buffers,
        buffer_bytes=_buffer_bytes(
            buffers, [_extents(n.meta.get("val"), tensors[i], parts.get(i, ()), hints) for i, n in enumerate(nodes)]
        ),
        resizes={i: max(0, size) for i, size in resizes.items() if isinstance(size, int)},
        work=kinds,
        flops={i: count for i, count in counts.items() if count is not None},
        hints=tuple(sorted(hints.used.values(), key=lambda hint: (len(hint.symbol), hint.symbol))),
    )


def _extents(
    val: Any, tensor: Tensor | None, parts: Sequence[Tensor | None], hints: SizeHints
) -> list[tuple[int, str]]:
    """For each element of a result, how many bytes of memory it reaches over, and on which device."""
    values = (val,) if tensor is not None or not parts else val
    facts = (tensor,) if tensor is not None or not parts else parts
    return [
        (_extent(value, one, hints), one.device) if one is not None else (0, "")
        for value, one in zip(values, facts, strict=True)
    ]


def _extent(val: Any, tensor: Tensor, hints: SizeHints) -> int:
    """Bytes from the first element to the last: less than all elements where a dimension is expanded."""
    if tensor.contiguous and not tensor.symbolic:
        return tensor.bytes
    sizes, strides = map(hints.value, val.shape), map(hints.value, val.stride())
    last = 0
    for size, stride in zip(sizes, strides, strict=True):
        if not size or stride is None:
            return tensor.bytes
        last += (size - 1) * stride
    return (last + 1) * tensor.itemsize


def _buffer_bytes(buffers: Buffers, extents: Sequence[Sequence[tuple[int, str]]]) -> tuple[int, ...]:
    """Bytes of every buffer: the largest extent seen in it; only the device that holds most counts."""
    size = [0] * (1 + max(chain.from_iterable(buffers), default=-1))
    where = [""] * len(size)
    for held, reached in zip(buffers, extents, strict=True):
        for buffer, (extent, device) in zip(held, reached, strict=False):
            if device and extent >= size[buffer]:
                size[buffer], where[buffer] = extent, device
    total: Counter[str] = Counter()
    for bytes_, device in zip(size, where, strict=True):
        total[device] += bytes_ if not device.startswith("cpu") else 0
    main = max(sorted(total), key=lambda device: total[device], default="")
    if not total[main]:
        return tuple(size)
    return tuple(bytes_ if device == main else 0 for bytes_, device in zip(size, where, strict=True))
