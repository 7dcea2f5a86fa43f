"""Findings as JUnit XML: a test suite for each graph, a test case for each rule.

A case fails when the rule found an error; warnings and notes are its output. A graph that could not be read is a
suite with one case in error. Rules without a limit to check are skipped. No times are written, so that equal
runs give equal bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as Xml

from commcc.base.text import escaped
from commcc.report.linting import message

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Document = Mapping[str, Any]


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
            _rule(_case(suite, graph["graph"], outcome["rule"]), outcome, top)
    if document["across"]:
        suite = Xml.SubElement(root, "testsuite", {"name": "all graphs"})
        for outcome in document["across"]:
            _rule(_case(suite, "all graphs", outcome["rule"]), outcome, top)
    for suite in root:
        _count(suite, suite.findall("testcase"))
    _count(root, root.findall("testsuite/testcase"))
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode", xml_declaration=False).join(
        ('<?xml version="1.0" encoding="utf-8"?>\n', "\n")
    )


def _case(suite: Xml.Element, graph: str, name: str) -> Xml.Element:
    return Xml.SubElement(suite, "testcase", {"classname": graph, "name": name})


def _rule(case: Xml.Element, outcome: Document, top: int) -> None:
    if outcome["skipped"] is not None:
        Xml.SubElement(case, "skipped", {"message": outcome["skipped"]})
        return
    errors = [each for each in outcome["findings"] if each["severity"] == "error"]
    others = [each for each in outcome["findings"] if each["severity"] != "error"]
    more = outcome["more"]
    if errors:
        failure = Xml.SubElement(case, "failure", {"message": errors[0]["text"], "type": outcome["rule"]})
        failure.text = _listed(errors, more, top)
    if others:
        Xml.SubElement(case, "system-out").text = _listed(others, 0 if errors else more, top)


def _listed(found: list[Document], more: int, top: int) -> str:
    lines = [f"{each['severity']}: {message(each)}" for each in found[:top]]
    left = len(found) + more - len(lines)
    return "\n".join([*lines, *([f"and {left:,} more"] if left else [])])


def _count(element: Xml.Element, cases: Iterable[Xml.Element]) -> None:
    listed = list(cases)
    element.set("tests", str(len(listed)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(name, str(sum(case.find(tag) is not None for case in listed)))
