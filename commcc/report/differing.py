"""What ``commcc diff`` says: what matters first, long lists cut to their most telling lines."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.text import count, plural
from commcc.base.text import shown as shown_text
from commcc.report.console import cut_short, make_table
from commcc.report.documents import costs, document
from commcc.report.metrics import compare, costed_by

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from commcc.base.terms import Json
    from commcc.diff import GraphDiff
    from commcc.report.console import Section

    Document = Mapping[str, Any]

_LEGEND = "span: nodes between the first and the last member. launch, wait: how many nodes they passed, + is later."


def difference(before: str, after: str, result: GraphDiff) -> dict[str, Json]:
    """The document."""
    inputs: dict[str, Json] = {"before": before, "after": after}
    return document("diff", inputs=inputs, **costs(result.first, result.last), **result.to_json())


def brief(document: Document) -> str:
    """A diff on one line."""
    if document["identical"]:
        return "identical"
    nodes = {key: sum(len(group["nodes"]) for group in document[key]) for key in ("added", "removed")}
    keys = ("merged", "split", "moved", "renamed", "changed", "rewired", "retyped")
    lengths = {**{key: len(document[key]) for key in keys}, "regrouped": len(document["groups"])}
    return ", ".join(f"{number:,} {key}" for key, number in {**lengths, **nodes}.items() if number)


def view(document: Document, top: int | None) -> list[RenderableType]:
    """Everything in the document; each list at most ``top`` lines, all of them when it is None."""
    if document["identical"]:
        return [Text("identical: the same nodes in the same order", style="bold green"), *_page(document)]
    shown: list[RenderableType] = [compare(document["before"], document["after"]), *costed_by(document)]
    if document["merged"]:
        shown += ["", _merged(document["merged"], top), Text(_LEGEND, style="dim")]
    shown += _simple("split", "collective", document["split"], top, of="source", group="group", into="parts")
    shown += _simple("replaced", "collective", document["replaced"], top, before="before", after="after")
    if document["moved"]:
        shown += ["", _moved_by_op(document["moved"], top), "", _moved_farthest(document["moved"], top)]
    if document["added"] or document["removed"]:
        shown += ["", _ops(document["added"], document["removed"], top)]
    shown += _simple("renamed", "node", document["renamed"], top, before="before", after="after", op="op")
    sides = {"before": "before", "after": "after"}
    for what, key in (("other constants", "changed"), ("other results", "retyped")):
        shown += _simple(what, "node", _short(document[key], top), top, node="name", **sides)
    shown += _simple("other ranks", "group", _short(document["groups"], top), top, group="name", **sides)
    names = document["rewired"]
    if names:
        listed = names if top is None else names[:3]
        more = f", ... ({len(names) - len(listed):,} more)" if len(listed) < len(names) else ""
        heading = f"other operands: {plural(len(names), 'node')}  "
        shown += ["", Text.assemble((heading, "bold"), ", ".join(listed) + more)]
    return [*shown, *_page(document)]


def _short(changes: list[Document], top: int | None) -> list[Document]:
    """Changes as a table shows them: lists of a whole graph's results are as long as the graph."""
    if top is None:
        return changes
    return [{**entry, **{side: shown_text(entry[side]) for side in ("before", "after")}} for entry in changes]


def _page(document: Document) -> list[RenderableType]:
    return ["", Text.assemble("page written to ", (document["html"], "bold"))] if "html" in document else []


def _cut(items: Sequence[Any], top: int | None) -> Sequence[Any]:
    return items if top is None else items[:top]


def _title(text: str, total: int, top: int | None) -> str:
    return text if top is None or total <= top else f"{text} (first {top}; --all lists each)"


def _simple(what: str, noun: str, items: list[Document], top: int | None, **columns: str) -> list[RenderableType]:
    """A table of a list, if there is anything in it. columns: headings, and the keys of their cells."""
    if not items:
        return []
    table = make_table(_title(f"{what}: {plural(len(items), noun)}", len(items), top), *columns)
    for item in _cut(items, top):
        cells = (item[key] for key in columns.values())
        table.add_text(*(", ".join(cell) if isinstance(cell, list) else cell for cell in cells))
    return ["", table]


def _merged(merges: list[Document], top: int | None) -> Section:
    members = sum(len(merge["members"]) for merge in merges)
    heading = _title(f"merged: {members:,} collectives into {len(merges):,}", len(merges), top)
    numbers = ("of", "span", "launch", "wait")
    table = make_table(heading, "into", "group", *numbers, "members", numbers=numbers, whole=("into",))
    table.spare = ("span", "wait")

    def passed(ends: list[int] | None) -> str:
        low, high = ends or (0, 0)
        return "" if ends is None else _signed(low) if low == high else f"{_signed(low)}..{_signed(high)}"

    for merge in _cut(merges, top):
        names = merge["members"]
        listed: str | Text = ", ".join(names)
        if top is not None and len(names) > 2:
            listed = cut_short(f"{names[0]} ... {names[-1]}")
        moved = passed(merge["launch_moved"]), passed(merge["wait_moved"])
        table.add_text(merge["into"], merge["group"], count(len(names)), count(merge["span"]), *moved, listed)
    return table


def _signed(number: int) -> str:
    return f"{number:+,}" if number else "0"


def _moved_by_op(moved: list[Document], top: int | None) -> Section:
    by_op: dict[str, list[int]] = defaultdict(list)
    for move in moved:
        by_op[move["op"]].append(move["passed"])
    ordered = sorted(by_op.items(), key=lambda item: (-len(item[1]), item[0]))
    numbers = ("earlier", "later")
    title = _title(f"moved: {plural(len(moved), 'node')} past others that stayed", len(ordered), top)
    table = make_table(title, "op", *numbers, numbers=numbers)
    for op, passed in _cut(ordered, top):
        ways = ([-p for p in passed if p < 0], [p for p in passed if p >= 0])
        table.add_text(op, *(f"{len(way):,}, at most {max(way):,}" if way else "" for way in ways))
    return table


def _moved_farthest(moved: list[Document], top: int | None) -> Section:
    # A whole list reads best in the order of the graph; a cut one has to begin with what matters.
    ordered = moved if top is None else sorted(moved, key=lambda move: (-abs(move["passed"]), move["after"]))
    title = "moved, in the order after" if top is None else _title("moved farthest", len(moved), top)
    numbers = ("passed", "before", "after")
    table = make_table(title, "node", *numbers, numbers=numbers)
    for move in _cut(ordered, top):
        table.add_text(move["name"], _signed(move["passed"]), count(move["before"]), count(move["after"]))
    return table


def _ops(added: list[Document], removed: list[Document], top: int | None) -> Section:
    """Nodes that only one graph has, by op."""
    new, old = ({group["op"]: group["nodes"] for group in groups} for groups in (added, removed))
    ops = sorted({**new, **old}, key=lambda op: (-len(new.get(op, ())) - len(old.get(op, ())), op))
    totals = [sum(map(len, side.values())) for side in (new, old)]
    title = _title(f"nodes added: {totals[0]:,}, removed: {totals[1]:,}", len(ops), top)
    table = make_table(title, "op", "added", "removed", "for example", numbers=("added", "removed"), whole=("op",))
    for op in _cut(ops, top):
        names = [*(f"+{name}" for name in new.get(op, ())), *(f"-{name}" for name in old.get(op, ()))]
        counts = (count(len(side[op])) if op in side else "" for side in (new, old))
        table.add_text(op, *counts, ", ".join(names) if top is None else cut_short(names[0]))
    return table
