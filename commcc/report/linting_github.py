"""Findings as workflow commands of GitHub Actions, which shows them beside the code::

    ::warning file=dumps/bw.fx.txt,line=203,title=wait-after-launch::nothing runs between ...

Escaped as the runner's toolkit does: ``%``, carriage return and line feed in messages, also ``:`` and ``,`` in
properties (actions/toolkit, packages/core/src/command.ts). Limits: GitHub shows ten annotations of each
severity of one step, so the heaviest come first; a line of a compressed file is not given, for there is none to
show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.base.text import one_line
from commcc.report.linting import by_severity, file_of, message, summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Document = Mapping[str, Any]

_LEVELS = {"error": "error", "warning": "warning", "info": "notice"}


def github(document: Document, top: int) -> str:
    """All annotations, a line each, and the summary."""
    lines = [*_unread(document)]
    for severity in _LEVELS:
        for graph in (*document["graphs"], {"graph": "", "rules": document["across"]}):
            lines += _graph(graph, severity, top)
    return "\n".join([*lines, one_line(summary(document))]) + "\n"


def _unread(document: Document) -> Iterator[str]:
    for graph in document["graphs"]:
        if graph["error"] is not None:
            yield _command(
                "error", {"file": file_of(graph["graph"]), "title": "cannot be read"}, one_line(graph["error"])
            )


def _graph(graph: Document, severity: str, top: int) -> Iterator[str]:
    level = _LEVELS[severity]
    for found_as, outcome, found, more in by_severity(graph["rules"]):
        if found_as != severity:
            continue
        for finding in found[:top]:
            yield _command(level, _properties(graph["graph"], outcome["rule"], finding), message(finding))
        left = len(found) + more - min(top, len(found))
        if left:
            yield f"{outcome['rule']}: and {left:,} more in {one_line(graph['graph'] or 'all graphs')}"


def _properties(graph: str, rule: str, finding: Document) -> dict[str, str]:
    spot = finding["nodes"][0] if finding["nodes"] else None
    file = file_of(graph) if spot is None else spot["file"]
    found = {"file": file} if file else {}
    if spot is not None and spot["line"] is not None and not is_packed(file):
        found["line"] = str(spot["line"])
    return {**found, "title": rule}


def _command(level: str, properties: Mapping[str, str], text: str) -> str:
    said = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{level} {said}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(one_line(text)).replace(":", "%3A").replace(",", "%2C")


def is_packed(file: str) -> bool:
    """Whether a line number of the text says nothing about the file."""
    return file.lower().endswith((".gz", ".pt2"))
