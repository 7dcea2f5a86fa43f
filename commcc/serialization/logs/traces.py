"""Graphs in structured traces: logs that TORCH_TRACE=FOLDER writes, and folders that ``tlparse`` makes of them.

A record in a log is one line of JSON; its payload follows, every line behind one TAB. Payloads that hold a
graph are found by their content and named after the record::

    V1121 06:44:03.587 4743 torch/...py:1886] {"aot_forward_graph": {}, "rank": 0, ..., "has_payload": "be4c5f..."}
    <TAB>class GraphModule(torch.nn.Module):
    <TAB>    def forward(self, ...

In folders, files are found by their names::

    out/-_0_0_0/aot_forward_graph_7.txt               -> 0_0/aot_forward_graph
    out/rank_3/-_0_0_1/fx_graph_runnable_9.txt        -> rank3/0_0_1/fx_graph_runnable
    dir/dedicated_log_torch_trace_rank_3_ab12.log     -> rank3/0_0/aot_forward_graph, ...

Limits: checksums of payloads are not compared; a payload that was cut off shows as a parse error. In folders, links
are not followed, and at most 20,000 files are looked at.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from commcc.base.errors import InputError
from commcc.base.text import natural_key
from commcc.serialization.logs.graph_text import HEADER, GraphText, Kind, Line, kind_of, name_of, numbered_lines
from commcc.serialization.logs.symbol_facts import SymbolFacts
from commcc.serialization.sources import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_RECORD = re.compile(r"^[^\n]{0,200}?V\d{4} \d\d:\d\d:\d\d\.\d{1,9} \d{1,20} [^\]\n]{1,500}:\d{1,9}\] \{", re.MULTILINE)
_PAYLOAD = '"has_payload"'
#: Records without a payload that say something about symbols.
_FACTS = ("create_symbol", "guard_added_fast")
_MOST_FILES = 20_000
_TRACE_FILE = re.compile(r"dedicated_log_torch_trace_(?:rank_(?P<rank>\d{1,7})_)?.*\.log(?:\.gz)?")
_COMPILE_FOLDER = re.compile(r"[^_]{1,20}_(?P<frame>\d{1,9})_(?P<compile>\d{1,9})_(?P<attempt>\d{1,9})")
_RANK_FOLDER = re.compile(r"rank_?(?P<rank>\d{1,7})")
_GRAPH_FILE = re.compile(r"(?P<title>[\w.-]{1,200}?)_(?P<number>\d{1,9})\.txt")
_HINT = "name a graph file, a folder that tlparse wrote, or a folder of TORCH_TRACE logs"


def is_trace_log(text: str) -> bool:
    """Whether the text is a TORCH_TRACE log."""
    return _RECORD.search(text, 0, 1 << 16) is not None and _PAYLOAD in text


def find_in_log(text: str, file: str) -> list[GraphText]:
    """All graphs in a TORCH_TRACE log, in order, not yet named."""
    graphs = []
    facts: dict[str | None, SymbolFacts] = defaultdict(SymbolFacts)
    for record, payload in _records(text):
        facts[_compile_id(record)].record(record)
        # What PyTorch calls the payload: the artifact's name, else the record's first key.
        artifact = record.get("artifact")
        title = artifact.get("name") if isinstance(artifact, dict) else next(iter(record), None)
        if not isinstance(title, str) or (block := _graph_in(title, payload)) is None:
            continue
        rank = record.get("rank")
        rank = rank if isinstance(rank, int) and not isinstance(rank, bool) else None
        name = name_of(_compile_id(record), title)
        known = facts[_compile_id(record)]
        graphs.append(GraphText(name, kind_of(title), file, partial(list, block), rank, facts=known))
    return graphs


def _graph_in(title: str, payload: list[Line]) -> list[Line] | None:
    """The lines of the payload's graph; None when it holds none."""
    # Its class is not the only thing in it.
    if kind_of(title) is Kind.REPRO:
        return payload if any(line.startswith("def load_args(") for _, line in payload) else None
    # Comments and imports may precede the class.
    for position, (number, line) in enumerate(payload[:50]):
        header = HEADER.fullmatch(line)
        if header is not None:
            return [(number, f"class {header.group(1)}(torch.nn.Module):"), *payload[position + 1 :]]
    return None


def _records(text: str) -> Iterator[tuple[dict[str, Any], list[Line]]]:
    """JSON, and payload lines without their TAB, of every record that has a payload or facts about symbols."""
    record: dict[str, Any] | None = None
    payload: list[Line] = []
    for number, line in numbered_lines(text):
        if line.startswith("\t"):
            if record is not None and len(line) > 1:
                payload.append((number, line[1:]))
            continue
        if record is not None:
            yield record, payload
        # Most records have no payload, and need no parsing.
        brace = line.find("] {") if _PAYLOAD in line or any(word in line for word in _FACTS) else -1
        record, payload = None, []
        if brace >= 0:
            # A line that is no JSON was cut, or is none of these records.
            with suppress(ValueError, RecursionError):
                data = json.loads(line[brace + 2 :])
                record = data if isinstance(data, dict) else None
    if record is not None:
        yield record, payload


def _compile_id(record: dict[str, Any]) -> str | None:
    parts = [record.get("frame_id"), record.get("frame_compile_id")]
    if any(not isinstance(part, int) for part in parts):
        return None
    # As PyTorch prints it: 0_0, and 0_0_1 after a restart.
    if record.get("attempt"):
        parts.append(record["attempt"])
    return "_".join(str(part) for part in parts)


def find_in_folder(folder: Path, *, only_rank: int | None = None) -> list[GraphText]:
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
        paths = [path for path in islice(folder.iterdir(), _MOST_FILES + 1) if not path.is_symlink()]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(folder)) from None
    if len(paths) > _MOST_FILES:
        raise InputError(f"holds more than {_MOST_FILES} files", where=str(folder), hint=_HINT)

    return sorted(paths, key=lambda path: natural_key(path.name))


def _from_traces(traces: list[Path], only_rank: int | None) -> Iterator[GraphText]:
    ranks: dict[int | None, Path] = {}
    for path in traces:
        match = _TRACE_FILE.fullmatch(path.name)
        rank = int(match["rank"]) if match is not None and match["rank"] is not None else None
        # A log without a rank may hold any.
        if only_rank is not None and rank not in (None, only_rank):
            continue
        # Two logs of one rank are two runs; their graphs have the same names otherwise.
        run = "" if ranks.setdefault(rank, path) == path else name_of(None, path.name.split(".")[0]) + "/"
        for graph in find_in_log(read_text(path), str(path)):
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
    # The name is enough where it is one of PyTorch's; all others need a look inside.
    if kind_of(title) is not Kind.GRAPH:
        return True
    with path.open("rb") as stream:
        head = stream.read(1 << 14)
    return _graph_in(title, list(numbered_lines(head.decode("utf-8", "replace")))) is not None


def _lines(path: Path, title: str) -> list[Line]:
    block = _graph_in(title, list(numbered_lines(read_text(path))))
    if block is None:
        raise InputError("holds no graph", where=str(path), hint="run tlparse again")
    return block
