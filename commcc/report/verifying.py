"""What ``commcc verify`` says: the verdict, every finding with its node, and what ``--numeric`` found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.text import count, size
from commcc.report import numeric
from commcc.report.console import make_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    Document = Mapping[str, Any]

_LINES = {
    "proved": ("proved: the same program", "bold green"),
    "unproved": ("not proved: no difference found, but not everything could be decided", "bold yellow"),
    "different": ("different: not the same program", "bold red"),
}
#: Harmless things shown; --json has more.
_MOST_NOTES = 10
_SECTIONS = (("findings", "differences"), ("unproved", "not decided"), ("notes", "harmless"))
#: What ``checked`` calls the full number of a section's entries.
_TOTALS = {"findings": "findings", "unproved": "gaps", "notes": "notes"}


def view(document: Document) -> list[RenderableType]:
    """The verdict of a ``verify`` document."""
    verdict = document["verdict"]
    text, style = _LINES[document["verified"]]
    shown: list[RenderableType] = [Text(text, style=style)]
    checked = {name: number for name, number in verdict["checked"].items() if number and name not in _TOTALS.values()}
    if checked:
        counts = ", ".join(f"{count(number)} {name.replace('_', ' ')}" for name, number in checked.items())
        shown.append(Text(f"compared {counts}", style="dim"))
    for key, title in _SECTIONS:
        found = verdict[key] if key != "notes" else verdict[key][:_MOST_NOTES]
        if not found:
            continue
        total = verdict["checked"].get(_TOTALS[key], len(found))
        more = f" (first {len(found)})" if total > len(found) else ""
        table = make_table(f"{title}: {total:,}{more}", "rule", "node", "what")
        for each in found:
            table.add_text(each["rule"], each["node"], each["text"] + _way(each.get("way") or []))
        shown += ["", table]
    if document.get("memory") is not None:
        shown += ["", _memory(document["memory"])]
    if document.get("numeric") is not None:
        shown += numeric.view(document["numeric"], document["verified"])
    return shown


def _memory(peak: Mapping[str, Any]) -> Text:
    """The peak of AFTER beside the budget and the peak of BEFORE."""
    within = "within" if peak["within"] else "over"
    text = f"peak memory {size(peak['after_bytes'])}"
    text += f" at '{peak['at']}'" if peak["at"] else ""
    text += f": {within} the budget of {size(peak['budget_bytes'])}, in BEFORE {size(peak['before_bytes'])}"
    return Text(text, style="green" if peak["within"] else "bold red")


def _way(way: list[str]) -> str:
    """How a difference shows from outside, on a line of its own."""
    if len(way) < 2:
        return ""
    through = f" through {' > '.join(way[1:-1])}" if way[1:-1] else ""
    return f"\nreaches {way[-1]}{through}"
