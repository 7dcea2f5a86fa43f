"""Which node of the graph before is which node of the graph after.

First by name: same name, same op, and not a launch that became a merged one. Then, for what is left,
by structure: the same op on matched operands with the same constants is the same node renamed. What
still has no partner was added or removed. Linear in the size of the graphs.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import fx

from commcc.base.errors import OutputError
from commcc.graph.index import build_index
from commcc.graph.index.control import unwrapped
from commcc.serialization.shapes import format_val

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.graph.index import GraphIndex
    from commcc.graph.program import Program

StructureKey: TypeAlias = "tuple[str, tuple[int, ...], str]"


@dataclass(frozen=True)
class Side:
    """One of the two graphs: its index and its nodes by number, read through control edges as the index is."""

    index: GraphIndex
    nodes: tuple[fx.Node, ...]

    @staticmethod
    def of(program: Program, hints: Mapping[str, int] | None = None) -> Side:
        return Side(build_index(program, hints), tuple(unwrapped(program).nodes))

    def operands(self, node: int) -> tuple[int, ...]:
        """Nodes in the arguments in the order in which they are written, repeats included."""
        positions: list[int] = []
        position = self.index.position
        fx.map_arg((self.nodes[node].args, self.nodes[node].kwargs), lambda n: positions.append(position[n.name]))
        return tuple(positions)

    def constants(self, node: int) -> str:
        """The arguments in print, with ``%`` where a node stands, and what a control edge holds the node behind."""
        fx_node = self.nodes[node]
        # A tuple of results is not a list of them; as an operand either is the same.
        kept = tuple if fx_node.op == "output" else list
        held = (_blank(fx_node.args, kept), _blank(dict(fx_node.kwargs), kept))
        where = f"{fx_node.target} " if fx_node.op == "get_attr" else ""
        after = ", ".join(self.index.names[dep] for dep in self.index.control.get(node, ()))
        text = ", ".join([*map(str, held[0]), *(f"{key}={value}" for key, value in held[1].items())])
        return where + text + (f" behind {after}" if after else "")

    def result(self, node: int) -> str:
        """Dtype, sizes, strides and device of what a node gives, as graphs print them; empty where nothing says."""
        return _described(self.nodes[node].meta.get("val"))


def _described(val: Any) -> str:
    if isinstance(val, (list, tuple)):
        return f"({', '.join(map(_described, val))})"
    try:
        return format_val(val)
    except OutputError:  # a dtype without a short name
        return f"{val.dtype}[{', '.join(map(str, val.shape))}]{val.device}"


class _Hole:
    """Stands for a node in printed arguments."""

    def __repr__(self) -> str:
        return "%"


_HOLE = _Hole()


def _blank(argument: Any, kept: type[tuple[Any, ...]] | type[list[Any]]) -> Any:
    """The argument with every node replaced by a hole, containers as plain ones; ``kept``: what becomes of tuples."""
    if isinstance(argument, fx.Node):
        return _HOLE
    if isinstance(argument, (list, tuple)):
        parts = (_blank(part, kept) for part in argument)
        return kept(parts) if isinstance(argument, tuple) else list(parts)
    if isinstance(argument, dict):
        return {key: _blank(value, kept) for key, value in argument.items()}
    return argument


@dataclass(frozen=True)
class Matching:
    """Pairs of node numbers, both ways; ``renamed`` lists the numbers (before) matched by structure."""

    before: Side
    after: Side
    to_after: dict[int, int]
    to_before: dict[int, int]
    renamed: tuple[int, ...]


def match(before: Program, after: Program, hints: Mapping[str, int] | None = None) -> Matching:
    """Pair the nodes of the two graphs. hints: numbers for symbolic sizes, which nothing here depends on."""
    old, new = Side.of(before, hints), Side.of(after, hints)
    to_before = _by_name(old.index, new.index)
    renamed = _by_structure(old, new, to_before)
    to_after = {b: a for a, b in to_before.items()}
    return Matching(old, new, to_after, to_before, tuple(sorted(renamed)))


def _by_name(old: GraphIndex, new: GraphIndex) -> dict[int, int]:
    pairs: dict[int, int] = {}
    for a, name in enumerate(new.names):
        b = old.position.get(name)
        if b is None or old.ops[b] != new.ops[a]:
            continue
        # A merged launch may have the name of one of its members and is another node all the same.
        if new.merged_from.get(a, ()) != old.merged_from.get(b, ()):
            continue
        launch = new.wait_of.get(a)
        if launch is not None and pairs.get(launch) != old.wait_of.get(b):
            continue  # the same name, but it waits for another collective
        pairs[a] = b
    return pairs


def _by_structure(old: Side, new: Side, pairs: dict[int, int]) -> list[int]:
    """Add pairs for renamed nodes to ``pairs``; the numbers (before) of these nodes."""
    taken = set(pairs.values())
    waiting: dict[StructureKey, deque[int]] = defaultdict(deque)
    inputs = 0
    for b in range(len(old.index)):
        # An input has no operands to tell it by; its place among the inputs does.
        inputs += old.index.ops[b] == "placeholder"
        if b not in taken:
            waiting[_key(old, b, old.operands(b), inputs)].append(b)
    renamed: list[int] = []
    inputs = 0
    for a in range(len(new.index)):
        inputs += new.index.ops[a] == "placeholder"
        operands = () if a in pairs else new.operands(a)
        # Operands come first in graph order, so a node whose operands have no partner has none either.
        if a in pairs or a in new.index.merged_from or any(operand not in pairs for operand in operands):
            continue
        partners = waiting.get(_key(new, a, tuple(pairs[operand] for operand in operands), inputs))
        if partners:
            # Of nodes that compute the same the first is the first, in both graphs.
            pairs[a] = partners.popleft()
            renamed.append(pairs[a])
    return renamed


def _key(side: Side, node: int, operands: tuple[int, ...], inputs: int) -> StructureKey:
    """What makes two nodes the same computation; an input is told by its place among the inputs."""
    op = side.index.ops[node]
    return (op, operands, str(inputs) if op == "placeholder" else side.constants(node))
