"""Writes a file whole or not at all::

    replace_file(Path("out.json"), lambda stream: stream.write(data))

The content goes to a file without a name in the same folder, which gets a temporary name when it is complete and is
then renamed: a reader sees the old content or the new one, whatever happens in between (a full disk, a kill, another
process that writes the same file), and a failure leaves neither a half file nor a temporary one.

Folders that are missing on the way are made. Limits: where the file system has no files without names, the temporary
name is there from the start, and a kill leaves it behind; so does one in the instant between naming and renaming.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from commcc.base.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: How names of files end that hold one graph, as commcc writes them.
GRAPH_FILES = (".fx.txt.gz", ".fx.txt", ".pt2")
#: How names of other texts end that may hold graphs.
TEXT_FILES = (".txt", ".txt.gz", ".log", ".log.gz", ".py", ".py.gz")


def replace_file(target: Path, write: Callable[[BinaryIO], T]) -> T:
    """What ``write`` returns once it has written all of ``target`` (or of the file that it links to).

    Raises :class:`OutputError` for what the system refuses, and for devices, pipes and folders.
    """
    destination = Path(os.path.realpath(target))
    temporary = destination.with_name(f".commcc-{secrets.token_hex(6)}.tmp")
    try:
        if destination.exists() and not destination.is_file():
            raise OutputError("is not a regular file", where=str(target), hint="name another file")
        destination.parent.mkdir(parents=True, exist_ok=True)
        with _create(temporary) as stream:
            result = write(stream)
            stream.flush()
            with suppress(FileNotFoundError):
                os.fchmod(stream.fileno(), destination.stat().st_mode & 0o777)
            os.fsync(stream.fileno())
            if not temporary.exists():
                _name(stream, temporary)
        temporary.replace(destination)
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", where=str(target)) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return result


def replace_text(target: Path, text: str) -> None:
    """Write all of ``target`` as UTF-8; half characters, which only names of files can hold, are spelt out."""
    replace_file(target, lambda stream: stream.write(text.encode(errors="backslashreplace")))


def output_folder(folder: str | Path, hint: str) -> Path:
    """A folder that is there, or can be made; ``hint`` says how to name one. Raises :class:`OutputError`."""
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise OutputError("is not a folder", where=str(folder), hint=hint)
    check_folder(path, str(folder), hint)
    return path


def check_folder(folder: Path, where: str, hint: str) -> None:
    """Refuse a folder that could not be made, or in which nothing could be written, before any work is done."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise OutputError(f"'{there}' is not a folder", where=where, hint=hint)
    if not os.access(there, os.W_OK):
        what = "cannot be written" if str(folder) == where else f"folder '{folder}' cannot be written"
        raise OutputError(what, where=where, hint=hint)


def same_file(target: Path, source: Path) -> bool:
    """Whether both are one file, also through links; for a folder, whether ``target`` lies in it."""
    with suppress(OSError):
        if target.exists() and source.exists() and target.samefile(source):
            return True
        return source.is_dir() and target.exists() and target.resolve().is_relative_to(source.resolve())
    return target.absolute() == source.absolute()


def _create(path: Path) -> BinaryIO:
    """A new file with the permissions that the user's mask gives; without a name where that can be had."""
    unnamed = getattr(os, "O_TMPFILE", None)
    if unnamed is not None and Path("/proc/self/fd").is_dir():
        with suppress(OSError):  # what is wrong with the folder is said when the name is made
            return os.fdopen(os.open(path.parent, unnamed | os.O_RDWR, 0o666), "w+b")
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o666), "w+b")


def _name(stream: BinaryIO, path: Path) -> None:
    """Give a file without a name one; copy it where the system does not let it have one."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # With a folder given, link follows /proc's link to the file that is open.
        os.link(f"/proc/self/fd/{stream.fileno()}", path.name, dst_dir_fd=folder)
    except OSError:
        stream.seek(0)
        with path.open("xb") as named:
            shutil.copyfileobj(stream, named)
            named.flush()
            os.fsync(named.fileno())
    finally:
        os.close(folder)
