"""Checks SARIF against the parts of the 2.1.0 schema that commcc writes (OASIS sarif-schema-2.1.0.json).

Every object is described by its properties; the schema allows no others. Beside that: indices point at what they
name, lines begin at 1, URIs hold only what RFC 3986 allows.
"""

from __future__ import annotations

import re

LEVEL = ("none", "note", "warning", "error")
_URI = re.compile(r"([A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})+")

#: For each object: properties with their type, those that are required starred.
OBJECTS = {
    "log": {"$schema": str, "version*": ("2.1.0",), "runs*": ["run"]},
    "run": {"tool*": "tool", "invocations": ["invocation"], "results": ["result"], "columnKind": ("utf16CodeUnits",)},
    "tool": {"driver*": "driver"},
    "driver": {"name*": str, "version": str, "rules": ["rule"]},
    "rule": {
        "id*": str,
        "shortDescription": "text",
        "fullDescription": "text",
        "help": "text",
        "defaultConfiguration": "configuration",
    },
    "text": {"text*": str, "markdown": str},
    "configuration": {"level": LEVEL},
    "invocation": {"executionSuccessful*": bool, "exitCode": int, "toolExecutionNotifications": ["notification"]},
    "notification": {"level": LEVEL, "message*": "text", "locations": ["location"]},
    "result": {
        "ruleId": str,
        "ruleIndex": int,
        "level": LEVEL,
        "message*": "text",
        "locations": ["location"],
        "relatedLocations": ["location"],
        "partialFingerprints": dict,
        "properties": dict,
    },
    "location": {"id": int, "message": "text", "physicalLocation": "physical", "logicalLocations": ["logical"]},
    "physical": {"artifactLocation": "artifact", "region": "region"},
    "artifact": {"uri": str, "uriBaseId": str},
    "region": {"startLine": int},
    "logical": {"name": str, "fullyQualifiedName": str, "kind": str},
}


def problems(log) -> list[str]:
    """Everything that is wrong with a SARIF log, empty for a valid one."""
    found: list[str] = []
    _object(log, "log", "log", found)
    if found:
        return found
    for run in log["runs"]:
        ids = [rule["id"] for rule in run["tool"]["driver"].get("rules", [])]
        if len(set(ids)) != len(ids):
            found.append("a rule is there twice")
        for number, result in enumerate(run.get("results", [])):
            if ids[result["ruleIndex"]] != result["ruleId"]:
                found.append(f"result {number}: ruleIndex is not that of {result['ruleId']}")
            if not all(isinstance(value, str) for value in result.get("partialFingerprints", {}).values()):
                found.append(f"result {number}: a fingerprint is no text")
            related = [each["id"] for each in result.get("relatedLocations", [])]
            if len(set(related)) != len(related):
                found.append(f"result {number}: two related locations have one id")
    return found


def _object(value, kind: str, where: str, found: list[str]) -> None:
    if not isinstance(value, dict):
        found.append(f"{where} is no object")
        return
    described = OBJECTS[kind]
    known = {name.rstrip("*"): each for name, each in described.items()}
    found += [f"{where} has '{key}', which the schema does not know" for key in value if key not in known]
    found += [f"{where} has no '{name[:-1]}'" for name in described if name.endswith("*") and name[:-1] not in value]
    for key, each in value.items():
        if key in known:
            _value(each, known[key], f"{where}.{key}", found)
    if kind == "region" and value.get("startLine", 1) < 1:
        found.append(f"{where}: lines begin at 1")
    if kind == "artifact" and not _URI.fullmatch(str(value.get("uri", ""))):
        found.append(f"{where}: '{value.get('uri')}' is no URI")
    if kind == "text" and not value.get("text"):
        found.append(f"{where} is empty")


def _value(value, wanted, where: str, found: list[str]) -> None:
    if isinstance(wanted, str):
        _object(value, wanted, where, found)
    elif isinstance(wanted, list):
        for number, each in enumerate(value if isinstance(value, list) else [None]):
            _object(each, wanted[0], f"{where}[{number}]", found)
    elif isinstance(wanted, tuple):
        found += [] if value in wanted else [f"{where} is {value!r}"]
    elif not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        found.append(f"{where} is {value!r}")
