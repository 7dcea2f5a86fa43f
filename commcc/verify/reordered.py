"""Whether AFTER is BEFORE in another order that changes nothing, so that what a walk found of one holds for the other.

::

    reordered(before, after)     # a walk of AFTER, which is in legal order, would find what one of BEFORE does

Where nothing writes to memory, has an effect or is not known, and what a launch fills is read behind its wait alone, a
node computes the same wherever it stands behind its operands. So both graphs have to have the same nodes, by name;
random numbers are drawn in one order, and inputs stand in one. Legal order is for
:func:`commcc.verify.normalise.check_order` to say.

Limits: as :func:`commcc.verify.same.identical`, which compares the nodes: no symbolic sizes in files of their own. Not
of graphs with copies for which the host does not wait, sub-graphs, or ops of which the overload is left open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch._ops import OpOverload

from commcc.graph.index.waits import awaited
from commcc.graph.ops import argument, draws, facts, is_getitem, is_wait
from commcc.graph.ops.functions import plain_name
from commcc.verify.same import same_in_full

if TYPE_CHECKING:
    from torch import fx

    from commcc.graph.program import Program


def reordered(before: Program, after: Program) -> bool:
    """Whether AFTER has the nodes of BEFORE, and none does anything else where it stands there."""
    old, new = before.graph.nodes, after.graph.nodes
    free = (_moves_freely(node) for node in old if node.op == "call_function")
    if before.groups != after.groups or len(old) != len(new) or not all(free):
        return False
    by_name = {node.name: node for node in old}
    one_root = before.root is after.root
    twin: dict[fx.Node, fx.Node] = {}
    for b in new:
        a = by_name.get(b.name)
        if a is None or a in twin or not same_in_full(a, b, twin, one_root=one_root):
            return False
        twin[a] = b
    return _in_place(before.graph) == _in_place(after.graph)


def _in_place(graph: fx.Graph) -> tuple[list[str], list[str]]:
    """The names of inputs, and of what draws random numbers, in their order."""
    drawing = [node.name for node in graph.nodes if node.op == "call_function" and draws(node)]
    return [node.name for node in graph.find_nodes(op="placeholder")], drawing


def _moves_freely(node: fx.Node) -> bool:
    """Whether a node does the same anywhere. What checks something, or makes the host wait, may at any time."""
    if not isinstance(node.target, OpOverload):
        return plain_name(node.target) is not None
    fact = facts(node.target)
    if fact.effect or fact.barrier or fact.writing:
        return False
    if fact.launch is not None:
        return fact.launch.asynchronous and all(map(_only_waits, node.users))
    if fact.wait:
        source = awaited(node)
        return source is not None and source.op == "call_function" and facts(source.target).launch is not None
    return "non_blocking" not in fact.arguments or argument(node, "non_blocking", False) is False


def _only_waits(user: fx.Node) -> bool:
    """Whether a user of a launch's result waits for it, or takes a part of it that is only waited for."""
    return is_wait(user.target) or (is_getitem(user.target) and all(is_wait(each.target) for each in user.users))
