"""What ``commcc verify`` says: the verdict, every finding with its node, and what ``--numeric`` found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.text import count, size
from commcc.report.console import make_table
from commcc.report.documents import document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from commcc.base.terms import Json
    from commcc.replay.numeric import Numeric
    from commcc.verify import Peak, Verdict

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


#: The same of what ``--numeric`` found.
_NUMERIC = {
    "equal": ("numeric: the same to the bit", "bold green"),
    "within tolerance": ("numeric: the same within rounding", "bold green"),
    "inconclusive": ("numeric: not decided", "bold yellow"),
    "different": ("numeric: different numbers", "bold red"),
}
#: Values that are shown; the JSON has more.
_MOST_VALUES = 12


def verification(
    before: str, after: str, verdict: Verdict, numeric: Numeric | None = None, peak: Peak | None = None
) -> dict[str, Json]:
    """The document; ``numeric`` is null without ``--numeric``, ``memory`` without ``--memory-budget``."""
    inputs: dict[str, Json] = {"before": before, "after": after}
    return document(
        "verify",
        inputs=inputs,
        verified=str(verdict.status),
        verdict=verdict.to_json(),
        numeric=None if numeric is None else numeric.to_json(),
        memory=None if peak is None else peak.to_json(),
    )


def brief(document: Document) -> str:
    """The verdicts on one line."""
    numeric = document["numeric"]
    return str(document["verified"]) + (f", numeric: {numeric['status']}" if numeric is not None else "")


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
        entries = verdict[key] if key != "notes" else verdict[key][:_MOST_NOTES]
        if not entries:
            continue
        total = verdict["checked"].get(_TOTALS[key], len(entries))
        more = f" (first {len(entries)})" if total > len(entries) else ""
        table = make_table(f"{title}: {total:,}{more}", "rule", "node", "what")
        for finding in entries:
            way = finding.get("way") or []  # how a difference shows from outside, on a line of its own
            through = f" through {' > '.join(way[1:-1])}" if way[1:-1] else ""
            reaches = f"\nreaches {way[-1]}{through}" if len(way) > 1 else ""
            table.add_text(finding["rule"], finding["node"], finding["text"] + reaches)
        shown += ["", table]
    peak = document.get("memory")
    if peak is not None:
        text = f"peak memory {size(peak['after_bytes'])}"
        text += f" at '{peak['at']}'" if peak["at"] else ""
        text += f": {'within' if peak['within'] else 'over'} the budget of {size(peak['budget_bytes'])}"
        text += f", in BEFORE {size(peak['before_bytes'])}"
        shown += ["", Text(text, style="green" if peak["within"] else "bold red")]
    if document.get("numeric") is not None:
        shown += _numeric(document["numeric"], document["verified"])
    return shown


def _numeric(numeric: Document, verified: str) -> list[RenderableType]:
    """What running both graphs found; verified: what the structure says."""
    text, style = _NUMERIC[numeric["status"]]
    where = "gloo processes" if numeric["backend"] == "gloo" else "virtual ranks"
    on = f" on {numeric['ranks']} {where}" if numeric["ranks"] else ""
    compared = "nothing compared"
    if numeric["compared"]:
        parts = [f"{count(number)} {status}" for status, number in numeric["counts"].items() if number]
        compared = f"{count(numeric['compared'])} values of each rank: {', '.join(parts)}"
    wide = ", all in float64" if numeric["precision"] == "float64" else ""
    shown: list[RenderableType] = [
        "",
        Text(f"{text}{on}{wide}", style=style),
        Text(f"{compared}, seed {numeric['seed']}, {numeric['seconds']:.1f} s", style="dim"),
    ]
    if numeric["failure"]:
        shown.append(Text(numeric["failure"], style="red"))
    if verified == "unproved" and numeric["status"] in ("equal", "within tolerance"):
        shown.append(Text("what is not decided above was tried: these inputs show no difference"))
    if numeric["first_difference"]:
        shown.append(Text(numeric["first_difference"]))
    if numeric["values"]:
        shown += _values(numeric["values"])
    shown += [Text(f"- {note}", style="dim") for note in numeric["notes"]]
    return shown


def _values(values: list[Document]) -> list[RenderableType]:
    more = f" (first {_MOST_VALUES})" if len(values) > _MOST_VALUES else ""
    columns = ("value", "node", "verdict", "where", "BEFORE", "AFTER", "relative", "ulps")
    table = make_table(f"values that are not the same{more}", *columns, numbers=("relative", "ulps"))
    for value in values[:_MOST_VALUES]:
        table.add_text(value["name"], value["node"], value["status"], *_difference(value))
    # Values are in the order of their weight, and one explanation is enough to act on.
    worst = values[0]
    shown: list[RenderableType] = ["", table]
    if worst["reasons"]:
        shown.append(Text(f"{worst['name']}: AFTER adds up from other parts: {'; '.join(worst['reasons'])}"))
    elif worst["difference"] is not None:
        shown.append(Text(f"{worst['name']}: no sum on the way to it changed, so rounding is no excuse"))
    if worst["producers"]:
        shown.append(Text(f"{worst['name']} comes from {' <- '.join(worst['producers'])}", style="dim"))
    return shown


def _difference(value: Document) -> tuple[str, ...]:
    gap = value["difference"]
    if gap is None:
        return (f"{count(value['not_a_number'])} no numbers", "", "", "", "")
    if gap["mismatch"]:
        return (f"rank {gap['rank']}", gap["mismatch"], "", "", "")
    element = f"[{', '.join(map(str, gap['element']))}]" if gap["element"] else ""
    relative = "" if gap["relative"] is None else f"{gap['relative']:.1e}"
    ulps = "" if gap["ulps"] is None else f"{gap['ulps']:.3g}"
    return (f"rank {gap['rank']} {element}", gap["before"], gap["after"], relative, ulps)
