"""Temporary folders of a process that are removed in the end: its own, or else the next process's.

    with work_folder("bench") as folder:       # /tmp/commcc-bench-k3f9
        ...

A process that is killed leaves its folder behind. Whoever makes the next one removes it: a folder of this name and
this user, with a lock file that no process holds. The kernel lets go of a lock when its process ends, so that neither
a process id that somebody else has by now nor one of another container misleads it.

Limits: only the same temporary folder is looked through; without ``flock`` (Windows, some network file systems)
nothing is removed.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX = "commcc-"
_LOCK = "owner.lock"


@contextmanager
def work_folder(purpose: str) -> Iterator[Path]:
    """A folder that is removed at the end; those of processes that were killed are removed now."""
    remove_stale_folders()
    lock = None
    try:
        with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{purpose}-") as name:
            lock = _locked(Path(name))
            yield Path(name)
    finally:
        # Held until the folder is gone, so that nobody else removes it at the same time.
        if lock is not None:
            os.close(lock)


def remove_stale_folders() -> None:
    """Remove the folders of this user's processes that ended without doing so."""
    if sys.platform == "win32":
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # somebody else's, no folder, not one of these, or in use
            there = folder.lstat()
            if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.getuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)


def _locked(folder: Path) -> int | None:
    """A file descriptor that holds the folder's lock; None where nothing can be locked."""
    if sys.platform == "win32":
        return None
    fresh = folder / f"{_LOCK}.part"
    lock = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:  # no lock file then, so that nobody takes the folder for an abandoned one
        os.close(lock)
        return None
    # Only now it gets its name: whoever looks before sees no lock file, never one that is not held yet.
    fresh.rename(folder / _LOCK)
    return lock
