"""A rank's launches and waits, read off its program.

    trace = trace_of(load("rank3.fx.txt"))
    trace.launches[0].sent          # Sent(kind=all_gather, dtypes=('bfloat16',), counts=(4096,), ...)

Limits: sub-graphs are looked into only where a control edge wraps a single op; a node with others that
communicate is opaque.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.base.terms import Kind
from commcc.graph import ops
from commcc.graph.index import build_index
from commcc.graph.index.control import unwrapped
from commcc.graph.source_lines import source_of
from commcc.lint.ranks.meaning import meanings, sent_by
from commcc.lint.ranks.types import Launch, Opaque, Sent, Splits, Trace

if TYPE_CHECKING:
    from torch import fx

    from commcc.graph.index import GraphIndex
    from commcc.graph.index.graph import Tensor
    from commcc.graph.ops.collective_table import CollectiveOp
    from commcc.graph.program import Program

#: Arguments of collectives that are compared as :class:`Sent` has them, or that other code compares.
_COMPARED = frozenset({"input", "inputs", "out", "reduce_op", "group_size", "group_name"})
_SPLITS = ("input_split_sizes", "output_split_sizes")


def trace_of(program: Program, index: GraphIndex | None = None) -> Trace:
    """What this rank launches; ``index`` saves building it again. Raises GraphError on an illegal graph."""
    index = build_index(program) if index is None else index
    nodes = unwrapped(program).nodes
    known = meanings(nodes) if index.launches else {}
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
        opaque=tuple(_opaque(index, at) for at in index.barriers),
        groups=dict(program.groups),
    )


def _opaque(index: GraphIndex, at: int) -> Opaque:
    inside = index.ops[at].startswith("higher_order.")
    why = "has a sub-graph that communicates" if inside else "communicates in an unknown way"
    return Opaque(index.names[at], index.ops[at], why)


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
        others=_others(op, node),
    )
    meaning = sent_by(node, op.tensor, known)
    return Launch(index.names[at], facts.group, sent, splits, meaning, _module(index, at), source_of(node))


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


def _others(op: CollectiveOp, node: fx.Node) -> tuple[tuple[str, str], ...]:
    """Arguments that only some collectives have: who broadcasts, which dimensions change places."""
    names = [name for name in op.arguments if name not in _COMPARED and name not in _SPLITS]
    return tuple((name, str(ops.argument(node, name))) for name in names)


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


def _module(index: GraphIndex, at: int) -> str | None:
    near = (at, *index.launches[at].waits, *index.launches[at].inputs)
    return next((index.modules[n] for n in near if index.modules[n] is not None), None)
