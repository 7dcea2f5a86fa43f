"""Graphs in folders: what ``tlparse`` writes, and the logs that TORCH_TRACE=FOLDER writes.

    out/-_0_0_0/aot_forward_graph_7.txt       -> 0_0/aot_forward_graph
    out/rank_3/-_0_0_1/fx_graph_runnable_9.txt -> rank3/0_0_1/fx_graph_runnable
    dir/dedicated_log_torch_trace_rank_3_ab12.log -> rank3/0_0/aot_forward_graph, ...

Limits: links are not followed; at most 20,000 files are looked at.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from commcc.base.errors import InputError
from commcc.serialization.logs import trace_log
from commcc.serialization.logs.graph_text import GraphText, Kind, Line, kind_of, name_of, numbered_lines
from commcc.serialization.sources import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MOST_FILES = 20_000
_TRACE_FILE = re.compile(r"dedicated_log_torch_trace_(?:rank_(?P<rank>\d{1,7})_)?.*\.log(?:\.gz)?")
_COMPILE_FOLDER = re.compile(r"[^_]{1,20}_(?P<frame>\d{1,9})_(?P<compile>\d{1,9})_(?P<attempt>\d{1,9})")
_RANK_FOLDER = re.compile(r"rank_?(?P<rank>\d{1,7})")
_GRAPH_FILE = re.compile(r"(?P<title>[\w.-]{1,200}?)_(?P<number>\d{1,9})\.txt")
_HINT = "name a graph file, a folder that tlparse wrote, or a folder of TORCH_TRACE logs"


def find_graphs(folder: Path, *, only_rank: int | None = None) -> list[GraphText]:
    """All graphs in a folder, in a fixed order, not yet named.

    only_rank: leave out the logs and folders of other ranks (they can be large).
    """
    traces = [path for path in _entries(folder) if path.is_file() and _TRACE_FILE.fullmatch(path.name)]
    if traces:
        return list(_from_traces(traces, only_rank))
    if _COMPILE_FOLDER.fullmatch(folder.resolve().name):
        return list(_from_compile_folder(folder, None))
    return list(_from_tlparse(folder, only_rank))


def _entries(folder: Path) -> list[Path]:
    try:
        found = [path for path in islice(folder.iterdir(), _MOST_FILES + 1) if not path.is_symlink()]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(folder)) from None
    if len(found) > _MOST_FILES:
        raise InputError(f"holds more than {_MOST_FILES} files", where=str(folder), hint=_HINT)
    return sorted(found, key=lambda path: _natural(path.name))


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sort key under which ``rank_10`` follows ``rank_9``."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", name))


def _from_traces(traces: list[Path], only_rank: int | None) -> Iterator[GraphText]:
    ranks: dict[int | None, Path] = {}
    for path in traces:
        match = _TRACE_FILE.fullmatch(path.name)
        rank = int(match["rank"]) if match is not None and match["rank"] is not None else None
        if only_rank is not None and rank not in (None, only_rank):
            continue
        # Two logs of one rank are two runs; their graphs have the same names otherwise.
        run = "" if ranks.setdefault(rank, path) == path else name_of(None, path.name.split(".")[0]) + "/"
        for graph in trace_log.find_graphs(read_text(path), str(path)):
            yield replace(graph, base=run + graph.base, rank=graph.rank if rank is None else rank)


def _from_tlparse(folder: Path, only_rank: int | None) -> Iterator[GraphText]:
    for path in _folders(folder):
        match = _RANK_FOLDER.fullmatch(path.name)
        if match is None:
            yield from _from_compile_folder(path, None)
            continue
        rank = int(match["rank"])
        for inner in _folders(path) if only_rank in (None, rank) else []:
            yield from _from_compile_folder(inner, rank)


def _folders(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.is_dir()]


def _from_compile_folder(folder: Path, rank: int | None) -> Iterator[GraphText]:
    match = _COMPILE_FOLDER.fullmatch(folder.resolve().name)
    if match is None:
        return
    attempt = "" if int(match["attempt"]) == 0 else f"_{match['attempt']}"
    compile_id = f"{match['frame']}_{match['compile']}{attempt}"
    numbered = []
    for path in _entries(folder):
        file = _GRAPH_FILE.fullmatch(path.name)
        if file is not None and path.is_file():
            numbered.append((int(file["number"]), file["title"], path))
    for _, title, path in sorted(numbered):
        if _holds_graph(path, title):
            base = name_of(compile_id, title)
            yield GraphText(base, kind_of(title), str(path), partial(_lines, path, title), rank)


def _holds_graph(path: Path, title: str) -> bool:
    if kind_of(title) is not Kind.GRAPH:
        return True
    with path.open("rb") as stream:
        head = stream.read(1 << 14)
    return trace_log.graph_in_payload(title, list(numbered_lines(head.decode("utf-8", "replace")))) is not None


def _lines(path: Path, title: str) -> list[Line]:
    block = trace_log.graph_in_payload(title, list(numbered_lines(read_text(path))))
    if block is None:
        raise InputError("holds no graph", where=str(path), hint="run tlparse again")
    return block
