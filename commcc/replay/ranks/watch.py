"""A thread in every rank that ends it: at the deadline, or when whoever started it is gone.

    watch = Watch(seconds=60, file=Path("rank0.json"))
    watch.progress("launches", "all_gather_3")       # what the rank is at, for the last words

Without it a rank that waits for one that died waits until its collective times out, and ranks whose launcher was
killed are orphans. The last words are one JSON object in ``file``: ``{"timeout": ..., "at": ..., "launched": ...}``.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from commcc.terms import Json

#: How a rank exits at the deadline, and when it has lost its parent.
EXIT_TIMEOUT, EXIT_ORPHAN = 124, 125
_INTERVAL = 0.1


class Watch:
    """Starts to watch at once. seconds: until the deadline. file: for the last words."""

    def __init__(self, seconds: float, file: Path) -> None:
        self._deadline = time.monotonic() + seconds
        self._seconds = seconds
        self._file = file
        self._parent = os.getppid()
        self._at = "starting"
        self._launched: str | None = None
        #: Which program the rank runs.
        self.program: str | None = None
        self._done = threading.Event()
        threading.Thread(target=self._run, name="commcc-watch", daemon=True).start()

    def progress(self, doing: str, node: str) -> None:
        """The rank is about to launch a collective, or to wait for one."""
        self._at = f"{doing} '{node}'"
        if doing == "launches":
            self._launched = node

    def stage(self, text: str) -> None:
        """The rank is at something that is no collective."""
        self._at = text

    def words(self, **more: Json) -> dict[str, Json]:
        """What the rank is at, with more to say."""
        return {"at": self._at, "launched": self._launched, "program": self.program, **more}

    def close(self) -> None:
        self._done.set()

    def _run(self) -> None:
        while not self._done.wait(_INTERVAL):
            if os.getppid() != self._parent:
                os._exit(EXIT_ORPHAN)
            if time.monotonic() > self._deadline:
                write_json(self._file, self.words(timeout=self._seconds))
                # Not sys.exit: the main thread may be inside a collective that never returns.
                os._exit(EXIT_TIMEOUT)


def write_json(file: Path, value: dict[str, Json]) -> None:
    """Write all or nothing: another process reads it."""
    fresh = file.with_suffix(".part")
    fresh.write_text(json.dumps(value), encoding="utf-8")
    fresh.replace(file)
