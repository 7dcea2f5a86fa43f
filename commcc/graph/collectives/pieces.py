"""Follows one operand of a concatenation that is reduced as a whole: a bucket that is there already.

    cat(a, b) -> all_reduce -> wait -> split -> getitem 0, getitem 1      a leads to getitem 0, b to getitem 1

An operand is followed to its own part where shapes prove that the split undoes the concatenation: flat
operands in front of all-reduces, rows of one length for each rank in front of reduce-scatters. Where they
do not, it is followed to all parts, and what is found holds for more than the operand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from commcc.base.terms import Kind
from commcc.graph.ops.constants import REPLACING, SOURCELESS
from commcc.graph.ops.views import GATHERING, IN_ORDER, SPLITS

if TYPE_CHECKING:
    from commcc.graph.index import GraphIndex

REDUCTIONS = (Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)


class Piece(NamedTuple):
    """An operand, by its place, of a concatenation."""

    join: int
    place: int


class Pieces:
    """Answers for one graph; what was found out is kept."""

    def __init__(self, index: GraphIndex) -> None:
        self.index = index
        self._joins: dict[int, bool] = {}
        self._places: dict[int, dict[int, int]] = {}
        self._parts: dict[tuple[int, int], dict[int, tuple[int, ...]] | None] = {}

    def joins(self, node: int) -> bool:
        """Whether ``node`` puts several values together only to reduce them in one launch."""
        known = self._joins.get(node)
        if known is None:
            known = self.index.ops[node] in GATHERING and len(operands(self.index, node)) > 1 and self._is_sent(node)
            self._joins[node] = known
        return known

    def _is_sent(self, node: int) -> bool:
        index = self.index
        while len(index.users[node]) == 1:
            node = index.users[node][0]
            if node in index.launches:
                return index.launches[node].kind in REDUCTIONS
            if index.ops[node] not in IN_ORDER:
                return False
        return False

    def enter(self, join: int, operand: int) -> Piece:
        """``operand`` of a node that joins."""
        places = self._places.get(join)
        if places is None:
            places = self._places[join] = {n: place for place, n in enumerate(operands(self.index, join))}
        return Piece(join, places[operand])

    def keeps(self, node: int) -> bool:
        """Whether an operand still has its place in what ``node`` makes of the concatenation."""
        index = self.index
        return node in index.launches or node in index.wait_of or index.ops[node] in IN_ORDER | SPLITS

    def step(self, user: int, node: int, piece: Piece | None) -> tuple[int, Piece | None, bool]:
        """``user``, the piece that what comes from ``node`` is of it, and whether that can no longer be told."""
        if self.joins(user):
            return user, self.enter(user, node), piece is not None
        if piece is None or self.keeps(user):
            return user, piece, False
        return user, None, True

    def own_part(self, piece: Piece, split: int) -> tuple[int, ...] | None:
        """The nodes that take the piece out of ``split``; None where it is no split, or not of these operands."""
        if self.index.ops[split] not in SPLITS:
            return None
        key = (piece.join, split)
        if key not in self._parts:
            self._parts[key] = self._taken(split) if self._undone(piece.join, split) else None
        parts = self._parts[key]
        return None if parts is None else parts.get(piece.place, ())

    def _taken(self, split: int) -> dict[int, tuple[int, ...]] | None:
        taken: dict[int, tuple[int, ...]] = {}
        for user in self.index.users[split]:
            place = self.index.elements.get(user)
            if place is None:
                return None
            taken[place] = (*taken.get(place, ()), user)
        return taken

    def _undone(self, join: int, split: int) -> bool:
        """Whether part ``i`` of the split is, on one rank, what was operand ``i`` of the concatenation."""
        index = self.index
        whole, reduced = index.tensors[join], index.tensors[index.data_preds[split][0]]
        sent = [index.tensors[n] for n in operands(index, join)]
        parts = index.estimates.parts.get(split, ())
        if index.ops[join] != "aten.cat" or whole is None or reduced is None or len(sent) != len(parts):
            return False
        if len(reduced.shape) != 1 or not reduced.numel or any(t is None or t.symbolic for t in (*sent, *parts)):
            return False
        known, parted = [t for t in sent if t is not None], [t for t in parts if t is not None]
        ranks, rest = divmod(whole.numel or 0, reduced.numel)
        same = all(t.numel == (p.numel or 0) * ranks for t, p in zip(known, parted, strict=True))
        if rest or not same or sum(t.numel or 0 for t in known) != whole.numel:
            return False
        # Side by side: flat operands in a flat tensor, or in each of the ranks' rows a row of every operand.
        if len(whole.shape) == 1:
            return ranks == 1
        return all(len(t.shape) == 2 and t.shape[0] == ranks for t in (whole, *known))


def operands(index: GraphIndex, node: int) -> tuple[int, ...]:
    """What ``node`` is made of, constants left out, and what it writes over."""
    read = index.data_preds[node]
    if len(read) > 1 and (index.ops[node] in REPLACING or index.ops[node] == "aten.copy_"):
        read = read[1:]
    return tuple(p for p in read if index.ops[p] not in SOURCELESS)
