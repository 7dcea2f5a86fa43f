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

from commcc.serialization.logs.graph_text import HEADER, GraphText, Kind, Line, kind_of, name_of, numbered_lines

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
    for record, payload in _records(text):
        title = _title(record)
        block = None if title is None else graph_in_payload(title, payload)
        if title is not None and block is not None:
            base = name_of(_compile_id(record), title)
            found.append(GraphText(base, kind_of(title), file, partial(_given, block), _rank(record)))
    return found


def _given(lines: list[Line]) -> list[Line]:
    return lines


def graph_in_payload(title: str, payload: list[Line]) -> list[Line] | None:
    """The lines of the payload's graph; None when it holds none."""
    if kind_of(title) is Kind.REPRO:
        return payload if any(line.startswith("def load_args(") for _, line in payload) else None
    for position, (number, line) in enumerate(payload[:50]):
        header = HEADER.fullmatch(line)
        if header is not None:
            return [(number, f"class {header.group(1)}(torch.nn.Module):"), *payload[position + 1 :]]
    return None


def _records(text: str) -> Iterator[tuple[dict[str, Any], list[Line]]]:
    """JSON, and payload lines without their TAB, of every record that has a payload."""
    record: dict[str, Any] | None = None
    payload: list[Line] = []
    for number, line in numbered_lines(text):
        if line.startswith("\t"):
            if record is not None and len(line) > 1:
                payload.append((number, line[1:]))
            continue
        if record is not None:
            yield record, payload
        brace = line.find("] {") if _PAYLOAD in line else -1
        record, payload = _json(line[brace + 2 :]) if brace >= 0 else None, []
    if record is not None:
        yield record, payload


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
