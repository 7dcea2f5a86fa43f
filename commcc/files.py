"""Writes a file whole or not at all::

    replace_file(Path("out.json"), lambda stream: stream.write(data))

The content goes to a temporary file in the same folder, which is then renamed: a reader sees the old
content or the new one, and a failure leaves neither a half file nor a temporary one. Limits: folders
are not made.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from commcc.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def replace_file(target: Path, write: Callable[[BinaryIO], T]) -> T:
    """What ``write`` returns once it has written all of ``target`` (or of the file that it links to).

    Raises :class:`OutputError` for what the system refuses.
    """
    destination = Path(os.path.realpath(target))
    temporary = destination.with_name(f".commcc-{secrets.token_hex(6)}.tmp")
    try:
        with _create(temporary) as stream:
            result = write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        with suppress(FileNotFoundError):
            temporary.chmod(destination.stat().st_mode & 0o777)
        temporary.replace(destination)
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", where=str(target)) from None
    finally:
        temporary.unlink(missing_ok=True)
    return result


def same_file(target: Path, source: Path) -> bool:
    """Whether both are one file, also through links; for a folder, whether ``target`` lies in it."""
    with suppress(OSError):
        if target.exists() and source.exists() and target.samefile(source):
            return True
        return source.is_dir() and target.exists() and target.resolve().is_relative_to(source.resolve())
    return target.absolute() == source.absolute()


def _create(path: Path) -> BinaryIO:
    """A new file with the permissions that the user's mask gives."""
    return os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666), "wb")
