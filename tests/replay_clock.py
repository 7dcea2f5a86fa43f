"""A clock on which only sleeping and looking takes time, so that what is asserted of times holds on any machine."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from commcc.replay import place
from commcc.replay.emulate import streams

if TYPE_CHECKING:
    import pytest


class Clock:
    """In place of the module ``time``: every look takes a microsecond; a sleep ends at once, as long after the
    thread's last look as it was to take. So threads that sleep at the same time do so together.
    """

    LOOK_NS = 1000

    def __init__(self) -> None:
        self._now = 1_000_000_000
        self._lock = threading.Lock()
        self._looked = threading.local()

    def perf_counter_ns(self) -> int:
        with self._lock:
            self._now += self.LOOK_NS
            self._looked.at = self._now
            return self._now

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self._now = max(self._now, getattr(self._looked, "at", self._now) + round(1e9 * seconds))


def install(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of emulated streams, and of ranks on the CPU, for one test."""
    clock = Clock()
    for module in (streams, place):
        monkeypatch.setattr(module, "time", clock)
    return clock
