"""Machine code of kernels on disk, so that a process need not compile what an earlier one has.

    cache = KernelCache.usual()
    code = cache.read(name)             # None where it is not there, or not to be trusted
    cache.write(name, code)

One file for each kernel, in folder ``kernels`` of ``$COMMCC_CACHE_DIR``, else of ``$XDG_CACHE_HOME/commcc``, else of
``~/.cache/commcc``; a ``COMMCC_CACHE_DIR`` that is empty turns it off. A name says all that the code follows from
(text, compiler, processor), so nothing grows old, and the folder may be removed at any time. What is read is run: a
file counts only where file and folder belong to the user and nobody else may write to them, and where its content has
the digest that it begins with. What cannot be read or written is compiled as if there were no folder.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from commcc.base.errors import OutputError
from commcc.base.files import replace_file

#: How names of files end.
SUFFIX = ".kernel"
#: Names another folder; empty for none.
VARIABLE = "COMMCC_CACHE_DIR"
#: Files that the folder may hold; before there are more, the oldest go.
_MOST = 256


@dataclass(frozen=True)
class KernelCache:
    """A folder of machine code; None for none."""

    folder: Path | None

    @classmethod
    def usual(cls) -> KernelCache:
        """As the environment says."""
        named = os.environ.get(VARIABLE)
        if named is not None:
            return cls(Path(named) / "kernels" if named else None)
        with suppress(RuntimeError):  # a user without a home
            return cls(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "commcc" / "kernels")
        return cls(None)

    def read(self, name: str) -> bytes | None:
        """The code of this name."""
        if self.folder is None:
            return None
        try:
            with (self.folder / name).open("rb") as stream:
                ours = _ours(self.folder.stat()) and _ours(os.fstat(stream.fileno()))
                content = stream.read() if ours else b""
        except OSError:
            return None
        code = content[sha256().digest_size :]
        return code if code and sha256(code).digest() == content[: sha256().digest_size] else None

    def write(self, name: str, code: bytes) -> None:
        """Keep code under a name."""
        if self.folder is None:
            return
        with suppress(OSError, OutputError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _ours(self.folder.stat()):
                files = sorted(self.folder.glob(f"*{SUFFIX}"), key=lambda file: file.stat().st_mtime)
                for old in files[: max(0, len(files) + 1 - _MOST)]:
                    old.unlink()
                replace_file(self.folder / name, lambda stream: stream.write(sha256(code).digest() + code))
                (self.folder / name).chmod(0o600)  # whatever the user's mask leaves to a group


def _ours(facts: os.stat_result) -> bool:
    """Whether it belongs to the user and nobody else may write to it, as far as the system knows users."""
    mine = not hasattr(os, "geteuid") or facts.st_uid == os.geteuid()
    return mine and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
