"""Tables of times by size, in Markdown or plain, with cells between ``|``::

    | Group    | Group Size | Collective     | 1MB (ms) | 4MB (ms) |
    |----------|-----------:|----------------|---------:|---------:|
    | dp_shard | 64         | all_gather     | 0.45     | 1.61     |
    | tp       | 8          | reduce_scatter | 0.03     | -        |

Sizes are the input bytes of one rank and ascend; the unit of time stands in brackets: ns, us, ms or s. Cells
that are empty, ``-`` or ``n/a`` were not measured. ``Group``, ``Nodes`` and ``Dtype`` may be missing. Lines
without ``|`` are text, and a file may hold several tables.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from commcc.base.errors import InputError, closest
from commcc.base.terms import Kind
from commcc.base.text import shown
from commcc.base.yaml_file import to_integer, to_number
from commcc.timing.cost.profiles.dtypes import ITEM_BYTES
from commcc.timing.cost.tables.sizes import LONGEST_US, MOST_RANKS, read_kind, read_size
from commcc.timing.cost.tables.source import Row

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMED = ("group", "group size", "collective", "nodes", "dtype")
_UNITS = {"ns": 1e-3, "us": 1.0, "\N{MICRO SIGN}s": 1.0, "\N{GREEK SMALL LETTER MU}s": 1.0, "ms": 1e3, "s": 1e6}
_COLUMN = re.compile(r"(.{1,60}?)\s*\(\s*(\w{1,2})\s*\)")
_RULE = re.compile(r"[:=+\s-]*")
_NOT_MEASURED = ("", "-", "--", "n/a", "na", "none", "\N{EM DASH}", "\N{EN DASH}")


def is_header(line: str) -> bool:
    """Whether the line names the columns of such a table."""
    names = [cell.lower() for cell in _cells(line)]
    return "group size" in names and "collective" in names


def read_rows(lines: Sequence[str], path: str) -> list[Row]:
    """The rows of all tables in the text."""
    table: _Table | None = None
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        if is_header(line):
            table = _Table(_cells(line), f"{path}:{number}")
        elif table is not None and "|" in line and not all(map(_RULE.fullmatch, _cells(line))):
            rows.append(table.row(_cells(line), f"{path}:{number}", number))
    return rows


def _cells(line: str) -> list[str]:
    """Texts between the bars, without Markdown's marks; outer bars may be there or not."""
    if "|" not in line:
        return []
    return [cell.strip().strip("*`").strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


class _Table:
    """The columns of one table: positions of the named ones, and size and unit of the others."""

    def __init__(self, names: list[str], where: str) -> None:
        self._named: dict[str, int] = {}
        self._times: list[tuple[int, int, float]] = []
        self._count = len(names)
        for position, name in enumerate(names):
            known = " ".join(name.lower().split())
            if known in _NAMED and known in self._named:
                raise InputError(f"column '{shown(name)}' is there twice", where=where)
            if known in _NAMED:
                self._named[known] = position
            else:
                self._times.append((position, *self._time(name, where)))

    def _time(self, name: str, where: str) -> tuple[int, float]:
        """Bytes, and how many microseconds one unit is."""
        match = _COLUMN.fullmatch(name)
        size = read_size(match[1]) if match is not None else None
        if match is None or size is None or match[2].lower() not in _UNITS:
            near = closest(name.lower(), _NAMED)
            raise InputError(f"column '{shown(name)}' is no size and unit{near}", where=where, hint="as in '4MB (ms)'")
        if self._times and size <= self._times[-1][1]:
            raise InputError(f"column '{shown(name)}' is not larger than the one before it", where=where)
        return size, _UNITS[match[2].lower()]

    def row(self, cells: list[str], where: str, line: int) -> Row:
        if len(cells) != self._count:
            raise InputError(f"{len(cells)} cells in a table of {self._count} columns", where=where)
        kind = read_kind(cells[self._named["collective"]])
        if kind is None:
            raise _wrong("collective", cells[self._named["collective"]], where, list(map(str, Kind)))
        dtype = self._optional(cells, "dtype")
        if dtype is not None and dtype not in ITEM_BYTES:
            raise _wrong("dtype", dtype, where, list(ITEM_BYTES))
        points = [
            (size, _ns(cells[position], unit, where))
            for position, size, unit in self._times
            if cells[position].lower() not in _NOT_MEASURED
        ]
        if not points:
            raise InputError("the row holds no times", where=where)
        size = _count(cells[self._named["group size"]], "group size", where)
        nodes = self._optional(cells, "nodes")
        node_count = None if nodes is None else _count(nodes, "nodes", where)
        return Row(kind, size, tuple(points), self._optional(cells, "group"), node_count, dtype, line)

    def _optional(self, cells: list[str], name: str) -> str | None:
        position = self._named.get(name)
        return None if position is None or cells[position].lower() in _NOT_MEASURED else cells[position]


def _count(text: str, what: str, where: str) -> int:
    number = to_integer(text)
    if number is None or not 0 < number <= MOST_RANKS:
        raise InputError(f"{what} '{shown(text)}' is not a whole number above 0", where=where)
    return number


def _ns(text: str, unit: float, where: str) -> int:
    number = to_number(text)
    if number is None or not 0 < number * unit <= LONGEST_US:
        raise InputError(f"time '{shown(text)}' is not a number above 0 and below {LONGEST_US:g} us", where=where)
    return round(1000 * number * unit)


def _wrong(what: str, text: str, where: str, known: list[str]) -> InputError:
    near = closest(text.lower(), known) or f" (use {', '.join(known)})"
    return InputError(f"{what} '{shown(text)}' is not known{near}", where=where)
