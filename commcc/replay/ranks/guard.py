"""Ends ranks that do not end themselves at the deadline, as processes that are stopped cannot.

    with Guard(folder, timeout):
        ...                                    # start ranks and wait for them

A rank that is alive :data:`GRACE` seconds after its deadline is killed, and its last words are taken from its board.

Limits: knows ranks by the process ids that they write down as they begin to watch themselves.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from commcc.replay.ranks.watch import Board, board_file, write_json

#: Seconds that a rank has to end itself after its deadline.
GRACE = 2.0
_INTERVAL = 0.2


class Guard:
    """A thread beside the launcher. timeout: seconds that every rank has, counted from when it is first seen."""

    def __init__(self, folder: Path, timeout: float) -> None:
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
        while not self._done.wait(_INTERVAL):
            now = time.monotonic()
            for file in self._folder.glob("rank*.pid"):
                if now > self._deadlines.setdefault(file, now + self._timeout + GRACE):
                    self._end(file)

    def _end(self, file: Path) -> None:
        with suppress(OSError, ValueError):
            pid = int(file.read_text(encoding="ascii"))
            if not is_child(pid):
                return
            words = file.with_suffix(".json")
            if not words.exists():
                write_json(words, {**Board.read(board_file(words)), "timeout": self._timeout, "stuck": True})
            os.kill(pid, signal.SIGKILL)


def is_child(pid: int) -> bool:
    """Whether a process is a living child of this one; a number may have become another's."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return words[0] != "Z" and int(words[1]) == os.getpid()
