"""What ``commcc sweep`` says, also as a page: every setting, which are on the Pareto front, the best as YAML."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.text import Lines, change, count, one_line, plural
from commcc.report.console import make_table
from commcc.report.documents import costs, document
from commcc.report.metrics import COLUMNS, costed_by
from commcc.report.page import Page, assemble
from commcc.run.forms import pipeline_yaml
from commcc.timing.snapshot import cost_warnings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import RenderableType

    from commcc.base.terms import Json
    from commcc.report.console import Section
    from commcc.run.sweep import SweepResult

    Document = Mapping[str, Any]

PAGE = Page(
    command="sweep",
    main="html_sweep/main.html",
    picture="plot",
    pictures="plot",
    skip_to="settings",
    styles=("html/style.css", "html_sweep/sweep.css"),
    scripts=("html/format.js", "html/dom.js", "html/tables.js", "html_sweep/sweep.js"),
)
_ON_PAGE = (
    *("input", "pipeline", "parameters", "max_consecutive_of", "cost_model", "before", "front", "best", "best_yaml"),
)


def sweeping(graph: str, said: Mapping[str, Json], result: SweepResult, **written: Json) -> dict[str, Json]:
    """The JSON of a sweep. Numbers of settings are positions in ``settings``."""
    best = result.best
    settings: list[Json] = [
        {
            "values": list(point.values),
            "pipeline": point.text,
            "front": number in result.front,
            "same_as": result.same_as[number],
            "changed": outcome.changed,
            "verified": outcome.verified or None,
            "error": outcome.error,
            "seconds": round(outcome.seconds, 4),
            "metrics": dict(outcome.metrics),
        }
        for number, (point, outcome) in enumerate(zip(result.grid.points, result.outcomes, strict=True))
    ]
    return document(
        "sweep",
        input=graph,
        fingerprint=result.first.index.fingerprint,
        **said,
        **written,
        parameters=[{"name": p.name, "values": list(p.values)} for p in result.grid.parameters],
        max_consecutive_of=result.run_kind,
        **costs(result.first),
        before=dict(result.before),
        settings=settings,
        front=list(result.front),
        best=best,
        best_yaml=None if best is None else best_yaml(result, best),
        warnings=[*result.first.ident.warnings, *cost_warnings(result.first)],
    )


def best_yaml(result: SweepResult, number: int) -> Lines:
    """A setting as a pipeline file, with a comment on what it gives."""
    metrics = result.outcomes[number].metrics
    prediction = result.first.prediction
    assert prediction is not None
    head = (
        f"# Best of {plural(len(result.outcomes), 'setting')}: step {metrics['step_ms']:.3f} ms, "
        f"before {result.before['step_ms']:.3f} ms.\n"
        f"# Simulated with {one_line(prediction.costs.model)}, hash {prediction.costs.hash}.\n"
    )
    return Lines(head + pipeline_yaml(result.point(number).passes))


def view(document: Document) -> list[RenderableType]:
    """A row for each result, then the best as YAML."""
    shown: list[RenderableType] = [_table(document), *costed_by(document), ""]
    for number, setting in enumerate(document["settings"]):
        if setting["error"]:
            shown.append(Text(f"setting {number}: {setting['error']}", style="yellow"))
    if document["best"] is None:
        return [*shown, Text("no setting could be run", style="bold red")]
    shown.append(Text(document["best_yaml"].rstrip()))
    for key, label in (("best_out", "best setting written to "), ("html", "page written to ")):
        if document.get(key):
            shown += ["", Text.assemble(label, (document[key], "bold"))]
    return shown


def _table(document: Document) -> Section:
    """The figures, less is better in all but ``hidden``; settings on the front have a star, the best two."""
    names = [parameter["name"] for parameter in document["parameters"]]
    columns = [column for column in COLUMNS if column.value(document["before"]) is not None]
    headings = [column.heading for column in columns]
    numbers = ("#", *names, *headings, "step change")
    groups = _equal(document["settings"])
    total, front = len(document["settings"]), sum(members[0]["front"] for members in groups.values())
    results = f", {plural(len(groups), 'different result')}" if len(groups) < total else ""
    title = f"{plural(total, 'setting')}{results}"
    title += f", {count(front)} on the Pareto front of step, peak memory and max consecutive"
    table = make_table(title, "", "#", *names, *headings, "step change", numbers=numbers)
    before = document["before"]
    table.add_text("", "", *("input graph", *("" for _ in names[1:])), *(c.show(c.value(before)) for c in columns), "")
    for number, members in groups.items():
        setting, best = members[0], number == document["best"]
        mark = "**" if best else "*" if setting["front"] else ""
        metrics = setting["metrics"]
        figures = (
            ["failed", *("" for _ in columns[1:])] if setting["error"] else [c.show(c.value(metrics)) for c in columns]
        )
        delta = "" if setting["error"] else change(before["step_ms"], metrics["step_ms"])
        cells = (mark, *_named(number, members), *figures, delta)
        table.add_text(*(Text(cell, style="bold" if best else "") for cell in cells))
    return table


def _named(number: int, members: list[Document]) -> tuple[str, ...]:
    """Number and values of the settings of a row: all values where the settings are every combination of them."""
    values = [list(dict.fromkeys(column)) for column in zip(*(member["values"] for member in members), strict=True)]
    if prod(map(len, values)) == len(members):
        return str(number), *("|".join(column) for column in values)
    return f"{number} and {len(members) - 1:,} equal", *members[0]["values"]


def _equal(settings: Iterable[Document]) -> dict[int, list[Document]]:
    """By the number of the first, settings that give the same figures: they share a row."""
    groups: dict[int, list[Document]] = {}
    for number, setting in enumerate(settings):
        groups.setdefault(number if setting["same_as"] is None else setting["same_as"], []).append(setting)
    return groups


def write_html(document: Mapping[str, Any]) -> str:
    """The page with a plot of all settings, their table and the best; ASCII only.

    It is made like that of ``simulate`` and shares its style. Figures that differ from run to run (seconds) are left
    out, so that equal sweeps give equal pages.
    """
    settings: list[Json] = [
        {key: value for key, value in setting.items() if key != "seconds"} for setting in document["settings"]
    ]
    data: dict[str, Json] = {**{key: document[key] for key in _ON_PAGE}, "settings": settings}
    # Marked as lines again: a document that was read from JSON has plain text.
    data["best_yaml"] = None if document["best_yaml"] is None else Lines(document["best_yaml"])
    return assemble(PAGE, title=str(document["input"]), document=data)
