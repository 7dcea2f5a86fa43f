"""Lanes of a CUDA device: a stream of high priority for each, on which a kernel that does nothing lets time pass.

::

    lanes = CudaLanes()
    ticket = lanes["0"].launch(fill, ns=250_000, pace=pace)     # the host goes on as soon as all is queued
    lanes["0"].wait(ticket)                                     # the current stream waits, the host does not

    main stream     ... event                          | waits for end, from ``wait`` on
    lane                 waits for it | start, fill, idle, end

How long it idles is what the modelled time leaves after filling, as events have measured it in earlier runs
(:class:`commcc.replay.emulate.lanes.Pace`); so a clock that slows down under load is made up for as well.

Limits: the idle kernel (``torch.cuda._sleep``) keeps one thread of one multiprocessor busy: it stands for the time of a
collective, not for the multiprocessors and the memory bandwidth that NCCL would take from compute. A collective that is
filled for longer than its modelled time takes that long. Queueing costs the host what it costs here, which is not
what NCCL costs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.replay.emulate.lanes import Pace

#: Cycles of a short and a long idle kernel (about 0.1 and 1.1 ms): their difference has no launch in it.
_SHORT, _LONG = 200_000, 2_200_000
_TRIES = 7
#: Lowest number, first served: at the next free place of a multiprocessor.
_PRIORITY = -1


@dataclass
class _Ticket:
    """start, end: events on the lane, around the collective. pace is told once what it took."""

    start: Any
    end: Any
    ns: int
    idled_ns: float
    pace: Pace | None


class CudaLane:
    """A stream. per_ns: cycles of the idle kernel in a nanosecond."""

    def __init__(self, stream: Any, per_ns: float) -> None:
        self._stream = stream
        self._per_ns = per_ns

    def launch(self, fill: Callable[[], None], ns: int, pace: Pace) -> _Ticket:
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
        return _Ticket(start, end, ns, idle, pace)

    def wait(self, ticket: _Ticket) -> None:
        torch.cuda.current_stream().wait_event(ticket.end)

    def took_ns(self, ticket: _Ticket) -> int:
        # PyTorch gives milliseconds.
        took = 1e6 * float(ticket.start.elapsed_time(ticket.end))
        if ticket.pace is not None:
            ticket.pace.learn(took, ticket.idled_ns)
            ticket.pace = None
        return round(took)


class CudaLanes:
    """A stream for each lane of the current device."""

    def __init__(self) -> None:
        self._per_ns = cycles_per_ns()
        self._lanes: dict[str, CudaLane] = {}

    def __getitem__(self, name: str) -> CudaLane:
        if name not in self._lanes:
            make: Any = torch.cuda.Stream  # mypy: it has no annotations
            self._lanes[name] = CudaLane(make(priority=_PRIORITY), self._per_ns)
        return self._lanes[name]

    def close(self) -> None:
        """Streams are PyTorch's, out of a pool."""
        self._lanes.clear()


def cycles_per_ns() -> float:
    """The clock of the idle kernel: the median of some tries, after one that lets the clock rise."""
    _idle_ns(_LONG * 4)
    rates = []
    for _ in range(_TRIES):
        short, long = _idle_ns(_SHORT), _idle_ns(_LONG)
        if long > short:
            rates.append((_LONG - _SHORT) / (long - short))
    # None measured: a device whose events have no time; a GHz is of the right size.
    return median(rates) if rates else 1.0


def _idle_ns(cycles: int) -> float:
    start, end = _event(), _event()
    start.record()
    _idle(cycles)
    end.record()
    end.synchronize()
    return 1e6 * float(start.elapsed_time(end))


def _idle(cycles: int) -> None:
    idle: Any = torch.cuda._sleep  # mypy: it has no annotations
    idle(cycles)


def _event() -> Any:
    make: Any = torch.cuda.Event
    return make(enable_timing=True)
