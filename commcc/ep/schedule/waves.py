"""One order of a region's nodes, exchange by exchange.

Exchanges are launched in waves: the i-th exchange of the k-th chunk is in wave ``i + k // depth``, so that no more
than ``depth`` chunks hold what a dispatch received at the same time. With as many chunks as ``depth`` wave i holds
exchange i of all chunks, the order by phases. Two chunks, a dispatch and a combine, d = dispatch, c = combine::

    phases (depth 2)    d0 d1 | shared expert | wait d0, experts 0, c0 | wait d1, experts 1, c1 | wait c0, wait c1
    depth 1             d0 | shared expert 0 | wait d0, experts 0, c0, d1 | shared expert 1 | wait d1, experts 1, c1 ...

1. Where the root is the expert-parallel module itself: what the copies of token counts need, for all chunks; then
   all copies, none of which blocks but the last. In a wider root each chunk does this by itself.
2. The first wave of such a root: what the exchanges need, chunk by chunk, then all launches in a row. Later waves,
   and wider roots: what an exchange needs and its launch, one after the other. Waits on earlier exchanges come here.
3. After each wave, what is ready without a wait, of chunks that have begun: chunks in order, nodes in graph order.
4. At the end chunk by chunk what is left, waits included.

Chunks count from the last one in the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commcc.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from commcc.ep.regions import Region
    from commcc.ep.schedule.local import Local


@dataclass(frozen=True)
class RegionOrder:
    """order: all nodes of a region. host_copies: copies of token counts, and whether each does not block."""

    order: tuple[int, ...]
    host_copies: dict[int, bool]


def in_waves(local: Local, depth: int) -> RegionOrder:
    """The order with ``depth`` chunks in flight, from 1; as many as there are chunks, or more, is by phases.

    Raises :class:`InputError` where exchanges of the chunks depend on each other so that no such order is there.
    """
    run = _Run(local)
    run.counts()
    for wave in _waves(local, max(1, min(depth, local.region.chunks))):
        run.wave(wave)
        run.fill()
    run.finish()
    return RegionOrder(tuple(run.order), host_copies(local.region))


def host_copies(region: Region) -> dict[int, bool]:
    """Copies of token counts, and whether each does not block, which is the same at every depth: the last copy of a
    group blocks, and a group is that of all chunks (case 1), or of one chunk in a wider root.
    """
    together = tuple(node for chunk in region.chunk_order for node in region.count_copies[chunk])
    groups = (together,) if region.narrow else region.count_copies
    return {node: node != group[-1] for group in groups for node in group}


def _waves(local: Local, depth: int) -> list[list[tuple[int, int]]]:
    """Chunk and number of the exchanges of each wave, in the order in which they are launched."""
    region = local.region
    keyed: dict[int, list[tuple[int, int, int]]] = {}
    for place, chunk in enumerate(region.chunk_order):
        for number in range(len(region.labels)):
            keyed.setdefault(number + place // depth, []).append((place % depth, -number, chunk))
    return [[(chunk, -number) for _, number, chunk in sorted(keyed[wave])] for wave in sorted(keyed)]


@dataclass
class _Run:
    """What has been put in order so far."""

    local: Local
    order: list[int] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)

    def counts(self) -> None:
        """Case 1: token counts of all chunks at once."""
        region = self.local.region
        if region.narrow and any(region.count_copies):
            self._copy(region.chunk_order)

    def _copy(self, chunks: Iterable[int]) -> None:
        """Copies of token counts, with what they need first."""
        chunks = tuple(chunks)
        for chunk in chunks:
            self._emit(self.local.sources[chunk])
        self._emit(node for chunk in chunks for node in self.local.region.count_copies[chunk])

    def wave(self, wave: list[tuple[int, int]]) -> None:
        """Case 2."""
        region, local = self.local.region, self.local
        self._check(wave)
        together = region.narrow and not self.begun
        for chunk, number in wave if together else ():
            self._emit(n for n in local.closures[chunk, number] if n != region.exchanges[chunk][number])
        for chunk, number in wave:
            if not number and not region.narrow and region.count_copies[chunk]:
                self._copy((chunk,))
            self._emit(local.closures[chunk, number])
            self.begun.add(chunk)

    def fill(self) -> None:
        """Case 3."""
        local, launches = self.local, {n for chunk in self.local.region.exchanges for n in chunk}
        idle = [n for n in local.chunk_of if n not in local.communicates and n not in launches]
        while self._frontier(idle, lambda node: local.chunk_of[node] in self.begun):
            pass

    def finish(self) -> None:
        """Case 4."""
        region, local = self.local.region, self.local
        progress = True
        while progress:
            progress = False
            for chunk in region.chunk_order:
                while self._frontier(region.bodies[chunk]):
                    progress = True
        left = sorted(local.chunk_of.keys() - self.done)
        if left:
            name = local.index.names[left[0]]
            raise InputError(f"'{name}' waits for itself", where=f"region '{region.name}'")

    def _frontier(self, nodes: Iterable[int], allowed: Callable[[int], bool] | None = None) -> bool:
        """Emit what is ready among ``nodes``; whether there was anything."""
        local = self.local
        ready = [
            n
            for n in nodes
            if n not in self.done and (allowed is None or allowed(n)) and self.done.issuperset(local.needs[n])
        ]
        place = {chunk: at for at, chunk in enumerate(local.region.chunk_order)}
        self._emit(sorted(ready, key=lambda n: (place[local.chunk_of[n]], n)))
        return bool(ready)

    def _emit(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            if node in self.done:
                continue
            self.done.add(node)
            self.order.append(node)

    def _check(self, wave: list[tuple[int, int]]) -> None:
        """No exchange may come ahead of its turn because another one needs it."""
        region, local = self.local.region, self.local
        turn = [region.exchanges[chunk][number] for chunk, number in wave]
        later = {n for launches in region.exchanges for n in launches} - self.done
        for launch, key in zip(turn, wave, strict=True):
            later.discard(launch)
            ahead = [n for n in local.closures[key] if n in later]
            if ahead:
                names = local.index.names[launch], local.index.names[ahead[0]]
                text = f"'{names[0]}' needs '{names[1]}', whose turn comes later: the chunks depend on each other"
                raise InputError(text, where=f"region '{region.name}'", hint="such a region cannot be scheduled")
