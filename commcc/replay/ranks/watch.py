"""Nobody outlives the deadline, or whoever started it: a thread in every rank, and one next to the launcher.

::

    watch = Watch(seconds=60, file=Path("rank0.json"))
    watch.progress("launches", "all_gather_3")       # what the rank is at, for the last words

    with Guard(folder, timeout=60):
        ...                                          # start ranks and wait for them

Without a :class:`Watch` a rank that waits for one that died waits until its collective times out, and ranks whose
launcher was killed are orphans. The last words are one JSON object in ``file``: ``{"timeout": ..., "at": ...,
"launched": ...}``. What a rank is at is also on its :class:`Board`, a file next to it, for those that end without any.

A process that is stopped (SIGSTOP) cannot end itself. The :class:`Guard` kills a rank that is alive :data:`GRACE`
seconds after its deadline, and takes its last words from its board.

Limits: the guard reads /proc; on other systems than Linux ranks only end themselves.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.base.terms import Json

#: How a rank exits at the deadline, and when it has lost its parent.
EXIT_TIMEOUT, EXIT_ORPHAN = 124, 125
#: Seconds that a rank has to end itself after its deadline.
GRACE = 2.0
_INTERVAL, _GUARD_INTERVAL = 0.1, 0.2
_BOARD_BYTES = 4096
_BOARD_FIELDS = ("at", "launched", "waited", "program")


class Board:
    """A file that always says what a rank is at; writing it costs a copy within memory, and outlives the process."""

    def __init__(self, file: Path) -> None:
        file.write_bytes(bytes(_BOARD_BYTES))
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), _BOARD_BYTES)

    def write(self, fields: tuple[str | None, ...]) -> None:
        data = "\t".join(field or "" for field in fields).encode()[: _BOARD_BYTES - 1] + b"\n"
        self._map[: len(data)] = data

    @staticmethod
    def read(file: Path) -> dict[str, Json]:
        """What was written last; empty where there is nothing."""
        try:
            line, end, _ = file.read_bytes().partition(b"\n")
        except OSError:
            return {}
        fields = line.decode(errors="replace").split("\t") if end else []
        return {name: field or None for name, field in zip(_BOARD_FIELDS, fields, strict=False)}


class Watch:
    """Starts to watch at once. seconds: until the deadline. file: for the last words; None for a rank without one."""

    def __init__(self, seconds: float, file: Path | None) -> None:
        self._deadline = time.monotonic() + seconds
        self._seconds = seconds
        self._file = file
        self._parent: int | None = os.getppid()
        self._at = "starting"
        self._launched: str | None = None
        self._waiting: str | None = None
        self._waited: str | None = None
        self._board = Board(board_file(file)) if file is not None else None
        #: Which program the rank runs.
        self.program: str | None = None
        #: Asks how far the device has come, where the host runs ahead of it: the newest wait that it has ended.
        self.device: Callable[[], str | None] | None = None
        self._done = threading.Event()
        threading.Thread(target=self._run, name="commcc-watch", daemon=True).start()

    def progress(self, doing: str, node: str) -> None:
        """The rank is about to launch a collective, or to wait for one."""
        self.stage(f"{doing} '{node}'", launches=node if doing == "launches" else None)
        if doing != "launches":
            self._waiting = node

    def stage(self, text: str, *, launches: str | None = None) -> None:
        """The rank is at something else, and past what it was at, a wait too. launches: a collective that begins."""
        if self._waiting is not None:
            self._waited, self._waiting = self._waiting, None
        self._at = text
        self._launched = launches or self._launched
        if self._board is not None:
            self._board.write((self._at, self._launched, self._waited, self.program))

    def words(self, **more: Json) -> dict[str, Json]:
        """What the rank is at, with more to say."""
        told: dict[str, Json] = {
            "at": self._at,
            "launched": self._launched,
            "waited": self._waited,
            "program": self.program,
        }
        with suppress(Exception):  # a device that has failed: there are words without it
            reached = self.device() if self.device is not None else None
            told |= {"device": reached} if reached is not None else {}
        return {**told, **more}

    def restart(self) -> None:
        """The seconds count from now on."""
        self._deadline = time.monotonic() + self._seconds

    def close(self) -> None:
        self._done.set()

    def _run(self) -> None:
        while not self._done.wait(_INTERVAL):
            self._check()

    def _check(self) -> None:
        if self._parent is not None and os.getppid() != self._parent:
            os._exit(EXIT_ORPHAN)
        if time.monotonic() > self._deadline:
            self._end(self.words(timeout=self._seconds))

    def _end(self, words: dict[str, Json]) -> None:
        """Say the last words and end."""
        if self._file is not None:
            write_json(self._file, words)
        # Not sys.exit: the main thread may be inside a collective that never returns.
        os._exit(EXIT_TIMEOUT)


class Guard:
    """A thread next to the launcher. timeout: seconds that a rank has from when it begins to watch itself, or, where
    it does not come to that, from when it is first seen.

    stopped: ranks that were last seen stopped.
    """

    def __init__(self, folder: Path, timeout: float) -> None:
        self.stopped: set[int] = set()
        self._folder = folder
        self._timeout = timeout
        self._deadlines: dict[Path, float] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commcc-guard", daemon=True)

    def __enter__(self) -> Guard:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(_GUARD_INTERVAL):
            self._look()

    def _look(self) -> None:
        now = time.monotonic()
        for rank, (pid, state) in rank_processes(self._folder).items():
            words = self._folder / f"rank{rank}.json"
            board = board_file(words)
            # Importing PyTorch takes seconds, so a rank that watches itself has a deadline that is later.
            seen = board if board.exists() else words
            late = now > self._deadlines.setdefault(seen, now + self._timeout + GRACE)
            stopped = state in "Tt"
            (self.stopped.add if stopped else self.stopped.discard)(rank)
            if not late:
                continue
            if not words.exists():
                told = {"at": "starting", **Board.read(board)}
                write_json(words, {**told, "timeout": self._timeout, "stuck": True, "stopped": stopped})
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def rank_processes(folder: Path) -> dict[int, tuple[int, str]]:
    """Living children of this process that are ranks with this folder: process id and state, by rank.

    A rank is known by its command line, which ends in the folder, and by its environment, from its first moment on.
    """
    pids: list[str] = []
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that has just ended
            pids += children.read_text(encoding="ascii").split()
    result = {}
    for pid in pids:
        process = Path("/proc", pid)
        with suppress(OSError, ValueError, IndexError, StopIteration):  # a process that has just ended, or is no rank
            *_, last, _ = (process / "cmdline").read_bytes().split(b"\0")
            state = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            if last == os.fsencode(folder) and state != "Z":
                variables = (process / "environ").read_bytes().split(b"\0")
                rank = next(variable for variable in variables if variable.startswith(b"RANK="))
                result[int(rank[len(b"RANK=") :])] = int(pid), state
    return result


def board_file(file: Path) -> Path:
    """The board next to a rank's last words."""
    return file.with_suffix(".board")


def write_json(file: Path, value: dict[str, Json]) -> None:
    """Write all or nothing: another process reads it."""
    fresh = file.with_suffix(".part")
    fresh.write_text(json.dumps(value), encoding="utf-8")
    fresh.replace(file)
