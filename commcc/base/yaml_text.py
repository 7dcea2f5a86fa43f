"""Plain data as YAML that people read and review, the same bytes for the same data::

    dump({"pass": "bucket", "members": ["ag_1", "ag_2"]})
    # pass: bucket
    # members: [ag_1, ag_2]

Lists of plain values are written on one line and broken where it gets long, small mappings in a list on
one line each. Text that could be taken for a number, a switch or nothing is quoted. Keys keep their
order. What is written reads back equal with any YAML reader.

Limits: keys are texts; no comments, anchors or tags.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from commcc.base.terms import Json

WIDTH = 110
_PLAIN = re.compile(r"[A-Za-z_](?:[\w./()%+-]| (?=[^ ]))*", re.ASCII)
#: Words that one or another version of YAML takes for something else than text.
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})


def dump(data: Mapping[str, Json]) -> str:
    """The whole document, with a newline at the end."""
    return "".join(f"{line}\n" for line in _mapping(data, ""))


def scalar(value: Json) -> str:
    """One plain value."""
    if value is None or isinstance(value, (bool, int, float)):
        number = json.dumps(value, allow_nan=False)
        # YAML 1.1 takes 1e+22 for a text.
        return number.replace("e", ".0e") if isinstance(value, float) and "." not in number else number
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS and len(text) <= WIDTH:
        return text
    return json.dumps(text) if text.isascii() and text.isprintable() else _escaped(text)


def _escaped(text: str) -> str:
    """In quotes, with everything but printable ASCII as YAML escapes, which differ from those of JSON."""
    pieces = [json.dumps(c)[1:-1] if c.isascii() and c.isprintable() else _escape(ord(c)) for c in text]
    return '"' + "".join(pieces) + '"'


def _escape(code: int) -> str:
    if 0xD800 <= code < 0xE000:  # half a character, which no YAML reader takes
        return "?"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _mapping(data: Mapping[str, Json], indent: str) -> Iterator[str]:
    for key, value in data.items():
        yield from _entry(f"{indent}{scalar(key)}:", value, indent)


def _entry(head: str, value: Json, indent: str) -> Iterator[str]:
    """``head`` and a value, behind it on the line where that fits, else below."""
    if isinstance(value, dict) and value:
        yield head
        yield from _mapping(value, indent + "  ")
    elif isinstance(value, list) and value and not _is_flat(value):
        yield head
        yield from _sequence(value, indent)
    elif isinstance(value, list) and value:
        yield from _wrapped(head, value, indent)
    else:
        yield f"{head} {'{}' if value == {} else '[]' if value == [] else scalar(value)}"


def _sequence(values: Sequence[Json], indent: str) -> Iterator[str]:
    for value in values:
        small = _small(value) if isinstance(value, dict) else None
        if small is not None and len(small) + len(indent) < WIDTH:
            yield f"{indent}- {small}"
        elif isinstance(value, dict) and value:
            for number, line in enumerate(_mapping(value, indent + "  ")):
                yield line if number else f"{indent}- {line[len(indent) + 2 :]}"
        else:
            yield from _entry(f"{indent}-", value, indent + "  ")


def _small(value: Mapping[str, Json]) -> str | None:
    """A mapping of plain values on one line."""
    if any(isinstance(each, (dict, list)) for each in value.values()):
        return None
    return "{" + ", ".join(f"{scalar(key)}: {scalar(each)}" for key, each in value.items()) + "}"


def _wrapped(head: str, values: Sequence[Json], indent: str) -> Iterator[str]:
    line, last = f"{head} [", len(values) - 1
    for number, value in enumerate(values):
        piece = scalar(value) + ("]" if number == last else ",")
        if len(line) + len(piece) + 1 > WIDTH and not line.endswith("["):
            yield line
            line = f"{indent}  {piece}"
        else:
            line += piece if line.endswith("[") else f" {piece}"
    yield line


def _is_flat(values: Sequence[Json]) -> bool:
    return not any(isinstance(value, (dict, list)) for value in values)
