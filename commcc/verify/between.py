"""Whether the clones of a node find shared memory as the whole node does, whatever is written between them.

A module that AFTER cut in chunks is folded: where the last clone stands, the whole node is compared. That says nothing
of what happens between the first clone and the last one::

    y0 = mul(x0, c);  zero_(c);  y1 = mul(x1, c)     folded: zero_(c), y = mul(x, c); chunk 0 has read c too soon
    add_(c, n0);  z = sin(c);  add_(c, n1)           folded: z = sin(c), add_(c, n); z is of half of the sum

So nobody else writes what several clones of a node read between these, and nobody else reads or writes what several
clones of a node write. Memory that only one clone of a node knows is its chunk's own.

Limits: of one storage, all parts are taken to overlap.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from commcc.graph.ops import facts
from commcc.graph.ops.operands import may_write, sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import fx


class Between:
    """A graph that holds clones: who reads and writes what, and where."""

    def __init__(self, nodes: Iterable[fx.Node]) -> None:
        self._at: dict[fx.Node, int] = {}
        self._owner: dict[fx.Node, fx.Node] = {}
        self._users: dict[fx.Node, set[fx.Node]] = defaultdict(set)
        self._writers: dict[fx.Node, set[fx.Node]] = defaultdict(set)
        listed = list(nodes)
        for at, node in enumerate(listed):
            self._at[node] = at
            for source in sources(node) if node.op == "call_function" else ():
                self._owner[self._storage(source)] = self._storage(node)
        for node in (n for n in listed if n.op == "call_function"):
            for storage in self._storages(may_write(node)):
                self._writers[storage].add(node)
        self._met: dict[fx.Node, set[fx.Node]] = {}
        for node in listed if self._writers else ():
            self._met[node] = self._writers.keys() & self._storages(_met(node))
            for storage in self._met[node]:
                self._users[storage].add(node)

    def crossed(self, clones: Iterable[Mapping[int, fx.Node]]) -> str:
        """Who meets shared memory between the clones of a node; empty when nobody does."""
        for family in clones if self._writers else ():
            own = sorted(family.values(), key=self._place)
            foreign = [node for node in self._others(set(own)) if self._at[own[0]] < self._at[node] < self._at[own[-1]]]
            if foreign:
                first = min(foreign, key=self._place)
                return f"at '{first.name}': between '{own[0].name}' and '{own[-1].name}' it meets what they share"
        return ""

    def _others(self, clones: set[fx.Node]) -> set[fx.Node]:
        """Who else writes what several of these read, or reads or writes what several of these write."""
        times = Counter(storage for clone in clones for storage in self._met[clone])
        others: set[fx.Node] = set()
        for storage in (storage for storage, users in times.items() if users > 1):
            several = len(clones & self._writers[storage]) > 1
            others |= self._users[storage] if several else self._writers[storage]
        return others - clones

    def _place(self, node: fx.Node) -> int:
        return self._at[node]

    def _storage(self, node: fx.Node) -> fx.Node:
        """What stands for all nodes that may be in one storage."""
        while (owner := self._owner.get(node, node)) is not node:
            self._owner[node] = node = self._owner.get(owner, owner)
        return node

    def _storages(self, nodes: Iterable[fx.Node]) -> set[fx.Node]:
        return {self._storage(node) for node in nodes}


def _met(node: fx.Node) -> Iterable[fx.Node]:
    """What a node reads or writes; a view does neither."""
    looks = node.op == "call_function" and facts(node.target).looks
    return () if looks else node.all_input_nodes
