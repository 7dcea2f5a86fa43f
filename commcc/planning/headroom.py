"""Whether memory has room for a bucket where it would stand, before anything is simulated.

    room = Room(index, budget)
    if room.fits([bucket_members, [candidate]], together):      # what stood apart so far, and all in one bucket
        room.take([bucket_members, [candidate]], together)

A lone collective holds its input until its wait and its result until the last use. A bucket of all-gathers holds
its inputs side by side until the merged wait and its whole result until the last member is copied out of it; a
bucket of reductions holds every input until the last one is there, then all of them once more until the wait,
and its result until the last use.

Limits: an estimate in positions of the graph before; what other buckets move is not seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.terms import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from commcc.graph.collectives import Collective
    from commcc.graph.index import GraphIndex

#: First position, last position, bytes.
Stretch = tuple[int, int, int]


class Room:
    """Live bytes at each position, with what merging adds. budget: None for no limit."""

    def __init__(self, index: GraphIndex, budget: int | None) -> None:
        from commcc.graph.memory import MemoryModel

        self._index, self._budget = index, budget
        memory = MemoryModel(index)
        self._live = list(memory.live(range(len(index))).live)
        self._last: dict[int, int] = {b: node for node in range(len(index)) for b in memory.touched[node]}
        self._last.update(dict.fromkeys((*memory.kept, *memory.inputs), len(index) - 1))

    def fits(self, apart: Sequence[Sequence[Collective]], together: Sequence[Collective]) -> bool:
        """Whether memory stays in the budget, or as it is, with one bucket in place of several."""
        if self._budget is None:
            return True
        return all(
            more <= 0 or max(self._live[begin:end]) + more <= self._budget
            for begin, end, more in self._changes(apart, together)
        )

    def take(self, apart: Sequence[Sequence[Collective]], together: Sequence[Collective]) -> None:
        """Count one bucket in place of several."""
        if self._budget is None:
            return
        for begin, end, more in self._changes(apart, together):
            self._live[begin:end] = [live + more for live in self._live[begin:end]]

    def _changes(self, apart: Sequence[Sequence[Collective]], together: Sequence[Collective]) -> Iterator[Stretch]:
        """Stretches from a position up to another, and how many bytes more are live in them."""
        steps: dict[int, int] = {}
        signed = [(1, self._held(together)), *((-1, self._held(members)) for members in apart)]
        for sign, stretches in signed:
            for first, last, size in stretches:
                steps[first] = steps.get(first, 0) + sign * size
                steps[last + 1] = steps.get(last + 1, 0) - sign * size
        more, begin = 0, 0
        for at in sorted(steps):
            if more:
                yield begin, at, more
            more, begin = more + steps[at], at

    def _held(self, members: Sequence[Collective]) -> list[Stretch]:
        """What these hold in one launch, as stretches; a stretch that ends before it begins holds nothing."""
        if len(members) == 1:
            only = members[0]
            return [(only.launch, only.waits[0], only.input_bytes), (only.launch, self._use(only), only.output_bytes)]
        sent, got = sum(c.input_bytes for c in members), sum(c.output_bytes for c in members)
        if members[0].kind is Kind.ALL_GATHER:
            launch = min(c.launch for c in members)
            wait, last = min(c.waits[0] for c in members), max(c.waits[0] for c in members)
            copies = [(c.waits[0], self._use(c), c.output_bytes) for c in members]
            return [(launch, wait, sent), (launch, last, got), *copies]
        launch = max(c.launch for c in members)
        wait = max(launch, min(c.waits[0] for c in members))
        inputs = [(c.launch, launch, c.input_bytes) for c in members]
        return [*inputs, (launch, wait, sent), (launch, max(self._use(c) for c in members), got)]

    def _use(self, collective: Collective) -> int:
        """The last position at which the result is used."""
        wait = collective.waits[0]
        return max((self._last.get(b, wait) for b in self._index.estimates.buffers[wait]), default=wait)
