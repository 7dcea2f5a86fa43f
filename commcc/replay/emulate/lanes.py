"""Lanes: queues beside the compute, in which one collective after the other is on its way.

::

    lanes = CpuLanes()
    ticket = lanes["0"].launch(fill, ns=250_000, pace=Pace())      # returns at once
    lanes["0"].wait(ticket)                                        # what was filled is there, and the time is over
    lanes["0"].took_ns(ticket)                                     # 250_000, or more if filling took longer
    lanes.close()

A collective starts when it has been launched and the one before it in its lane has ended. It then writes its result,
and ends when the modelled time is over, counted from its start, and the result is there.

On the CPU a lane is a thread. Filling is real work on another core; the rest of the time nobody works.

Limits: a thread is late by some tens of microseconds when it is woken, and by much more where there are fewer free
cores than lanes. That is in ``took_ns`` as far as it makes a collective longer.
"""

from __future__ import annotations

import select
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

#: How long before it is to go on a thread stops to sleep: a sleep may take 50 us too long, and more on a busy machine.
_AWAKE_NS = 200_000
#: How long a lane waits before it asks for the interpreter. A thread that calls op after op has it again before one
#: that sleeps has woken up, so that without asking a lane would be late by milliseconds.
_TURN_S = 1e-5
#: Runs that a :class:`Pace` remembers.
_REMEMBERED = 5


@dataclass
class Pace:
    """What one launch of a program takes besides the time that its lane idles, from one run to the next."""

    _besides_ns: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def idle_ns(self, ns: int) -> float:
        """How long to idle so that all of it takes ``ns``."""
        return max(0.0, ns - (median(self._besides_ns) if self._besides_ns else 0.0))

    def learn(self, took_ns: float, idled_ns: float) -> None:
        """A run is over in which it took this long, idling included. The median of some runs counts."""
        self._besides_ns.append(took_ns - idled_ns)


class Lane(Protocol):
    """One queue."""

    def launch(self, fill: Callable[[], None], ns: int, pace: Pace) -> Any:
        """Queue a collective: ``fill`` writes its result, all of it takes ``ns``. A ticket to wait with."""

    def wait(self, ticket: Any) -> None:
        """The rank goes on after the collective has ended; any number of times. Raises what ``fill`` raised."""

    def took_ns(self, ticket: Any) -> int:
        """From start to end, once it has ended and the device has been waited for."""


class Lanes(Protocol):
    """Lanes by name; one that is new is made."""

    def __getitem__(self, name: str) -> Lane: ...

    def close(self) -> None:
        """The end of all of them."""


@dataclass
class _Ticket:
    """start, end: perf_counter nanoseconds, set by the lane, as is what went wrong."""

    fill: Callable[[], None] | None
    ns: int
    launched: int
    start: int = 0
    end: int = 0
    error: Exception | None = None
    filled: threading.Event = field(default_factory=threading.Event)


class CpuLane:
    """A thread that fills one result after the other, and keeps the time."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[_Ticket | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"commcc-lane-{name}", daemon=True)
        self._thread.start()

    def launch(self, fill: Callable[[], None], ns: int, pace: Pace) -> _Ticket:
        """The time that filling takes is known as soon as it is over, so ``pace`` has nothing to tell."""
        ticket = _Ticket(fill, ns, time.perf_counter_ns())
        self._queue.put(ticket)
        return ticket

    def wait(self, ticket: _Ticket) -> None:
        ticket.filled.wait()
        _sleep_until(ticket.end)
        if ticket.error is not None:
            raise ticket.error

    def took_ns(self, ticket: _Ticket) -> int:
        return ticket.end - ticket.start

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        free = 0
        # Threads have a mode of their own.
        with torch.no_grad():
            while (ticket := self._queue.get()) is not None:
                free = _carry_out(ticket, free)
                del ticket  # whoever waited may want its memory back


class CpuLanes:
    """A thread for each lane. Until they are closed, Python's threads take turns more often."""

    def __init__(self) -> None:
        self._lanes: dict[str, CpuLane] = {}
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(_TURN_S)

    def __getitem__(self, name: str) -> CpuLane:
        if name not in self._lanes:
            self._lanes[name] = CpuLane(name)
        return self._lanes[name]

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()
        sys.setswitchinterval(self._interval)


def _carry_out(ticket: _Ticket, free: int) -> int:
    """Do what a ticket is for in a lane that is ``free`` from then on; when it is free again."""
    ticket.start = max(ticket.launched, free)
    _sleep_until(ticket.start)
    fill, ticket.fill = ticket.fill, None
    try:
        if fill is not None:
            fill()
    except Exception as error:
        ticket.error = error
    ticket.end = max(ticket.start + ticket.ns, time.perf_counter_ns())
    end = ticket.end
    ticket.filled.set()
    return end


def _sleep_until(moment: int) -> None:
    """Until perf_counter reaches ``moment``; the last of it awake, but without keeping other threads from running."""
    left = moment - time.perf_counter_ns()
    if left > _AWAKE_NS:
        time.sleep((left - _AWAKE_NS) / 1e9)
    while time.perf_counter_ns() < moment:
        select.select((), (), (), 0)  # returns at once, but lets other threads have the interpreter; sleep(0) sleeps
