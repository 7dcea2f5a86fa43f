"""One row of nccl-tests' output; see :mod:`commcc.timing.cost.tables.nccl_tests`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.errors import InputError
from commcc.base.terms import Kind
from commcc.base.yaml_node import shown, to_integer, to_number
from commcc.timing.cost.tables.sizes import LONGEST_US, MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Line:
    """Whole tensor in bytes, elements as counted, type and reduction as named, time, both bandwidths in GB/s."""

    size: int
    count: int
    dtype: str
    redop: str
    ns: int
    algbw: float | None
    busbw: float | None

    def fits(self, kind: Kind, ranks: int) -> bool:
        """Whether the bandwidths are in the ratio that PERFORMANCE.md gives for the collective.

        They are printed with few digits. Versions before 2021 print twice the same for gathers.
        """
        if not self.algbw or not self.busbw or ranks < 2 or abs(self.algbw - self.busbw) <= 0.01:
            return True
        ratio = {Kind.ALL_REDUCE: 2 * (ranks - 1) / ranks, Kind.BROADCAST: 1.0}.get(kind, (ranks - 1) / ranks)
        return abs(self.busbw - ratio * self.algbw) <= 0.02 + 0.0003 * self.algbw


def read_line(text: str, columns: Sequence[str], where: str) -> Line | None:
    """The row that a line is; None for other text. InputError for a row that is cut apart, or has no time."""
    cells = text.split()
    if len(cells) < 3 or not (_digits(cells[0]) and _digits(cells[1]) and cells[2][:1].isalpha()):
        return None
    at = next((i for i, name in enumerate(columns) if name in ("time", "cputime")), None)
    if at is None or columns[at] == "cputime":
        raise InputError("has no times of the device", where=where, hint="run nccl-tests without -C")
    size, count = to_integer(cells[0]), to_integer(cells[1])
    if size == 0 or count == 0:
        # Too little for one element each: nothing ran.
        return None
    us = to_number(cells[at]) if at < len(cells) else None
    if size is None or count is None or size > MOST_BYTES or count > MOST_BYTES:
        raise InputError(f"size '{shown(cells[0])}' or count '{shown(cells[1])}' is too large", where=where)
    if us is None or not 0 < us <= LONGEST_US:
        found = shown(cells[at]) if at < len(cells) else "nothing"
        hint = "run it without NCCL_DEBUG=INFO, which writes into its rows"
        raise InputError(f"'{found}' is no time in microseconds", where=where, hint=hint)
    redop = cells[columns.index("redop")] if "redop" in columns else ""
    rates = [to_number(cell) for cell in cells[at + 1 : at + 3]]
    algbw, busbw = (*rates, None, None)[:2]
    return Line(size, count, cells[2], redop, round(1000 * us), algbw, busbw)


def _digits(text: str) -> bool:
    return text.isascii() and text.isdecimal()
