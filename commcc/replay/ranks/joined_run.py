"""One rank that torchrun or SLURM has started: watched, and run within this process.

    with together(me, timeout=300, say=print) as runner:
        found = bench(named, settings, runner)       # on rank 0; an Elsewhere on the others

Whatever goes wrong on any rank is one line of rank 0, and every rank ends: with an exception, or, from the thread that
watches it, at once.

Limits: signals are noticed in the main thread's place only, which is where the command line runs.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from commcc.base.errors import EXIT_FINDINGS
from commcc.replay.bench.benchmark import Elsewhere, hinted
from commcc.replay.bench.worker import measure
from commcc.replay.ranks.failing import RanksError
from commcc.replay.ranks.joining import Meeting, UnheardError
from commcc.replay.ranks.launcher_env import TORCHRUN
from commcc.replay.ranks.watch import Watch
from commcc.replay.ranks.worker import error_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from commcc.base.errors import CommccError
    from commcc.base.terms import Json
    from commcc.graph.program import Program
    from commcc.replay.bench.graph_set import BenchSettings, GraphSet
    from commcc.replay.ranks.launcher_env import Joined

_EXIT_INTERRUPTED = 130
#: Seconds that a thread has to leave the store.
_LEAVE = 3.0
#: Seconds after which a thread ends the process though another one was about to.
_PATIENCE = 20.0


class JoinedWatch(Watch):
    """Ends the process at the deadline and on signals, once the others have been told. say: shows an error."""

    def __init__(self, seconds: float, meeting: Meeting, say: Callable[[str], None]) -> None:
        self._meeting = meeting
        self._say = say
        self._ending = threading.Lock()
        self._signals = _Signals()
        self._listener: threading.Thread | None = None
        super().__init__(seconds, None)
        if meeting.me.starter != TORCHRUN:
            self._parent = None  # a shell may go, and its processes stay

    def failed(self, error: Exception) -> CommccError:
        """What to raise for an error of this rank, after the others have been told."""
        words = self.words(**error_words(error))
        if not self._ending.acquire(blocking=False):
            time.sleep(_PATIENCE)  # the other thread ends the process
        found = self._meeting.told(words)
        if self._meeting.me.rank and found is not None:
            self._say(hinted(found).render())
        return RanksError("rank 0 says why") if found is None else hinted(found)

    def listen(self) -> None:
        """The others may begin to run, and to end."""
        self._listener = self._meeting.listen(self._done)

    def close(self) -> None:
        super().close()
        if self._listener is not None:
            # It must not be inside the store when the interpreter goes.
            self._listener.join(_LEAVE)
        self._signals.close()

    def _check(self) -> None:
        number = self._signals.received()
        if number == signal.SIGINT:
            os._exit(_EXIT_INTERRUPTED)
        if number is not None:
            self._end(self.words(signal=signal.Signals(number).name))
        super()._check()
        if self._meeting.ending:
            self._end(self.words())

    def _end(self, words: dict[str, Json]) -> None:
        if not self._ending.acquire(blocking=False):
            time.sleep(_PATIENCE)  # the main thread is at it
            os._exit(EXIT_FINDINGS)
        found = self._meeting.told(words)
        if found is not None:
            self._say(hinted(found).render())
        os._exit(EXIT_FINDINGS)


class _Signals:
    """Tells a thread of signals that the main thread cannot see while it waits inside a collective."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._before: dict[int, Any] = {}
        self._set = threading.current_thread() is threading.main_thread()
        if self._set:
            self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, _nothing)

    def received(self) -> int | None:
        """The last signal since the last call."""
        try:
            data = self._reader.recv(64)
        except (BlockingIOError, OSError):
            return None
        return data[-1] if data else None

    def close(self) -> None:
        if self._set:
            self._set = False
            signal.set_wakeup_fd(self._wakeup)
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._reader.close()
            self._writer.close()


def _nothing(_number: int, _frame: Any) -> None:
    """The watch takes care of it."""


class JoinedRun:
    """Runs what a bench wants to be run, on this rank."""

    def __init__(self, meeting: Meeting, watch: JoinedWatch) -> None:
        self._meeting = meeting
        self._watch = watch
        self.agreed = False

    def here(self, world: int) -> int:
        """Ranks on this machine."""
        return self._meeting.me.local_world or world

    def __call__(
        self, graphs: GraphSet, programs: Sequence[Program], settings: BenchSettings
    ) -> list[dict[str, Any]] | Elsewhere:
        """Every rank's findings on rank 0. Raises :class:`RanksError`."""
        self._watch.stage("waiting for the other ranks to be ready")
        self.agree(None)
        self._watch.restart()
        self._watch.listen()
        torch.set_num_threads(1)
        try:
            found = measure(graphs, self._meeting.me.rank, settings, self._watch)
        except Exception as error:
            raise self._watch.failed(error) from error
        return Elsewhere(self._meeting.me.address) if found is None else found

    def agree(self, problem: Exception | None) -> None:
        """Raises the first problem that any rank has."""
        self.agreed = True
        self._meeting.agree(problem)


@contextmanager
def together(me: Joined, timeout: float, say: Callable[[str], None]) -> Iterator[JoinedRun]:
    """Meet the other ranks; an error before all have agreed to run is everybody's."""
    try:
        meeting = Meeting(me, timeout)
    except UnheardError as error:
        say(error.render())
        # Not an exception: a thread that still waits for an answer must not see the interpreter go.
        os._exit(error.exit_code)
    watch = JoinedWatch(timeout, meeting, say)
    runner = JoinedRun(meeting, watch)
    try:
        yield runner
    except Exception as error:
        if not runner.agreed:
            runner.agree(error)
        raise
    finally:
        watch.close()
