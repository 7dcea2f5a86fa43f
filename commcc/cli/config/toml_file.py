"""One table of a TOML file, as values that know their line (:mod:`commcc.base.yaml_file`).

Python's TOML parser gives values without lines. The lines are found by a second look at the text, for
messages only: keys of inline tables and of odd spellings get the line of what holds them.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from commcc.base.errors import InputError
from commcc.base.yaml_file import Node, YamlFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    Path = tuple[str, ...]

_HEADER = re.compile(r"\s*\[\[?([^\[\]]+)\]\]?\s*(#.*)?")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")
_AT = re.compile(r"(.*?)\s*\(at line (\d+), column \d+\)", re.DOTALL)
MAX_DEPTH = 40


def parse_table(text: str, path: str, table: Path) -> YamlFile | None:
    """The table at that path of keys, None when there is none; :class:`InputError` for a file that is no TOML."""
    value: Any = _parse(text, path)
    for key in table:
        value = value.get(key) if isinstance(value, dict) else None
    if value is None:
        return None
    file = YamlFile(path)
    file.root = _node(file, value, table, _lines(text))
    return file


def _parse(text: str, path: str) -> Mapping[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        document: Mapping[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        said = str(error).replace("(at end of document)", f"(at line {text.rstrip().count(chr(10)) + 1}, column 1)")
        at = _AT.fullmatch(said)
        what, where = (said, path) if at is None else (at[1], f"{path}:{at[2]}")
        raise InputError(f"not TOML: {what}", where=where) from None
    return document


def _node(file: YamlFile, value: Any, path: Path, lines: Mapping[Path, int]) -> Node:
    line = next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), 1)
    name = path[-1]
    if len(path) > MAX_DEPTH:
        raise InputError(f"nested deeper than {MAX_DEPTH} levels", where=f"{file.path}:{line}")
    if isinstance(value, dict):
        return Node(file, line, {key: _node(file, item, (*path, key), lines) for key, item in value.items()}, name=name)
    if isinstance(value, list):
        return Node(file, line, [_node(file, item, path, lines) for item in value], name=name)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return Node(file, line, text, plain=not isinstance(value, str), name=name)


def _lines(text: str) -> dict[Path, int]:
    """The line of every key and table that stands at the start of one; inside long strings nothing counts."""
    lines: dict[Path, int] = {}
    table: Path = ()
    inside = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not inside:
            header, key = _HEADER.fullmatch(line), _KEY.match(line)
            if header is not None:
                table = _parts(header[1])
            path = table if header is not None else (*table, *_parts(key[1])) if key is not None else ()
            for end in range(1, len(path) + 1):
                lines.setdefault(path[:end], number)
        for mark in ('"""', "'''"):
            if line.count(mark) % 2 and inside in ("", mark):
                inside = "" if inside else mark
    return lines


def _parts(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))
