"""Ranks that torchrun or SLURM has started: they meet in a store, agree that all can run, and end together.

::

    with together(joined(os.environ), timeout=300, say=print) as runner:
        result = bench(named, settings, runner)       # on rank 0; an Elsewhere on the others

A rank runs within this process, and is watched. Whatever goes wrong on any rank is one line of rank 0, and every rank
ends: with an exception, or, from the thread that watches it, at once. Rank 0 waits a moment for the last words of the
others, so that what it says is the cause; if rank 0 is gone the others speak for themselves.

Limits: a process that is stopped or killed says nothing, and is named as one that did not. Ending its processes is
the starter's part (``srun --kill-on-bad-exit``); ranks that only wait for it end at the deadline. Signals are noticed
in the main thread's place only, which is where the command line runs.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.elastic.utils.store import synchronize

from commcc.base.errors import EXIT_BUG, EXIT_FINDINGS, CommccError, InputError
from commcc.replay.bench.benchmark import Elsewhere, hinted
from commcc.replay.bench.worker import measure
from commcc.replay.ranks.failing import Evidence, RanksError, explained
from commcc.replay.ranks.launcher_env import TORCHRUN
from commcc.replay.ranks.machines import port_problem, within
from commcc.replay.ranks.watch import Watch
from commcc.replay.ranks.worker import error_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from commcc.base.terms import Json
    from commcc.graph.program import Program
    from commcc.replay.bench.graph_set import BenchSettings, GraphSet
    from commcc.replay.ranks.launcher_env import Joined

_EXIT_INTERRUPTED = 130
#: Seconds that rank 0 waits for the words of others, and that those wait for it to have heard them.
_COLLECT, _HEARD = 3.0, 6.0
#: Seconds between two looks at whether another rank ends.
_LISTEN = 1.0
#: Seconds that a thread has to leave the store.
_LEAVE = 3.0
#: Seconds after which a thread ends the process though another one was about to.
_PATIENCE = 20.0
# For mypy these classes are not among what PyTorch exports by name.
_c10d: Any = torch._C._distributed_c10d
_PREFIX = "commcc/{attempt}/"


class SharedError(CommccError):
    """What one rank was refused for, as all ranks say it."""

    def __init__(self, what: str, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(what)


class UnheardError(InputError):
    """Rank 0 cannot be reached, so that whoever sees it has to speak for itself."""


class Meeting:
    """A rank's place in the store. timeout: seconds that the others have to come.

    Raises :class:`InputError` for a port that rank 0 cannot have, :class:`UnheardError` where rank 0 is not found.
    """

    def __init__(self, me: Joined, timeout: float) -> None:
        self.me = me
        #: Whether some rank has told that it ends.
        self.ending = False
        self._timeout = timeout
        os.environ.update(me.environment)
        # torchrun holds a store for its ranks; for others rank 0 does.
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        hosts = me.rank == 0 and not agent
        problem = port_problem("", me.port) if hosts else None
        if problem is not None:
            raise InputError(
                f"port {me.port} of this machine cannot be used: {problem.text}",
                hint="MASTER_PORT names another one for all ranks",
            )
        self._store = self._connect(timeout, host=hosts)

    def _connect(self, timeout: float, *, host: bool = False) -> Any:
        me, limit = self.me, timedelta(seconds=timeout)
        try:
            store = within(
                timeout,
                lambda: _c10d.TCPStore(me.address, me.port, is_master=host, timeout=limit, multi_tenant=True),
            )
        except (RuntimeError, TimeoutError) as error:
            reason = " ".join(str(error).split())[:120]
            raise UnheardError(
                f"rank {me.rank}: rank 0 does not answer at {me.address}:{me.port}: {reason}",
                hint="MASTER_ADDR and MASTER_PORT say where it is",
            ) from None
        store.set_timeout(limit)
        return _c10d.PrefixStore(_PREFIX.format(attempt=os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")), store)

    def agree(self, problem: Exception | None) -> None:
        """Return when every rank is ready. Raises the first problem that any of them has."""
        mine: dict[str, Any] = {}
        if isinstance(problem, CommccError):
            mine = {"what": problem.render(), "exit_code": problem.exit_code}
        elif problem is not None:
            mine = {"what": f"{type(problem).__name__}: {problem}"[:300], "exit_code": EXIT_BUG}
        me, data = self.me, json.dumps(mine).encode()
        try:
            answers = synchronize(self._store, data, me.rank, me.world, "ready/", self._timeout)
        except (RuntimeError, TimeoutError):
            missing = next((rank for rank in range(me.world) if not self._there(self._store, f"ready/{rank}")), "?")
            error = RanksError(f"not all ranks are there after {self._timeout:g} s: rank {missing} is not")
            error.late = True
            raise error from None
        problems = [json.loads(answer) for answer in answers]
        first = next((rank for rank, reported in enumerate(problems) if reported), None)
        if first is None:
            return
        if problem is not None and problems[first] == mine:
            raise problem
        raise SharedError(f"rank {first}: {problems[first]['what']}", problems[first]["exit_code"])

    def listen(self, done: threading.Event) -> threading.Thread:
        """Begin to look, in a thread of its own, whether some rank has told that it ends, until ``done``."""

        def listening() -> None:
            try:
                store = self._connect(self._timeout)
                while not done.wait(_LISTEN) and not self.ending:
                    self.ending = bool(store.check(["ending"]))
            except (CommccError, RuntimeError, TimeoutError):
                # Rank 0 has gone: at the end of the run, which all are about to see, or before it.
                self.ending = not done.wait(_COLLECT)

        thread = threading.Thread(target=listening, name="commcc-listen", daemon=True)
        thread.start()
        return thread

    def told(self, words: dict[str, Json]) -> CommccError | None:
        """Tell the others how this rank ends; the error of all, to be raised or shown. None: rank 0 says it."""
        try:
            # A store whose process is stopped does not answer.
            return within(_COLLECT + _HEARD, lambda: self._tell(words))
        except TimeoutError:
            return self._alone(words)

    def _tell(self, words: dict[str, Json]) -> CommccError | None:
        try:
            # The store in use may be held by the thread that waits in it.
            store = self._connect(_COLLECT)
            store.set(f"words/{self.me.rank}", json.dumps(words))
            store.set("ending", "1")
            if not self.me.rank:
                return self._heard(store)
            store.wait(["heard"], timedelta(seconds=_HEARD))
            store.set(f"left/{self.me.rank}", "1")
            return None
        except (CommccError, RuntimeError, TimeoutError):
            return self._alone(words)

    def _heard(self, store: Any) -> CommccError:
        """What all ranks have said, once they have or the time for it is up."""
        ranks, limit = range(self.me.world), timedelta(seconds=_COLLECT)
        with suppress(RuntimeError, TimeoutError):
            store.wait([f"words/{rank}" for rank in ranks], limit)
        said = {rank: json.loads(store.get(f"words/{rank}")) for rank in ranks if self._there(store, f"words/{rank}")}
        store.set("heard", "1")
        # Rank 0 may hold the store, and leaves when the others have read what is in it.
        with suppress(RuntimeError, TimeoutError):
            store.wait([f"left/{rank}" for rank in said if rank != self.me.rank], limit)
        return explained(Evidence(said, missing=tuple(rank for rank in ranks if rank not in said)))

    def _alone(self, words: dict[str, Json]) -> CommccError:
        """The error as far as this rank knows of it: rank 0 is silent, or, for rank 0, all others are."""
        others = (0,) if self.me.rank else tuple(range(1, self.me.world))
        return explained(Evidence({self.me.rank: words}, missing=others))

    @staticmethod
    def _there(store: Any, key: str) -> bool:
        with suppress(RuntimeError, TimeoutError):
            return bool(store.check([key]))
        return False


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
                self._before[number] = signal.signal(number, lambda *_: None)  # the watch takes care of it

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
        said = self._meeting.told(words)
        if self._meeting.me.rank and said is not None:
            self._say(hinted(said).render())
        return RanksError("rank 0 says why") if said is None else hinted(said)

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
        said = self._meeting.told(words)
        if said is not None:
            self._say(hinted(said).render())
        os._exit(EXIT_FINDINGS)


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
        """What every rank has measured, on rank 0. Raises :class:`RanksError`."""
        self._watch.stage("waiting for the other ranks to be ready")
        self.agree(None)
        self._watch.restart()
        self._watch.listen()
        torch.set_num_threads(1)
        try:
            result = measure(graphs, self._meeting.me.rank, settings, self._watch)
        except Exception as error:
            raise self._watch.failed(error) from error
        return Elsewhere(self._meeting.me.address) if result is None else result

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
