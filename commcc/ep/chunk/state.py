"""What a value is in each chunk, compared with what it was in the whole.

=========  ==========================================================================================
``rows``   chunk k's slice of the whole along ``dim``: side by side, the chunks are the whole
``folded``  as rows, of each of ``apart`` blocks in that dimension: of every sample, chunk k's slice of the sequence, or
           of what every rank has, that rank's slice
``routed``  the chunk's tokens along ``dim`` in an order of their own, or as many as are sent to this rank
``sum``    a part of a sum: the parts of all chunks added up are the whole
``last``   the result of a chain of writes to one buffer: the last chunk's is the whole
``own``    nothing of the kind is known
=========  ==========================================================================================

A value that is the same in every chunk (a weight) has no state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import fx

Kind = Literal["rows", "folded", "routed", "sum", "last", "own"]


@dataclass(frozen=True)
class State:
    """See the module docstring. why: the op that left nothing known, for messages; mixer: its node; spoilt: it works
    across the tokens of all chunks. counts: of a sum, that it is one of whole numbers, whatever its dtype. apart:
    blocks of tokens along ``dim``, of each of which a chunk has its slice.
    """

    kind: Kind
    dim: int | None = None
    why: str = ""
    apart: int = 1
    mixer: fx.Node | None = None
    spoilt: bool = False
    counts: bool = False


#: Of a node with several results, one for each; None for a result that is the same in every chunk.
States = State | None | tuple[State | None, ...]
SUM = State("sum")
#: How ``why`` ends where an op works across tokens; elsewhere no rule says what it does.
OVER_TOKENS = " over the tokens)"
