"""Reads a table of any of the three formats; which one it is shows in its lines.

    load_table("all_gather_perf_8.txt").name       # 'table all_gather_perf_8.txt'

1. nccl-tests: a line of columns that begins with ``size count type``
2. a table of sizes: a line with cells between ``|``, two of them ``Group Size`` and ``Collective``
3. commcc's YAML: a line that begins with ``table:``
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from commcc.base.errors import InputError
from commcc.base.yaml_file import read_text
from commcc.timing.cost.tables import grid, nccl_tests, table_yaml
from commcc.timing.cost.tables.source import TableSource, check_rows

if TYPE_CHECKING:
    from commcc.timing.cost.tables.source import Row

_YAML = re.compile(r"^(table|collectives)\s*:", re.MULTILINE)
_PROFILE = re.compile(r"^profile\s*:", re.MULTILINE)


def load_table(path: str, *, ranks_per_node: int = 8, skew: float = 1.0) -> TableSource:
    """The times in one file; see :class:`TableSource` for the two settings.

    Raises :class:`InputError` with file, line and reason when the file is none of the three formats, or
    anything in it is wrong.
    """
    rows = _rows(read_text(path), path)
    check_rows(rows, path)
    return TableSource(f"table {Path(path).name}", tuple(rows), ranks_per_node, skew)


def _rows(text: str, path: str) -> list[Row]:
    lines = re.split(r"\r\n|\r|\n", text)
    if any(map(nccl_tests.is_header, lines)):
        return nccl_tests.read_rows(lines, path)
    if any(map(grid.is_header, lines)):
        return grid.read_rows(lines, path)
    if _YAML.search(text):
        return table_yaml.read_rows(text, path)
    if _PROFILE.search(text):
        raise InputError("is a profile, not a table", where=path, hint=f"give it as profile={path}")
    raise InputError(
        "is no table of collectives that commcc knows",
        where=path,
        hint="give commcc's YAML ('table: 1'), the output of nccl-tests, or a table with 'Group Size' and 'Collective'",
    )
