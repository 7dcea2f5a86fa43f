"""Typed records that become JSON: the fields of a frozen dataclass, in their order, are its keys.

@dataclass(frozen=True)
class Removed(Record):
    nodes: int
    views: int | None = left_out()     # a key that is there only where it is known

Removed(3).to_json()                   # {'nodes': 3}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commcc.base.terms import Json


@dataclass(frozen=True)
class Record:
    """Base of such dataclasses. Fields hold numbers, texts, other records, and tuples and mappings of all these."""

    def to_json(self) -> dict[str, Json]:
        """The fields by name."""
        given = ((entry, getattr(self, entry.name)) for entry in fields(self))
        return {
            entry.name: plain(value)
            for entry, value in given
            if value is not None or not entry.metadata.get("left_out")
        }


def left_out() -> Any:
    """The default of a key that is not there while it is None."""
    return field(default=None, metadata={"left_out": True})


def plain(value: Any) -> Json:
    """A value as JSON; what JSON has no form for becomes its text."""
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, (tuple, list)):
        return [plain(part) for part in value]
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)
