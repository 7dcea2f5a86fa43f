"""Which nodes moved, and past how many others.

The largest set of nodes whose order is the same in both graphs is taken to have stayed (a longest
increasing subsequence); every other node that both graphs have moved::

    before  a b c d e      after  b c d a e      moved: a, which passed 3
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.sequences import longest_increasing
from commcc.diff.types import Move

if TYPE_CHECKING:
    from commcc.diff.match import Matching


@dataclass(frozen=True)
class Stationary:
    """Positions of the nodes that stayed, in both graphs, ascending and in step with one another."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    def passed(self, before: int, after: int) -> int:
        """Nodes that stayed which lie between the two places; negative when ``after`` is earlier."""
        return bisect_left(self.after, after) - bisect_left(self.before, before)


def stationary(matching: Matching) -> Stationary:
    """The nodes that stayed in place."""
    pairs = sorted(matching.to_before.items())
    chain = longest_increasing([b for _, b in pairs])
    return Stationary(tuple(pairs[i][1] for i in chain), tuple(pairs[i][0] for i in chain))


def moves(matching: Matching, still: Stationary) -> tuple[Move, ...]:
    """The nodes that moved, in the order of the graph after."""
    stayed = set(still.after)
    index = matching.after.index
    return tuple(
        Move(index.names[a], index.ops[a], b, a, still.passed(b, a))
        for a, b in sorted(matching.to_before.items())
        if a not in stayed
    )
