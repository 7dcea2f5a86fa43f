"""Logs as collectors keep them, a JSON object for each line: the text that was logged.

    {"log":"V1121 06:44:03.583000 4743 torch/x.py:1833] [0/0] [__aot_graphs]  class ...\\n","time":"..."}

Docker, Kubernetes, Fluent Bit, Vector, CloudWatch and Google's logging each call the text another name, at the top or
in an object inside; it is the member that has most characters in all of the lines together. Where texts end their lines
themselves, as Docker's do, one that does not goes on in the next.

Limits: line numbers are those of the text, which a collector's lines have where each is one line of the log.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Where a text stands in an object: one name, or that of an object inside and one in it.
Place = tuple[str, ...]


def logged_text(text: str) -> str:
    """What was logged, where every line is a JSON object; else the text as it is."""
    lines = text.split("\n") if text.lstrip().startswith("{") else []
    records = [dict(_texts(line)) for line in lines if line.strip()]
    if not records or not all(records[:-1]):  # the last line may have been cut off
        return text
    lengths: Counter[Place] = Counter()
    for record in records:
        lengths.update({place: len(value) for place, value in record.items()})
    if not lengths:
        return text
    place = min(lengths, key=lambda place: (-lengths[place], place))
    parts = [record[place] for record in records if place in record]
    return ("" if any(part.endswith("\n") for part in parts) else "\n").join(parts)


def _texts(line: str) -> Iterator[tuple[Place, str]]:
    """The texts in one line; none where it is no JSON object."""
    try:
        record = json.loads(line)
    except ValueError:
        return
    for name, value in record.items() if isinstance(record, dict) else ():
        inside = value.items() if isinstance(value, dict) else ()
        yield from (((name, other), part) for other, part in inside if isinstance(part, str))
        if isinstance(value, str):
            yield (name,), value
