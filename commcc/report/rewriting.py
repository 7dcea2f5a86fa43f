"""What a rewriting command says: the passes, before and after, the verdict, and where the result is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from commcc.report import overlapping
from commcc.report.documents import costs, document, notes_json
from commcc.report.metrics import compare, costed_by, metrics_by_pass
from commcc.report.pass_lines import lines, tables
from commcc.timing.snapshot import cost_warnings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from commcc.base.terms import Json
    from commcc.graph.program import Note
    from commcc.run.pipeline import RunResult

    Document = Mapping[str, Any]

_VERDICTS = {
    "proved": ("proved to be the same program", "green"),
    "unproved": ("NOT PROVED to be the same program", "bold yellow"),
}
#: Reports besides the graph.
_WRITTEN = (("plan_out", "plan"), ("trace", "trace"), ("html", "page"))


def rewriting(
    command: str, files: tuple[str, str], result: RunResult, lost: Sequence[Note], more: Mapping[str, Json]
) -> dict[str, Json]:
    """The document; ``files`` are input and output, ``more`` keys of the command's own.

    ``options`` are those of its pass; of pipelines they are by pass name, ``bucket#2`` for the second of one name.
    """
    steps: list[Json] = []
    options: dict[str, Json] = {}
    for number, step in enumerate(result.steps):
        steps.append(
            {
                "name": step.name,
                "options": step.options_text,
                "changed": step.changed,
                "dropped": step.dropped,
                "seconds": round(sum(step.seconds.values()), 4),
                "phases": {phase: round(seconds, 4) for phase, seconds in step.seconds.items()},
                "report": step.report,
                "metrics": step.after.to_json(),
            }
        )
        same = 1 + sum(earlier.name == step.name for earlier in result.steps[:number])
        options[step.name if same == 1 else f"{step.name}#{same}"] = dict(step.options)
    return document(
        command,
        input=files[0],
        output=files[1],
        **more,
        verified=result.verified,
        options=options if command in ("run", "ep-overlap") else dict(result.steps[0].options),
        **costs(result.first, result.last),
        before=result.first.to_json(),
        after=result.last.to_json(),
        passes=steps,
        verdicts=[verdict.to_json() for verdict in result.verdicts],
        warnings=[*result.warnings, *cost_warnings(result.first, result.last)],
        notes=notes_json(lost),
    )


def view(document: Document) -> list[RenderableType]:
    """Metrics before and after, a section for each pass, then the verdict and the output's path."""
    shown: list[RenderableType] = [compare(document["before"], document["after"]), *costed_by(document)]
    if len(document["passes"]) > 1:
        shown += ["", metrics_by_pass(document)]
    if "overlap" in document:
        shown += ["", *overlapping.view(document["overlap"])]
    shown += [] if "overlap" in document else passes(document)
    written = [(f"{label} written to ", document[key]) for key, label in _WRITTEN if document.get(key)]
    if document.get("dumped"):
        written.insert(0, ("graph after each pass in ", document["dumped"][0].rpartition("/")[0] or "."))
    files = [Text.assemble(label, (path, "bold")) for label, path in (*written, ("written to ", document["output"]))]
    return [*shown, "", verdict(document["verified"]), *files]


def passes(document: Document) -> list[RenderableType]:
    """A section for each pass, an empty line ahead of it."""
    shown: list[RenderableType] = []
    for step in document["passes"]:
        dropped = step["dropped"]
        unchanged = "" if step["changed"] else f"  dropped: {dropped}" if dropped else "  changed nothing"
        head = Text.assemble((step["options"], "bold"), (unchanged, "yellow"), (f"  {step['seconds']:.2f} s", "dim"))
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for label, text in lines(step["name"], step["report"]):
            grid.add_row(Text(label, style="cyan"), Text(text))
        below = (grid, *tables(step["name"], step["report"]))
        shown += ["", head, *(Padding(part, (0, 0, 0, 2), expand=False) for part in below)]
    return shown


def verdict(status: str) -> Text:
    """What the verifier said of the result."""
    text, style = _VERDICTS.get(status, (status, "bold red"))
    return Text(text, style=style)
