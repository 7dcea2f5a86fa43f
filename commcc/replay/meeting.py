"""Virtual ranks that run a piece of Python each and meet in the collectives that it launches.

::

    meeting = Meeting(exchange)                       # exchange(arrivals): what each of them receives
    results = meeting.run([call_0, call_1])           # one call for each rank
    received = meeting.arrive(rank, part, what)       # in a call: back once all ranks of the part have arrived

A higher-order op decides in Python how often it runs which of its graphs, so that ranks cannot be run node by node
there. Each has a thread; only one of them runs at any time, in the order of the ranks, and the next one goes on
where it stops to wait or ends. So a run is the same every time.

Where no part is complete and no rank can go on, the ranks wait for each other: on a machine they would hang.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Ranks of one group.
Part = tuple[int, ...]


class StuckError(ValueError):
    """Ranks that wait for others which never come."""


class _LeftError(Exception):
    """What ends a rank when another one has failed."""


@dataclass
class _Place:
    """One rank. part, what: where it waits, and with what. given: what it goes on with."""

    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    thread: threading.Thread | None = None
    part: Part | None = None
    what: Any = None
    given: Any = None
    result: Any = None
    error: BaseException | None = None
    ended: bool = False


@dataclass
class Meeting:
    """exchange: what each rank of a part receives, from what each has brought, in the order of the part."""

    exchange: Callable[[Part, Sequence[Any]], Sequence[Any]]
    _places: dict[int, _Place] = field(default_factory=dict)
    _stopped: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Results of all calls. Raises what the first of them raises, and :class:`StuckError`."""
        self._places = {rank: _Place() for rank in range(len(calls))}
        for (rank, place), call in zip(self._places.items(), calls, strict=True):
            place.thread = threading.Thread(target=self._live, args=(place, call), name=f"rank {rank}", daemon=True)
            place.thread.start()
        try:
            ready = list(self._places)
            while ready:
                for rank in ready:
                    self._go_on(self._places[rank])
                ready = self._met()
        finally:
            self._end()
        return [place.result for place in self._places.values()]

    def arrive(self, rank: int, part: Part, what: Any) -> Any:
        """Wait for the other ranks of the part; what this one receives."""
        place = self._places[rank]
        place.part, place.what = part, what
        self._stopped.release()
        place.go.acquire()
        if isinstance(place.given, BaseException):
            raise place.given
        return place.given

    def _live(self, place: _Place, call: Callable[[], Any]) -> None:
        """A rank's thread. Gradients are off for each thread by itself."""
        place.go.acquire()
        try:
            if not isinstance(place.given, BaseException):
                with torch.no_grad():
                    place.result = call()
        except BaseException as error:  # raised again where all ranks are started
            place.error = error
        place.ended = True
        self._stopped.release()

    def _go_on(self, place: _Place) -> None:
        """Let a rank run until it waits or ends."""
        place.go.release()
        self._stopped.acquire()
        if place.error is not None:
            raise place.error

    def _met(self) -> list[int]:
        """Ranks that can go on, since their part is complete; none when all have ended."""
        waiting = {rank: place.part for rank, place in self._places.items() if not place.ended and place.part}
        ready: list[int] = []
        for part in dict.fromkeys(waiting.values()):
            if all(waiting.get(rank) == part for rank in part):
                places = [self._places[rank] for rank in part]
                for place, given in zip(places, self.exchange(part, [place.what for place in places]), strict=True):
                    place.part, place.what, place.given = None, None, given
                ready.extend(part)
        if waiting and not ready:
            rank, part = next(iter(waiting.items()))
            missing = [other for other in part if waiting.get(other) != part]
            raise StuckError(f"rank {rank} waits for rank {missing[0]}, which does not launch the same there")
        return sorted(ready)

    def _end(self) -> None:
        """Let go of ranks that still wait, one by one."""
        for place in self._places.values():
            if not place.ended:
                place.given = _LeftError()
                place.go.release()
            if place.thread is not None:
                place.thread.join()
