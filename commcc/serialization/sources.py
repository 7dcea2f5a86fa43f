"""Bytes of an untrusted file, bounded, decompressed and decoded; nothing here knows about graphs.

    text = read_text(Path("run.log.gz"))      # str, or InputError that says what the file is instead

Limits: plain and decompressed content up to :data:`MAX_BYTES` and :data:`MAX_LINES`; a ``.gz`` that
expands by more than :data:`MAX_RATIO` is taken for a bomb (graph dumps expand 8 to 40 times) once it
passes 64 MiB; a thousand opening brackets in a row are no graph.
"""

from __future__ import annotations

import gzip
import io
import math
import re
import zlib
from typing import TYPE_CHECKING, NoReturn

from commcc.base.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 512 << 20
MAX_RATIO = 250
#: A log of 512 MiB has 3 to 5 million lines; blank ones cost time all the same.
MAX_LINES = 10_000_000
_HARMLESS_BYTES = 64 << 20
_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_BRACKETS = re.compile(rb"[(\[{]{1000}")
#: So many bytes apart, a thousand brackets in a row are seen at least four times in a row.
_STRIDE, _SEEN = 249, re.compile(rb"[(\[{]{4}")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: What ``torch.save`` writes, and what to write in its place.
PICKLE = "a Python pickle, which runs code of its own when it is loaded and is never unpickled here"
SAVED = (
    "save the text of gm.print_readable(print_output=False, include_stride=True, include_device=True), or"
    " torch.export.save(program, 'x.pt2')"
)
_KNOWN_BINARIES = (
    (b"\x80", PICKLE),
    (b"\x7fELF", "a compiled library"),
    (b"PAR1", "a Parquet file"),
    (b"\xfd7zXZ", "xz-compressed"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed"),
    (b"BZh", "bzip2-compressed"),
)
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
#: Progress bars go back to the start of their line, where the next line of a log may follow.
_RETURN = re.compile(r"\r+\n?")
_READABLE = "commcc reads FX text (.fx.txt, .txt, .py, .log, .gz of each), tlparse folders and .pt2"


def is_zip(data: bytes) -> bool:
    """Whether the bytes are a zip archive's."""
    return data[:4] in _ZIP


def is_zip_file(path: Path) -> bool:
    """Whether the file starts like a zip archive; False for anything that cannot be opened."""
    try:
        with path.open("rb") as stream:
            return is_zip(stream.read(4))
    except OSError:
        return False


def read_content(path: Path) -> bytes:
    """The whole file, decompressed when its content is gzip, whatever its name says."""
    where = str(path)
    try:
        with path.open("rb") as stream:
            head = stream.read(2)
            stream.seek(0)
            if head == _GZIP:
                return _decompress(stream, where)
            # One more than allowed, to see that there is more.
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError("no such file", where=where) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=where) from None
    if len(data) > MAX_BYTES:
        raise InputError(f"larger than {MAX_BYTES >> 20} MiB", where=where, hint="split it, or run tlparse on it first")
    return data


def decode(data: bytes, where: str) -> str:
    """Text of UTF-8, or of UTF-16 with its mark, without that mark and terminal colours; lines end in a newline."""
    if data.startswith(_UTF16):
        # What PowerShell writes when output is redirected.
        data = data.decode("utf-16", errors="replace").encode()
    if not data.strip():
        raise InputError("the file is empty", where=where)
    if data.count(b"\n") + data.count(b"\r") > MAX_LINES:
        raise InputError(f"has more than {MAX_LINES} lines", where=where, hint="split it, or run tlparse on it first")
    for magic, what in _KNOWN_BINARIES:
        if data.startswith(magic):
            hint = SAVED if what == PICKLE else _READABLE
            raise InputError(f"is {what}, not a graph", where=where, hint=hint)
    if b"\0" in data[:4096]:
        raise InputError("is a binary file, not a graph", where=where, hint=_READABLE)
    # Deep nesting can crash Python's parser, so it is refused before anything is parsed.
    nested = _BRACKETS.search(data) if _SEEN.search(data[::_STRIDE]) else None
    if nested is not None:
        line = data.count(b"\n", 0, nested.start()) + 1
        raise InputError("nests brackets too deeply to be a graph", where=f"{where}:{line}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"byte 0x{data[error.start]:02x} is not UTF-8", where=f"{where}:{line}", hint="convert the file to UTF-8"
        ) from None
    text = without_colors(text)
    return _RETURN.sub("\n", text) if "\r" in text else text


def without_colors(text: str) -> str:
    """``text`` without the sequences that color it on a terminal."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def refuse_constant(name: str) -> NoReturn:
    """For ``parse_constant`` of a JSON decoder: NaN and infinities are no JSON."""
    raise ValueError(f"{name} is not a JSON number")


def finite_number(text: str) -> float:
    """For ``parse_float`` of a JSON decoder: ``1e400`` is JSON, and no number that could be written again."""
    value = float(text)
    return value if math.isfinite(value) else refuse_constant(text[:60])


def read_text(path: Path) -> str:
    """``decode(read_content(path))``."""
    return decode(read_content(path), str(path))


def _decompress(stream: io.BufferedReader, where: str) -> bytes:
    """All members of a gzip stream, checked against the limits after each megabyte."""
    out = io.BytesIO()
    try:
        with gzip.GzipFile(fileobj=stream) as inflated:
            while chunk := inflated.read(_CHUNK):
                out.write(chunk)
                _check_size(out.tell(), stream.tell(), where)
    except EOFError:
        raise InputError("the gzip data ends too early", where=where, hint="copy the file again") from None
    except (zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"damaged gzip data: {error}", where=where, hint="copy the file again") from None
    return out.getvalue()


def _check_size(size: int, consumed: int, where: str) -> None:
    if size > MAX_BYTES:
        raise InputError(f"expands to more than {MAX_BYTES >> 20} MiB", where=where, hint="decompress and split it")
    if size > _HARMLESS_BYTES and size > consumed * MAX_RATIO:
        raise InputError(
            f"expands more than {MAX_RATIO} times, as a decompression bomb does",
            where=where,
            hint="decompress it yourself",
        )
