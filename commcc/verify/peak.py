"""Does AFTER keep within a memory bound, worked out anew from the graphs alone.

::

    peak = compare_peaks(before, after, lambda own: own + (1 << 30))
    peak.within, peak.after_bytes, peak.at

Limits: those of :mod:`commcc.graph.memory`; sizes known only at run time need hints.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from commcc.base.terms import Json
    from commcc.graph.program import Program


@dataclass(frozen=True)
class Peak:
    """Highest live bytes of both graphs, and what AFTER may have. at: the node of AFTER that reaches its peak."""

    before_bytes: int
    after_bytes: int
    budget_bytes: int
    at: str
    within: bool

    def to_json(self) -> dict[str, Json]:
        return asdict(self)


def compare_peaks(
    before: Program, after: Program, budget: Callable[[int], int], hints: Mapping[str, int] | None = None
) -> Peak:
    """Peak memory of both graphs; ``budget`` gives the bytes that AFTER may have from BEFORE's own peak."""
    index = build_index(after, hints=hints)
    old, new = live_bytes(build_index(before, hints=hints)), live_bytes(index)
    allowed = budget(old.peak_bytes)
    at = "" if new.peak_at is None else index.names[new.peak_at]
    return Peak(old.peak_bytes, new.peak_bytes, allowed, at, new.peak_bytes <= allowed)
