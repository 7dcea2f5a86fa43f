"""What a rewriting command says: the passes, before and after, the verdict, and where the result is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from commcc.report import stepping
from commcc.report.metrics import compare, costed_by
from commcc.report.units import count, plural, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
    for step in document["passes"]:
        shown += ["", *_step(step)]
    written = [Text.assemble(f"{label} ", (path, "bold")) for label, path in _files(document)]
    return [*shown, "", verdict(document["verified"]), *written]


def _files(document: Document) -> Iterator[tuple[str, str]]:
    dumped = document.get("dumped", ())
    if dumped:
        yield "graph after each pass in", printable(dumped[0].rpartition("/")[0] or ".")
    if document.get("plan_out"):
        yield "plan written to", document["plan_out"]
    yield "written to", document["output"]


def verdict(status: str) -> Text:
    """What the verifier said of the result."""
    text, style = _VERDICTS.get(status, (status, "bold red"))
    return Text(text, style=style)


def _step(step: Document) -> list[RenderableType]:
    dropped = step["dropped"]
    unchanged = "" if step["changed"] else f"  dropped: {printable(dropped)}" if dropped else "  changed nothing"
    head = Text.assemble((step["options"], "bold"), (unchanged, "yellow"), (f"  {step['seconds']:.2f} s", "dim"))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    report = step["report"]
    for label, text in _bucketing(report) if "by_kind" in report else _anything(report):
        grid.add_row(Text(label, style="cyan"), Text(printable(text)))
    return [head, Padding(grid, (0, 0, 0, 2), expand=False)]


def _bucketing(report: Document) -> Iterator[tuple[str, str]]:
    """Lines about the report of the bucket pass."""
    if report["buckets"]:
        for kind, made in report["by_kind"].items():
            yield kind, f"{count(made['members'])} launches into {plural(made['buckets'], 'bucket')}"
    else:
        yield "buckets", "none"
    yield "groups", f"primary is {report['primary_group']}" if report["primary_group"] else "none is primary"
    if "closed" in report:
        yield from _closed(report)
    for key, label in (
        ("copies", "copies added"),
        ("shared_casts", "casts merged"),
        ("reordered_buckets", "reordered"),
    ):
        if report.get(key):
            yield label, count(report[key])
    for remark in report.get("remarks", ()):
        yield "remark", remark
    yield from _left_out(report["left_out"])


def _closed(report: Document) -> Iterator[tuple[str, str]]:
    """What ended the buckets of a walk under caps."""
    closed = [f"{count(number)} for {reason}" for reason, number in report["closed"].items() if number]
    yield "closed", ", ".join(closed) or "no bucket before its time"
    yield "largest span", plural(report["largest_span"], "node")
    dormant = [f"{name}={_setting(knob['value'])}" for name, knob in report["knobs"].items() if knob["dormant"]]
    if dormant:
        yield "dormant", f"{', '.join(dormant)} (never closed a bucket)"


def _left_out(reasons: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    label = f"left out {sum(reasons.values()):,}"
    for reason, number in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        yield label, f"{number:,} x {reason}"
        label = ""


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ":".join(map(_setting, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


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
