"""Prices from a table of measured collectives.

    source = TableSource("table coll.yaml", rows)
    source.transfer(transfer)          # None where no row has this kind and number of ranks

A row is taken when kind and number of ranks are the same, it does not name another dtype, and it
crosses nodes exactly when the group does, if it says on how many nodes it was measured. Among those, one
that names the group comes first, then one that names none, then one of the same number of nodes.
A row that names another group is taken only when all that are left name that one, and with a note.
Times between the sizes are interpolated, see :mod:`commcc.timing.cost.interpolate`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from commcc.base.errors import InputError
from commcc.base.text import short_size
from commcc.timing.cost.interpolate import Curve, Reading
from commcc.timing.cost.topology import placement
from commcc.timing.cost.types import Price

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.base.terms import Json, Kind
    from commcc.timing.cost.topology import Placement
    from commcc.timing.cost.types import Operation, Transfer


@dataclass(frozen=True)
class Row:
    """Times of one collective by size. points: input bytes of one rank and nanoseconds, no size twice.

    group, nodes, dtype: what it was measured on; None fits everything. line: of the file, for messages.
    """

    kind: Kind
    size: int
    points: tuple[tuple[int, int], ...]
    group: str | None = None
    nodes: int | None = None
    dtype: str | None = None
    line: int = 0

    @property
    def key(self) -> tuple[str, int, str, int, str]:
        """What makes it another row than the others; also their order in the hash."""
        return str(self.kind), self.size, self.group or "", self.nodes or 0, self.dtype or ""

    @cached_property
    def curve(self) -> Curve:
        return Curve.of(self.points)


@dataclass(frozen=True)
class TableSource:
    """A source of prices, see :class:`commcc.timing.cost.types.Source`.

    ranks_per_node: to see on how many nodes a group sits. skew: as in ``Settings``, since tables are of
    even all-to-alls.
    """

    name: str
    rows: tuple[Row, ...]
    ranks_per_node: int = 8
    skew: float = 1.0

    @property
    def warnings(self) -> tuple[str, ...]:
        """None: a table that cannot be used whole is refused."""
        return ()

    def facts(self) -> Json:
        """All times, in a fixed order."""
        return [
            [*row.key, [[size, ns] for size, ns in sorted(row.points)]]
            for row in sorted(self.rows, key=lambda row: row.key)
        ]

    def operation(self, operation: Operation) -> Price | None:
        """None: a table holds collectives only."""
        return None

    def transfer(self, transfer: Transfer) -> Price | None:
        """The time that the best row gives for one rank's input bytes."""
        place = placement(transfer.size, transfer.ranks, self.ranks_per_node)
        row = self._row(transfer, place)
        if row is None:
            return None
        reading = row.curve.read(transfer.input_bytes)
        # Tables are of even all-to-alls, and only the part that grows with the size waits for the fullest rank.
        if transfer.uneven:
            reading = replace(reading, ns=reading.fixed_ns + round((reading.ns - reading.fixed_ns) * self.skew))
        notes = self._notes(row, transfer, place, reading)
        said = [f"{self.name}: {row.kind} over {row.size} ranks {note}" for note in notes]
        where = f"beyond {short_size(reading.high)}" if reading.beyond else reading.span
        return Price(reading.ns, f"table, {where}", reading.fixed_ns, "; ".join(said) or None)

    @cached_property
    def _by_kind(self) -> dict[tuple[Kind, int], list[Row]]:
        rows: dict[tuple[Kind, int], list[Row]] = {}
        for row in self.rows:
            rows.setdefault((row.kind, row.size), []).append(row)
        return rows

    def _row(self, transfer: Transfer, place: Placement) -> Row | None:
        fits = [
            row
            for row in self._by_kind.get((transfer.kind, transfer.size), ())
            if row.dtype in (None, transfer.dtype) and (row.nodes is None or (row.nodes > 1) == place.crosses)
        ]
        names = _names(transfer)
        known = [row for row in fits if row.group is None or row.group in names]
        # Which of several foreign groups is the like of this one cannot be told.
        if not known and len({row.group for row in fits}) > 1:
            return None
        return min(
            known or fits,
            key=lambda row: (
                row.group not in names,
                row.nodes is None,
                abs((row.nodes or place.nodes) - place.nodes),
                row.dtype is None,
            ),
            default=None,
        )

    def _notes(self, row: Row, transfer: Transfer, place: Placement, reading: Reading) -> list[str]:
        """In what the row is not quite what is asked for, and what is odd about its times."""
        times, notes = dict(row.points), []
        if row.group is not None and row.group not in _names(transfer):
            unnamed = f"is used for group '{transfer.group}', which the table does not name"
            notes.append(f"was measured on '{row.group}' and {unnamed}")
        if row.nodes is not None and row.nodes != place.nodes:
            notes.append(f"was measured on {row.nodes} nodes and is used for {place.nodes}")
        if reading.beyond:
            notes.append(f"is extrapolated beyond {short_size(max(times))}")
        if times[reading.high] < times[reading.low]:
            notes.append(f"took less time for {short_size(reading.high)} than for {short_size(reading.low)}")
        return notes


def check_rows(rows: Sequence[Row], path: str) -> None:
    """Raise :class:`InputError` where there is no row, or two rows are of the same thing."""
    if not rows:
        raise InputError("holds no times", where=path)
    first: dict[tuple[str, int, str, int, str], Row] = {}
    for row in rows:
        earlier = first.setdefault(row.key, row)
        if earlier is not row:
            what = f"{row.kind} over {row.size} ranks is in line {earlier.line} already"
            raise InputError(what, where=f"{path}:{row.line}", hint="tell them apart by group, nodes or dtype")


def _names(transfer: Transfer) -> tuple[str, ...]:
    """Under what a table may know the group: its name, and what the program calls it (``dp_shard``)."""
    return (transfer.group, transfer.description) if transfer.description else (transfer.group,)
