"""The sidecar around the graph: what a Program knows that no part of a ``.pt2`` file has a place for.

Usage::

    data = encode_extra(program, symbols)        # {"commcc": 1, "groups": [...], "header": {...}, ...}
    extra = decode_extra(data)                   # Extra(groups, header, provenance, symbols)

The JSON is written in one order and read without trust: wrong types raise :class:`InputError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commcc.base.errors import InputError
from commcc.graph.program import Note, ProcessGroup
from commcc.serialization.fx.symbols import SYMBOL_NAME
from commcc.serialization.shapes import SymbolInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.graph.program import Program
    from commcc.serialization.shapes import ShapeContext

SIDECAR_VERSION = 1


@dataclass(frozen=True)
class Extra:
    """The parts of a Program that the sidecar carries, and what it says about symbols."""

    groups: Mapping[str, ProcessGroup]
    header: Mapping[str, Any]
    provenance: tuple[dict[str, Any], ...]
    symbols: Mapping[str, SymbolInfo]
    notes: tuple[Note, ...] = ()


#: What a file without a sidecar has.
NO_EXTRA = Extra({}, {}, (), {})


def encode_extra(program: Program, symbols: Mapping[str, SymbolInfo]) -> dict[str, Any]:
    """The sidecar without its graph."""
    return {
        "commcc": SIDECAR_VERSION,
        "groups": [_encode_group(group) for group in program.groups.values()],
        "header": dict(program.header),
        "provenance": list(program.provenance),
        "notes": [[_line(note.text), note.node] for note in program.notes],
        "symbols": {name: [info.lower, info.upper, info.hint] for name, info in symbols.items()},
    }


def _encode_group(group: ProcessGroup) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": group.name,
        "size": group.size,
        "ranks": None if group.ranks is None else list(group.ranks),
        "description": _line(group.description),
    }
    if group.origin is not None:
        found["origin"] = group.origin
    if group.high_priority:
        found["high_priority"] = True
    return found


def decode_extra(data: Any) -> Extra:
    """What :func:`encode_extra` encoded."""
    if not isinstance(data, dict) or data.get("commcc") != SIDECAR_VERSION:
        raise InputError(f"was not written by this version of commcc (expected version {SIDECAR_VERSION})")
    header, provenance = data.get("header", {}), data.get("provenance", [])
    if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in provenance):
        raise InputError("header or provenance has the wrong type")
    _check_header(header)
    groups = [_group(entry) for entry in data.get("groups", [])]
    if len({group.name for group in groups}) != len(groups):
        raise InputError("two process groups have the same name")
    symbols = {name: _symbol(name, bounds) for name, bounds in data.get("symbols", {}).items()}
    notes = tuple([_note(*entry) for entry in data.get("notes", [])])
    return Extra({group.name: group for group in groups}, header, tuple(provenance), symbols, notes)


def _check_header(header: dict[str, Any]) -> None:
    """Refuse a header whose entries the text format could not write."""
    for name, bounds in header.get("symbols", {}).items():
        _symbol(name, bounds)
    if not _is_line(header.get("class_name", "")):
        raise InputError("the name of the class is malformed")


def _is_line(text: Any) -> bool:
    """Whether a text from a file may be shown on a terminal as it is."""
    return isinstance(text, str) and (text.isprintable() or text == "")


def _line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _note(text: Any, node: Any) -> Note:
    if not _is_line(text) or not (node is None or _is_line(node)):
        raise InputError("a note is malformed")
    return Note(text, node)


def _group(data: Any) -> ProcessGroup:
    name, size, ranks, description = data["name"], data["size"], data["ranks"], data["description"]
    fine = isinstance(name, str) and _is_line(description) and (size is None or _is_count(size))
    if ranks is not None:
        fine = fine and isinstance(ranks, list) and all(_is_count(rank) for rank in ranks)
    origin, high = data.get("origin"), data.get("high_priority", False)
    if not fine or not isinstance(origin, (str, type(None))) or type(high) is not bool:
        raise InputError(f"the process group {str(name)[:40]!r} is malformed")
    return ProcessGroup(name, size, None if ranks is None else tuple(ranks), description, origin, high)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _symbol(name: str, bounds: Any) -> SymbolInfo:
    lower, upper, hint = bounds
    if not all(bound is None or type(bound) is int for bound in bounds):
        raise InputError(f"the range of {name[:40]!r} is not made of integers")
    return SymbolInfo(lower, upper, hint)


def declare_symbols(ctx: ShapeContext, ranges: Mapping[str, Any], symbols: Mapping[str, SymbolInfo]) -> None:
    """Tell a new context what a file says about its symbols; range constraints of expressions are skipped."""
    for name, bounds in ranges.items():
        if SYMBOL_NAME.fullmatch(name):
            ctx.declare(name, lower=bounds["min_val"], upper=bounds["max_val"])
    for name, info in symbols.items():
        ctx.declare(name, lower=info.lower, upper=info.upper, hint=info.hint)
