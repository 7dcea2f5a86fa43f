"""What the op of one node does to the values of others: which it writes, and in whose storage its results may be.

    written(node)          # nodes of the tensors that it writes
    sources(node)          # nodes in whose storage its result may be

Limits: what graphs do that are handed to a higher-order op is not seen here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx

from commcc.graph.ops.names import argument
from commcc.graph.ops.table import ALL, facts

if TYPE_CHECKING:
    from collections.abc import Iterable


def written(node: fx.Node) -> tuple[fx.Node, ...]:
    """Operands that the op writes, each once."""
    fact = facts(node.target)
    found = _named(node, fact.writes)
    return tuple(dict.fromkeys((*found, *nodes_in(node.kwargs)))) if fact.writes_keywords else found


def sources(node: fx.Node) -> tuple[fx.Node, ...]:
    """Operands in whose storage a result may be, each once."""
    return _named(node, facts(node.target).views)


def _named(node: fx.Node, names: Iterable[str]) -> tuple[fx.Node, ...]:
    if names == ALL:
        return tuple(node._input_nodes)
    return tuple(dict.fromkeys(found for name in names for found in nodes_in(argument(node, name))))


def nodes_in(value: Any) -> list[fx.Node]:
    """All nodes inside one (nested) argument, in order."""
    if isinstance(value, fx.Node):
        return [value]
    found: list[fx.Node] = []
    fx.node.map_arg(value, found.append)
    return found
