"""Forms of the gate's report: each valid by its own rules, all of them of the same findings."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from commcc.base.text import one_line
from commcc.lint.types import Finding, Outcome, Report, Result, Severity, Spot
from commcc.report import linting
from commcc.report.linting_forms import github, junit, sarif
from tests.sarif_checker import problems

NASTY = "100 % of\n50%0A %3A a::b, c\r\x1b[31m<&\"'>\u202e\ud800\u0000"


def spot(graph="dumps/a b.fx.txt", node="mm_3", line=7) -> Spot:
    return Spot(graph, node, "layers.3.wq", "llama.py:98", line)


def report() -> Report:
    """Errors, warnings and notes, a rule with many findings, one that was skipped, and a graph that cannot be read."""
    many = tuple(Finding(f"gap {i}", (spot(node=f"ag_{i}", line=i + 1),), weight=9 - i, remedy="do") for i in range(8))
    outcomes = (
        Outcome("use-before-wait", Severity.ERROR, (Finding(NASTY, (spot(), spot(node="w")), remedy="wait % first"),)),
        Outcome("wait-after-launch", Severity.WARNING, many),
        Outcome("step-time", Severity.ERROR, skipped="no limit is set"),
        Outcome(
            "baseline-regression",
            Severity.ERROR,
            (Finding("worse", measured=3.0, limit=2.0), Finding("better", severity=Severity.INFO)),
        ),
    )
    metrics = {"nodes": 12, "collectives": {"all_gather": 3, "all_reduce": 0}, "step_ms": 1.5}
    packed = (Outcome("never-waited", Severity.WARNING, (Finding("x", (spot("b.fx.txt.gz"),)),)),)
    return Report(
        (
            Result("dumps/a b.fx.txt", outcomes, metrics),
            Result("b.fx.txt.gz", packed, metrics),
            Result("run.log::0_0/x", (Outcome("step-time", Severity.ERROR),), metrics),
            Result("broken, 5%.pt2", error=NASTY),
        ),
        (Outcome("rank-agreement", Severity.ERROR, (Finding("ranks differ", (spot("r1.fx.txt"),)),)),),
        ("h100-sxm", "6f5d13d3f533"),
    )


@pytest.fixture
def document() -> dict:
    return linting.document(report(), baseline=None)


def test_document(document):
    json.dumps(document, allow_nan=False)
    assert document["counts"] == {"error": 3, "warning": 9, "info": 1, "unread": 1}
    assert document["passed"] is False
    assert [graph["graph"] for graph in document["graphs"]] == [result.graph for result in report().results]
    first = document["graphs"][0]["rules"][0]["findings"][0]
    assert first["nodes"][0] == {
        "graph": "dumps/a b.fx.txt",
        "node": "mm_3",
        "module": "layers.3.wq",
        "source": "llama.py:98",
        "file": "dumps/a b.fx.txt",
        "line": 7,
    }
    assert linting.summary(document) == "4 graphs: 3 errors, 9 warnings, 1 info; 1 could not be read"


def test_the_document_holds_no_more_than_it_says():
    findings = tuple(Finding(str(i)) for i in range(linting.MOST + 5))
    many = Report((Result("g", (Outcome("step-time", Severity.WARNING, findings),)),))
    (outcome,) = linting.document(many)["graphs"][0]["rules"]
    assert (len(outcome["findings"]), outcome["more"]) == (linting.MOST, 5)
    assert f"and {linting.MOST + 3:,} more" in linting.plain(linting.document(many), 2)


def test_a_run_without_errors_passes():
    fine = Report((Result("g", (Outcome("never-waited", Severity.WARNING, (Finding("x"),)),)),))
    assert linting.document(fine)["passed"] is True
    assert linting.document(Report((Result("g", error="no"),)))["passed"] is False


def test_text(document):
    text = linting.plain(document, 3)
    assert "\x1b" not in text and "\u202e" not in text
    for line in (
        "dumps/a b.fx.txt  12 nodes, 3 all_gather, step 1.500 ms",
        "  warning  wait-after-launch  8 findings",
        "    gap 0",
        "      ag_0: line 1, layers.3.wq, llama.py:98",
        "    and 5 more",
        "    -> do",
        "  info  baseline-regression",
        "run.log::0_0/x  12 nodes, 3 all_gather, step 1.500 ms",
        "  no findings",
        "all graphs together",
        "4 graphs: 3 errors, 9 warnings, 1 info; 1 could not be read",
    ):
        assert line in text.splitlines(), (line, text)
    assert "gap 2" in text and "gap 3" not in text
    assert text.index("error  use-before-wait") < text.index("warning  wait-after-launch") < text.index("info  base")


def test_rules_that_could_not_be_checked_are_named():
    skipped = (Outcome("step-time", Severity.ERROR, skipped="there is no cost model"),)
    text = linting.plain(linting.document(Report((Result("g", skipped, {}),))), 3)
    assert "  not checked, since there is no cost model: step-time" in text


def parsed_commands(text: str) -> list[tuple[str, dict[str, str], str]]:
    """Workflow commands as the runner of GitHub Actions reads them (actions/runner, ActionCommand.cs)."""
    found = []
    for line in text.splitlines():
        if not line.startswith("::"):
            continue
        head, _, data = line[2:].partition("::")
        level, _, properties = head.partition(" ")
        pairs = (each.split("=", 1) for each in properties.split(","))
        found.append((level, {key: unescaped(value) for key, value in pairs}, unescaped(data)))
    return found


def unescaped(text: str) -> str:
    for code, character in (("%2C", ","), ("%3A", ":"), ("%0A", "\n"), ("%0D", "\r"), ("%25", "%")):
        text = text.replace(code, character)
    return text


def test_github_annotations(document):
    text = github(document, 3)
    commands = parsed_commands(text)
    assert [level for level, _, _ in commands] == ["error"] * 4 + ["warning"] * 4 + ["notice"]
    assert commands[0] == ("error", {"file": "broken, 5%.pt2", "title": "cannot be read"}, one_line(NASTY))
    _, properties, message = commands[1]
    assert properties == {"file": "dumps/a b.fx.txt", "line": "7", "title": "use-before-wait"}
    assert message.startswith("100 % of\\n50%0A %3A a::b, c") and message.endswith("; wait % first")
    packed = next(p for _, p, _ in commands if p["title"] == "never-waited")
    assert packed == {"file": "b.fx.txt.gz", "title": "never-waited"}
    assert "wait-after-launch: and 5 more in dumps/a b.fx.txt" in text.splitlines()
    assert all(line.startswith("::") or "\x1b" not in line for line in text.splitlines())


def test_junit(document):
    root = ElementTree.fromstring(junit(document, 3))
    assert root.tag == "testsuites"
    assert [suite.get("name") for suite in root] == [
        *("dumps/a b.fx.txt", "b.fx.txt.gz", "run.log::0_0/x", "broken, 5%.pt2", "all graphs"),
    ]
    assert [root.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["8", "3", "1", "1"]
    cases = {(case.get("classname"), case.get("name")): case for case in root.iter("testcase")}
    assert len(cases) == 8
    failure = cases["dumps/a b.fx.txt", "use-before-wait"].find("failure")
    assert failure is not None and failure.get("message", "").startswith("100 % of")
    waits = cases["dumps/a b.fx.txt", "wait-after-launch"]
    assert waits.find("failure") is None and "and 5 more" in waits.findtext("system-out", "")
    mixed = cases["dumps/a b.fx.txt", "baseline-regression"]
    assert "error: worse" in mixed.findtext("failure", "") and "info: better" in mixed.findtext("system-out", "")
    assert cases["dumps/a b.fx.txt", "step-time"].find("skipped") is not None
    assert cases["broken, 5%.pt2", "read"].find("error") is not None
    for suite in root:
        own = [case.find("failure") is not None for case in suite]
        assert (suite.get("tests"), suite.get("failures")) == (str(len(own)), str(sum(own)))


def test_sarif(document):
    log = json.loads(sarif(document, 2))
    assert problems(log) == []
    (run,) = log["runs"]
    assert run["invocations"][0]["executionSuccessful"] is False and run["invocations"][0]["exitCode"] == 2
    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "broken%2C%205%25.pt2"
    levels = [result["level"] for result in run["results"]]
    assert (levels.count("error"), levels.count("warning"), levels.count("note")) == (3, 9, 1)
    first = run["results"][0]
    physical = first["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"] == {"uri": "dumps/a%20b.fx.txt", "uriBaseId": "%SRCROOT%"}
    assert physical["region"] == {"startLine": 7}
    assert first["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "layers.3.wq.mm_3"
    assert [each["message"]["text"] for each in first["relatedLocations"]] == ["w"]
    packed = next(result for result in run["results"] if result["ruleId"] == "never-waited")
    assert "region" not in packed["locations"][0]["physicalLocation"]
    worse = next(result for result in run["results"] if result["message"]["text"].startswith("worse"))
    assert worse["properties"] == {"measured": 3.0, "limit": 2.0, "unit": "count"}
    prints = [result["partialFingerprints"]["commccFinding/v1"] for result in run["results"]]
    assert len(set(prints)) == len(prints)
    assert all(rule["help"]["text"] and rule["defaultConfiguration"] for rule in run["tool"]["driver"]["rules"])


def test_fingerprints_stay_when_only_figures_change():
    def fingerprint(text: str, node: str) -> str:
        finding = Outcome("peak-memory", Severity.ERROR, (Finding(text, (spot(node=node),)),))
        log = json.loads(sarif(linting.document(Report((Result("g", (finding,)),))), 1))
        return log["runs"][0]["results"][0]["partialFingerprints"]["commccFinding/v1"]

    assert fingerprint("3 GiB", "a") == fingerprint("4 GiB", "a") != fingerprint("3 GiB", "b")


def test_the_checker_of_sarif_sees_mistakes(document):
    def broken(change) -> list[str]:
        log = json.loads(sarif(document, 0))
        change(log["runs"][0])
        return problems(log)

    assert broken(lambda run: run["results"][0].update(ruleIndex=3))
    assert broken(lambda run: run["results"][0].update(level="info"))
    assert broken(lambda run: run["results"][0].pop("message"))
    assert broken(lambda run: run["results"][0].update(extra=1))
    assert broken(lambda run: run["results"][0]["locations"][0]["physicalLocation"]["region"].update(startLine=0))
    assert broken(lambda run: run["invocations"][0].pop("executionSuccessful"))
    assert broken(lambda run: run["tool"]["driver"]["rules"].append(run["tool"]["driver"]["rules"][0]))


def test_names_that_no_encoding_holds():
    """File names on Linux may be any bytes; Python gives those as lone surrogates."""
    result = Result("a\udcff.fx.txt", (Outcome("step-time", Severity.ERROR, (Finding("slow"),)),))
    document = linting.document(Report((result,)))
    log = json.loads(sarif(document, 1))
    assert problems(log) == []
    assert log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a%FF.fx.txt"
    assert "\\udcff" in linting.plain(document, 3)
    ElementTree.fromstring(junit(document, 3))


def test_absolute_paths_below_the_working_folder_become_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = Outcome("step-time", Severity.ERROR, (Finding("slow"),))
    report = Report((Result(str(tmp_path / "a.pt2"), (outcome,)), Result("/else/b.pt2", (outcome,))))
    document = linting.document(report)
    results = json.loads(sarif(document, 1))["runs"][0]["results"]
    places = [result["locations"][0]["physicalLocation"]["artifactLocation"] for result in results]
    assert places == [{"uri": "a.pt2", "uriBaseId": "%SRCROOT%"}, {"uri": Path("/else/b.pt2").as_uri()}]
    assert [properties["file"] for _, properties, _ in parsed_commands(github(document, 3))] == ["a.pt2", "/else/b.pt2"]
