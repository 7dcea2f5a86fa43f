"""Emulated streams: queues next to the compute, in which one collective runs after the other.

::

    streams = CpuStreams()
    ticket = streams["0"].launch(fill, ns=250_000, pace=Pace())    # returns at once
    streams["0"].wait(ticket)                                      # the result is there, and the time is over
    streams["0"].took_ns(ticket)                                   # 250_000, or more if filling took longer
    streams.close()

A collective starts when it has been launched and the one before it in its stream has ended. It then writes its
result, and ends when the modelled time is over, counted from its start, and the result is there.

On the CPU a stream is a thread. Filling is real work on another core; for the rest of the time the thread sleeps. On
a CUDA device it is a stream of high priority, on which a kernel that does nothing lets time pass::

    main stream          ... event                          | waits for end, from ``wait`` on
    emulated stream           waits for it | start, fill, idle, end

How long it idles is what the modelled time leaves after filling, as events have measured it in earlier runs
(:class:`Pace`), so that a clock that slows down under load is made up for as well.

Limits: a thread is late by some tens of microseconds when it is woken, and by much more where there are fewer free
cores than streams. That is in ``took_ns`` as far as it makes a collective longer. The idle kernel
(``torch.cuda._sleep``) keeps one thread of one multiprocessor busy: it stands for the time of a collective, not for
the multiprocessors and the memory bandwidth that NCCL would take from compute. Queueing costs the host what it costs
here, which is not what NCCL costs it.
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

from commcc.replay.place import CUDA

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.replay.place import Place

#: How long before it is to go on a thread stops to sleep: a sleep may take 50 us too long, and more on a busy machine.
_AWAKE_NS = 200_000
#: How long a thread waits before it asks for the interpreter. A thread that calls op after op has it again before one
#: that sleeps has woken up, so that without asking a collective would be late by milliseconds.
_TURN_S = 1e-5
#: Runs that a :class:`Pace` remembers.
_REMEMBERED = 5
#: Cycles of a short and a long idle kernel (about 0.1 and 1.1 ms): their difference has no launch in it.
_SHORT, _LONG = 200_000, 2_200_000
_TRIES = 7
#: Lowest number, first served: at the next free place of a multiprocessor.
_PRIORITY = -1


@dataclass
class Pace:
    """What one launch of a program takes besides the time that its stream idles, from one run to the next."""

    _besides_ns: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def idle_ns(self, ns: int) -> float:
        """How long to idle so that all of it takes ``ns``."""
        return max(0.0, ns - (median(self._besides_ns) if self._besides_ns else 0.0))

    def learn(self, took_ns: float, idled_ns: float) -> None:
        """A run is over in which it took this long, idling included. The median of some runs counts."""
        self._besides_ns.append(took_ns - idled_ns)


class Stream(Protocol):
    """One queue."""

    def launch(self, fill: Callable[[], None], ns: int, pace: Pace) -> Any:
        """Queue a collective: ``fill`` writes its result, all of it takes ``ns``. A ticket to wait with."""

    def wait(self, ticket: Any) -> None:
        """The rank goes on after the collective has ended; any number of times. Raises what ``fill`` raised."""

    def took_ns(self, ticket: Any) -> int:
        """From start to end, once it has ended and the device has been waited for."""


class Streams(Protocol):
    """Streams by name; one that is new is created."""

    def __getitem__(self, name: str) -> Stream: ...

    def close(self) -> None:
        """The end of all of them."""


def make_streams(place: Place) -> Streams:
    """Streams concurrent with what runs at this place."""
    return CudaStreams() if place.name == CUDA else CpuStreams()


# Threads


@dataclass
class _CpuTicket:
    """start, end: perf_counter nanoseconds, set by the thread, as is what went wrong."""

    fill: Callable[[], None]
    ns: int
    launched: int
    start: int = 0
    end: int = 0
    error: Exception | None = None
    filled: threading.Event = field(default_factory=threading.Event)


class CpuStream:
    """A thread that fills one result after the other, and keeps the time."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[_CpuTicket | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"commcc-stream-{name}", daemon=True)
        self._thread.start()

    def launch(self, fill: Callable[[], None], ns: int, pace: Pace) -> _CpuTicket:
        """The time that filling takes is known as soon as it is over, so ``pace`` has nothing to tell."""
        ticket = _CpuTicket(fill, ns, time.perf_counter_ns())
        self._queue.put(ticket)
        return ticket

    def wait(self, ticket: _CpuTicket) -> None:
        ticket.filled.wait()
        _sleep_until(ticket.end)
        if ticket.error is not None:
            raise ticket.error

    def took_ns(self, ticket: _CpuTicket) -> int:
        return ticket.end - ticket.start

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        free = 0  # when the collective before has ended
        # Threads have a mode of their own.
        with torch.no_grad():
            while (ticket := self._queue.get()) is not None:
                ticket.start = max(ticket.launched, free)
                _sleep_until(ticket.start)
                try:
                    ticket.fill()
                except Exception as error:
                    ticket.error = error
                ticket.fill = _nothing  # whoever waits may want its memory back
                free = ticket.end = max(ticket.start + ticket.ns, time.perf_counter_ns())
                ticket.filled.set()
                del ticket


class CpuStreams:
    """A thread for each stream. Until they are closed, Python's threads take turns more often."""

    def __init__(self) -> None:
        self._streams: dict[str, CpuStream] = {}
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(_TURN_S)

    def __getitem__(self, name: str) -> CpuStream:
        if name not in self._streams:
            self._streams[name] = CpuStream(name)
        return self._streams[name]

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        sys.setswitchinterval(self._interval)


def _nothing() -> None:
    """In place of what has been done."""


def _sleep_until(moment: int) -> None:
    """Until perf_counter reaches ``moment``; the last of it awake, but without keeping other threads from running."""
    left = moment - time.perf_counter_ns()
    if left > _AWAKE_NS:
        time.sleep((left - _AWAKE_NS) / 1e9)
    while time.perf_counter_ns() < moment:
        select.select((), (), (), 0)  # returns at once, but lets other threads have the interpreter; sleep(0) sleeps


# Streams of a device


@dataclass
class _CudaTicket:
    """start, end: events on the stream, around the collective. pace is told once what it took."""

    start: Any
    end: Any
    idled_ns: float
    pace: Pace | None


class CudaStream:
    """A stream of the current device. per_ns: cycles of the idle kernel in a nanosecond."""

    def __init__(self, stream: Any, per_ns: float) -> None:
        self._stream = stream
        self._per_ns = per_ns

    def launch(self, fill: Callable[[], None], ns: int, pace: Pace) -> _CudaTicket:
        """The caller keeps what is sent and what is filled until the wait: PyTorch's allocator knows of one stream."""
        idle = pace.idle_ns(ns)
        cycles = int(idle * self._per_ns)
        start, end = _event(), _event()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            start.record(self._stream)
            fill()
            if cycles:
                _idle(cycles)
            end.record(self._stream)
        return _CudaTicket(start, end, idle, pace)

    def wait(self, ticket: _CudaTicket) -> None:
        torch.cuda.current_stream().wait_event(ticket.end)

    def took_ns(self, ticket: _CudaTicket) -> int:
        # PyTorch gives milliseconds.
        took = 1e6 * float(ticket.start.elapsed_time(ticket.end))
        if ticket.pace is not None:
            ticket.pace.learn(took, ticket.idled_ns)
            ticket.pace = None
        return round(took)


class CudaStreams:
    """Streams of the current device."""

    def __init__(self) -> None:
        self._per_ns = cycles_per_ns()
        self._streams: dict[str, CudaStream] = {}

    def __getitem__(self, name: str) -> CudaStream:
        if name not in self._streams:
            make: Any = torch.cuda.Stream  # mypy: it has no annotations
            self._streams[name] = CudaStream(make(priority=_PRIORITY), self._per_ns)
        return self._streams[name]

    def close(self) -> None:
        """Streams are PyTorch's, out of a pool."""
        self._streams.clear()


def cycles_per_ns() -> float:
    """The clock of the idle kernel: the median of some tries, after one that lets the clock rise."""

    def idle_ns(cycles: int) -> float:
        start, end = _event(), _event()
        start.record()
        _idle(cycles)
        end.record()
        end.synchronize()
        return 1e6 * float(start.elapsed_time(end))

    idle_ns(_LONG * 4)
    rates = []
    for _ in range(_TRIES):
        short, long = idle_ns(_SHORT), idle_ns(_LONG)
        if long > short:
            rates.append((_LONG - _SHORT) / (long - short))
    # None measured: a device whose events have no time; a GHz is of the right size.
    return median(rates) if rates else 1.0


def _idle(cycles: int) -> None:
    idle: Any = torch.cuda._sleep  # mypy: it has no annotations
    idle(cycles)


def _event() -> Any:
    make: Any = torch.cuda.Event
    return make(enable_timing=True)
