"""Control edges: nodes wrapped in ``control_deps`` read as what they wrap, and as further order edges.

PyTorch's ``torch.ops.higher_order.control_deps`` runs one op, held in a sub-graph, after other nodes::

    subgraph_mm = self.subgraph_mm                               # placeholders, one call of aten.mm, output
    mm = control_deps((all_gather,), subgraph_mm, x, w)    ->    mm = aten.mm(x, w), after all_gather

The unwrapped nodes are a graph of their own, node for node under the same names; the program's graph is not
touched. Limits: a wrapper is read through only when its sub-graph is a single call that gets all its operands
from the wrapper and whose result is the result; any other stays a higher-order op.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import fx

from commcc.graph import ops
from commcc.graph.copying import copy_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.program import Program

CONTROL = "higher_order.control_deps"


class Wrapped(NamedTuple):
    """What a wrapper holds. call: the op in the sub-graph. places: its placeholders, in order of the operands."""

    subgraph: fx.Node
    call: fx.Node
    places: tuple[fx.Node, ...]
    operands: tuple[fx.Node, ...]
    after: tuple[fx.Node, ...]


class Unwrapped(NamedTuple):
    """Nodes without wrappers; for each wrapped one, by number, what it comes after, and its sub-graph's node."""

    nodes: list[fx.Node]
    after: dict[int, tuple[int, ...]]
    subgraphs: dict[int, int]


def unwrapped(program: Program) -> Unwrapped:
    """The nodes of the program's graph, read through wrappers; the very nodes when there is none."""
    nodes = list(program.graph.nodes)
    wrappers = {i: wrapped for i, node in enumerate(nodes) if (wrapped := unwrap(node, program)) is not None}
    if not wrappers:
        return Unwrapped(nodes, {}, {})
    number = {node: i for i, node in enumerate(nodes)}
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for i, node in enumerate(nodes):
        env[node] = _plain(graph, node, wrappers[i], env) if i in wrappers else copy_node(graph, node, env)
        env[node].meta = node.meta
    return Unwrapped(
        list(graph.nodes),
        {i: tuple(sorted({number[dep] for dep in wrapped.after})) for i, wrapped in wrappers.items()},
        {i: number[wrapped.subgraph] for i, wrapped in wrappers.items()},
    )


def unwrap(node: fx.Node, program: Program) -> Wrapped | None:
    """What a node wraps, None when it is no wrapper that can be read through."""
    if node.op != "call_function" or ops.op_name(node.target) != CONTROL or node.kwargs or len(node.args) < 2:
        return None
    after, subgraph, *operands = node.args
    if not isinstance(after, (tuple, list)) or not isinstance(subgraph, fx.Node) or subgraph.op != "get_attr":
        return None
    module = getattr(program.root, str(subgraph.target), None)
    inner = _single_call(module.graph) if isinstance(module, fx.GraphModule) else None
    if inner is None or len(inner[1]) != len(operands):
        return None
    if not all(isinstance(argument, fx.Node) for argument in (*after, *operands)):
        return None
    return Wrapped(subgraph, *inner, _nodes(operands), _nodes(after))


def _nodes(values: Sequence[object]) -> tuple[fx.Node, ...]:
    return tuple(value for value in values if isinstance(value, fx.Node))


def _single_call(graph: fx.Graph) -> tuple[fx.Node, tuple[fx.Node, ...]] | None:
    """The one call in a sub-graph and its placeholders; None when there is anything else."""
    *places, call, output = graph.nodes if len(graph.nodes) > 1 else (None, None)
    if call is None or output is None or any(place is None or place.op != "placeholder" for place in places):
        return None
    if call.op != "call_function" or output.op != "output" or output.args != (call,):
        return None
    return call, tuple(place for place in places if place is not None)


def _plain(graph: fx.Graph, node: fx.Node, wrapped: Wrapped, env: dict[fx.Node, fx.Node]) -> fx.Node:
    """The wrapped call in the outer graph, under the wrapper's name."""
    operands = dict(zip(wrapped.places, wrapped.operands, strict=True))

    def outer(place: fx.Node) -> fx.Node:
        return env[operands[place]]

    call = wrapped.call
    args, kwargs = fx.node.map_arg(call.args, outer), fx.node.map_arg(call.kwargs, outer)
    unwrapped_node = graph.create_node(call.op, call.target, args, kwargs, node.name)
    if unwrapped_node.name != node.name:
        unwrapped_node.name = node.name
    return unwrapped_node
