"""Text for people: figures with their units, plurals, lists of names, and names that come out of files.

    size(26_214_400), milliseconds(1.5), share(0.25)      # '25.0 MiB', '1.500 ms', '25.0 %'
    plural(2, "launch"), listed(["a", "b", "c"])          # '2 launches', 'a, b and c'
    escaped({"group": "dp\\n::error::"})                   # {'group': 'dp\\\\n::error::'}

A name of a node, a group, a module or a file may hold anything, and nothing of it may drive a terminal, add a line to
a report or give a command to whoever runs the job. Inside commcc and in JSON names stay what they are;
:func:`escaped` is called where a document is shown to people, so that what draws it never has to think of it.
"""

from __future__ import annotations

import json
import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
#: Runners of GitHub (##[), Azure (##vso[) and TeamCity (##teamcity[) take this for a command anywhere in a line.
_COMMAND = re.compile(r"#(?=#\w*\[)", re.ASCII)
#: And GitHub's this, where a line starts with it.
_COMMAND_AT_START = re.compile(r"^([^\S\n]*):(?=:)", re.MULTILINE)


def size(count: float | None) -> str:
    """Bytes in binary units: ``384 B``, ``25.0 MiB``; ``?`` when unknown."""
    if count is None:
        return "?"
    value, unit = float(count), 0
    while abs(round(value, 1)) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.0f} B" if unit == 0 else f"{value:,.1f} {_UNITS[unit]}"


def least_size(count: float | None, unknown: int, *, brief: bool = False) -> str:
    """As :func:`size`, of a figure that lacks sizes: ``>= 12.3 GiB, 422 sizes unknown``; brief: without how many."""
    if not unknown or count is None:
        return size(count)
    figure = f">= {size(count)}" if count else "?"
    return figure if brief else f"{figure}, {plural(unknown, 'size')} unknown"


def short_size(count: int) -> str:
    """Bytes without digits that say nothing: ``512 B``, ``1 MiB``, ``1.5 MiB``."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 2:
        value, unit = value / 1024, unit + 1
    return f"{value:.4g} {_UNITS[unit]}"


def count(number: float | None) -> str:
    """A number with thousands separators; ``?`` when unknown."""
    if number is None:
        return "?"
    return f"{number:,}" if isinstance(number, int) else f"{number:,.3f}"


def milliseconds(value: float | None) -> str:
    """A time given in milliseconds, to the microsecond; ``?`` when unknown."""
    return "?" if value is None else f"{value:,.3f} ms"


def duration(ns: int) -> str:
    """A time given in nanoseconds; below a microsecond in these, so that a little is not shown as nothing."""
    return milliseconds(ns / 1_000_000) if abs(ns) >= 1000 else f"{ns} ns"


def share(value: float | None) -> str:
    """A share in percent; nothing when there is nothing to share."""
    return "" if value is None else f"{value:.1%}".replace("%", " %")


def change(before: float | None, after: float | None) -> str:
    """How ``after`` differs from ``before``, relative where that says something; ``=`` when it does not."""
    if before is None or after is None:
        return ""
    if before == after:
        return "="
    if not before:
        return "new"
    return f"{(after - before) / before:+,.1%}".replace("%", " %")


def plural(number: int, noun: str) -> str:
    """``1 bucket``, ``2 buckets``, ``3 launches``, ``4 entries``."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith(("s", "x", "ch", "sh")):
        return f"{number:,} {noun}es"
    if noun.endswith("y") and noun[-2:-1] not in tuple("aeiou"):
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}s"


def listed(names: Sequence[str], most: int | None = 3) -> str:
    """Names as part of a sentence: ``a``, ``a and b``, ``a, b and 3 more``; most: None for all of them."""
    if most is not None and len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most:,} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """To sort names by: ``rank10`` follows ``rank9``."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", name))


def sentence(text: str) -> str:
    """The text with a capital letter first and a full stop last."""
    return text[:1].upper() + text[1:].rstrip(".") + "."


class Lines(str):
    """Text of several lines that commcc wrote itself, as a pipeline in YAML: its line ends are meant."""

    __slots__ = ()


def one_line(text: str) -> str:
    """The text on one line: line ends, control characters and others that no glyph stands for are spelt out."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return _COMMAND.sub(r"\\x23", text) if "##" in text else text


def shown(text: str, most: int = 60) -> str:
    """Text of a file as part of a message: on one line, and cut where it is long."""
    return one_line(text) if len(text) <= most else f"{one_line(text[:most])}..."


def short_names(paths: Sequence[str]) -> list[str]:
    """Files by the last parts of their paths, as few as tell them apart: ``graphs/bw.fx.txt``, ``tuned/bw.fx.txt``."""
    parts = [PurePath(path).parts for path in paths]
    depth = 1
    while len({each[-depth:] for each in parts}) < len(set(parts)):
        depth += 1
    return [PurePath(*each[-depth:]).as_posix() for each in parts]


def escaped(value: Any) -> Any:
    """Plain data with every text in it, keys included, on one line; only the line ends of a :class:`Lines` stay."""
    if isinstance(value, str):
        return "\n".join(map(one_line, value.split("\n"))) if isinstance(value, Lines) else one_line(value)
    if isinstance(value, dict):
        return {escaped(key): escaped(item) for key, item in value.items()}
    return [escaped(item) for item in value] if isinstance(value, (list, tuple)) else value


def without_commands(text: str) -> str:
    """Lines for standard output, none of which starts with what a runner of jobs takes for a command."""
    return _COMMAND_AT_START.sub(r"\1\\x3a", text) if "::" in text else text


def json_text(document: Mapping[str, Any], indent: int = 2) -> str:
    """A document as JSON; the data is exact, and none of it is a command for a runner of jobs."""
    text = json.dumps(document, indent=indent, allow_nan=False)
    return (_COMMAND.sub(r"\\u0023", text) if "##" in text else text) + "\n"
