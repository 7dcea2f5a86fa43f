"""Ranks that torchrun or SLURM has started: they meet in a store, agree that all can run, and end together.

    meeting = Meeting(joined(os.environ), timeout=300)
    meeting.agree(None)                      # all are ready; raises what any of them was refused for
    ...
    raise meeting.told(words)                # the one error that all ranks together have found

Rank 0 speaks for all. It waits a moment for the last words of the others, so that what it says is the cause; if
rank 0 is gone the others speak for themselves.

Limits: a process that is stopped or killed says nothing, and is named as one that did not. Ending its processes is the
starter's part (``srun --kill-on-bad-exit``); ranks that only wait for it end at the deadline.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from commcc.base.errors import EXIT_BUG, CommccError, InputError
from commcc.replay.ranks.failing import Evidence, RanksError, explained
from commcc.replay.ranks.machines import port_problem, within

if TYPE_CHECKING:
    from commcc.base.terms import Json
    from commcc.replay.ranks.launcher_env import Joined

#: Seconds that rank 0 waits for the words of others, and that those wait for it to have heard them.
_COLLECT, _HEARD = 3.0, 6.0
#: Seconds between two looks at whether another rank ends.
_LISTEN = 1.0
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
        self._hosts = me.rank == 0 and not agent
        problem = port_problem("", me.port) if self._hosts else None
        if problem is not None:
            raise InputError(
                f"port {me.port} of this machine cannot be used: {problem.text}",
                hint="MASTER_PORT names another one for all ranks",
            )
        self._store = self._connect(timeout, host=self._hosts)

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

    # Before the run

    def agree(self, problem: Exception | None) -> None:
        """Return when every rank is ready. Raises the first problem that any of them has."""
        mine = _as_data(problem)
        self._store.set(f"ready/{self.me.rank}", json.dumps(mine))
        found = self._everybodys("ready")
        first = next((rank for rank, each in enumerate(found) if each), None)
        if first is None:
            return
        self._part("read")
        if problem is not None and found[first] == mine:
            raise problem
        raise SharedError(f"rank {first}: {found[first]['what']}", found[first]["exit_code"])

    def _everybodys(self, name: str) -> list[dict[str, Any]]:
        ranks = range(self.me.world)
        try:
            return [json.loads(each) for each in self._store.multi_get([f"{name}/{rank}" for rank in ranks])]
        except (RuntimeError, TimeoutError):
            missing = [rank for rank in ranks if not self._there(self._store, f"{name}/{rank}")]
            error = RanksError(f"not all ranks are there after {self._timeout:g} s: rank {missing[:1] or '?'} is not")
            error.late = True
            raise error from None

    # After it

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

    def _alone(self, words: dict[str, Json]) -> CommccError:
        return explained(Evidence({self.me.rank: words}, missing=(0,) if self.me.rank else self._others()))

    def _tell(self, words: dict[str, Json]) -> CommccError | None:
        try:
            # The store in use may be held by the thread that waits in it.
            store = self._connect(_COLLECT)
            store.set(f"words/{self.me.rank}", json.dumps(words))
            store.set("ending", "1")
            if self.me.rank:
                store.wait(["heard"], timedelta(seconds=_HEARD))
                store.add("left", 1)
                return None
            return self._heard(store)
        except (CommccError, RuntimeError, TimeoutError):
            return self._alone(words)

    def _heard(self, store: Any) -> CommccError:
        """What all ranks have said, once they have or the time for it is up."""
        said: dict[int, Any] = {}
        end = time.monotonic() + _COLLECT
        while len(said) < self.me.world and time.monotonic() < end:
            for rank in range(self.me.world):
                if rank not in said and self._there(store, f"words/{rank}"):
                    said[rank] = json.loads(store.get(f"words/{rank}"))
            time.sleep(0.05)
        store.set("heard", "1")
        self._linger(store, "left", len(said) - 1)
        return explained(Evidence(said, missing=tuple(rank for rank in range(self.me.world) if rank not in said)))

    def _others(self) -> tuple[int, ...]:
        return tuple(rank for rank in range(self.me.world) if rank != self.me.rank)

    def _part(self, name: str) -> None:
        """Rank 0 holds the store, and leaves when the others have read what is in it."""
        with suppress(RuntimeError, TimeoutError):
            self._store.add(name, 1)
            if self._hosts:
                self._linger(self._store, name, self.me.world)

    def _linger(self, store: Any, name: str, number: int) -> None:
        end = time.monotonic() + _COLLECT
        while store.add(name, 0) < number and time.monotonic() < end:
            time.sleep(0.05)

    @staticmethod
    def _there(store: Any, key: str) -> bool:
        with suppress(RuntimeError, TimeoutError):
            return bool(store.check([key]))
        return False


def _as_data(problem: Exception | None) -> dict[str, Any]:
    if problem is None:
        return {}
    if isinstance(problem, CommccError):
        return {"what": problem.render(), "exit_code": problem.exit_code}
    return {"what": f"{type(problem).__name__}: {problem}"[:300], "exit_code": EXIT_BUG}
