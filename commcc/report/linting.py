"""What ``commcc lint`` says: the JSON document, from which every other form is made, and the form for people.

Findings of a rule are grouped under it, the heaviest first, with the nodes they are about. At most ``top`` of
each rule and graph are shown; the others are counted. In the document are all, up to :data:`MOST`.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.text import Text

from commcc.base.options import options_of
from commcc.base.text import escaped, milliseconds, one_line, plural, sentence
from commcc.lint.registry import RULES
from commcc.lint.types import SEVERITIES
from commcc.report.console import Prose, drawn, make_console

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from commcc.base.terms import Json
    from commcc.lint.types import Outcome, Report, Rule, Spot

    Document = Mapping[str, Any]

#: Findings of one rule in one graph that the document holds.
MOST = 1_000
_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}
#: Reasons for which a rule was not run that nobody has to be told.
_QUIET = ("no limit is set", "there is no baseline", "the baseline is being written", "the graph is not legal")


def document(report: Report, **more: Json) -> dict[str, Json]:
    """The document of a run; ``more`` are keys of the command."""
    graphs: list[Json] = [
        {
            "graph": result.graph,
            "error": result.error,
            "metrics": dict(result.metrics),
            "rules": [_outcome(outcome) for outcome in result.outcomes],
        }
        for result in report.results
    ]
    counts: dict[str, Json] = {str(severity): report.count(severity) for severity in SEVERITIES}
    return {
        "schema": 1,
        "command": "lint",
        "passed": not report.unread and not report.failed,
        "counts": {**counts, "unread": len(report.unread)},
        "cost_model": None if report.model is None else {"name": report.model[0], "hash": report.model[1]},
        **more,
        "graphs": graphs,
        "across": [_outcome(outcome) for outcome in report.across],
    }


def _outcome(outcome: Outcome) -> dict[str, Json]:
    return {
        "rule": outcome.rule,
        "severity": str(outcome.severity),
        "skipped": outcome.skipped,
        "findings": [
            {
                "severity": str(outcome.severity_of(finding)),
                "text": finding.text,
                "measured": finding.measured,
                "limit": finding.limit,
                "unit": finding.unit,
                "remedy": finding.remedy,
                "nodes": [_spot(spot) for spot in finding.spots],
                "details": list(finding.details),
            }
            for finding in outcome.findings[:MOST]
        ],
        "more": max(0, len(outcome.findings) - MOST),
    }


def _spot(spot: Spot) -> dict[str, Json]:
    return {
        "graph": spot.graph,
        "node": spot.node,
        "module": spot.module,
        "source": spot.source,
        "file": file_of(spot.graph) if spot.file is None else relative(spot.file),
        "line": spot.line,
    }


def file_of(graph: str) -> str:
    """The file or folder that a graph is in, without the graph's name."""
    return relative(graph.partition("::")[0])


def relative(file: str) -> str:
    """A path relative to the working folder, where it lies in it."""
    path = Path(file)
    return path.relative_to(Path.cwd()).as_posix() if path.is_absolute() and path.is_relative_to(Path.cwd()) else file


def summary(document: Document) -> str:
    """``2 graphs: 1 error, 3 warnings; 1 could not be read``."""
    counts = document["counts"]
    counted = [plural(counts[key], key) for key in ("error", "warning") if counts[key]]
    counted += [f"{counts['info']} info"] if counts["info"] else []
    unread = f"; {counts['unread']:,} could not be read" if counts["unread"] else ""
    return f"{plural(len(document['graphs']), 'graph')}: {', '.join(counted) or 'no findings'}{unread}"


def by_severity(outcomes: Sequence[Document]) -> Iterator[tuple[str, Document, list[Document], int]]:
    """Outcomes with findings as (severity, outcome, findings, how many more there are), the most severe first."""
    for severity in map(str, SEVERITIES):
        for outcome in outcomes:
            findings = [finding for finding in outcome["findings"] if finding["severity"] == severity]
            if findings:
                yield severity, outcome, findings, outcome["more"] if severity == outcome["severity"] else 0


def where(spot: Document) -> str:
    """``line 1203, layers.3.attention.wq, llama.py:98``: what is known of a node's place."""
    line = f"line {spot['line']}" if spot["line"] is not None else ""
    return ", ".join(filter(None, (line, spot["module"], spot["source"])))


def message(finding: Document) -> str:
    """A finding with its place and its remedy, for forms that have one text."""
    spots = finding["nodes"]
    named = not spots or f"'{spots[0]['node']}'" in finding["text"]
    place = where(spots[0]) if spots else ""
    if not named:
        place = f"{spots[0]['node']}: {place}" if place else spots[0]["node"]
    return one_line("; ".join(filter(None, (finding["text"], place, finding["remedy"]))))


def view(document: Document, top: int) -> list[RenderableType]:
    """Everything for people."""
    shown: list[RenderableType] = []
    for graph in document["graphs"]:
        shown += _graph(graph, top)
    if any(outcome["findings"] for outcome in document["across"]):
        shown += [Text("all graphs together", style="bold"), *_outcomes(document["across"], top), ""]
    for fix in document.get("fixes", ()):
        done = f"written to {fix['written']}, proved to be the same program" if fix["written"] else fix["reason"]
        shown.append(Text(f"{fix['passes']} on {fix['graph']}: {done}"))
    if (document.get("baseline") or {}).get("written"):
        shown.append(Text(f"baseline written to {document['baseline']['file']}"))
    style = "bold red" if not document["passed"] else "bold green" if not document["counts"]["warning"] else "bold"
    model = document["cost_model"]
    basis = "without a cost model" if model is None else f"times simulated with {model['name']}, hash {model['hash']}"
    shown += [Text(summary(document), style=style), Text(basis, style="dim")]
    return [*shown, Text(f"page written to {document['html']}")] if "html" in document else shown


def plain(document: Document, top: int) -> str:
    """The same as one text without colours."""
    return drawn(make_console(io.StringIO()), view(escaped(document), top))


def _graph(graph: Document, top: int) -> list[RenderableType]:
    metrics, facts = graph["metrics"], ""
    if metrics:
        launches = [f"{number:,} {kind}" for kind, number in metrics["collectives"].items() if number]
        step = [f"step {milliseconds(metrics['step_ms'])}"] if "step_ms" in metrics else []
        facts = ", ".join([f"{metrics['nodes']:,} nodes", *launches, *step])
    head = Text.assemble((graph["graph"], "bold"), (f"  {facts}", "dim"))
    if graph["error"] is not None:
        text = Text.assemble(("cannot be read", "bold red"), f"  {graph['error']}")
        return [head, Padding(text, (0, 0, 0, 2), expand=False), ""]
    body = _outcomes(graph["rules"], top)
    # Rules that nobody asked for are skipped without a word.
    missed = [rule["rule"] for rule in graph["rules"] if rule["skipped"] and rule["skipped"] not in _QUIET]
    if missed:
        reason = next(rule["skipped"] for rule in graph["rules"] if rule["rule"] == missed[0])
        body.append(_line(2, f"not checked, since {reason}: {', '.join(missed)}", "yellow"))
    return [head, *(body or [_line(2, "no findings", "green")]), ""]


def _outcomes(outcomes: Sequence[Document], top: int) -> list[RenderableType]:
    shown: list[RenderableType] = []
    for severity, outcome, findings, more in by_severity(outcomes):
        total = len(findings) + more
        count = f"  {total:,} findings" if total > 1 else ""
        shown.append(Text.assemble("  ", (severity, _STYLES[severity]), "  ", (outcome["rule"], "bold"), count))
        remedies = {finding["remedy"] for finding in findings[:top]}
        shown += _findings(findings[:top], remedies)
        if total > top:
            shown.append(_line(4, f"and {total - min(top, len(findings)):,} more", "dim"))
        if len(remedies) == 1 and "" not in remedies:
            shown.append(_line(4, f"-> {remedies.pop()}"))
    return shown


def _findings(findings: Iterable[Document], remedies: set[str]) -> Iterator[RenderableType]:
    """Findings with their nodes; a remedy that all of them share is said once.

    Of the nodes the first is shown in full, and of the others the names that the text does not say.
    """
    for finding in findings:
        yield _line(4, finding["text"])
        spots = finding["nodes"]
        if spots:
            others = ", ".join(spot["node"] for spot in spots[1:] if f"'{spot['node']}'" not in finding["text"])
            text = f"{spots[0]['node']}: {where(spots[0])}" if where(spots[0]) else spots[0]["node"]
            yield _line(6, f"{text}; also {others}" if others else text, "dim")
        yield from (Text(f"      {line}") for line in finding["details"])
        if finding["remedy"] and len(remedies) > 1:
            yield _line(6, f"-> {finding['remedy']}")


def _line(indent: int, text: str, style: str = "") -> RenderableType:
    """A line that keeps its indent where the terminal wraps it."""
    return Padding(Text(text, style=style), (0, 0, 0, indent), expand=False)


def rules_document() -> dict[str, Json]:
    """``lint --rules`` as data."""
    return {"schema": 1, "command": "lint", "rules": [rule_json(rule) for rule in RULES]}


def rules_brief() -> list[str]:
    """The ids, one a line."""
    return [rule.id for rule in RULES]


def rule_json(rule: Rule) -> dict[str, Json]:
    options: list[Json] = [
        {
            "name": name,
            "takes": option.takes,
            "default": option.default if isinstance(option.default, (int, float, str)) else None,
            # As people write it; nothing for a limit that is not set.
            "default_text": "" if option.default in (None, (), {}) else option.show(option.default),
            "help": option.help,
        }
        for name, option in options_of(rule.options).items()
    ]
    return {
        "id": rule.id,
        "severity": str(rule.severity),
        "summary": rule.summary,
        "about": rule.about,
        "costed": rule.costed,
        "across": rule.across,
        "needs": list(rule.needs),
        "options": options,
    }


def rules_view(document: Document) -> list[RenderableType]:
    """Every rule with its paragraph and its options."""
    shown: list[RenderableType] = []
    for rule in document["rules"]:
        head = Text.assemble((rule["id"], "bold"), f"  {rule['summary']}", (f"  {_state(rule)}", "dim"))
        shown += [head, Padding(Text(rule["about"]), (0, 0, 0, 2))]
        for option in rule["options"]:
            default = f" [{option['default_text']}]" if option["default_text"] else ""
            takes = f"  {option['takes']}{default}  "
            text = Text.assemble((option["name"], "cyan"), takes, (sentence(option["help"]), "dim"))
            shown.append(Padding(text, (0, 0, 0, 4)))
        shown.append("")
    last = "in a configuration: rules: {ID: {severity: error, OPTION: VALUE}}; here: --rule ID.OPTION=VALUE"
    return [Prose(*shown, last)]


def _state(rule: Document) -> str:
    needs = rule["needs"]
    set_by = "" if not needs else f" once {needs[0] if len(needs) == 1 else 'a limit'} is set"
    return f"{rule['severity']}{set_by}{', simulated' if rule['costed'] else ''}"


def rules_manual() -> str:
    """The rules in Markdown."""
    lines = ["| rule | severity | finds |", "|---|---|---|"]
    rules = [rule_json(rule) for rule in RULES]
    lines += [f"| [`{rule['id']}`](#{rule['id']}) | {_state(rule)} | {rule['summary']} |" for rule in rules]
    for rule in rules:
        lines += ["", f"### {rule['id']}", "", str(rule["about"])]
        options: Any = rule["options"]
        if options:
            lines += ["", "| option | takes | default | |", "|---|---|---|---|"]
            lines += [
                f"| `{option['name']}` | {option['takes']} | {option['default_text']} | {sentence(option['help'])} |"
                for option in options
            ]
    return "\n".join(lines) + "\n"
