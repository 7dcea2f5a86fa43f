"""Fills :class:`commcc.graph.index.graph.Estimates`: buffers and their bytes, work, FLOPs, sizes by hint.

What cost models and the memory model need: which nodes run a kernel, and how many FLOPs it has. FLOPs are those of
``torch.utils.flop_counter``, on shapes with hints in place of symbolic sizes; ops of the matmul family that PyTorch
has no formula for have one in :mod:`commcc.graph.ops.flops`.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket

from commcc.graph import ops
from commcc.graph.index.graph import Estimates
from commcc.graph.index.storage import assign_storages
from commcc.graph.index.tensors import TensorTable
from commcc.graph.ops.described import evaluated
from commcc.graph.ops.flops import formulas, is_unmasked, own_formula
from commcc.graph.ops.kernels import FUSING_COPIES, RESIZE, Work, may_copy, resized_to, work_of

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    parts = {i: facts for i, node in enumerate(nodes) if (facts := table.parts(node.meta.get("val")))}
    # Found by the object: hashing an op takes longer than all the rest.
    targets = {id(n.target): n.target for n in nodes if n.op == "call_function"}
    usual_work = {at: usual_work_of(op) for at, op in targets.items()}
    kinds = tuple(
        [
            kind if tensor is not None and (kind := usual_work.get(id(node.target))) is not None else work(node)
            for node, tensor in zip(nodes, tensors, strict=True)
        ]
    )
    copying, compute = ({at for at, op in targets.items() if is_so(op)} for is_so in (may_copy, ops.is_compute))
    copies = frozenset(i for i, n in enumerate(nodes) if kinds[i] is not Work.FREE and id(n.target) in copying)
    copies |= mixed
    buffers = assign_storages(nodes, number, copies=copies) if copies else storages
    known: dict[tuple[Any, str], int] = {}
    counts = {i: flops(n, hints, known) for i, n in enumerate(nodes) if id(n.target) in compute}
    resizing = {at for at, op in targets.items() if ops.op_name(op) == RESIZE}
    resizes = {i: resized_to(n) for i, n in enumerate(nodes) if id(n.target) in resizing}
    packed = {id(t): [(t.bytes, t.device)] for t in {id(t): t for t in tensors if t is not None}.values() if t.packed}
    extents = [
        packed.get(id(tensor)) or _extents(node.meta.get("val"), tensor, parts.get(i, ()), hints)
        for i, (node, tensor) in enumerate(zip(nodes, tensors, strict=True))
    ]
    vague = [i for i, tensor in enumerate(tensors) if tensor is None or tensor.numel is None]
    return Estimates(
        parts=parts,
        buffers=buffers,
        buffer_bytes=_buffer_bytes(buffers, extents),
        resizes={i: max(0, size) for i, size in resizes.items() if isinstance(size, int)},
        work=kinds,
        flops={i: count for i, count in counts.items() if count is not None},
        unmasked=frozenset(i for i in counts if is_unmasked(nodes[i])),
        hints=tuple(sorted(hints.used.values(), key=lambda hint: (len(hint.symbol), hint.symbol))),
        unknown=frozenset(i for i in vague if _is_unknown(nodes[i], (tensors[i], *parts.get(i, ())))),
    )


def _is_unknown(node: fx.Node, facts: Sequence[Tensor | None]) -> bool:
    """Whether a result has a size without a number, or there is one and nothing is known of it."""
    if any(tensor is not None and tensor.numel is None for tensor in facts):
        return True
    # An op that returns nothing or objects (a mesh), or whose result nobody reads, needs no value; nor does an input
    # that is an object, or a tuple whose elements say what they are.
    if node.op != "call_function" or "val" in node.meta or _gives_objects(node.target):
        return False
    return any(not ops.is_getitem(user.target) or "val" not in user.meta for user in node.users)


def _gives_objects(target: Any) -> bool:
    """Whether all that an op returns are Python's objects."""
    if isinstance(target, OpOverloadPacket):
        names: list[str] = target.overloads()  # type: ignore[no-untyped-call]
        return all(_gives_objects(getattr(target, name)) for name in names)
    returns = target._schema.returns if isinstance(target, OpOverload) else ()
    return bool(returns) and all(str(result.type) == "PyObject" for result in returns)


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
    if tensor.packed:
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


Shape = tuple[int, ...]

#: More than any machine does in a year; hints that make so many are wrong.
_MAX_FLOPS = 2**100


def work(node: fx.Node) -> Work:
    """How a node runs."""
    if node.op != "call_function":
        return Work.FREE
    usual = work_of(node.target)
    if usual is Work.FREE:
        if not (may_copy(node.target) and copies(node)):
            return usual
        return Work.FUSABLE if ops.op_name(node.target) in FUSING_COPIES else Work.KERNEL
    fact = ops.facts(node.target)
    if fact.host_sync or ops.collective_of(node.target) is not None:
        return Work.KERNEL
    if (not fact.writing or fact.writes == ops.ALL) and not _has_tensor(node.meta.get("val")):
        # Of an op of an unknown library without a result nothing is known, and it may well run a kernel.
        known = node.meta.get("val") is not None or fact.assertion
        known = known or ops.library_of(node.target) in ("operator", "_dtensor", "higher_order")
        return Work.FREE if known else usual
    return usual


def usual_work_of(target: Any) -> Work | None:
    """How all nodes with this op run that return one tensor; None where that depends on more."""
    kind = work_of(target)
    if kind is Work.FREE:
        return None if may_copy(target) else kind
    return Work.KERNEL if ops.facts(target).host_sync or ops.collective_of(target) is not None else kind


def _has_tensor(val: Any) -> bool:
    if isinstance(val, (tuple, list)):
        return any(map(_has_tensor, val))
    return isinstance(val, torch.Tensor)


def copies(node: fx.Node) -> bool:
    """Whether an op that may copy has to: dtype or device change, or strides allow no view.

    Symbolic sizes are taken to allow one.
    """
    source = next(iter(node._input_nodes), None)
    before, after = source.meta.get("val") if source is not None else None, node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    if before.dtype != after.dtype or before.device != after.device or ops.argument(node, "copy") is True:
        return True
    sizes = [*before.shape, *before.stride(), *after.shape, *after.stride()]
    if not all(isinstance(size, int) for size in sizes):
        return False
    if before.shape == after.shape:
        return _layout(before) != _layout(after)
    return not viewable(tuple(before.shape), tuple(before.stride()), tuple(after.shape))


def _layout(tensor: torch.Tensor) -> tuple[tuple[int, int], ...]:
    """Sizes and strides, those of single elements left out: they decide nothing."""
    return tuple((n, step) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n != 1)


def viewable(shape: Shape, stride: Shape, target: Shape) -> bool:
    """Whether a tensor of this shape and stride can be seen under another shape without a copy.

    Dimensions that are laid out as one are joined to runs; every run must be a product of
    neighbouring target sizes.
    """
    if prod(shape) == 0:
        return True
    runs: list[int] = []
    last = 0
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size == 1:
            continue
        if runs and step == last:
            runs[-1] *= size
        else:
            runs.append(size)
        last = step * size
    wanted = [size for size in reversed(target) if size != 1]
    for run in runs:
        rest = run
        while rest > 1 and wanted and wanted[0] and rest % wanted[0] == 0:
            rest //= wanted.pop(0)
        if rest != 1:
            return False
    return not wanted


def flops(node: fx.Node, hints: SizeHints, known: dict[tuple[Any, str], int] | None = None) -> int | None:
    """FLOPs of a compute node; None where there is no formula or a size has no number.

    known: what formulas have said of shapes, which repeat from layer to layer.
    """
    known = {} if known is None else known
    described = ops.described_as(node.target)
    target: Any = described.like if described is not None and described.like is not None else node.target
    own = own_formula(target)
    try:
        args, kwargs = _shapes((node.args, node.kwargs), hints)
        out = _shapes(node.meta.get("val"), hints)
        if described is not None and described.like is not None:
            args, kwargs = described.as_like(args, kwargs)
        if described is not None and described.flops is not None:
            bound = described.bound(args, kwargs)
            shapes = {name: shape for name, shape in bound.items() if isinstance(shape, torch.Size)}
            count = int(evaluated(described.flops, shapes))
        elif own is not None:
            count = int(own(args, out))
        else:
            formula = formulas().flop_registry[getattr(target, "overloadpacket", target)]
            asked = (formula, str((args, kwargs, out)))
            if asked not in known:
                known[asked] = int(formula(*args, **kwargs, out_val=out))
            count = known[asked]
    except Exception:
        return None
    return count if count <= _MAX_FLOPS else None


class _NoNumberError(ValueError):
    """A size without a number."""


def _shapes(value: Any, hints: SizeHints) -> Any:
    """Tensors and nodes replaced by plain shapes."""
    held = value.meta.get("val") if isinstance(value, fx.Node) else value
    if isinstance(held, torch.Tensor):
        sizes: list[int] = []
        for size in held.shape:
            number = hints.value(size)
            if number is None:
                raise _NoNumberError
            sizes.append(number)
        return torch.Size(sizes)
    if isinstance(held, (tuple, list)):
        parts = [_shapes(part, hints) for part in held]
        return parts if isinstance(held, list) else tuple(parts)
    if isinstance(held, dict):
        return {name: _shapes(part, hints) for name, part in held.items()}
    return held
