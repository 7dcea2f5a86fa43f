"""Text that the programs of nccl-tests and rccl-tests print, of old and new versions::

    # Collective test starting: all_gather_perf
    #  Rank  0 Group  0 Pid  29262 on node-01 device  0 [0000:19:00] NVIDIA H100 80GB HBM3
    #       size         count      type   redop    root     time   algbw   busbw  #wrong     time ...
        16777216        262144     float    none      -1   122.9  136.55  128.02       0    121.7 ...

``size`` is the whole tensor for every collective (nccl-tests, doc/PERFORMANCE.md and src/*.cu): what all ranks
have sent together for a gather, so one rank's input is a share of it; the input of one rank for the others.
The time is the first in the row, out of place, as graphs run collectives. What is checked: the count of
elements and the ratio of busbw to algbw fit the collective and its ranks. A configuration measured
several times takes the median. Of several reductions the first counts; of several dtypes, the first
stands for those that were not measured.

Limits: programs that measure no collective of a graph (sendrecv, reduce, ...) are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Final

from commcc.base.errors import InputError
from commcc.base.terms import Kind
from commcc.base.text import shown
from commcc.base.yaml_file import to_integer, to_number
from commcc.timing.cost.profiles.dtypes import ITEM_BYTES
from commcc.timing.cost.tables.sizes import LONGEST_US, MOST_BYTES, MOST_RANKS
from commcc.timing.cost.tables.source import Row

if TYPE_CHECKING:
    from collections.abc import Sequence


KINDS: Final = {
    "all_gather": Kind.ALL_GATHER,
    "reduce_scatter": Kind.REDUCE_SCATTER,
    "all_reduce": Kind.ALL_REDUCE,
    "alltoall": Kind.ALL_TO_ALL,
    "all_to_all": Kind.ALL_TO_ALL,
    "broadcast": Kind.BROADCAST,
}
#: Programs of nccl-tests that measure what no graph holds.
OTHERS: Final = ("alltoallv", "sendrecv", "reduce", "scatter", "gather", "hypercube")
_TYPES: Final = {
    "float": "float32",
    "half": "float16",
    "double": "float64",
    "char": "int8",
    "int": "int32",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
_PROGRAM = re.compile(rf"\b({'|'.join((*KINDS, *OTHERS))})_perf(?:_mpi)?\b")
_IN_NAME = re.compile("|".join((*KINDS, "allgather", "reducescatter", "allreduce")))
_RANK = re.compile(r"#?\s*Rank\s+(\d{1,9})\s+(?:Group\s+(\d{1,9})\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device")
#: What launchers put before a line of output: ``[1,0]<stdout>:``, ``[0]``, ``0:``.
_LABEL = re.compile(r"\s*(?:\[\d+(?:,\d+)?\](?:<std(?:out|err)>)?:?|\d{1,9}:\s)\s*")


def is_header(line: str) -> bool:
    """Whether the line names the columns of a test."""
    return _header(line) is not None


def _header(line: str) -> list[str] | None:
    names = _plain(line).lstrip("# ").split()
    return names if names[:3] == ["size", "count", "type"] else None


def _plain(line: str) -> str:
    label = _LABEL.match(line)
    return line if label is None else line[label.end() :]


@dataclass(frozen=True)
class _What:
    """One configuration. size: ranks; nodes: None when the hosts are not listed."""

    kind: Kind
    size: int
    nodes: int | None
    dtype: str


@dataclass
class _Reader:
    """Goes through the lines; a file may hold the output of several programs, one after the other.

    program: the last that was named; stale once its rows have begun. ranks: (group, rank) and host.
    group: what was counted of them.
    """

    path: str
    columns: list[str] = field(default_factory=list)
    program: str | None = None
    stale: bool = False
    ranks: dict[tuple[int, int], str] = field(default_factory=dict)
    group: tuple[int, int | None] | None = None
    redop: dict[_What, str] = field(default_factory=dict)
    times: dict[_What, dict[int, list[int]]] = field(default_factory=dict)
    first: dict[_What, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)

    def read(self, text: str, number: int) -> None:
        """One line of the file."""
        line, where = _plain(text), f"{self.path}:{number}"
        header = _header(text)
        if header is not None:
            self.columns = header
        elif self.columns and (row := read_line(line, self.columns, where)) is not None:
            self.stale = True
            self._measured(row, number, where)
        elif (listed := _RANK.match(line)) is not None:
            which = int(listed[2] or 0), int(listed[1])
            if which in self.ranks:
                what = f"rank {which[1]} is listed twice: the processes ran next to each other, not as one group"
                raise InputError(what, where=where, hint="build nccl-tests with MPI=1")
            self.ranks[which], self.group = listed[3], None
        else:
            self._words(line)

    def _words(self, line: str) -> None:
        if "nThread" in line:
            # A new run: it lists its ranks again, and old versions do not say which program it is.
            self.ranks, self.group = {}, None
            self.program = None if self.stale else self.program
            self.stale = False
        named = _PROGRAM.search(line)
        if named is not None and "concluded" not in line:
            self.program, self.stale = named[1], False

    def _measured(self, row: Line, number: int, where: str) -> None:
        kind = self._kind(where, number)
        if kind is None:
            return
        dtype = _TYPES.get(row.dtype, row.dtype)
        size = self._size(kind, row, ITEM_BYTES.get(dtype), where)
        what = _What(kind, size, self._group()[1], dtype)
        # Reductions take the same time; the first one that was run stands for all.
        if self.redop.setdefault(what, row.redop) != row.redop:
            return
        # ``size`` is the whole tensor, of which a rank sends a share only in a gather.
        sent = row.size // size if kind is Kind.ALL_GATHER else row.size
        self.times.setdefault(what, {}).setdefault(sent, []).append(row.ns)
        self.first.setdefault(what, number)

    def _kind(self, where: str, number: int) -> Kind | None:
        """The collective that is measured; None for one that graphs do not hold."""
        if self.program in OTHERS:
            self.left_out.setdefault(self.program, number)
            return None
        if self.program is not None:
            return KINDS[self.program]
        stem = Path(self.path).name.lower().replace("-", "_")
        named = {name.replace("_", "") for name in _IN_NAME.findall(stem)}
        if len(named) != 1:
            hint = "name the file like all_gather_perf_8.txt, or put the command that was run before its output"
            raise InputError("the output does not say which collective it is of", where=where, hint=hint)
        (only,) = named
        return next(kind for name, kind in KINDS.items() if name.replace("_", "") == only)

    def _group(self) -> tuple[int, int | None]:
        """Ranks of the group that was measured (``NCCL_TESTS_SPLIT`` makes several alike), and its nodes.

        0 where none are listed; no nodes where some are missing from the list.
        """
        if self.group is None and self.ranks:
            first = min(group for group, _ in self.ranks)
            hosts = [host for (group, _), host in self.ranks.items() if group == first]
            end = max(rank for _, rank in self.ranks) + 1
            self.group = (len(hosts), len(set(hosts))) if end == len(self.ranks) else (end, None)
        return self.group or (0, None)

    def _size(self, kind: Kind, row: Line, item: int | None, where: str) -> int:
        """Ranks, from the list of ranks, the row or the name of the file, which must not differ."""
        share = kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL) and item is not None
        by_row = row.size // (row.count * item) if share and item is not None else 0
        listed, _ = self._group()
        size = listed or (by_row if by_row > 1 else self._size_by_name(where))
        # Some versions count the elements of the whole tensor.
        if by_row > 1 and by_row != size:
            what = f"{row.count} elements in {row.size} bytes make {by_row} ranks of {kind}, but there are {size}"
            raise InputError(what, where=where)
        if not row.fits(kind, size):
            what = f"busbw over algbw is not that of {kind} over {size} ranks"
            raise InputError(what, where=where, hint="is it another collective, or are ranks missing from the list?")
        return size

    def _size_by_name(self, where: str) -> int:
        number = re.search(r"_(\d{1,9})(?:_?(?:gpu|rank|proc)s?)?(?:\.|$)", Path(self.path).name.lower())
        size = int(number[1]) if number is not None else 0
        if not 0 < size <= MOST_RANKS:
            hint = "keep the lines '# Rank ...', or name the file like all_reduce_perf_8.txt"
            raise InputError("the output does not say how many ranks there were", where=where, hint=hint)
        return size


def read_rows(lines: Sequence[str], path: str) -> list[Row]:
    """The rows of all programs whose output is in the file."""
    reader = _Reader(path)
    for number, line in enumerate(lines, 1):
        reader.read(line, number)
    if not reader.times and reader.left_out:
        names = ", ".join(f"{name}_perf" for name in reader.left_out)
        raise InputError(f"holds only {names}, which measures no collective of a graph", where=path)
    rows: list[Row] = []
    for what, times in reader.times.items():
        points = tuple((size, median_low(times[size])) for size in sorted(times))
        alike = [row for row in rows if (row.kind, row.size, row.nodes) == (what.kind, what.size, what.nodes)]
        # The first dtype of a configuration also prices dtypes that were not measured.
        dtype = what.dtype if alike else None
        rows.append(Row(what.kind, what.size, points, None, what.nodes, dtype, reader.first[what]))
    return rows


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
        cell = shown(cells[at]) if at < len(cells) else "nothing"
        hint = "run it without NCCL_DEBUG=INFO, which writes into its rows"
        raise InputError(f"'{cell}' is no time in microseconds", where=where, hint=hint)
    redop = cells[columns.index("redop")] if "redop" in columns else ""
    rates = [to_number(cell) for cell in cells[at + 1 : at + 3]]
    algbw, busbw = (*rates, None, None)[:2]
    return Line(size, count, cells[2], redop, round(1000 * us), algbw, busbw)


def _digits(text: str) -> bool:
    return text.isascii() and text.isdecimal()
