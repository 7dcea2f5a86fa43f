"""Nodes that repeat an earlier one on the way from graph inputs to gathers.

Nodes are numbered by what they hold: the same op on the same operands, as written and with nothing written to
them in between, holds the same::

    c1 = _to_copy(p)    g1 = all_gather(c1)      c2 repeats c1, so g2 repeats g1, unless p is
    c2 = _to_copy(p)    g2 = all_gather(c2)      written between c1 and c2

Numbered are inputs, constants, ops that only compute (compute nodes aside) of what is numbered, and
all-gathers of that; results of waits are not, so everything behind the first compute node is passed over.
Limits: the same arguments have to be written in the same way, by position or by keyword.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from torch import fx

from commcc.base.terms import Kind
from commcc.graph import ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.index.graph import Launch
    from commcc.graph.index.traits import Traits


class Numbering:
    """One walk over the nodes in graph order."""

    def __init__(
        self, nodes: Sequence[fx.Node], number: dict[fx.Node, int], storages: Sequence[tuple[int, ...]]
    ) -> None:
        self._nodes = nodes
        self._number = number
        self._storages = storages
        self._writes: defaultdict[int, int] = defaultdict(int)
        self._holds: dict[int, int] = {}
        self._numbered: set[fx.Node] = set()
        self._first: dict[tuple[Any, ...], int] = {}

    def repeats(
        self, traits: Sequence[Traits], launches: dict[int, Launch], writes: dict[int, tuple[int, ...]]
    ) -> dict[int, int]:
        """The earliest node that holds the same, for every node that has one."""
        repeated: dict[int, int] = {}
        ends = {wait: launch for launch, facts in launches.items() for wait in facts.waits if facts.writes_to}
        for i, node in enumerate(self._nodes):
            if self._is_numbered(node, traits[i], launches.get(i)):
                first = self._first.setdefault(self._key(node), i)
                self._holds[i] = first
                self._numbered.add(node)
                if first != i:
                    repeated[i] = first
            started = launches[ends[i]].writes_to if i in ends else ()
            for target in (*writes.get(i, ()), *started):
                for storage in self._storages[target]:
                    self._writes[storage] += 1
        return repeated

    def _is_numbered(self, node: fx.Node, traits: Traits, launch: Launch | None) -> bool:
        if node.op in ("placeholder", "get_attr"):
            return True
        if node.op != "call_function" or not self._numbered.issuperset(node._input_nodes):
            return False
        if launch is not None:
            return launch.kind is Kind.ALL_GATHER and launch.asynchronous and not launch.writes_to
        return not traits.stays and not traits.compute and not ops.is_wait(node.target)

    def _key(self, node: fx.Node) -> tuple[Any, ...]:
        if node.op == "placeholder":
            return ("placeholder", node.name)
        if node.op == "get_attr":
            return ("get_attr", str(node.target))
        arguments = tuple(self._text(part) for part in node.args)
        keywords = tuple(f"{name}={self._text(node.kwargs[name])}" for name in sorted(node.kwargs))
        return (node.target, arguments, keywords)

    def _text(self, argument: Any) -> str:
        """An argument, with nodes as what they hold now: their number, and how often it was written."""
        if isinstance(argument, fx.Node):
            i = self._number[argument]
            writes = [self._writes[s] for s in self._storages[i] if self._writes[s]]
            # What was written holds what nothing else does, though something else may have been written as often.
            return f"%{i}{writes}" if writes else f"%{self._holds[i]}"
        if isinstance(argument, (list, tuple)):
            return f"[{', '.join(map(self._text, argument))}]"
        if isinstance(argument, dict):
            return f"{{{', '.join(f'{key}: {self._text(part)}' for key, part in argument.items())}}}"
        if isinstance(argument, slice):
            return f"slice({', '.join(map(self._text, (argument.start, argument.stop, argument.step)))})"
        return f"{type(argument).__name__} {argument!r}"
