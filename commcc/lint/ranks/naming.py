"""Which files are the ranks of one program, by their names.

    families(["dumps/rank0_fw.txt", "dumps/rank1_fw.txt", "dumps/rank0_bw.txt", "dumps/rank_1/bw.txt"])
    # {"dumps/*_fw.txt": [(0, "dumps/rank0_fw.txt"), (1, "dumps/rank1_fw.txt")], "dumps/*_bw.txt": [(0, ...)], ...}

A rank is ``rank0``, ``rank_3``, ``rank-12`` or ``r12`` as a word of its own in the path; ``rank`` wins over ``r``,
and what comes last over what comes first. Files whose names are the same but for that are one family.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from commcc.base.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_WORDS = (
    re.compile(r"(?<![0-9A-Za-z])rank[_-]?(\d{1,7})(?![0-9A-Za-z])", re.IGNORECASE),
    re.compile(r"(?<![0-9A-Za-z])r(\d{1,7})(?![0-9A-Za-z])", re.IGNORECASE),
)
#: The family of graphs whose files say which rank made them, where the name does not.
BY_HEADER = "(ranks by header)"


def rank_in(name: str) -> tuple[str, int] | None:
    """The name with ``*`` for the rank, and the rank; None when the name has none."""
    for word in _WORDS:
        *_, last = (None, *word.finditer(name))
        if last is not None:
            return f"{name[: last.start()]}*{name[last.end() :]}", int(last[1])
    return None


def families(names: Iterable[str], told: Mapping[str, int] | None = None) -> dict[str, list[tuple[int, str]]]:
    """Ranks and names by family, of names with a rank alone; :func:`by_rank` makes ranks of them.

    told: ranks that files themselves tell; they win over names.
    """
    by_family: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        read = rank_in(name)
        rank = (told or {}).get(name, read[1] if read is not None else None)
        if rank is not None:
            by_family.setdefault(read[0] if read is not None else BY_HEADER, []).append((rank, name))
    return by_family


def by_rank(members: Iterable[tuple[int, str]]) -> dict[int, str]:
    """The names of one family by rank. Raises OptionError when two of them are one rank."""
    ranks: dict[int, str] = {}
    for rank, name in members:
        if rank in ranks:
            raise OptionError(f"'{ranks[rank]}' and '{name}' are both rank {rank}", hint="name each rank once")
        ranks[rank] = name
    return ranks


def in_order(names: Iterable[str], told: Mapping[str, int] | None = None) -> dict[int, str]:
    """All names as ranks of one program: their ranks where each has one, else their places."""
    listed = list(names)
    read = {name: rank[1] for name in listed if (rank := rank_in(name)) is not None} | dict(told or {})
    ranks = [read.get(name) for name in listed]
    if None in ranks or len(set(ranks)) < len(ranks):
        return dict(enumerate(listed))
    return {rank: name for rank, name in zip(ranks, listed, strict=True) if rank is not None}
