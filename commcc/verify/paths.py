"""Where a difference shows: the shortest way from a node to something that can be seen from outside.

::

    ways = Ways(after.graph, before.graph)
    ways.from_node("mm_3")            # ("mm_3", "add_7", "output 2")

Ends are outputs, writes to inputs, and ops with an effect. Limits: the way is one of data; a node that no
output needs has none.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from commcc.graph.ops import aliasing, is_effect, is_host_sync

if TYPE_CHECKING:
    from torch import fx

#: Names of a way that are kept: the first half from the node on, the rest up to the end.
LONGEST = 8


class Ways:
    """Ways through AFTER and, for what AFTER lacks, through BEFORE."""

    def __init__(self, after: fx.Graph, before: fx.Graph) -> None:
        self._graphs = (after, before)
        self._steps: list[dict[str, str]] = []

    def from_node(self, name: str) -> tuple[str, ...]:
        """The node, those that lead on, and the end; empty when nothing outside depends on it."""
        if not name:
            return ()
        if not self._steps:
            self._steps = [next_steps(graph) for graph in self._graphs]
        for steps in self._steps:
            if name in steps:
                return _shortened(_way(steps, name))
        return ()


def next_steps(graph: fx.Graph) -> dict[str, str]:
    """For each node from which an end can be reached, the next node on a shortest way, or the end itself."""
    steps: dict[str, str] = {}
    queue: deque[fx.Node] = deque()
    for node, end in _ends(graph):
        if node.name not in steps:
            steps[node.name] = end
            queue.append(node)
    while queue:
        node = queue.popleft()
        for source in node.all_input_nodes:
            if source.name not in steps:
                steps[source.name] = node.name
                queue.append(source)
    return steps


def _ends(graph: fx.Graph) -> list[tuple[fx.Node, str]]:
    """Nodes whose value can be seen from outside, and as what."""
    found: list[tuple[fx.Node, str]] = []
    for node in graph.nodes:
        if node.op == "output":
            values = node.args[0] if node.args else ()
            values = values if isinstance(values, (tuple, list)) else (values,)
            found.extend((value, f"output {i}") for i, value in enumerate(values) if hasattr(value, "all_input_nodes"))
        elif node.op == "call_function" and _acts(node):
            found.append((node, f"effect of {node.name}"))
    return found


def _acts(node: fx.Node) -> bool:
    if is_effect(node.target) or is_host_sync(node.target):
        return True
    return bool(aliasing(node.target).writes) and any(each.op == "placeholder" for each in node.all_input_nodes)


def _way(steps: dict[str, str], name: str) -> list[str]:
    way = [name]
    while way[-1] in steps:
        way.append(steps[way[-1]])
    return way


def _shortened(way: list[str]) -> tuple[str, ...]:
    if len(way) <= LONGEST:
        return tuple(way)
    half = LONGEST // 2
    return (*way[:half], f"{len(way) - 2 * half} more", *way[-half:])
