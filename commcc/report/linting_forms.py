"""Findings of ``commcc lint`` in the forms that services read: workflow commands of GitHub, JUnit XML, SARIF.

GitHub Actions shows workflow commands next to the code::

    ::warning file=dumps/bw.fx.txt,line=203,title=wait-after-launch::nothing runs between ...

They are escaped as the runner's toolkit does: ``%``, carriage return and line feed in messages, also ``:`` and ``,`` in
properties (actions/toolkit, packages/core/src/command.ts). GitHub shows ten annotations of each severity of one step,
so the heaviest come first; a line of a compressed file is not given, for there is none to show.

In JUnit XML a graph is a test suite and a rule a test case, which fails when the rule found an error; warnings and
notes are its output. A graph that could not be read is a suite with one case in error. Rules without a limit to check
are skipped. No times are written, so that equal runs give equal bytes.

SARIF 2.1.0 is what code scanning services read (OASIS, sarif-v2.1.0-os, sections named below). Results are located in
the file of the graph, at the line of the node where the file is plain text, and at the node by name (a logical
location, 3.33). Every rule is described with its help (3.49). A graph that cannot be read is a notification of the
invocation (3.20.21), which then was not successful. Paths are relative to the working folder, under the base
``%SRCROOT%``, which upload tools set to the root of the checkout.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.etree import ElementTree as Xml

from commcc import __version__
from commcc.base.options import options_of
from commcc.base.text import escaped, json_text, one_line
from commcc.lint.registry import RULES
from commcc.report.linting import by_severity, file_of, message, summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from commcc.base.terms import Json
    from commcc.lint.types import Rule

    Document = Mapping[str, Any]

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_ANNOTATIONS = {"error": "error", "warning": "warning", "info": "notice"}
_LEVELS = {"error": "error", "warning": "warning", "info": "note", "off": "none"}
_INDEX = {rule.id: number for number, rule in enumerate(RULES)}


def is_packed(file: str) -> bool:
    """Whether a line number of the text says nothing about the file."""
    return file.lower().endswith((".gz", ".pt2"))


def github(document: Document, top: int) -> str:
    """All annotations, a line each, and the summary."""
    lines = []
    for graph in document["graphs"]:
        if graph["error"] is not None:
            properties = {"file": file_of(graph["graph"]), "title": "cannot be read"}
            lines.append(_command("error", properties, one_line(graph["error"])))
    for severity in _ANNOTATIONS:
        for graph in (*document["graphs"], {"graph": "", "rules": document["across"]}):
            lines += _annotations(graph, severity, top)
    return "\n".join([*lines, one_line(summary(document))]) + "\n"


def _annotations(graph: Document, severity: str, top: int) -> Iterator[str]:
    level = _ANNOTATIONS[severity]
    for reported_as, outcome, findings, more in by_severity(graph["rules"]):
        if reported_as != severity:
            continue
        whole: Document = {"file": file_of(graph["graph"]), "line": None}
        for finding in findings[:top]:
            spot = finding["nodes"][0] if finding["nodes"] else whole
            properties = {"file": spot["file"]} if spot["file"] else {}
            if spot["line"] is not None and not is_packed(spot["file"]):
                properties["line"] = str(spot["line"])
            yield _command(level, {**properties, "title": outcome["rule"]}, message(finding))
        left = len(findings) + more - min(top, len(findings))
        if left:
            yield f"{outcome['rule']}: and {left:,} more in {one_line(graph['graph'] or 'all graphs')}"


def _command(level: str, properties: Mapping[str, str], text: str) -> str:
    def data(part: str) -> str:
        return part.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    values = {key: data(one_line(value)).replace(":", "%3A").replace(",", "%2C") for key, value in properties.items()}
    return f"::{level} {','.join(f'{key}={value}' for key, value in values.items())}::{data(text)}"


def junit(document: Document, top: int) -> str:
    """The whole file; what XML cannot hold is spelt out in it, as every text is on one line."""
    document = escaped(document)
    root = Xml.Element("testsuites", {"name": "commcc lint"})
    for graph in document["graphs"]:
        suite = Xml.SubElement(root, "testsuite", {"name": graph["graph"]})
        if graph["error"] is not None:
            case = _case(suite, graph["graph"], "read")
            Xml.SubElement(case, "error", {"message": graph["error"], "type": "input"})
        for outcome in graph["rules"]:
            _case_of(_case(suite, graph["graph"], outcome["rule"]), outcome, top)
    if document["across"]:
        suite = Xml.SubElement(root, "testsuite", {"name": "all graphs"})
        for outcome in document["across"]:
            _case_of(_case(suite, "all graphs", outcome["rule"]), outcome, top)
    for suite in root:
        _count(suite, suite.findall("testcase"))
    _count(root, root.findall("testsuite/testcase"))
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode", xml_declaration=False).join(
        ('<?xml version="1.0" encoding="utf-8"?>\n', "\n")
    )


def _case(suite: Xml.Element, graph: str, name: str) -> Xml.Element:
    return Xml.SubElement(suite, "testcase", {"classname": graph, "name": name})


def _case_of(case: Xml.Element, outcome: Document, top: int) -> None:
    if outcome["skipped"] is not None:
        Xml.SubElement(case, "skipped", {"message": outcome["skipped"]})
        return
    errors = [finding for finding in outcome["findings"] if finding["severity"] == "error"]
    others = [finding for finding in outcome["findings"] if finding["severity"] != "error"]
    more = outcome["more"]
    if errors:
        failure = Xml.SubElement(case, "failure", {"message": errors[0]["text"], "type": outcome["rule"]})
        failure.text = _listed(errors, more, top)
    if others:
        Xml.SubElement(case, "system-out").text = _listed(others, 0 if errors else more, top)


def _listed(findings: list[Document], more: int, top: int) -> str:
    lines = [f"{finding['severity']}: {message(finding)}" for finding in findings[:top]]
    left = len(findings) + more - len(lines)
    return "\n".join([*lines, *([f"and {left:,} more"] if left else [])])


def _count(element: Xml.Element, cases: Iterable[Xml.Element]) -> None:
    listed = list(cases)
    element.set("tests", str(len(listed)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(name, str(sum(case.find(tag) is not None for case in listed)))


def sarif(document: Document, exit_code: int) -> str:
    """The whole file."""
    graphs = (*document["graphs"], {"graph": "", "rules": document["across"]})
    results: list[Json] = [
        _result(graph["graph"], outcome["rule"], finding)
        for graph in graphs
        for outcome in graph["rules"]
        for finding in outcome["findings"]
    ]
    rules: list[Json] = [
        {
            "id": rule.id,
            "shortDescription": {"text": rule.summary},
            "fullDescription": {"text": rule.about},
            "help": {"text": _help(rule, ""), "markdown": _help(rule, "`")},
            "defaultConfiguration": {"level": _LEVELS[str(rule.severity)]},
        }
        for rule in RULES
    ]
    unread: list[Json] = [
        {
            "level": "error",
            "message": {"text": one_line(graph["error"])},
            "locations": [{"physicalLocation": {"artifactLocation": _artifact(file_of(graph["graph"]))}}],
        }
        for graph in document["graphs"]
        if graph["error"] is not None
    ]
    invocation: dict[str, Json] = {
        "executionSuccessful": not unread,
        "exitCode": exit_code,
        "toolExecutionNotifications": unread,
    }
    run: dict[str, Json] = {
        "tool": {"driver": {"name": "commcc", "version": __version__, "rules": rules}},
        "invocations": [invocation],
        "columnKind": "utf16CodeUnits",
        "results": results,
    }
    return json_text({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1)


def _help(rule: Rule, quoted: str) -> str:
    """The paragraph of the rule and a line for each of its options."""
    options = options_of(rule.options).items()
    lines = [f"- {quoted}{name}{quoted}: {option.help} ({option.takes})" for name, option in options]
    return "\n".join([rule.about, *(["", *lines] if lines else [])])


def _result(graph: str, rule: str, finding: Document) -> dict[str, Json]:
    spots = finding["nodes"]
    first: list[dict[str, Json]] = []
    if spots:
        first = [_location(spots[0])]
    elif graph:
        first = [{"physicalLocation": {"artifactLocation": _artifact(file_of(graph))}}]
    related: list[Json] = [
        {"id": number, "message": {"text": one_line(spot["node"])}, **_location(spot)}
        for number, spot in enumerate(spots[1:], 1)
    ]
    properties = {key: finding[key] for key in ("measured", "limit", "unit") if finding["measured"] is not None}
    # The same from run to run as long as it is about the same nodes; figures in the text may change.
    about = [spot["node"] for spot in spots] or [finding["text"].partition(" ")[0]]
    identity = "\0".join([Path(graph).as_posix(), rule, *about]).encode(errors="backslashreplace")
    return {
        "ruleId": rule,
        "ruleIndex": _INDEX[rule],
        "level": _LEVELS[finding["severity"]],
        "message": {"text": message(finding)},
        "locations": [*first],
        **({"relatedLocations": related} if related else {}),
        "partialFingerprints": {"commccFinding/v1": hashlib.sha256(identity).hexdigest()[:32]},
        **({"properties": properties} if properties else {}),
    }


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
