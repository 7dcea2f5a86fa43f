"""What the op of one node does to the values of others: which it writes, and in whose storage its results may be.

    written(node)          # nodes of the tensors that it writes
    sources(node)          # nodes in whose storage its result may be
    may_write(node)        # as written(node), and all operands where one is a graph
    called(node)           # ops that a higher-order op is given to call

Limits: what graphs do that are handed to a higher-order op is not seen here, but for :func:`may_write`,
:func:`storages` and :func:`rewritten`, for which they write all that they are given, and give it back.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from torch import fx
from torch.utils import _pytree as pytree

from commcc.graph.ops.effects import CLONING
from commcc.graph.ops.flexible import FLEX
from commcc.graph.ops.names import OpaqueOp, argument, argument_names, described_as, op_name
from commcc.graph.ops.table import ALL, facts

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from commcc.graph.ops.table import OpFacts


def written(node: fx.Node) -> tuple[fx.Node, ...]:
    """Operands that the op writes, each once."""
    fact = facts(node.target)
    if fact.body and any(op.writing for op in called(node)):
        return tuple(node._input_nodes)
    nodes = _named(node, fact.writes)
    return tuple(dict.fromkeys((*nodes, *nodes_in(node.kwargs)))) if fact.writes_keywords else nodes


def may_write(node: fx.Node) -> tuple[fx.Node, ...]:
    """Operands that a node writes, or may write where it is handed a graph; none of a node that calls nothing."""
    if node.op != "call_function":
        return ()
    return tuple(node.all_input_nodes) if _runs_graphs(node) else written(node)


def sources(node: fx.Node) -> tuple[fx.Node, ...]:
    """Operands in whose storage a result may be, each once."""
    position, args = only_view(node.target), node.args
    if position is not None and not node.kwargs and position < len(args) and type(args[position]) is fx.Node:
        return (cast("fx.Node", args[position]),)
    fact = facts(node.target)
    return _named(node, ALL if fact.body and any(op.views for op in called(node)) else fact.views)


def called(node: fx.Node) -> list[OpFacts]:
    """Of ops and functions among the arguments of a higher-order op, what they do to its operands."""
    handed: list[Any] = []

    def look(leaf: Any) -> Any:
        if callable(leaf) and not isinstance(leaf, fx.Node):
            handed.append(leaf)
        return leaf

    fx.node.map_aggregate((node.args, node.kwargs), look)
    known = [facts(op) for op in handed]
    return [replace(op, writes=(), views=()) for op in known] if op_name(node.target) in CLONING else known


def reaching(op: OpFacts) -> bool:
    """Whether an op that is called by another one does more to memory than write to operands and give views of them."""
    return op.storage or op.body or op.joins is not None or op.launch is not None or op.wait


def storages(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Nodes with all in whose storage they may be: where two sets meet, memory may be the same."""
    found, stack = set[fx.Node](), list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            looks = node.all_input_nodes if _runs_graphs(node) else sources(node) if node.op == "call_function" else ()
            stack.extend(looks)
    return found


def _runs_graphs(node: fx.Node) -> bool:
    """Whether an op is handed a graph, other than one of scores and masks."""
    held = node.op == "call_function" and any(operand.op == "get_attr" for operand in node._input_nodes)
    return held and facts(node.target).body and op_name(node.target) not in FLEX


def rewritten(node: fx.Node, readers: Iterable[fx.Node] | None = None) -> bool:
    """Whether the operands of a node may be written behind it: before the last of some readers, or ever."""
    shown, left, at = storages(node.all_input_nodes), None if readers is None else set(readers), node.next
    while at.op != "root" and (left is None or left):
        if not shown.isdisjoint(storages(may_write(at))):
            return True
        if left is not None:
            left.discard(at)
        at = at.next
    return False


def handed_group(node: fx.Node, groups: Container[str]) -> bool:
    """Whether an op whose library is not loaded, so that no schema names its arguments, is handed a process group."""
    if not isinstance(node.target, OpaqueOp) or described_as(node.target) is not None:
        return False
    leaves = pytree.tree_leaves((node.args, node.kwargs))
    return any(isinstance(leaf, str) and leaf in groups for leaf in leaves)


@lru_cache(maxsize=4096)
def only_view(target: Any) -> int | None:
    """The position of the one argument in whose storage results may be; None where there are others, or none."""
    views, names = facts(target).views, argument_names(target)
    if views == ALL or len(views) != 1 or views[0] not in names:
        return None
    return names.index(views[0])


def _named(node: fx.Node, names: Iterable[str]) -> tuple[fx.Node, ...]:
    if names == ALL:
        return tuple(node._input_nodes)
    return tuple(dict.fromkeys(operand for name in names for operand in nodes_in(argument(node, name))))


def nodes_in(value: Any) -> list[fx.Node]:
    """All nodes inside one (nested) argument, in order."""
    if isinstance(value, fx.Node):
        return [value]
    nodes: list[fx.Node] = []
    fx.node.map_arg(value, nodes.append)
    return nodes
