"""What ``commcc verify --numeric`` says below the verdict of the structure: one line, values, remarks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.text import count
from commcc.report.console import make_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

_LINES = {
    "equal": ("numeric: the same to the bit", "bold green"),
    "within tolerance": ("numeric: the same within rounding", "bold green"),
    "inconclusive": ("numeric: not decided", "bold yellow"),
    "different": ("numeric: different numbers", "bold red"),
}
#: Values that are shown; the JSON has more.
_SHOWN = 12


def brief(numeric: Any) -> str:
    """What a one-line result says besides the verdict."""
    return f", numeric: {numeric['status']}" if numeric is not None else ""


def view(numeric: Mapping[str, Any], verified: str) -> list[RenderableType]:
    """The numeric part of a ``verify`` document; verified: what the structure says."""
    text, style = _LINES[numeric["status"]]
    where = "gloo processes" if numeric["backend"] == "gloo" else "virtual ranks"
    on = f" on {numeric['ranks']} {where}" if numeric["ranks"] else ""
    wide = ", all in float64" if numeric["precision"] == "float64" else ""
    shown: list[RenderableType] = [
        "",
        Text(f"{text}{on}{wide}", style=style),
        Text(f"{_counts(numeric)}, seed {numeric['seed']}, {numeric['seconds']:.1f} s", style="dim"),
    ]
    if numeric["failure"]:
        shown.append(Text(numeric["failure"], style="red"))
    if verified == "unproved" and numeric["status"] in ("equal", "within tolerance"):
        shown.append(Text("what is not decided above was tried: these inputs show no difference"))
    if numeric["first_difference"]:
        shown.append(Text(numeric["first_difference"]))
    shown += _values(numeric["values"])
    shown += [Text(f"- {note}", style="dim") for note in numeric["notes"]]
    return shown


def _counts(numeric: Mapping[str, Any]) -> str:
    if not numeric["compared"]:
        return "nothing compared"
    parts = [f"{count(number)} {status}" for status, number in numeric["counts"].items() if number]
    return f"{count(numeric['compared'])} values of each rank: {', '.join(parts)}"


def _values(values: list[Mapping[str, Any]]) -> list[RenderableType]:
    if not values:
        return []
    more = f" (first {_SHOWN})" if len(values) > _SHOWN else ""
    columns = ("value", "made by", "verdict", "where", "BEFORE", "AFTER", "relative", "ulps")
    table = make_table(f"values that are not the same{more}", *columns, numbers=("relative", "ulps"))
    for value in values[:_SHOWN]:
        table.add_text(value["name"], value["node"], value["status"], *_difference(value))
    worst = values[0]
    shown: list[RenderableType] = ["", table]
    if worst["reasons"]:
        shown.append(Text(f"{worst['name']}: AFTER adds up other parts: {'; '.join(worst['reasons'])}"))
    elif worst["difference"] is not None:
        shown.append(Text(f"{worst['name']}: no sum on the way to it changed, so rounding is no excuse"))
    if worst["producers"]:
        shown.append(Text(f"{worst['name']} comes from {' <- '.join(worst['producers'])}", style="dim"))
    return shown


def _difference(value: Mapping[str, Any]) -> tuple[str, ...]:
    gap = value["difference"]
    if gap is None:
        return (f"{count(value['not_a_number'])} no numbers", "", "", "", "")
    if gap["mismatch"]:
        return (f"rank {gap['rank']}", gap["mismatch"], "", "", "")
    element = f"[{', '.join(map(str, gap['element']))}]" if gap["element"] else ""
    relative = "" if gap["relative"] is None else f"{gap['relative']:.1e}"
    ulps = "" if gap["ulps"] is None else f"{gap['ulps']:.3g}"
    return (f"rank {gap['rank']} {element}", gap["before"], gap["after"], relative, ulps)
