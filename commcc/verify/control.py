"""Control edges: ``control_deps`` around a single op computes what that op computes, only later.

    mm = control_deps((all_gather,), self.subgraph_mm, x, w)     is     mm = aten.mm(x, w)

when the sub-graph is one call of ``aten.mm`` on its two inputs, whose result it returns. Both programs are
compared without such wrappers; anything else stays an op that is compared with all its arguments, the
sub-graph among them. An edge that is gone changes no value and is a remark: a backend may now reorder there.

Limits: what an edge is good for is not judged; that a node comes after what it is held behind is
(:mod:`commcc.verify.order`, on the graph as it is written).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import fx

from commcc.graph.ops import op_name
from commcc.verify.subgraphs import find

if TYPE_CHECKING:
    from commcc.graph.program import Program
    from commcc.verify.verdict import Report

Edges = dict[str, tuple[str, ...]]


def without_edges(program: Program) -> tuple[Program, Edges]:
    """The program with every such wrapper replaced by its op, and what each wrapped node was held behind."""
    wrapped = {node: inner for node in program.graph.nodes if (inner := _inner(program, node)) is not None}
    if not wrapped:
        return program, {}
    # A sub-graph by itself is nothing that can be judged: its inputs may be launches in flight.
    unused = {inner.source for inner in wrapped.values() if wrapped.keys() >= inner.source.users.keys()}
    plain = fx.Graph()
    stands_for: dict[fx.Node, fx.Node] = {}
    for node in program.graph.nodes:
        if node not in unused:
            stands_for[node] = _copy(plain, node, wrapped.get(node), stands_for)
    return replace(program, graph=plain), {node.name: inner.after for node, inner in wrapped.items()}


def compare_edges(before: Edges, after: Edges, names: set[str], report: Report) -> None:
    """Remarks on edges of BEFORE that AFTER lacks though it has both nodes."""
    report.checked["control_edges_before"] = sum(map(len, before.values()))
    report.checked["control_edges_after"] = sum(map(len, after.values()))
    for node, held in before.items():
        for dep in held:
            if dep not in after.get(node, ()) and {node, dep} <= names:
                report.note("order", node, f"is no longer held behind '{dep}' by a control edge")


class Call(NamedTuple):
    """An op with its arguments; for a wrapped one, the node of its sub-graph and the names of what comes before."""

    target: Any
    args: Any
    kwargs: Any
    source: fx.Node
    after: tuple[str, ...] = ()


def _inner(program: Program, node: fx.Node) -> Call | None:
    """The one op in a wrapper, with its arguments in the outer graph; None when it is something else."""
    if node.op != "call_function" or op_name(node.target) != "higher_order.control_deps" or node.kwargs:
        return None
    if len(node.args) < 2 or not isinstance(node.args[0], (tuple, list)):
        return None
    source, given = node.args[1], list[Any](node.args[2:])
    used: list[Any] = [*node.args[0], *given]
    module = find(program.root, str(source.target)) if isinstance(source, fx.Node) and source.op == "get_attr" else None
    if not isinstance(module, fx.GraphModule) or source in used or not all(isinstance(n, fx.Node) for n in used):
        return None
    body = list(module.graph.nodes)
    if [n.op for n in body] != ["placeholder"] * len(given) + ["call_function", "output"]:
        return None
    *inputs, call, output = body
    if len(output.args) != 1 or output.args[0] is not call:
        return None
    outer = dict(zip(inputs, given, strict=True))
    args, kwargs = (fx.node.map_arg(part, lambda place: outer[place]) for part in (call.args, call.kwargs))
    assert isinstance(source, fx.Node)
    return Call(call.target, args, kwargs, source, tuple(dep.name for dep in used[: len(node.args[0])]))


def _copy(plain: fx.Graph, node: fx.Node, inner: Call | None, env: dict[fx.Node, fx.Node]) -> fx.Node:
    call = inner or Call(node.target, node.args, node.kwargs, node)
    args, kwargs = (fx.node.map_arg(part, lambda used: env[used]) for part in (call.args, call.kwargs))
    made = plain.create_node(node.op, call.target, args, kwargs, node.name)
    made.name = node.name
    made.meta = node.meta
    return made
