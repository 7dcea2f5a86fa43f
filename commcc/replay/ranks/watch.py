"""A thread in every rank that ends it: at the deadline, or when whoever started it is gone.

    watch = Watch(seconds=60, file=Path("rank0.json"))
    watch.progress("launches", "all_gather_3")       # what the rank is at, for the last words

Without it a rank that waits for one that died waits until its collective times out, and ranks whose launcher was
killed are orphans. The last words are one JSON object in ``file``: ``{"timeout": ..., "at": ..., "launched": ...}``.
What a rank is at is also on its :class:`Board`, a file beside it, for those that end without a word.

Limits: a process that is stopped cannot end itself; :mod:`commcc.replay.ranks.guard` does that.
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from commcc.base.terms import Json

#: How a rank exits at the deadline, and when it has lost its parent.
EXIT_TIMEOUT, EXIT_ORPHAN = 124, 125
_INTERVAL = 0.1
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
    """Starts to watch at once. seconds: until the deadline. file: for the last words; None for a rank without one.

    The rank's process id is written beside it, and its board.
    """

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
        if file is not None:
            pid_file(file).write_text(str(os.getpid()), encoding="ascii")
        threading.Thread(target=self._run, name="commcc-watch", daemon=True).start()

    def progress(self, doing: str, node: str) -> None:
        """The rank is about to launch a collective, or to wait for one."""
        self._settle(f"{doing} '{node}'")
        if doing == "launches":
            self._launched = node
        else:
            self._waiting = node
        self._note()

    def stage(self, text: str) -> None:
        """The rank is at something that is no collective."""
        self._settle(text)
        self._note()

    def words(self, **more: Json) -> dict[str, Json]:
        """What the rank is at, with more to say."""
        told: dict[str, Json] = {
            "at": self._at,
            "launched": self._launched,
            "waited": self._waited,
            "program": self.program,
        }
        device = self._device()
        return {**told, **({"device": device} if device is not None else {}), **more}

    def restart(self) -> None:
        """The seconds count from now on."""
        self._deadline = time.monotonic() + self._seconds

    def close(self) -> None:
        self._done.set()

    def _settle(self, at: str) -> None:
        """What the rank was at is over, a wait too."""
        if self._waiting is not None:
            self._waited, self._waiting = self._waiting, None
        self._at = at

    def _note(self) -> None:
        if self._board is not None:
            self._board.write((self._at, self._launched, self._waited, self.program))

    def _device(self) -> str | None:
        if self.device is None:
            return None
        try:
            return self.device()
        except Exception:  # a device that has failed: there are words without it
            return None

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


def board_file(file: Path) -> Path:
    """The board beside a rank's last words."""
    return file.with_suffix(".board")


def pid_file(file: Path) -> Path:
    """The process id beside a rank's last words; written as the rank begins to watch itself."""
    return file.with_suffix(".pid")


def write_json(file: Path, value: dict[str, Json]) -> None:
    """Write all or nothing: another process reads it."""
    fresh = file.with_suffix(".part")
    fresh.write_text(json.dumps(value), encoding="utf-8")
    fresh.replace(file)
