"""Whether every rank sends to its peers, in an all-to-all, what they expect from it.

    rank 0 sends [4, 2], rank 1 expects [2, 3]      rank 0 sends 2 to rank 1, which expects 2: fine

Limits: only split sizes that are numbers in the graph; all others are said to be open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.text import plural
from commcc.lint.ranks.sequences import Found
from commcc.lint.ranks.types import Difference, Sort

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.lint.ranks.groups import Group
    from commcc.lint.ranks.sequences import Sequences
    from commcc.lint.ranks.types import Splits

#: What one rank sends to, and what it expects from, every rank of the group.
Row = tuple[tuple[int, ...], tuple[int, ...]]


def compare(group: Group, sequences: Sequences) -> tuple[list[Found], list[str]]:
    """The first difference on a group whose sequences agree, and what is open."""
    if group.ranks is None:
        return [], _open_axis(group, sequences)
    unknown = []
    rank, name = group.members[0]
    for at in range(len(sequences.of(rank, name).launches)):
        launch = sequences.launch(rank, name, at)
        if launch.splits is None:
            continue
        rows = _rows(group, sequences, at)
        if rows is None:
            unknown.append(launch.node)
            continue
        found = _first(group, rows, at)
        if found is not None:
            return [found], []
    return [], _open(unknown)


def _open_axis(group: Group, sequences: Sequences) -> list[str]:
    """Without ranks nobody knows who the peers are, unless all parts are equal."""
    rank, name = group.members[0]
    launches = [sequences.launch(rank, name, at) for at in range(len(sequences.of(rank, name).launches))]
    return _open([launch.node for launch in launches if launch.splits is not None])


def _open(nodes: Sequence[str]) -> list[str]:
    if not nodes:
        return []
    count = plural(len(nodes), "all-to-all")
    return [f"split sizes of {count} are known only at run time ('{nodes[0]}' first)"]


def _rows(group: Group, sequences: Sequences, at: int) -> dict[int, Row] | None:
    """By rank; None when some split sizes are not known."""
    size = len(group.ranks or ())
    rows: dict[int, Row] = {}
    known: dict[int, Row | None] = {}
    for rank, name in group.members:
        splits = sequences.launch(rank, name, at).splits
        if splits is None:
            return None
        if id(splits) not in known:
            known[id(splits)] = _row(splits, size)
        row = known[id(splits)]
        if row is None:
            return None
        rows[rank] = row
    return rows


def _row(splits: Splits, size: int) -> Row | None:
    """Split sizes as numbers, equal parts spelt out."""
    if not splits.known:
        return None
    if None in (splits.sent, splits.expected) and (splits.total is None or splits.total % size):
        return None
    even = (0,) if splits.total is None else (splits.total // size,)
    return splits.sent or even * size, splits.expected or even * size


def _first(group: Group, rows: dict[int, Row], at: int) -> Found | None:
    """The first pair of ranks that do not agree."""
    ranks = group.ranks or ()
    names = dict(group.members)
    for rank, row in rows.items():
        if len(row[0]) != len(ranks) or len(row[1]) != len(ranks):
            parts = f"parts for {plural(len(row[0]), 'rank')}, and from {len(row[1])}"
            what = f"{group.label}: launch {at + 1} on rank {rank} has {parts}, in a group of {len(ranks)}"
            return _found(group, what, at, ((rank, names[rank]), (rank, names[rank])))
    present = [place for place, rank in enumerate(ranks) if rank in rows]
    expected = list(zip(*(rows[ranks[place]][1] for place in present), strict=True))
    for sender in present:
        sent = rows[ranks[sender]][0]
        pair = tuple(sent[place] for place in present), expected[sender]
        if pair[0] != pair[1]:
            wrong = next(i for i, (one, other) in enumerate(zip(*pair, strict=True)) if one != other)
            here, there = ranks[sender], ranks[present[wrong]]
            what = (
                f"{group.label}: in launch {at + 1} rank {here} sends {plural(pair[0][wrong], 'element')} to rank "
                f"{there}, which expects {pair[1][wrong]:,}"
            )
            return _found(group, what, at, ((here, names[here]), (there, names[there])))
    return None


def _found(group: Group, what: str, at: int, pair: tuple[tuple[int, str], tuple[int, str]]) -> Found:
    ranks = tuple(dict.fromkeys(rank for rank, _ in pair))
    difference = Difference(Sort.SPLITS, what, group.label, ranks, at)
    return Found(difference, ((*pair[0], at), (*pair[1], at)))
