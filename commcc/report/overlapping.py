"""The section about expert-parallel overlap: what hides the exchanges, their sizes, and the lanes of every region::

layers.1.moe ... layers.26.moe forward: 26 alike, 2 chunks of 91 nodes, 93.1 % hidden
  chunk 0   2 n . h . D . 6 d 3 C . . . c .
  chunk 1   2 . n . H . D 6 . . . d 3 C . c
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.text import count, milliseconds, plural, share, size
from commcc.report.console import make_table
from commcc.report.overlap_data import NOTHING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from commcc.report.console import Section

    Document = Mapping[str, Any]

_LEGEND = (
    "D C: dispatch, combine launched; d c: waited for; 6: so many matmuls; n: token counts exchanged; "
    "h: copied to the host; H: the host waits"
)
_STYLES = {"D": "bold green", "C": "bold green", "d": "yellow", "c": "yellow", "H": "bold red", NOTHING: "dim"}


def view(document: Document) -> list[RenderableType]:
    """Tables and lanes for the keys that :func:`commcc.report.overlap_data.overlap` makes."""
    shown: list[RenderableType] = [_hidden(document["hidden"]), "", _exchanges(document["exchanges"])]
    for group in _alike(document["regions"]):
        shown += ["", Lanes(_heading(group), group[0]["lanes"])]
    if document["fixed"]:
        sizes = ", ".join(f"{name} = {number}" for name, number in document["fixed"].items())
        shown += ["", Text(f"for inputs with {sizes} only: other sizes need a graph of their own", "yellow")]
    if not document["regions"]:
        shown += ["", Text("no module is cut: the simulated step is shortest without chunks", "yellow")]
    if document["regions"]:
        shown += ["", Text(_LEGEND, style="dim")]
    return shown


def _hidden(rows: Sequence[Document]) -> Section:
    costed = bool(rows) and "ms" in rows[0]
    names = ("all-to-alls", *(("time", "exposed", "hidden") if costed else ()))
    table = make_table("", "all-to-alls after", *names, numbers=names)
    for row in _last_of_runs(rows):
        times = [milliseconds(row[key]) for key in ("ms", "exposed_ms") if key in row]
        table.add_text(
            row["after"], count(row["all_to_alls"]), *times, *([share(row["hidden_share"])] if costed else ())
        )
    return table


def _last_of_runs(rows: Sequence[Document]) -> list[Document]:
    """The rows that differ from the one before; passes that leave the exchanges alone are not listed."""

    def figures(row: Document) -> tuple[Any, ...]:
        return tuple(value for key, value in row.items() if key != "after")

    return [row for i, row in enumerate(rows) if not i or figures(row) != figures(rows[i - 1])]


def _exchanges(found: Document) -> Section:
    table = make_table("", "exchanges", "before", "after", numbers=("before", "after"))
    labels = {
        "token_exchanges": "token exchanges",
        "count_exchanges": "count exchanges",
        "others": "other all-to-alls",
        "waits": "waits",
    }
    for key, label in labels.items():
        if key != "others" or any(found[key]):
            table.add_text(label, *map(count, found[key]))
    table.add_text("sent by a rank", *map(size, found["sent_bytes"]))
    for row in found["histogram"]:
        name = f"  of {size(row['sent_bytes'])} each" if row["sent_bytes"] else "  of unknown size"
        table.add_text(name, count(row["before"]), count(row["after"]))
    return table


def _alike(regions: Sequence[Document]) -> list[list[Document]]:
    """Regions by what they look like, in order of the first of each sort."""
    groups: dict[str, list[Document]] = {}
    for region in regions:
        groups.setdefault(repr((region["direction"], region["body_nodes"], region["lanes"])), []).append(region)
    return list(groups.values())


def _heading(group: Sequence[Document]) -> str:
    first, last = group[0], group[-1]
    names = first["module"] if len(group) == 1 else f"{first['module']} ... {last['module']}"
    bodies = sorted(set(first["body_nodes"]))
    nodes = f"{bodies[0]}" if len(bodies) == 1 else f"{bodies[0]} to {bodies[-1]}"
    alike = "" if len(group) == 1 else f"{count(len(group))} alike, "
    text = f"{names} {first['direction']}: {alike}{plural(first['chunks'], 'chunk')} of {nodes} nodes"
    total, exposed = (sum(region.get(key) or 0.0 for region in group) for key in ("ms", "exposed_ms"))
    return f"{text}, {share(1 - exposed / total)} hidden" if total else text


@dataclass(frozen=True)
class Lanes:
    """One line for each chunk; where these are wider than the console, in several blocks."""

    heading: str
    lanes: Sequence[Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.heading, style="bold")
        label = max(len(f"  chunk {len(self.lanes) - 1}  "), 10)
        widths = [max(map(len, column)) for column in zip(*self.lanes, strict=True)]
        start = 0
        while start < len(widths):
            end, used = start, label
            while end < len(widths) and (end == start or used + widths[end] + 1 <= options.max_width):
                used += widths[end] + 1
                end += 1
            if start:
                yield Text("")
            for chunk, lane in enumerate(self.lanes):
                yield _line(f"  chunk {chunk}".ljust(label), lane[start:end], widths[start:end])
            start = end


def _line(label: str, cells: Sequence[str], widths: Sequence[int]) -> Text:
    text = Text(label, no_wrap=True)
    for cell, width in zip(cells, widths, strict=True):
        text.append(cell.rjust(width) + " ", style=_STYLES.get(cell, ""))
    text.rstrip()
    return text
