"""What was predicted beside what was measured, as tables: of a step, by kind, and the collectives that are most off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.base.text import milliseconds, share, size
from commcc.report.console import make_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from commcc.report.console import Section

_PARTS = (
    ("step", "step_ms"),
    ("  compute", "compute_ms"),
    ("  launches", "launches_ms"),
    ("  exposed", "exposed_ms"),
    ("  rest", "rest_ms"),
    ("communication", "communication_ms"),
)
_COLUMNS = ("measured", "predicted", "error")


def tables(graph: Mapping[str, Any], heading: str, *, most: int) -> list[RenderableType]:
    """One graph's forecast; most: how many collectives to list."""
    found = graph["forecast"]
    table = make_table(heading, "", *_COLUMNS, numbers=_COLUMNS)
    for name, key in _PARTS:
        table.add_text(name, *times(found[key]))
    for kind in found["kinds"]:
        of = f"{kind['count']}" if kind["count"] == kind["of"] else f"{kind['count']} of {kind['of']}"
        table.add_text(f"  {of} x {kind['kind']}", *times(kind["transfer_ms"]))
    if found["late_ranks_ms"]["measured"] is not None:
        table.add_text("  late ranks, outliers", milliseconds(found["late_ranks_ms"]["measured"]), "", "")
    hidden = found["hidden_share"]
    table.add_text("hidden share", share(hidden["measured"]), share(hidden["predicted"]), "")
    shown: list[RenderableType] = [table, ""]
    listed = _most_off(found["collectives"])[:most]
    return [*shown, _collectives(listed, len(found["collectives"])), ""] if listed else shown


def times(beside: Mapping[str, Any]) -> tuple[str, str, str]:
    """Cells: measured, predicted, error."""
    return milliseconds(beside["measured"]), milliseconds(beside["predicted"]), error(beside["error"])


def error(value: float | None) -> str:
    """``-12.3 %``; a dash where there is none."""
    return "-" if value is None else f"{100 * value:+,.1f} %"


def _most_off(collectives: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those with a measured time, the largest difference first."""

    def difference(each: Mapping[str, Any]) -> float:
        return abs(float(each["transfer_ms"]["predicted"]) - float(each["transfer_ms"]["measured"]))

    known = [each for each in collectives if each["transfer_ms"]["measured"] is not None]
    return sorted(known, key=difference, reverse=True)


def _collectives(listed: Sequence[Mapping[str, Any]], count: int) -> Section:
    columns = ("sends", *_COLUMNS, "exposed", "predicted ")
    which = (
        "every collective" if len(listed) == count else f"the {len(listed)} of {count:,} collectives that are most off"
    )
    table = make_table(which, "node", "kind", "group", *columns, numbers=columns)
    for each in listed:
        exposed = each["exposed_ms"]
        table.add_text(
            each["node"],
            each["kind"],
            each["group"],
            size(each["bytes"]),
            *times(each["transfer_ms"]),
            milliseconds(exposed["measured"]),
            milliseconds(exposed["predicted"]),
        )
    return table
