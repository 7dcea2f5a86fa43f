"""Tables of metrics, for one graph or for two side by side.

Drawn from the JSON of :class:`commcc.metrics.GraphMetrics`. A key that is not known here still gets
its row, in the unit that its suffix says (``_ms``, ``_bytes``, ``_share``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.report.console import make_table
from commcc.report.units import change, count, size

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
}
_ORDER = ("nodes", "compute_nodes", "collectives", "bytes", "groups", "max_consecutive_compute")


def compare(before: Mapping[str, Any], after: Mapping[str, Any], title: str = "") -> Section:
    """Metrics of two graphs side by side, without rows that are zero in both."""
    numbers = ("before", "after", "change")
    table = make_table(title, "", *numbers, numbers=numbers)
    for label, old, new, delta in figures(before, after):
        table.add_text(label, old, new, Text(delta, style="dim" if delta == "=" else ""))
    return table


def single(metrics: Mapping[str, Any], title: str = "") -> Section:
    """Metrics of one graph, without rows that are zero."""
    table = make_table(title, "", "value", numbers=("value",))
    for label, value, _, _ in figures(metrics, metrics):
        table.add_text(label, value)
    return table


def figures(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterable[tuple[str, str, str, str]]:
    """What tables of metrics say: label, before, after and change, without rows that are zero in both."""
    for key, name in _rows(before, after):
        old, new = _value(before, key, name), _value(after, key, name)
        if old or new:
            unit = key if key == "bytes" or not name else name
            yield _label(key, name), _show(unit, old), _show(unit, new), change(old, new)


def _rows(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterable[Row]:
    """Keys to show, in a fixed order; launches and bytes of one kind next to each other."""
    known = [key for key in _ORDER if key in before or key in after]
    others = [key for key in (*before, *(k for k in after if k not in before)) if key not in _ORDER]
    for key in (*known, *others):
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
        return "?" if value is None else str(value)
    if key == "bytes" or key.endswith("_bytes"):
        return size(value)
    if key.endswith("_share"):
        return f"{value:.1%}".replace("%", " %")
    return f"{value:,.3f} ms" if key.endswith("_ms") else count(value)
