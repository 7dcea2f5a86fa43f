"""A rank's launches and waits, read off its program, each with a digest of what it sends.

    trace = trace_of(load("rank3.fx.txt"))
    trace.launches[0].sent          # Sent(kind=all_gather, dtypes=('bfloat16',), counts=(4096,), ...)

What a value is, is the expression over the graph's inputs that computes it::

    wait_tensor(all_gather_into_tensor(_to_copy(primals_3)))    and, on another rank,
    wait_1 = wait_tensor(ag_7) with ag_7 of _to_copy(arg2_1)    have one digest when both inputs are third

Names of nodes and groups, device numbers and metadata do not count.

Limits: sub-graphs are looked into only where a control edge wraps a single op; a node with others that
communicate is opaque. What a buffer holds after a write in place is not told from what it held before; a number that
differs from rank to rank (where a shard begins) makes another expression of all that depends on it.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.base.terms import Kind
from commcc.graph import ops
from commcc.graph.index import build_index
from commcc.graph.index.control import unwrapped
from commcc.graph.source_lines import source_of
from commcc.lint.ranks.types import Launch, Opaque, Sent, Splits, Trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from commcc.graph.index import GraphIndex
    from commcc.graph.index.graph import Tensor
    from commcc.graph.program import Program

#: Arguments of collectives that are compared as :class:`Sent` has them, or that other code compares.
_SPLITS = ("input_split_sizes", "output_split_sizes")
_COMPARED = frozenset({"input", "inputs", "out", "reduce_op", "group_size", "group_name", *_SPLITS})
_INSIDE, _UNKNOWN = "has a sub-graph that communicates", "communicates in an unknown way"
_APART = "communicates through channels of its own"
_DEVICE = re.compile(r"\b(cuda|xpu|hpu|npu|mtia|privateuseone):\d+")
_GROUPS = ("group_name", "process_group")


def trace_of(program: Program, index: GraphIndex | None = None) -> Trace:
    """What this rank launches; ``index`` saves building it again. Raises GraphError on an illegal graph."""
    index = build_index(program) if index is None else index
    nodes = unwrapped(program).nodes
    known = _meanings(nodes) if index.launches else {}
    number = {launch: i for i, launch in enumerate(index.launches)}
    steps: list[int] = []
    for at in sorted({*index.launches, *index.wait_of}):
        if at in number:
            steps.append(number[at])
            steps += [] if index.launches[at].asynchronous else [~number[at]]
        else:
            steps.append(~number[index.wait_of[at]])
    return Trace(
        launches=tuple(_launch(index, nodes[at], at, known) for at in index.launches),
        steps=tuple(steps),
        opaque=tuple(_opaque(index, nodes)),
        groups=dict(program.groups),
    )


def _opaque(index: GraphIndex, nodes: Sequence[fx.Node]) -> Iterator[Opaque]:
    """What communicates and is not looked into, in order."""
    barriers = set(index.barriers)
    for at, node in enumerate(nodes):
        described = ops.described_as(node.target)
        if at in barriers:
            why = _INSIDE if index.ops[at].startswith("higher_order.") else _UNKNOWN
            yield Opaque(index.names[at], index.ops[at], why)
        elif described is not None and described.communicates:
            yield Opaque(index.names[at], index.ops[at], _APART)


def _launch(index: GraphIndex, node: fx.Node, at: int, known: dict[fx.Node, str]) -> Launch:
    facts = index.launches[at]
    op = ops.collective_of(node.target)
    assert op is not None, "a launch that the table of collectives does not have"
    tensors = [index.tensors[i] for i in facts.inputs]
    by_rows = facts.kind is Kind.ALL_TO_ALL and _SPLITS[0] in op.arguments
    splits = _splits(node, tensors[0] if tensors else None) if by_rows else None
    row = _row(tensors[0]) if splits is not None and not splits.known and tensors else None
    sent = Sent(
        kind=facts.kind,
        reduction=facts.reduction,
        dtypes=tuple(None if t is None else t.dtype for t in tensors),
        counts=() if by_rows else tuple(_count(t) for t in tensors),
        row=row,
        device=next((t.device.split(":")[0] for t in tensors if t is not None), None),
        group_size=facts.group_size if op.has_group_size else None,
        # Arguments that only some collectives have: who broadcasts, which dimensions change places.
        others=tuple((name, str(ops.argument(node, name))) for name in op.arguments if name not in _COMPARED),
    )
    meaning = _sent_by(node, op.tensor, known)
    near = (at, *facts.waits, *facts.inputs)
    module = next((index.modules[n] for n in near if index.modules[n] is not None), None)
    return Launch(index.names[at], facts.group, sent, splits, meaning, module, source_of(node))


def _count(tensor: Tensor | None) -> int | None:
    return None if tensor is None or tensor.symbolic else tensor.numel


def _row(tensor: Tensor | None) -> int | None:
    """Elements of one row; None when a size other than the number of rows is not known."""
    if tensor is None:
        return None
    elements = 1
    for size in tensor.shape[1:]:
        if isinstance(size, str):
            return None
        elements *= size
    return elements


def _splits(node: fx.Node, tensor: Tensor | None) -> Splits:
    given = [ops.argument(node, name) for name in _SPLITS]
    row = _row(tensor)
    sent, expected = (_numbers(sizes, row) for sizes in given)
    known = all(not told or counts is not None for told, counts in zip(given, (sent, expected), strict=True))
    return Splits(sent, expected, _count(tensor), known)


def _numbers(sizes: Any, row: int | None) -> tuple[int, ...] | None:
    """Split sizes in elements; None when there are none, or some are not in the graph."""
    if row is None or not isinstance(sizes, (list, tuple)) or not sizes:
        return None
    return tuple(size * row for size in sizes) if all(type(size) is int for size in sizes) else None


def _meanings(nodes: Sequence[fx.Node]) -> dict[fx.Node, str]:
    """A digest for every node."""
    digests: dict[fx.Node, str] = {}
    inputs = 0
    for node in nodes:
        if node.op == "placeholder":
            text, inputs = f"input {inputs}", inputs + 1
        elif node.op == "call_function":
            names = ops.argument_names(node.target)
            group = {i for i, name in enumerate(names) if name in _GROUPS} if len(names) >= len(node.args) else set()
            given = [_text(value, digests) for i, value in enumerate(node.args) if i not in group]
            given += [
                f"{key}={_text(operand, digests)}" for key, operand in sorted(node.kwargs.items()) if key not in _GROUPS
            ]
            overload = getattr(node.target, "_overloadname", "")
            text = f"{ops.op_name(node.target)}.{overload}({', '.join(given)})"
        else:
            text = f"{node.op} {node.target}"
        digests[node] = _digest(text)
    return digests


def _sent_by(node: fx.Node, argument: str, known: dict[fx.Node, str]) -> str:
    """A digest of what a launch sends."""
    return _digest(f"{ops.op_name(node.target)} {_text(ops.argument(node, argument), known)}")


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def _text(value: Any, known: dict[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return f"%{known[value]}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_text(item, known) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_text(item, known)}' for key, item in value.items())}}}"
    if isinstance(value, torch.device):
        return value.type
    if isinstance(value, str):
        return _DEVICE.sub(r"\1", value)
    return repr(value)
