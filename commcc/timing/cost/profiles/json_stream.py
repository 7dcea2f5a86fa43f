"""Large untrusted JSON, read value by value, plain or packed with gzip.

    with open_json(path) as stream:
        for key in stream.members():
            if key == "traceEvents":
                for event in stream.items(): ...
            else:
                stream.value()

Only one value of the list and a piece of text are in memory at a time. Every error is an
:class:`InputError` with file, line and reason. Limits: 2 GiB of text (after unpacking), 16 MiB for
one value, no ``NaN`` and no infinite numbers.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, NoReturn

from commcc.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_CHARACTERS = 2 << 30
MAX_VALUE = 16 << 20
_PIECE = 4 << 20
_SMALLER = "record fewer steps, or without with_stack and profile_memory"
_SPACE = re.compile(r"[ \t\r\n]*")
_GZIP = b"\x1f\x8b"


@contextmanager
def open_json(path: Path) -> Iterator[JsonStream]:
    """Open a file for reading value by value."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            if not packed and raw.seek(0, io.SEEK_END) > MAX_CHARACTERS:
                raise _too_large(path)
            raw.seek(0)
            data: IO[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
            # No translation of line ends, so that pieces of text add up to the file.
            yield JsonStream(path, io.TextIOWrapper(data, encoding="utf-8-sig", newline=""))
    except FileNotFoundError:
        raise InputError("no such file", where=str(path)) from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be read: {reason}", where=str(path)) from None


def _too_large(path: Path) -> InputError:
    return InputError(f"is larger than {MAX_CHARACTERS >> 30} GiB", where=str(path), hint=_SMALLER)


class JsonStream:
    """A place in a JSON text; made by :func:`open_json`."""

    def __init__(self, path: Path, text: io.TextIOBase) -> None:
        self.path = path
        self._source = text
        self._decode = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode
        self._text = ""
        self._at = 0
        self._ended = False
        self._read = 0
        #: Line that the text begins in, and how much of that line came before.
        self._lines, self._before = 1, 0

    def peek(self) -> str:
        """The next character that is no space, without going past it; empty at the end of the file."""
        while True:
            match = _SPACE.match(self._text, self._at)
            self._at = match.end() if match is not None else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def value(self) -> Any:
        """The next value, whole."""
        if not self.peek():
            self.fail("the file ends early; was the profiler stopped while it wrote?")
        while True:
            error: Exception | None = None
            try:
                parsed, end = self._decode(self._text, self._at)
            except (ValueError, RecursionError) as raised:
                error = raised
            else:
                # A number at the end of what was read so far may go on in the next piece.
                if end < len(self._text) or self._ended:
                    self._at = end
                    return parsed
            if len(self._text) - self._at > MAX_VALUE or isinstance(error, (RecursionError, _RefusedError)):
                self._not_json(error)
            if not self._more() and error is not None:
                self._not_json(error)

    def items(self) -> Iterator[Any]:
        """The values of a list; nothing else may be read from the stream before it ends."""
        self._take("[", "a list")
        if self.peek() == "]":
            self._at += 1
            return
        while True:
            yield self.value()
            if not self._another("]"):
                return

    def members(self) -> Iterator[str]:
        """The keys of an object; the caller reads the value of each before it asks for the next."""
        self._take("{", "an object")
        if self.peek() == "}":
            self._at += 1
            return
        while True:
            key = self.value() if self.peek() == '"' else self.fail("not JSON: a key must be a text")
            self._take(":", "a colon")
            yield str(key)
            if not self._another("}"):
                return

    def end(self) -> None:
        """Make sure that nothing follows."""
        if self.peek():
            self.fail("not JSON: more text after the end")

    def fail(self, what: str, *, hint: str | None = None) -> NoReturn:
        """Raise an error about the present place."""
        raise InputError(what, where=f"{self.path}:{self._line(self._at)}", hint=hint)

    def _another(self, last: str) -> bool:
        char = self.peek()
        if char not in (",", last) or not char:
            self.fail(f"not JSON: expected ',' or '{last}'" if char else "the file ends early")
        self._at += 1
        return char == ","

    def _take(self, char: str, what: str) -> None:
        if self.peek() != char:
            self.fail(f"not JSON: expected {what} ('{char}')")
        self._at += 1

    def _line(self, at: int) -> int:
        return self._lines + self._text.count("\n", 0, at)

    def _column(self, at: int) -> int:
        start = self._text.rfind("\n", 0, at) + 1
        return at - start if start else at + self._before

    def _not_json(self, error: Exception | None) -> NoReturn:
        if isinstance(error, RecursionError):
            self.fail("not JSON that can be read: nested too deeply")
        if isinstance(error, json.JSONDecodeError):
            if error.pos >= len(self._text) and self._ended:
                self.fail("the file ends early; was the profiler stopped while it wrote?")
            where = f"{self.path}:{self._line(error.pos)}"
            column = self._column(error.pos) + 1
            raise InputError(f"not JSON: {error.msg} (character {column} of the line)", where=where) from None
        self.fail(f"not JSON: {error}" if error else f"one value is larger than {MAX_VALUE >> 20} MiB")

    def _more(self) -> bool:
        """Read another piece; False at the end of the file."""
        if self._ended:
            return False
        try:
            piece = self._source.read(_PIECE)
        except UnicodeDecodeError:
            self.fail("is not UTF-8 text")
        if not piece:
            self._ended = True
            return False
        self._read += len(piece)
        if self._read > MAX_CHARACTERS:
            raise _too_large(self.path)
        self._lines, self._before = self._line(self._at), self._column(self._at)
        self._text = self._text[self._at :] + piece
        self._at = 0
        return True


class _RefusedError(ValueError):
    """A constant that is not JSON."""


def _refuse_constant(name: str) -> NoReturn:
    raise _RefusedError(f"{name} is not a number")
