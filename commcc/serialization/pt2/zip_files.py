"""Zip archives read without trust and written deterministically; knows nothing about ``.pt2``.

Usage::

    with open_zip(path) as archive:
        archive.entries["models/model.json"].size     # names without the archive's root folder
        text = archive.read("models/model.json")
        archive.copy("data/weights/weight_0", sink)   # streams, checks the checksum

    with ZipSink(stream, "archive") as sink:
        sink.write("byteorder", b"little")            # stored, fixed date, data aligned to 64 bytes

Refused with :class:`InputError`: truncated and damaged files, names that climb out (``..``, absolute,
drive letters, backslashes), the same name twice, more than one root folder, encrypted entries, entries
that overlap, and bombs (far more data than bytes in the file).
Limits: compression other than stored and deflated is refused.
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from commcc.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typing_extensions import Self

MAX_ENTRIES = 500_000
MAX_TEXT_BYTES = 1 << 29
_MAX_RATIO = 200
_RATIO_FREE = 1 << 20
_RATIO_FREE_IN_ALL = 32 << 20
_CHUNK = 1 << 20
_ALIGNMENT = 64
_EPOCH = (1980, 1, 1, 0, 0, 0)
_BAD_NAME = re.compile(r"[\x00-\x1f\\]|^[A-Za-z]:|^/|(^|/)\.\.?(/|$)|//")
#: What zipfile raises for damaged files, besides its own error.
_ZIP_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError),
    OverflowError,
)


@dataclass(frozen=True)
class ZipEntry:
    """One entry: its name below the root folder, its size in bytes and its CRC-32."""

    name: str
    size: int
    crc: int


class ZipSource:
    """A checked archive, open for reading; made by :func:`open_zip`."""

    def __init__(self, path: Path, handle: zipfile.ZipFile) -> None:
        self.path = path
        self._zip = handle
        infos = [info for info in handle.infolist() if not info.filename.endswith("/")]
        self._check_names([info.filename for info in handle.infolist()])
        self._check_sizes(infos)
        self.root = self._root(infos)
        self._infos = {info.filename[len(self.root) + 1 :]: info for info in infos}
        self.entries = {name: ZipEntry(name, info.file_size, info.CRC) for name, info in self._infos.items()}

    def error(self, what: str, entry: str | None = None, *, hint: str | None = None) -> InputError:
        """An :class:`InputError` about this archive, or about one entry of it."""
        where = str(self.path) if entry is None else f"{self.path}: {_show(entry)}"
        return InputError(what, where=where, hint=hint)

    def _check_names(self, names: list[str]) -> None:
        if len(names) > MAX_ENTRIES:
            raise self.error(f"{len(names)} entries in the archive, more than {MAX_ENTRIES}")
        seen: set[str] = set()
        for name in names:
            if _BAD_NAME.search(name):
                raise self.error("the archive holds an entry whose name leaves the archive", name)
            # Two readers could take different ones, and some file systems fold case.
            if name.casefold() in seen:
                raise self.error("the archive holds the same entry twice", name)
            seen.add(name.casefold())

    def _check_sizes(self, infos: list[zipfile.ZipInfo]) -> None:
        packed = sum(info.compress_size for info in infos)
        unpacked = sum(info.file_size for info in infos)
        for info in infos:
            if info.flag_bits & 0x1:
                raise self.error("the entry is encrypted", info.filename)
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise self.error("the entry is compressed in a way that is not supported", info.filename)
            if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
                raise self.error("the entry gives two sizes", info.filename)
            if info.file_size > _RATIO_FREE and info.file_size > _MAX_RATIO * max(info.compress_size, 1):
                raise self.error(f"the entry unpacks to {info.file_size} bytes: taken for a zip bomb", info.filename)
        # Entries that are small enough one by one, but many.
        if unpacked > max(_RATIO_FREE_IN_ALL, _MAX_RATIO * packed):
            raise self.error(f"the entries unpack to {unpacked} bytes in all: taken for a zip bomb")
        # Entries that share bytes can unpack to any size.
        if packed > self.path.stat().st_size:
            raise self.error("entries of the archive overlap: taken for a zip bomb")

    def _root(self, infos: list[zipfile.ZipInfo]) -> str:
        # PyTorch takes the root folder from the first entry.
        roots = list(dict.fromkeys(info.filename.split("/", 1)[0] for info in infos))
        if any("/" not in info.filename for info in infos):
            raise self.error("an entry of the archive lies in no folder; is this a .pt2 file?")
        if len(roots) != 1:
            raise self.error(f"{len(roots)} root folders in the archive, expected one; is this a .pt2 file?")
        return roots[0]

    def read(self, name: str, *, limit: int = MAX_TEXT_BYTES) -> bytes:
        """The whole entry; entries above ``limit`` bytes are refused."""
        entry = self.entries.get(name)
        if entry is None:
            raise self.error("the entry is missing", name)
        if entry.size > limit:
            raise self.error(f"the entry has {entry.size} bytes, more than {limit}", name)
        return b"".join(self._chunks(name))

    def copy(self, name: str, sink: IO[bytes]) -> None:
        """Stream the entry into ``sink``."""
        for chunk in self._chunks(name):
            sink.write(chunk)

    def _chunks(self, name: str) -> Iterator[bytes]:
        try:
            with self._zip.open(self._infos[name]) as stream:
                while chunk := stream.read(_CHUNK):
                    yield chunk
        except _ZIP_ERRORS as error:
            raise self.error(f"the entry is damaged: {_show(error)}", name) from None


@contextmanager
def open_zip(path: Path) -> Iterator[ZipSource]:
    """Open and check an archive; closes it at the end of the block."""
    if not path.is_file():
        what = "is no file" if path.exists() else "no such file"
        raise InputError(what, where=str(path))
    try:
        handle = zipfile.ZipFile(path)
    except _ZIP_ERRORS as error:
        raise InputError(
            f"not a readable zip archive: {_show(error)}", where=str(path), hint="copy or save the file again"
        ) from None
    with handle:
        yield ZipSource(path, handle)


class ZipSink:
    """Writes an archive whose bytes depend on nothing but what is written into it."""

    def __init__(self, stream: IO[bytes], root: str) -> None:
        self._zip = zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True)
        self._root = root

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._zip.close()

    def write(self, name: str, data: bytes) -> None:
        with self._zip.open(self._info(name, len(data)), "w") as entry:
            entry.write(data)

    def copy(self, source: ZipSource, name: str) -> None:
        """Stream an entry of another archive under its own name."""
        with self._zip.open(self._info(name, source.entries[name].size), "w") as entry:
            source.copy(name, entry)

    def _info(self, name: str, size: int) -> zipfile.ZipInfo:
        info = zipfile.ZipInfo(f"{self._root}/{name}", _EPOCH)
        info.file_size = size
        info.create_system = 0
        # PyTorch maps weights straight from the file, so their data start on 64-byte boundaries;
        # like PyTorch, the gap is filled with an extra field that readers skip.
        header = 30 + len(info.filename.encode()) + (20 if size * 1.05 > zipfile.ZIP64_LIMIT else 0)
        start = self._zip.fp.tell() + header + 4 if self._zip.fp is not None else 0
        padding = -start % _ALIGNMENT
        info.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
        return info


def _show(text: object) -> str:
    """Text from a file made fit for a one-line message."""
    shown = "".join(c if c.isprintable() else "?" for c in str(text))
    return shown if len(shown) <= 100 else shown[:97] + "..."
