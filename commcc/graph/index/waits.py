"""Which nodes wait for what: for the result of a launch or a view of it, or for an input that is in flight.

A partitioner may cut a step between a launch and its wait: the forward returns what it launched, and the backward
waits for its input.

Of a wait for what an unknown op began nothing is known, but that all that this op was given, and gave, may be read or
written until then: a receive writes into its operand, of which its schema says nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import fx

from commcc.graph import ops
from commcc.graph.ops.operands import nodes_in

if TYPE_CHECKING:
    from collections.abc import Iterable


def waits_on(node: fx.Node) -> list[fx.Node]:
    """Wait nodes on a result or on a view of it, in order of appearance."""
    waits: list[fx.Node] = []
    stack = [node]
    while stack:
        for user in stack.pop().users:
            if ops.is_wait(user.target):
                waits.append(user)
            elif _is_view(user):
                stack.append(user)
    return waits


def awaited(node: fx.Node) -> fx.Node | None:
    """What a wait waits for, behind views and other waits: a launch, an input, or whatever else is there."""
    source = ops.argument(node, "tensor") if node.op == "call_function" and ops.is_wait(node.target) else None
    return viewed(source) if isinstance(source, fx.Node) else None


def waits_again(node: fx.Node) -> bool:
    """Whether a wait waits for what has been waited for, behind views: then it does nothing."""
    source = ops.argument(node, "tensor") if ops.is_wait(node.target) else None
    while isinstance(source, fx.Node) and _is_view(source) and source._input_nodes:
        if ops.is_wait(source.target):
            return True
        source = next(iter(source._input_nodes))
    return False


def waits_for_nothing(node: fx.Node) -> bool:
    """Whether a wait waits for what an op has computed into memory of its own, to which no launch writes: then it does
    nothing. PyTorch puts such waits behind gathers along another dimension than the first, which it makes of several
    ops.
    """
    source = awaited(node)
    if source is None or source.op != "call_function" or not ops.is_local(source.target):
        return False
    fact = ops.facts(source.target)
    return fact.pure and not fact.views and launched_into(source) is None


def launched_into(node: fx.Node) -> fx.Node | None:
    """A launch that writes to the memory of a node, through a view of it or as it is; None without one."""
    stack, seen = [node], {node}
    while stack:
        shown = stack.pop()
        for user in shown.users:
            fact = ops.collective_of(user.target) if user.op == "call_function" else None
            if fact is not None and fact.out is not None and shown in nodes_in(ops.argument(user, fact.out)):
                return user
            if user not in seen and _is_view(user):
                seen.add(user)
                stack.append(user)
    return None


def viewed(node: fx.Node) -> fx.Node:
    """What made the memory that a node is a view of, behind views and waits; the node itself where it is none."""
    while _is_view(node) and node._input_nodes:
        node = next(iter(node._input_nodes))
    return node


def waits_for_unknown(node: fx.Node) -> bool:
    """Whether a node waits for what an op began that is no collective of the table: nothing moves across it."""
    source = awaited(node)
    if source is None or source.op != "call_function":
        return False
    return ops.facts(source.target).launch is None and not ops.is_local(source.target)


def _is_view(node: fx.Node) -> bool:
    return node.op == "call_function" and (fact := ops.facts(node.target)).aliases and fact.launch is None


def begun_elsewhere(nodes: Iterable[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Waits for graph inputs, each with the input that is in flight until then.

    Not among them are inputs that this graph's own collectives write.
    """
    inputs = [node for node in nodes if node.op == "placeholder" and not any(map(_writes, node.users))]
    return {wait: node for node in inputs for wait in waits_on(node)}


def _writes(user: fx.Node) -> bool:
    fact = ops.collective_of(user.target) if user.op == "call_function" else None
    return fact is not None and fact.out is not None
