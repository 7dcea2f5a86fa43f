"""What a rewriting command says: the passes, before and after, the verdict, and where the result is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from commcc.base.text import count, plural
from commcc.report import bucketing, overlapping, parallel, reordering, stepping
from commcc.report.metrics import compare, costed_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import RenderableType

    Document = Mapping[str, Any]

_VERDICTS = {
    "proved": ("proved to be the same program", "green"),
    "unproved": ("NOT PROVED to be the same program", "bold yellow"),
}


def view(document: Document) -> list[RenderableType]:
    """Metrics before and after, a section for each pass, then the verdict and the output's path."""
    shown: list[RenderableType] = [compare(document["before"], document["after"]), *costed_by(document)]
    if len(document["passes"]) > 1:
        shown += ["", stepping.view(document)]
    if "overlap" in document:
        shown += ["", *overlapping.view(document["overlap"])]
    for step in () if "overlap" in document else document["passes"]:
        shown += ["", *_step(step)]
    written = [Text.assemble(f"{label} ", (path, "bold")) for label, path in _files(document)]
    return [*shown, "", verdict(document["verified"]), *written]


def _files(document: Document) -> Iterator[tuple[str, str]]:
    dumped = document.get("dumped", ())
    if dumped:
        yield "graph after each pass in", dumped[0].rpartition("/")[0] or "."
    for key, label in (("plan_out", "plan"), ("trace", "trace"), ("html", "page")):
        if document.get(key):
            yield f"{label} written to", document[key]
    yield "written to", document["output"]


def verdict(status: str) -> Text:
    """What the verifier said of the result."""
    text, style = _VERDICTS.get(status, (status, "bold red"))
    return Text(text, style=style)


def _step(step: Document) -> list[RenderableType]:
    dropped = step["dropped"]
    unchanged = "" if step["changed"] else f"  dropped: {dropped}" if dropped else "  changed nothing"
    head = Text.assemble((step["options"], "bold"), (unchanged, "yellow"), (f"  {step['seconds']:.2f} s", "dim"))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    report = step["report"]
    try:
        lines = list(_LINES.get(step["name"], _anything)(report))
        tables = [bucketing.modules(report["modules"])] if step["name"] == "bucket" and report.get("modules") else []
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        # The report of a stored plan is what its file says, and may be anything.
        lines, tables = list(_anything(report)), []
    for label, text in lines:
        grid.add_row(Text(label, style="cyan"), Text(text))
    return [head, *(Padding(each, (0, 0, 0, 2), expand=False) for each in (grid, *tables))]


def _regrouping(report: Document) -> Iterator[tuple[str, str]]:
    """Lines about the report of the groups pass."""
    for group in report["groups"]:
        launches = plural(group["launches"], "launch")
        yield group["name"], f"a copy of {group['copy_of']} for {launches}: {group['reason']}"
    if not report["groups"]:
        yield "new groups", "none"
    for remark in (*report["not_shared"], *report["remarks"]):
        yield "remark", remark
    for reason, number in report["left_out"].items():
        yield "left out", f"{count(number)} x {reason}"


def _anything(report: Document) -> Iterator[tuple[str, str]]:
    """Lines about a report of unknown keys."""
    for key, value in report.items():
        label = key.replace("_", " ")
        if isinstance(value, dict):
            yield label, ", ".join(f"{name} {_plain(part)}" for name, part in value.items()) or "none"
        elif isinstance(value, list):
            yield label, ", ".join(map(_plain, value)) or "none"
        else:
            yield label, _plain(value)


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    return count(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


#: What says a pass's report in lines, by the name of the pass; reports of other passes are told key by key.
_LINES: Mapping[str, Callable[[Document], Iterator[tuple[str, str]]]] = {
    "groups": _regrouping,
    "bucket": bucketing.lines,
    "reorder": reordering.lines,
    "ep-chunk": parallel.chunks,
    "ep-schedule": parallel.schedule,
    "ep-concretize": parallel.concrete,
    "async-tp": parallel.fusions,
}
