"""A new order of nodes as the moves that make it, which people can review::

    encode((0, 3, 1, 2, 4), names)    # [{'after': 'x', 'nodes': ['mm_2']}]: mm_2 now follows x

Nodes on one longest run that kept its order stay where they are; each of the others is named once, in
its new place behind one that stays (or first of all, ``after: null``). Exact: the order comes back from
the moves and the old order alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.sequences import longest_increasing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from commcc.base.terms import Json


def encode(order: Sequence[int], names: Sequence[str]) -> list[Json]:
    """The moves, in the new order."""
    stays = {order[at] for at in longest_increasing(order)}
    moves: list[Json] = []
    run: list[Json] = []
    anchor: str | None = None
    for node in order:
        if node in stays:
            anchor, run = names[node], []
            continue
        if not run:
            moves.append({"after": anchor, "nodes": run})
        run.append(names[node])
    return moves


def decode(count: int, moves: Iterable[tuple[int | None, Sequence[int]]]) -> tuple[int, ...]:
    """The order of ``count`` nodes; ``ValueError`` says what the moves get wrong."""
    behind: dict[int | None, Sequence[int]] = {}
    moved: set[int] = set()
    for after, nodes in moves:
        if after in behind:
            raise ValueError("two moves go to the same place")
        behind[after] = nodes
        if len(set(nodes)) < len(nodes) or not moved.isdisjoint(nodes):
            raise ValueError("a node is moved twice")
        moved.update(nodes)
    if not moved.isdisjoint(after for after in behind if after is not None):
        raise ValueError("a node goes behind one that is moved itself")
    order = list(behind.get(None, ()))
    for node in range(count):
        if node not in moved:
            order += (node, *behind.get(node, ()))
    return tuple(order)
