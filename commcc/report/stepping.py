"""The metrics after every pass of a run, a row for each::

after each pass                   step time     exposed  peak memory  launches  max consecutive
as it came                       702.952 ms  211.951 ms     53.3 GiB       581                3
bucket{bucket_cap_mb=100}        660.679 ms  159.565 ms     53.3 GiB       228                9
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commcc.base.text import count, milliseconds, share, size
from commcc.report.console import make_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from commcc.report.console import Section

    Document = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One figure: its heading, its value in the metrics of a graph (None when it has none), its text."""

    heading: str
    value: Callable[[Document], Any]
    show: Callable[[Any], str]


def _key(name: str) -> Callable[[Document], Any]:
    return lambda metrics: metrics.get(name)


def _launches(metrics: Document) -> int:
    return sum(metrics["collectives"].values())


def _longest(metrics: Document) -> int | None:
    launches = metrics["collectives"].get("reduce_scatter")
    return metrics["max_consecutive_compute"]["reduce_scatter"] if launches else None


COLUMNS = (
    Column("step time", _key("step_ms"), milliseconds),
    Column("exposed", _key("exposed_ms"), milliseconds),
    Column("hidden", _key("hidden_share"), share),
    Column("peak memory", _key("peak_bytes"), size),
    Column("in flight", _key("in_flight_bytes"), size),
    Column("launches", _launches, count),
    Column("max consecutive", _longest, count),
)


def view(document: Document) -> Section:
    """The table; figures that no graph of the run has are left out."""
    rows = [("as it came", document["before"]), *((_label(step), step["metrics"]) for step in document["passes"])]
    columns = [column for column in COLUMNS if any(column.value(metrics) is not None for _, metrics in rows)]
    headings = tuple(column.heading for column in columns)
    table = make_table("", "after each pass", *headings, numbers=headings)
    for label, metrics in rows:
        values = ((column, column.value(metrics)) for column in columns)
        table.add_text(label, *("-" if value is None else column.show(value) for column, value in values))
    return table


def _label(step: Document) -> str:
    state = "" if step["changed"] else "  (dropped)" if step["dropped"] else "  (no change)"
    return f"{step['options']}{state}"
