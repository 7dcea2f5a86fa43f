"""Which nodes wait for what: for the result of a launch or a view of it, or for an input that is in flight.

A partitioner may cut a step between a launch and its wait: the forward returns what it launched, and the backward
waits for its input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.graph import ops

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx


def waits_on(node: fx.Node) -> list[fx.Node]:
    """Wait nodes on a result or on a view of it, in order of appearance."""
    waits: list[fx.Node] = []
    stack = [node]
    while stack:
        for user in stack.pop().users:
            if ops.is_wait(user.target):
                waits.append(user)
            elif user.op == "call_function" and (fact := ops.facts(user.target)).aliases and fact.launch is None:
                stack.append(user)
    return waits


def begun_elsewhere(nodes: Iterable[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Waits for graph inputs, each with the input that is in flight until then.

    Not among them are inputs that this graph's own collectives write.
    """
    inputs = [node for node in nodes if node.op == "placeholder" and not any(map(_writes, node.users))]
    return {wait: node for node in inputs for wait in waits_on(node)}


def _writes(user: fx.Node) -> bool:
    fact = ops.collective_of(user.target) if user.op == "call_function" else None
    return fact is not None and fact.out is not None
