"""Reads a table of any of the three formats; which one it is shows in its lines.

    load_table("all_gather_perf_8.txt").name       # 'table all_gather_perf_8.txt'

1. nccl-tests: a line of columns that begins with ``size count type``
2. a table of sizes: a line with cells between ``|``, two of them ``Group Size`` and ``Collective``
3. commcc's YAML: a line that begins with ``table:``::

    table: 1
    bytes: input                 # of one rank; or total: what a gather ends with, a reduction begins with
    collectives:
    - kind: all_gather
      group_size: 64
      group: dp_shard            # optional, as are nodes and dtype: only for this group
      nodes: 8
      dtype: bfloat16
      us: {1 MiB: 85.2, 4 MiB: 120, 67108864: 1240.5}

Sizes ascend. All mistakes of a file are said at once.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from commcc.base.errors import InputError
from commcc.base.terms import Kind
from commcc.base.text import shown
from commcc.base.yaml_file import parse_yaml, read_text
from commcc.timing.cost.profiles.dtypes import ITEM_BYTES
from commcc.timing.cost.tables import grid, nccl_tests
from commcc.timing.cost.tables.sizes import LONGEST_US, MOST_RANKS, read_size
from commcc.timing.cost.tables.source import Row, TableSource, check_rows

if TYPE_CHECKING:
    from commcc.base.yaml_file import Node


_YAML = re.compile(r"^(table|collectives)\s*:", re.MULTILINE)
_PROFILE = re.compile(r"^profile\s*:", re.MULTILINE)


def load_table(path: str, *, ranks_per_node: int = 8, skew: float = 1.0) -> TableSource:
    """The times in one file; see :class:`TableSource` for the two settings.

    Raises :class:`InputError` with file, line and reason when the file is none of the three formats, or
    anything in it is wrong.
    """
    text = read_text(path)
    lines = re.split(r"\r\n|\r|\n", text)
    if any(map(nccl_tests.is_header, lines)):
        rows = nccl_tests.read_rows(lines, path)
    elif any(map(grid.is_header, lines)):
        rows = grid.read_rows(lines, path)
    elif _YAML.search(text):
        rows = read_yaml_rows(text, path)
    elif _PROFILE.search(text):
        raise InputError("is a profile, not a table", where=path, hint=f"give it as profile={path}")
    else:
        hint = (
            "give commcc's YAML ('table: 1'), the output of nccl-tests, or a table with 'Group Size' and 'Collective'"
        )
        raise InputError("is no table of collectives that commcc knows", where=path, hint=hint)
    check_rows(rows, path)
    return TableSource(f"table {Path(path).name}", tuple(rows), ranks_per_node, skew)


VERSION = 1


def read_yaml_rows(text: str, path: str) -> list[Row]:
    """The rows of a file; :class:`~commcc.base.errors.InputError` names all its mistakes."""
    file = parse_yaml(text, path)
    top = file.root.mapping({"table", "collectives"}, {"bytes", "note"})
    top["table"].integer(least=VERSION, most=VERSION)
    total = "bytes" in top and top["bytes"].text(("input", "total")) == "total"
    rows = [_row(entry, total=total) for entry in top["collectives"].items()]
    if top["collectives"].value == []:
        top["collectives"].fail("'collectives' is empty")
    file.check()
    return rows


def _row(entry: Node, *, total: bool) -> Row:
    fields = entry.mapping({"kind", "group_size", "us"}, {"group", "nodes", "dtype"})
    kind = Kind(fields["kind"].text([str(kind) for kind in Kind]) or Kind.ALL_REDUCE)
    size = fields["group_size"].integer(least=1, most=MOST_RANKS)
    nodes = fields["nodes"].integer(least=1, most=MOST_RANKS) if "nodes" in fields else None
    if nodes is not None and nodes > size > 0:
        fields["nodes"].fail(f"{size} ranks cannot be on {nodes} nodes")
    points = _points(fields["us"], share=size if total and kind is Kind.ALL_GATHER else 1)
    return Row(
        kind=kind,
        size=size,
        points=tuple(points),
        group=fields["group"].text() if "group" in fields else None,
        nodes=nodes,
        dtype=fields["dtype"].text(ITEM_BYTES) if "dtype" in fields else None,
        line=entry.line,
    )


def _points(node: Node, share: int) -> list[tuple[int, int]]:
    """Bytes and nanoseconds; the bytes are ``share`` times those of one rank."""
    points: list[tuple[int, int]] = []
    for text, value in node.entries().items():
        ns = round(1000 * value.number(above=0, most=LONGEST_US))
        size = read_size(text)
        if size is None:
            value.fail(f"'{shown(text)}' is no size: write bytes, or as in '4 MiB'")
        elif points and size <= points[-1][0]:
            value.fail(f"size '{shown(text)}' is not larger than the one before it")
        elif size % max(1, share):
            value.fail(f"{shown(text)} in all cannot be gathered from {share} ranks alike")
        else:
            points.append((size, ns))
    if node.value == {}:
        node.fail("'us' is empty")
    return [(size // max(1, share), ns) for size, ns in points]
