"""Tables of metrics, for one graph or for two side by side.

Drawn from the JSON of :class:`commcc.graph.metrics.GraphMetrics`, with the costed keys of
:class:`commcc.timing.predict.Prediction` under a rule of their own. A key that is not known here still gets
its row, in the unit that its suffix says (``_ms``, ``_bytes``, ``_share``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.text import change, count, milliseconds, share, size
from commcc.report.console import make_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commcc.report.console import Section

    Row = tuple[str, str]  # the key's path: ("bytes", "all_gather")

_LABELS = {
    "nodes": "nodes",
    "compute_nodes": "compute nodes",
    "collectives": "{} launches",
    "bytes": "{} on the wire",
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
_COUNTED = ("nodes", "compute_nodes", "collectives", "bytes", "groups", "max_consecutive_compute")
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
    found: list[Figure] = []
    for key, name in _keys(before, after):
        old, new = _value(before, key, name), _value(after, key, name)
        if not old and not new and not (key == "hidden_share" and (old, new) != (None, None)):
            continue
        unit = name if name and key not in _LABELS else key
        delta = _difference(key, old, new)
        better = None
        if key in (*_LESS_IS_BETTER, *_MORE_IS_BETTER) and delta not in ("", "="):
            better = bool(new < old) == (key in _LESS_IS_BETTER)
        found.append(Figure(_label(key, name), _show(unit, old), _show(unit, new), delta, key in _COSTED, better))
    return found


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
    return [Text(f"times simulated with {model['name']}, hash {model['hash']}", style="dim")]


def _difference(key: str, old: Any, new: Any) -> str:
    if not key.endswith("_share") or old is None or new is None:
        return change(old, new)
    return "=" if old == new else f"{100 * (new - old):+.1f} points"


def _keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterable[Row]:
    """Keys to show, in a fixed order; launches and bytes of one kind next to each other."""
    known, costed = ([key for key in keys if key in before or key in after] for keys in (_COUNTED, _COSTED))
    others = [key for key in (*before, *(k for k in after if k not in before)) if key not in _LABELS]
    for key in (*known, *others, *costed):
        if key == "bytes" and "collectives" in known:
            continue
        names = _names(before, after, key)
        if names is None:
            yield key, ""
            continue
        for name in names:
            if key == "max_consecutive_compute" and not _launches(before, after, name):
                continue  # without launches of the kind the figure only counts the compute nodes
            if key == "groups" and len(names) == 1:
                continue  # the same numbers as by kind
            yield key, name
            if key == "collectives" and "bytes" in known:
                yield "bytes", name


def _names(before: Mapping[str, Any], after: Mapping[str, Any], key: str) -> list[str] | None:
    """Keys of a nested mapping of both graphs, None for a plain number."""
    sides = [side[key] for side in (before, after) if key in side]
    if not all(isinstance(side, dict) for side in sides):
        return None
    return list(dict.fromkeys(name for side in sides for name in side))


def _launches(before: Mapping[str, Any], after: Mapping[str, Any], kind: str) -> bool:
    return any(side.get("collectives", {}).get(kind) for side in (before, after))


def _value(side: Mapping[str, Any], key: str, name: str) -> Any:
    value = side.get(key)
    if not name:
        return value
    return value.get(name, 0) if isinstance(value, dict) else None


def _label(key: str, name: str) -> str:
    template = _LABELS.get(key, key.replace("_", " ") + (" {}" if name else ""))
    return template.format(name)


def _show(key: str, value: Any) -> str:
    if not isinstance(value, (int, float)):
        return "-" if key == "hidden_share" else "?" if value is None else str(value)
    if key == "bytes" or key.endswith("_bytes"):
        return size(value)
    if key.endswith("_share"):
        return share(value)
    return milliseconds(value) if key.endswith("_ms") else count(value)
