"""What the canonical text says above the graph: process groups, header, provenance, notes.

::

    # commcc: {"fx_text": 1}
    # commcc: {"groups": {"0": {"size": 64}}}
    class GraphModule(torch.nn.Module):

JSON here is ASCII, so that no string can end a line. What stands below the graph is in
:mod:`commcc.serialization.fx.tables`. Limits: an unknown version or section is refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from commcc.base.errors import InputError, OutputError
from commcc.graph.program import Note, ProcessGroup
from commcc.serialization.fx.source import COMMCC
from commcc.serialization.metadata import decode_json, encode_json, is_lost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commcc.base.terms import Json
    from commcc.graph.program import Program

VERSION = 1
_SECTIONS = frozenset({"fx_text", "groups", "header", "provenance", "notes"})


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_ENCODER = json.JSONEncoder(allow_nan=False)
_DECODER = json.JSONDecoder(parse_constant=_refuse)


@dataclass
class FileHeader:
    """The sections above the graph."""

    groups: dict[str, ProcessGroup] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    provenance: tuple[dict[str, Any], ...] = ()
    notes: tuple[Note, ...] = ()


def dump(data: Any) -> str:
    """One line of ASCII JSON, the same for equal data."""
    try:
        return _ENCODER.encode(data)
    except (ValueError, RecursionError) as error:
        raise OutputError(f"cannot be written as JSON: {error}") from None


@lru_cache(maxsize=1024)
def json_key(key: str) -> str:
    """``key`` as JSON; node after node has the same few."""
    return dump(key)


def load(text: str) -> Any:
    """JSON from a file; whatever is wrong with it raises :class:`InputError`."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"broken JSON in a commcc comment: {error}") from None


def read_header(lines: Iterable[tuple[int, str]], where: str) -> FileHeader | None:
    """The sections in the comments above a graph; None if commcc did not write this text."""
    sections: dict[str, Any] = {}
    for number, line in lines:
        if line.startswith(COMMCC):
            try:
                _merge(sections, load(line[len(COMMCC) :]))
            except InputError as error:
                raise InputError(error.what, where=f"{where}:{number}") from None
    if not sections:
        return None
    if sections.get("fx_text") != VERSION:
        raise InputError(
            f"format version {str(sections.get('fx_text'))[:20]}, expected {VERSION}",
            where=where,
            hint="it was written by another version of commcc",
        )
    try:
        return FileHeader(
            groups=_read_groups(sections.get("groups", {})),
            header=_typed(decode_json(sections.get("header", {})), dict, "header"),
            provenance=tuple(_each(decode_json(sections.get("provenance", [])), dict, "provenance")),
            notes=tuple(_read_note(note) for note in _typed(sections.get("notes", []), list, "notes")),
        )
    except InputError as error:
        raise InputError(error.what, where=where) from None


def _merge(sections: dict[str, Any], found: Any) -> None:
    for name, body in _typed(found, dict, "a section").items():
        if name not in _SECTIONS or name in sections:
            raise InputError(f"unknown or repeated section {name[:40]!r} in a commcc comment")
        sections[name] = body


def _typed(value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind):
        raise InputError(f"{what} in a commcc comment is not a {kind.__name__}")
    return value


def _each(values: Any, kind: type, what: str) -> list[Any]:
    return [_typed(value, kind, what) for value in _typed(values, list, what)]


def _read_groups(data: Any) -> dict[str, ProcessGroup]:
    groups = {}
    for name, body in _typed(data, dict, "groups").items():
        size, ranks = _typed(body, dict, "a group").get("size"), body.get("ranks")
        if not (size is None or (type(size) is int and size > 0)):
            raise InputError(f"group {name[:40]!r} has size {str(size)[:40]}")
        if ranks is not None and not (isinstance(ranks, list) and all(type(rank) is int for rank in ranks)):
            raise InputError(f"the ranks of group {name[:40]!r} are no list of numbers")
        text = _typed(body.get("description", ""), str, "a description")
        origin, high = body.get("origin"), _typed(body.get("high_priority", False), bool, "a priority")
        if origin is not None and not isinstance(origin, str):
            raise InputError(f"the origin of group {name[:40]!r} is no name")
        groups[name] = ProcessGroup(name, size, None if ranks is None else tuple(ranks), text, origin, high)
    return groups


def _read_note(data: Any) -> Note:
    if (
        isinstance(data, list)
        and len(data) == 2
        and isinstance(data[0], str)
        and isinstance(data[1], (str, type(None)))
    ):
        return Note(data[0], data[1])
    raise InputError("a note in a commcc comment is not [text, node]")


def header_lines(program: Program, header: Mapping[str, Json], notes: Iterable[Note]) -> list[str]:
    """The comment lines above the graph; sections that would be empty are left out."""
    sections = {
        "groups": {name: _group_json(group) for name, group in sorted(program.groups.items())},
        "header": _plain(dict(header), "the header"),
        "provenance": _plain(list(program.provenance), "the provenance"),
        "notes": [[note.text, note.node] for note in notes],
    }
    lines = [f"{COMMCC} {dump({'fx_text': VERSION})}"]
    return lines + [f"{COMMCC} {dump({name: body})}" for name, body in sections.items() if body]


def _plain(value: Any, what: str) -> Any:
    encoded = encode_json(value)
    if is_lost(encoded):
        raise OutputError(f"{what} holds something that is not JSON")
    return encoded


def _group_json(group: ProcessGroup) -> dict[str, Json]:
    out: dict[str, Json] = {"size": group.size}
    if group.ranks is not None:
        out["ranks"] = list(group.ranks)
    if group.description:
        out["description"] = group.description
    if group.origin is not None:
        out["origin"] = group.origin
    if group.high_priority:
        out["high_priority"] = True
    return out
