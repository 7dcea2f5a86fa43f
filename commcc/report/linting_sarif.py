"""Findings as SARIF 2.1.0, which code scanning services read (OASIS, sarif-v2.1.0-os, sections named below).

Results are located in the file of the graph, at the line of the node where the file is plain text, and at the node
by name (a logical location, 3.33). Every rule is described with its help (3.49). A graph that cannot be read
is a notification of the invocation (3.20.21), which then was not successful. Paths are relative to the working
folder, under the base ``%SRCROOT%``, which upload tools set to the root of the checkout.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from commcc import __version__
from commcc.base.options import options_of
from commcc.base.text import json_text, one_line
from commcc.lint.registry import RULES
from commcc.report.linting import file_of, message
from commcc.report.linting_github import is_packed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.base.terms import Json
    from commcc.lint.types import Rule

    Document = Mapping[str, Any]

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "info": "note", "off": "none"}
_INDEX = {rule.id: number for number, rule in enumerate(RULES)}


def sarif(document: Document, exit_code: int) -> str:
    """The whole file."""
    run: dict[str, Json] = {
        "tool": {"driver": {"name": "commcc", "version": __version__, "rules": [_rule(rule) for rule in RULES]}},
        "invocations": [_invocation(document, exit_code)],
        "columnKind": "utf16CodeUnits",
        "results": [*_results(document)],
    }
    return json_text({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1)


def _rule(rule: Rule) -> dict[str, Json]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.about},
        "help": {"text": _help(rule, ""), "markdown": _help(rule, "`")},
        "defaultConfiguration": {"level": _LEVELS[str(rule.severity)]},
    }


def _help(rule: Rule, quoted: str) -> str:
    """The paragraph of the rule and a line for each of its options."""
    options = options_of(rule.options).items()
    lines = [f"- {quoted}{name}{quoted}: {each.help} ({each.takes})" for name, each in options]
    return "\n".join([rule.about, *(["", *lines] if lines else [])])


def _invocation(document: Document, exit_code: int) -> dict[str, Json]:
    unread = [graph for graph in document["graphs"] if graph["error"] is not None]
    notes: list[Json] = [
        {
            "level": "error",
            "message": {"text": one_line(graph["error"])},
            "locations": [{"physicalLocation": {"artifactLocation": _artifact(file_of(graph["graph"]))}}],
        }
        for graph in unread
    ]
    return {
        "executionSuccessful": not unread,
        "exitCode": exit_code,
        "toolExecutionNotifications": notes,
    }


def _results(document: Document) -> Iterator[Json]:
    for graph in document["graphs"]:
        for outcome in graph["rules"]:
            for finding in outcome["findings"]:
                yield _result(graph["graph"], outcome["rule"], finding)
    for outcome in document["across"]:
        for finding in outcome["findings"]:
            yield _result("", outcome["rule"], finding)


def _result(graph: str, rule: str, finding: Document) -> dict[str, Json]:
    spots = finding["nodes"]
    first = [_location(spots[0])] if spots else [_whole(graph)] if graph else []
    related: list[Json] = [
        {"id": number, "message": {"text": one_line(spot["node"])}, **_location(spot)}
        for number, spot in enumerate(spots[1:], 1)
    ]
    properties = {key: finding[key] for key in ("measured", "limit", "unit") if finding["measured"] is not None}
    return {
        "ruleId": rule,
        "ruleIndex": _INDEX[rule],
        "level": _LEVELS[finding["severity"]],
        "message": {"text": message(finding)},
        "locations": [*first],
        **({"relatedLocations": related} if related else {}),
        "partialFingerprints": {"commccFinding/v1": _fingerprint(graph, rule, finding)},
        **({"properties": properties} if properties else {}),
    }


def _fingerprint(graph: str, rule: str, finding: Document) -> str:
    """The same from run to run as long as it is about the same nodes; figures in the text may change."""
    about = [spot["node"] for spot in finding["nodes"]] or [finding["text"].partition(" ")[0]]
    text = "\0".join([Path(graph).as_posix(), rule, *about])
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:32]


def _whole(graph: str) -> dict[str, Json]:
    return {"physicalLocation": {"artifactLocation": _artifact(file_of(graph))}}


def _location(spot: Document) -> dict[str, Json]:
    file = spot["file"]
    physical: dict[str, Json] = {"artifactLocation": _artifact(file)}
    if spot["line"] is not None and not is_packed(file):
        physical["region"] = {"startLine": spot["line"]}
    path = spot["node"] if spot["module"] is None else f"{spot['module']}.{spot['node']}"
    logical: Json = [{"name": one_line(spot["node"]), "fullyQualifiedName": one_line(path), "kind": "variable"}]
    return {"physicalLocation": physical, "logicalLocations": logical}


def _artifact(file: str) -> dict[str, Json]:
    path = Path(file)
    if path.is_absolute():
        return {"uri": path.as_uri()}
    return {"uri": quote(os.fsencode(path.as_posix())), "uriBaseId": "%SRCROOT%"}
