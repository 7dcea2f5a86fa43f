"""Numbers and lists of names as sentences of an explanation have them: ``0.411 ms``, ``a, b and 3 more``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def duration(ns: int) -> str:
    """Nanoseconds as reports have times, in milliseconds to the microsecond; below one, as they are."""
    return f"{ns / 1_000_000:,.3f} ms" if abs(ns) >= 1000 else f"{ns} ns"


def bytes_text(count: int) -> str:
    """Bytes in binary units."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:,.0f} B" if units[0] == "B" else f"{value:,.1f} {units[0]}"


def nodes(count: int) -> str:
    """``1 compute node``, ``12 compute nodes``."""
    return f"{count:,} compute node{'' if count == 1 else 's'}"


def listed(names: Sequence[str], shown: int = 3) -> str:
    """Names as part of a sentence, the rest counted."""
    if len(names) <= shown:
        return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
    return f"{', '.join(names[:shown])} and {len(names) - shown:,} more"


def arrows(path: Sequence[str], shown: int = 6) -> str:
    """A path on one line, its middle left out where it is long."""
    if len(path) <= shown:
        return " -> ".join(path)
    head, tail = shown // 2, shown - shown // 2
    return " -> ".join([*path[:head], f"({len(path) - shown} more)", *path[-tail:]])
