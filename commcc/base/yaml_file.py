"""Untrusted YAML, read strictly: every value knows its line, and all mistakes are said in one message.

    file = read_yaml("coll.yaml")                    # InputError when it is no YAML at all
    fields = file.root.mapping({"group", "points"}, {"unit"})
    group = fields["group"].text()
    sizes = [point.number(above=0) for point in fields["points"].items()]
    file.check()                                     # InputError: coll.yaml:3: unknown key 'gruop' (did you ...

A reader that finds something wrong notes it and returns a stand-in (``""``, ``0.0``, nothing), so that
the reading goes on to the next mistake; call :meth:`YamlFile.check` before using anything that was read.

Nothing is constructed from the text, so no tag can run code and no value changes its type behind the
author's back: a scalar is what the caller asks for, ``1e-3`` is a number and ``no`` is a word. Limits:
no anchors, aliases, tags, repeated keys or second documents; 64 MiB, 3 million values, 40 levels.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commcc.base.errors import InputError, closest
from commcc.base.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MAX_BYTES = 64 << 20
MAX_VALUES = 3_000_000
MAX_DEPTH = 40
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
#: Mistakes that are spelt out; the others are counted.
MAX_MISTAKES = 20
_NUMBER = re.compile(r"[+-]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)([eE][+-]?\d+)?", re.ASCII)
#: Longer texts are no figures of a measurement, and converting them takes time.
_MAX_DIGITS = 300


def read_yaml(path: str | Path) -> YamlFile:
    """Read a file of one YAML document; :class:`InputError` when it cannot be read or is not such a file."""
    return parse_yaml(read_text(path), str(path))


def parse_yaml(text: str, path: str) -> YamlFile:
    """As :func:`read_yaml`, of a text that is there already; ``path`` is for messages."""
    import yaml

    # libyaml's parser, where PyYAML was built with it, is about ten times as fast.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    file = YamlFile(path)
    try:
        file.root = _Reader(file, yaml.parse(text, Loader=loader)).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        # libyaml 0.2.6 reads ahead and stops at 1,000 levels, before the events of the first 40 are seen here.
        if "nesting depth" in str(error.problem):
            raise InputError(_TOO_DEEP, where=f"{path}{line}") from None
        raise InputError(f"not YAML: {error.problem or error.context}", where=f"{path}{line}") from None
    except (yaml.YAMLError, RecursionError) as error:
        bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
        line = f":{text.count(chr(10), 0, bad.start()) + 1}" if bad else ""
        raise InputError(f"not YAML: {'control characters' if bad else error}", where=f"{path}{line}") from None
    return file


def read_text(path: str | Path) -> str:
    """The text of a file of at most 64 MiB; :class:`InputError` when it cannot be read or is no UTF-8."""
    where = str(path)
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError("no such file", where=where) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be read: {reason}", where=where) from None
    if len(data) > MAX_BYTES:
        raise InputError(f"is larger than {MAX_BYTES >> 20} MiB", where=where)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError("is not UTF-8 text", where=f"{where}:{line}") from None


class _Reader:
    """Makes nodes of the parser's events. Not of what PyYAML composes of them: that follows aliases and hides tags."""

    def __init__(self, file: YamlFile, events: Iterator[Any]) -> None:
        self._file = file
        self._events = events
        self._count = 0

    def document(self) -> Node:
        """The root of the only document; of a file without any, an empty value."""
        root = Node(self._file, 1, "", plain=True)
        documents = 0
        for event in self._events:
            kind = type(event).__name__
            if kind == "DocumentStartEvent":
                documents += 1
                if documents > 1:
                    raise self._refused(event, "a second document ('---')")
            elif kind not in ("StreamStartEvent", "StreamEndEvent", "DocumentEndEvent"):
                root = self._value(event, "", event.start_mark.line + 1, 1)
        return root

    def _value(self, event: Any, name: str, line: int, depth: int) -> Node:
        """The value that starts with an event. line: that of its key, where it has one."""
        kind = self._checked(event)
        if kind == "ScalarEvent":
            plain = event.style in (None, "") and event.tag is None
            return Node(self._file, line, event.value, plain=plain, name=name)
        if depth > MAX_DEPTH:
            raise self._refused(event, _TOO_DEEP)
        if kind == "SequenceStartEvent":
            inside = iter(self._next, None)
            values = [self._value(item, name, item.start_mark.line + 1, depth + 1) for item in inside]
            return Node(self._file, line, values, name=name)
        entries: dict[str, Node] = {}
        for key in iter(self._next, None):
            if self._checked(key) != "ScalarEvent":
                raise self._refused(key, "a key must be a word, not a list or mapping")
            if key.value in entries:
                raise self._refused(key, f"key '{shown(key.value)}' is given twice")
            entries[key.value] = self._value(next(self._events), key.value, key.start_mark.line + 1, depth + 1)
        return Node(self._file, line, entries, name=name)

    def _next(self) -> Any:
        """The next event; None where the list or mapping ends."""
        event = next(self._events)
        return None if type(event).__name__ in ("SequenceEndEvent", "MappingEndEvent") else event

    def _checked(self, event: Any) -> str:
        """The kind of an event that starts a value or a key."""
        kind = type(event).__name__
        self._count += 1
        if self._count > MAX_VALUES:
            raise self._refused(event, f"more than {MAX_VALUES} values")
        if event.anchor is not None:
            raise self._refused(event, "anchors and aliases ('&', '*') are not allowed")
        # A lone ! says that the value is a text, as quotes do.
        if event.tag is not None and not (kind == "ScalarEvent" and event.tag == "!"):
            raise self._refused(event, f"tags are not allowed ('{shown(event.tag)}')")
        return kind

    def _refused(self, event: Any, what: str) -> InputError:
        return InputError(what, where=f"{self._file.path}:{event.start_mark.line + 1}")


@dataclass
class YamlFile:
    """One file: its root value and what was found wrong in it so far, as (line, text)."""

    path: str
    mistakes: list[tuple[int, str]] = field(default_factory=list)
    root: Node = field(init=False)

    def __post_init__(self) -> None:
        self.root = Node(self, 1, None)

    def check(self) -> None:
        """Raise one :class:`InputError` for all mistakes, in the order of their lines."""
        if not self.mistakes:
            return
        mistakes = sorted(dict.fromkeys(self.mistakes), key=lambda mistake: mistake[0])
        said = [f"line {line}: {what}" for line, what in mistakes[1:MAX_MISTAKES]]
        more = [f"and {len(mistakes) - MAX_MISTAKES} more"] if len(mistakes) > MAX_MISTAKES else []
        line, first = mistakes[0]
        raise InputError("; ".join([first, *said, *more]), where=f"{self.path}:{line}")


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One value of the file.

    value: text of a scalar, a list or dictionary of nodes, None for a key that is missing (which was
    noted where it was asked for; a missing node gives stand-ins and notes nothing more).
    plain: a scalar without quotes. name: the key or position it was found under, for messages.
    """

    file: YamlFile
    line: int
    value: str | list[Node] | dict[str, Node] | None
    plain: bool = False
    name: str = ""

    @property
    def missing(self) -> bool:
        return self.value is None

    @property
    def is_null(self) -> bool:
        """``null``, ``~`` or nothing at all."""
        return self.plain and self.value in ("", "~", "null", "Null", "NULL")

    def fail(self, what: str) -> None:
        """Note a mistake at this value; nothing is raised before :meth:`YamlFile.check`."""
        if not self.missing:
            self.file.mistakes.append((self.line, what))

    def mapping(self, required: Iterable[str] = (), optional: Iterable[str] = ()) -> dict[str, Node]:
        """The values of a mapping with these keys; every required key is in the result, missing or not."""
        entries, needed = self.entries(), sorted(required)
        known, meant = sorted({*needed, *optional}), ""
        for key, value in entries.items():
            if key not in known:
                near = self._near(key, known)
                value.fail(f"unknown key '{shown(key)}'{near or ' (keys: ' + ', '.join(known) + ')'}")
                meant += near
        absent = [key for key in needed if key not in entries]
        unnamed = [f"'{key}'" for key in absent if f"'{key}'" not in meant]
        if unnamed and isinstance(self.value, dict):
            self.fail(f"{self._subject} has no {', '.join(unnamed)}")
        values = {key: value for key, value in entries.items() if key in known}
        return {**values, **{key: Node(self.file, self.line, None, name=key) for key in absent}}

    def entries(self) -> dict[str, Node]:
        """The values of a mapping whose keys may be anything, in order of the file."""
        if isinstance(self.value, dict):
            return self.value
        self._expected("a mapping (key: value)")
        return {}

    def items(self) -> list[Node]:
        """The values of a list."""
        if isinstance(self.value, list):
            return self.value
        self._expected("a list")
        return []

    def number(self, *, above: float | None = None, least: float | None = None, most: float | None = None) -> float:
        """A finite number: more than ``above``, not less than ``least``, not more than ``most``; else 0.0."""
        number = to_number(self.value) if self.plain and isinstance(self.value, str) else None
        if number is None:
            self._expected("a finite number")
            return 0.0
        return number if self._in_range(number, above, least, most) else 0.0

    def integer(self, *, least: int | None = None, most: int | None = None) -> int:
        """A whole number in a range, else 0. ``1_000`` and ``1e6`` are read as such."""
        number = to_integer(self.value) if self.plain and isinstance(self.value, str) else None
        if number is None:
            self._expected("a whole number")
            return 0
        return number if self._in_range(number, None, least, most) else 0

    def flag(self) -> bool:
        """``true`` or ``false``, else False."""
        flag = to_flag(self.value) if self.plain and isinstance(self.value, str) else None
        if flag is None:
            self._expected("true or false")
        return bool(flag)

    def text(self, choices: Iterable[str] | None = None) -> str:
        """A scalar as it is written, one of ``choices`` if given, else the empty string; never empty or null."""
        if not isinstance(self.value, str) or self.is_null or not self.value.strip():
            self._expected("a text")
            return ""
        known = None if choices is None else tuple(choices)
        if known is not None and self.value not in known:
            near = self._near(self.value, known) or f" (use {', '.join(known)})"
            self.fail(f"{self._subject} '{shown(self.value)}' is not known{near}")
            return ""
        return self.value

    def _near(self, word: str, known: Sequence[str]) -> str:
        """A did-you-mean; none for what nobody typed, since looking for one takes its time."""
        hopeless = len(word) > 100 or len(self.file.mistakes) > 10 * MAX_MISTAKES
        return "" if hopeless else closest(word, known)

    def _in_range(self, number: float, above: float | None, least: float | None, most: float | None) -> bool:
        bounds = (
            (above is not None and number <= above, f"more than {above:g}" if above is not None else ""),
            (least is not None and number < least, f"at least {least:g}" if least is not None else ""),
            (most is not None and number > most, f"at most {most:g}" if most is not None else ""),
        )
        broken = [text for wrong, text in bounds if wrong]
        if broken:
            self.fail(f"{self._subject} must be {' and '.join(broken)}, not {shown(str(self.value))}")
        return not broken

    def _expected(self, what: str) -> None:
        self.fail(f"{self._subject} must be {what}, not {self._kind}")

    @property
    def _subject(self) -> str:
        return f"'{shown(self.name)}'" if self.name else "the file"

    @property
    def _kind(self) -> str:
        if isinstance(self.value, list):
            return "a list"
        if isinstance(self.value, dict):
            return "a mapping"
        if self.is_null:
            return "empty"
        return f"'{shown(str(self.value))}'" if self.plain else f"the text '{shown(str(self.value))}'"


def to_number(text: str) -> float | None:
    """A finite decimal number."""
    if len(text) > _MAX_DIGITS or not _NUMBER.fullmatch(text):
        return None
    number = float(text.replace("_", ""))
    return number if math.isfinite(number) else None


def to_integer(text: str) -> int | None:
    """A whole number; ``4e6`` is one, ``1.5`` is not."""
    number = to_number(text)
    if number is None or not number.is_integer():
        return None
    digits = text.replace("_", "")
    return int(digits) if digits.lstrip("+-").isdigit() else int(number)


def to_flag(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())
