"""Whether memory has headroom for what a pass wants to hold, before anything is simulated.

    headroom = Headroom.within(index, budget_bytes("auto", live_bytes(index).peak_bytes))
    apart, together = [bucket, [candidate]], both               # models of buckets: as they stand, and merged
    if headroom.fits(headroom.changes(apart, together)):
        headroom.take(headroom.changes(apart, together))

Limits: an estimate in positions of the graph before; what other buckets move is not seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.errors import OptionError
from commcc.base.terms import GIB
from commcc.base.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from commcc.graph.index import GraphIndex
    from commcc.graph.memory import Memory
    from commcc.planning.bucket_model import BucketModel

#: A stretch from a position up to another, and how many bytes more are live in it.
Change = tuple[int, int, int]


def budget_bytes(value: str | float | None, peak: int) -> int | None:
    """Bytes that an option ``memory_budget`` stands for on a graph with this peak; None for no limit."""
    if value is None or value == "own":
        return None if value is None else peak
    return peak + max(GIB, peak // 20) if value == "auto" else int(float(value) * GIB)


def in_gib(count: int) -> str:
    """Bytes as the option has them."""
    return f"{count / GIB:.3g} GiB"


def needs_inputs(memory: Memory, budget: int, asked: str, where: str) -> None:
    """Raise :class:`OptionError` for a budget below what inputs take: they are live from the start."""
    if budget < memory.input_bytes:
        raise OptionError(
            f"{asked} is less than the graph's inputs take, {in_gib(memory.input_bytes)}",
            where=where,
            hint=f"the graph's own peak is {in_gib(memory.peak_bytes)}",
        )


def needs_all_sizes(index: GraphIndex, budget: str) -> None:
    """Raise :class:`OptionError` for a budget in bytes where sizes are not known: nothing can be compared with it."""
    missing = sorted(index.estimates.unknown)
    if missing:
        raise OptionError(
            f"{budget}: {plural(len(missing), 'size')} of this graph {'is' if len(missing) == 1 else 'are'} not known, "
            "the first of "
            f"'{index.names[missing[0]]}', so that its memory is not known either",
            hint=index.size_remedy,
        )


class Headroom:
    """Live bytes at each position, as far as what was taken so far has raised them. budget: None for no limit."""

    def __init__(self, index: GraphIndex, budget: int | None) -> None:
        from commcc.graph.memory import MemoryModel

        memory = MemoryModel(index)
        before = memory.live(range(len(index)))
        self.budget, self.peak_bytes = budget, before.peak_bytes
        self._index, self._kept = index, memory.kept
        self._live = list(before.live)
        # Where each buffer is touched last, and so freed; graph outputs and inputs live to the end.
        self._last = {b: node for node in range(len(index)) for b in memory.touched[node]}
        self._last.update(dict.fromkeys((*memory.kept, *memory.inputs), len(index) - 1))

    @classmethod
    def within(cls, index: GraphIndex, budget: int | None) -> Headroom:
        """The headroom under a budget in bytes; a graph that passes it as it stands may stay as it is."""
        headroom = cls(index, None)
        headroom.budget = None if budget is None else max(budget, headroom.peak_bytes)
        return headroom

    def changes(self, apart: Iterable[BucketModel], together: BucketModel) -> list[Change]:
        """What one bucket in place of several changes."""
        steps: dict[int, int] = {}
        for sign, bucket in [(1, together), *((-1, bucket) for bucket in apart)]:
            for first, last, size in bucket.held(self._last_use):
                steps[first] = steps.get(first, 0) + sign * size
                steps[last + 1] = steps.get(last + 1, 0) - sign * size
        changes: list[Change] = []
        more, begin = 0, 0
        for at in sorted(steps):
            if more:
                changes.append((begin, at, more))
            more, begin = more + steps[at], at
        return changes

    def _last_use(self, wait: int) -> int:
        """The last position at which the result of a wait is used."""
        return max((self._last.get(b, wait) for b in self._index.estimates.buffers[wait]), default=wait)

    def over(self, begin: int, end: int, more: int) -> int:
        """By how many bytes the budget is passed with so many more in this stretch; nothing where it is kept."""
        if self.budget is None or more <= 0 or begin >= end:  # less than before is fine where the budget is passed
            return 0
        return max(0, max(self._live[begin:end]) + more - self.budget)

    def fits(self, changes: Sequence[Change]) -> bool:
        """Whether memory stays in the budget, or as it is."""
        return not any(self.over(*change) for change in changes)

    def take(self, changes: Iterable[Change]) -> None:
        """Count these changes from now on."""
        for begin, end, more in changes:
            self._live[begin:end] = [live + more for live in self._live[begin:end]]

    def hold(self, node: int, until: int) -> int:
        """Keep the result of a node up to another one; by how many bytes that passes the budget, 0 when it was done."""
        owned = [b for b in self._index.estimates.buffers[node] if b not in self._kept]  # others are held anyway
        size = sum(self._index.estimates.buffer_bytes[b] for b in owned)
        start = max((self._last[b] for b in owned), default=until) + 1
        over = self.over(start, until, size)
        if not over:
            self.take([(start, until, size)])
            # The node that is served from here on frees it, where its own result was freed.
            ends = max((self._last[b] for b in self._index.estimates.buffers[until]), default=until)
            self._last.update(dict.fromkeys(owned, max(start - 1, ends)))
        return over
