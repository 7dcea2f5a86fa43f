"""Fills :class:`commcc.index.graph.Estimates`: buffers and their bytes, work, FLOPs, sizes by hint."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from commcc.index.graph import Estimates
from commcc.index.storage import assign_storages
from commcc.index.tensors import TensorTable
from commcc.index.work import flops, work
from commcc.kernels import Work, is_reshape, resized_to
from commcc.ops import is_compute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx

    from commcc.index.graph import Tensor
    from commcc.index.hints import SizeHints

Buffers = tuple[tuple[int, ...], ...]


def estimate(
    nodes: list[fx.Node],
    number: dict[fx.Node, int],
    storages: Buffers,
    tensors: Sequence[Tensor | None],
    hints: SizeHints,
) -> Estimates:
    """All facts of the nodes that only matter for costs."""
    table = TensorTable(hints)
    found = {i: table.parts(node.meta.get("val")) for i, node in enumerate(nodes)}
    parts = {i: facts for i, facts in found.items() if facts}
    kinds = work(nodes)
    copies = frozenset(i for i, n in enumerate(nodes) if kinds[i] is Work.KERNEL and is_reshape(n.target))
    buffers = assign_storages(nodes, number, copies) if copies else storages
    counts = {i: flops(n, hints) for i, n in enumerate(nodes) if n.op == "call_function" and is_compute(n.target)}
    resizes = {i: resized_to(n) for i, n in enumerate(nodes) if n.op == "call_function"}
    return Estimates(
        parts=parts,
        buffers=buffers,
        buffer_bytes=_buffer_bytes(buffers, tensors, parts),
        resizes={i: size for i, size in resizes.items() if isinstance(size, int)},
        work=kinds,
        flops={i: count for i, count in counts.items() if count is not None},
        hints=tuple(sorted(hints.used.values(), key=lambda hint: (len(hint.symbol), hint.symbol))),
    )


def _buffer_bytes(
    buffers: Buffers, tensors: Sequence[Tensor | None], parts: dict[int, tuple[Tensor | None, ...]]
) -> tuple[int, ...]:
    """Bytes of every buffer: the largest tensor seen in it; only the device that holds most counts."""
    size = [0] * (1 + max(chain.from_iterable(buffers), default=-1))
    where: list[str] = [""] * len(size)
    for i, held in enumerate(buffers):
        one = tensors[i]
        facts = parts[i] if one is None and i in parts else (one,)
        for buffer, tensor in zip(held, facts, strict=False):
            if tensor is not None and tensor.bytes >= size[buffer]:
                size[buffer], where[buffer] = tensor.bytes, tensor.device
    total: Counter[str] = Counter()
    for bytes_, device in zip(size, where, strict=True):
        total[device] += bytes_ if not device.startswith("cpu") else 0
    main = max(sorted(total), key=lambda device: total[device], default="")
    if not total[main]:
        return tuple(size)
    return tuple(bytes_ if device == main else 0 for bytes_, device in zip(size, where, strict=True))
