"""Tables of metrics: of one graph, of two side by side, of a row for each of several.

Drawn from the JSON of :class:`commcc.graph.metrics.GraphMetrics`, with the costed keys of
:class:`commcc.timing.predict.Prediction` under a rule of their own. A key that is not known here still gets
its row, in the unit that its suffix says (``_ms``, ``_bytes``, ``_share``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.text import change, count, least_size, milliseconds, plural, share
from commcc.report.console import Settings, make_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from commcc.report.console import Section

    Row = tuple[str, str]  # the key's path: ("bytes", "all_gather")

_LABELS = {
    "nodes": "nodes",
    "compute_nodes": "compute nodes",
    "collectives": "{} launches",
    "bytes": "{} on the wire",
    "in_sub_graphs": "{} launches in sub-graphs",
    "groups": "launches on group {}",
    "max_consecutive_compute": "max consecutive compute, {}",
    "step_ms": "step time",
    "lower_bound_ms": "lower bound",
    "compute_ms": "compute",
    "communication_ms": "communication",
    "exposed_ms": "exposed communication",
    "hidden_share": "hidden share",
    "peak_bytes": "peak memory",
    "in_flight_bytes": "in flight, at most",
}
_COUNTED = ("nodes", "compute_nodes", "collectives", "bytes", "in_sub_graphs", "groups", "max_consecutive_compute")
_COSTED = tuple(key for key in _LABELS if key not in _COUNTED)
_LESS_IS_BETTER = ("step_ms", "communication_ms", "exposed_ms", "peak_bytes", "in_flight_bytes")
_MORE_IS_BETTER = ("hidden_share",)


@dataclass(frozen=True)
class Figure:
    """One row: a metric in words, its values before and after as texts, and how they differ.

    costed: whether a cost model made it. better: whether the change is for the better; None when that
    cannot be said.
    """

    label: str
    before: str
    after: str
    change: str
    costed: bool
    better: bool | None

    @property
    def delta(self) -> Text:
        """The change, green where it is for the better and red where it is for the worse."""
        style = "dim" if self.change == "=" else ""
        return Text(self.change, style=style if self.better is None else "green" if self.better else "red")


def compare(before: Mapping[str, Any], after: Mapping[str, Any], title: str = "") -> Section:
    """Metrics of two graphs side by side, without rows that are zero in both."""
    numbers = ("before", "after", "change")
    table = make_table(title, "", *numbers, numbers=numbers)
    for row in _parted(table, rows(before, after)):
        table.add_text(row.label, row.before, row.after, row.delta)
    return table


def single(metrics: Mapping[str, Any], title: str = "") -> Section:
    """Metrics of one graph, without rows that are zero."""
    table = make_table(title, "", "value", numbers=("value",))
    for row in _parted(table, rows(metrics, metrics)):
        table.add_text(row.label, row.before)
    return table


def figures(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """The rows of :func:`compare` as texts: label, before, after, change."""
    return [(row.label, row.before, row.after, row.change) for row in rows(before, after)]


def rows(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Figure]:
    """What there is to say of two graphs, rows that are zero in both left out."""
    listed: list[Figure] = []
    for key, name in _keys(before, after):
        old, new = _value(before, key, name), _value(after, key, name)
        # No hidden share is "-", which differs from 0 %: nothing is hidden of what there is.
        unknown = _unknown(before, key, name) or _unknown(after, key, name)
        if not old and not new and not unknown and not (key == "hidden_share" and (old, new) != (None, None)):
            continue
        unit = name if name and key not in _LABELS else key
        if key.endswith("_share") and old != new and None not in (old, new):
            delta = f"{100 * (new - old):+.1f} points"  # a share of a share says little
        else:
            delta = change(old, new)
        better = None
        if key in (*_LESS_IS_BETTER, *_MORE_IS_BETTER) and delta not in ("", "="):
            better = bool(new < old) == (key in _LESS_IS_BETTER)
        label = _LABELS.get(key, key.replace("_", " ") + (" {}" if name else "")).format(name)
        shown = [_show(unit, value, _unknown(side, key, name)) for side, value in ((before, old), (after, new))]
        # Loops that run nobody knows how often count once, so that times are lower bounds.
        loops = [key.endswith("_ms") and "loops_counted_once" in side for side in (before, after)]
        shown = [f">= {text}" if least else text for text, least in zip(shown, loops, strict=True)]
        listed.append(Figure(label, shown[0], shown[1], delta, key in _COSTED, better))
    return listed


def _parted(table: Section, figures: Iterable[Figure]) -> Iterable[Figure]:
    """The rows, with a gap in the table before the first that a cost model made."""
    costed = False
    for row in figures:
        if row.costed and not costed:
            costed = True
            table.add_section()
        yield row


def costed_by(document: Mapping[str, Any]) -> list[Text]:
    """The line under tables with simulated times: which model made them; nothing without one."""
    model = document.get("cost_model")
    if model is None:
        return []
    missing = unknown_in(document)
    known = f"; {plural(missing, 'size')} unknown, so they count what is known" if missing else ""
    return [Text(f"times simulated with {model['name']}, hash {model['hash']}{known}", style="dim")]


def unknown_in(document: Mapping[str, Any]) -> int:
    """How many sizes the graph of a document lacks that lacks most."""
    sides = [document.get(key) for key in ("graph", "before", "after")]
    sides += [
        graph["metrics"] for graph in document.get("graphs", ()) if isinstance(graph, dict) and "metrics" in graph
    ]
    return max((_unknown(side, "bytes") for side in sides if isinstance(side, dict)), default=0)


def _keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterable[Row]:
    """Keys to show, in a fixed order; launches and bytes of one kind next to each other."""
    known, costed = ([key for key in keys if key in before or key in after] for keys in (_COUNTED, _COSTED))
    flags = (*_LABELS, "unknown_sizes", "loops_counted_once")
    others = [key for key in (*before, *(k for k in after if k not in before)) if key not in flags]
    for key in (*known, *others, *costed):
        if key == "bytes" and "collectives" in known:
            continue
        sides = [side[key] for side in (before, after) if key in side]
        if not all(isinstance(side, dict) for side in sides):
            yield key, ""
            continue
        names = list(dict.fromkeys(name for side in sides for name in side))
        for name in names:
            launched = any(side.get("collectives", {}).get(name) for side in (before, after))
            if key == "max_consecutive_compute" and not launched:
                continue  # without launches of the kind the figure only counts the compute nodes
            if key == "groups" and len(names) == 1:
                continue  # the same numbers as by kind
            yield key, name
            if key == "collectives" and "bytes" in known:
                yield "bytes", name


def _value(side: Mapping[str, Any], key: str, name: str) -> Any:
    value = side.get(key, {} if key == "in_sub_graphs" else None)  # which has no key where there are none
    if not name:
        return value
    return value.get(name, 0) if isinstance(value, dict) else None


def _unknown(side: Mapping[str, Any], key: str, name: str = "") -> int:
    """How many sizes are missing in a figure of bytes."""
    return (
        int(side.get("unknown_sizes", {}).get(name or "values", 0)) if key == "bytes" or key.endswith("_bytes") else 0
    )


def _bytes_of(metrics: Mapping[str, Any], key: str) -> tuple[float, int] | None:
    return None if metrics.get(key) is None else (metrics[key], _unknown(metrics, key))


def _show_bytes(pair: tuple[float, int]) -> str:
    return least_size(*pair, brief=True)


def _show(key: str, value: Any, unknown: int = 0) -> str:
    if not isinstance(value, (int, float)):
        return "-" if key == "hidden_share" else "?" if value is None else str(value)
    if key == "bytes" or key.endswith("_bytes"):
        return least_size(value, unknown)
    if key.endswith("_share"):
        return share(value)
    return milliseconds(value) if key.endswith("_ms") else count(value)


@dataclass(frozen=True)
class Column:
    """A figure of tables with a row for each graph: heading, value in its metrics (None for none), text of that."""

    heading: str
    value: Callable[[Mapping[str, Any]], Any]
    show: Callable[[Any], str]


COLUMNS = (
    Column("step time", lambda metrics: metrics.get("step_ms"), milliseconds),
    Column("exposed", lambda metrics: metrics.get("exposed_ms"), milliseconds),
    Column("hidden", lambda metrics: metrics.get("hidden_share"), share),
    Column("peak memory", lambda metrics: _bytes_of(metrics, "peak_bytes"), _show_bytes),
    Column("in flight", lambda metrics: _bytes_of(metrics, "in_flight_bytes"), _show_bytes),
    Column("launches", lambda metrics: sum(metrics["collectives"].values()), count),
    # Without reduce-scatters the figure would count all compute nodes.
    Column(
        "max consecutive",
        lambda metrics: (
            metrics["max_consecutive_compute"]["reduce_scatter"]
            if metrics["collectives"].get("reduce_scatter")
            else None
        ),
        count,
    ),
)


def metrics_by_pass(document: Mapping[str, Any]) -> Section:
    """The metrics after every pass of a run, a row for each::

        after each pass                   step time     exposed  peak memory  launches  max consecutive
        input graph                      702.952 ms  211.951 ms     53.3 GiB       581                3
        bucket{bucket_cap_mb=100}        660.679 ms  159.565 ms     53.3 GiB       228                9

    Figures that no graph of the run has are left out.
    """
    rows = [("input graph", document["before"])]
    for step in document["passes"]:
        state = "" if step["changed"] else "  (dropped)" if step["dropped"] else "  (no change)"
        rows.append((f"{step['options']}{state}", step["metrics"]))
    columns = [column for column in COLUMNS if any(column.value(metrics) is not None for _, metrics in rows)]
    headings = tuple(column.heading for column in columns)
    table = make_table("", "after each pass", *headings, numbers=headings)
    for label, metrics in rows:
        values = ((column, column.value(metrics)) for column in columns)
        table.add_text(Settings(label), *("-" if value is None else column.show(value) for column, value in values))
    return table
