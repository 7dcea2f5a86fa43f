"""Graphs in the structured logs that TORCH_TRACE=FOLDER writes.

    V1121 06:44:03.587 4743 torch/...py:1886] {"aot_forward_graph": {}, "rank": 0, ..., "has_payload": "be4c5f..."}
    <TAB>class GraphModule(torch.nn.Module):
    <TAB>    def forward(self, ...

Each record is one line of JSON; its payload follows, every line behind one TAB. Payloads that hold a
graph are found by their content and named after the record.

Limits: checksums of payloads are not compared; a payload that was cut off shows as a parse error.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from commcc.serialization.graph_text import HEADER, GraphText, Kind, join_lines, kind_of, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_RECORD = re.compile(r"^[^\n]{0,200}?V\d{4} \d\d:\d\d:\d\d\.\d{1,9} \d{1,20} [^\]\n]{1,500}:\d{1,9}\] \{", re.MULTILINE)
_PAYLOAD = '"has_payload"'


def is_trace_log(text: str) -> bool:
    """Whether the text is a TORCH_TRACE log."""
    return _RECORD.search(text, 0, 1 << 16) is not None and _PAYLOAD in text


def find_graphs(text: str, file: str) -> list[GraphText]:
    """All graphs in a TORCH_TRACE log, in order, not yet named."""
    found = []
    for number, record, payload in _records(text):
        title = _title(record)
        block = None if title is None else graph_in_payload(title, payload)
        if title is None or block is None:
            continue
        numbered = [(number + 1 + i, line) for i, line in block]
        base = name_of(_compile_id(record), title)
        found.append(GraphText(base, kind_of(title), file, partial(join_lines, numbered), _rank(record)))
    return found


def graph_in_payload(title: str, payload: list[str]) -> list[tuple[int, str]] | None:
    """The numbered lines of the payload's graph; None when it holds none."""
    if kind_of(title) is Kind.REPRO:
        return list(enumerate(payload)) if any(line.startswith("def load_args(") for line in payload) else None
    for number, line in enumerate(payload[:50]):
        header = HEADER.fullmatch(line)
        if header is not None:
            first = (number, f"class {header.group(1)}(torch.nn.Module):")
            return [first, *enumerate(payload[number + 1 :], number + 1)]
    return None


def _records(text: str) -> Iterator[tuple[int, dict[str, Any], list[str]]]:
    """(line number, JSON, payload lines without their TAB) of every record that has a payload."""
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        line = lines[number]
        start = number
        number += 1
        if _PAYLOAD not in line or (brace := line.find("] {")) < 0:
            continue
        while number < len(lines) and lines[number].startswith("\t"):
            number += 1
        record = _json(line[brace + 2 :])
        if record is not None:
            yield start, record, [payload[1:] for payload in lines[start + 1 : number]]


def _json(text: str) -> dict[str, Any] | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _title(record: dict[str, Any]) -> str | None:
    """What PyTorch calls the payload: the artifact's name, else the record's first key."""
    artifact = record.get("artifact")
    if isinstance(artifact, dict):
        name = artifact.get("name")
        return name if isinstance(name, str) else None
    return next(iter(record), None)


def _compile_id(record: dict[str, Any]) -> str | None:
    parts = [record.get("frame_id"), record.get("frame_compile_id")]
    if any(not isinstance(part, int) for part in parts):
        return None
    if record.get("attempt"):
        parts.append(record["attempt"])
    return "_".join(str(part) for part in parts)


def _rank(record: dict[str, Any]) -> int | None:
    rank = record.get("rank")
    return rank if isinstance(rank, int) and not isinstance(rank, bool) else None
