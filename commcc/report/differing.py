"""Tables of ``commcc diff``: what matters first, long lists cut to their most telling lines."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.text import count, plural
from commcc.report.console import cut_short, make_table
from commcc.report.metrics import compare, costed_by

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from commcc.report.console import Section

    Document = Mapping[str, Any]

_LEGEND = "span: nodes between the first and the last member. launch, wait: how many nodes they passed, + is later."


def view(document: Document, top: int | None) -> list[RenderableType]:
    """Everything in the document; each list at most ``top`` lines, all of them when it is None."""
    if document["identical"]:
        return [Text("identical: the same nodes in the same order", style="bold green")]
    sections = [
        _merged(document["merged"], top),
        _split(document["split"], top),
        _replaced(document["replaced"], top),
        _moved_by_op(document["moved"], top),
        _moved(document["moved"], top),
        _ops(document["added"], document["removed"], top),
        _renamed(document["renamed"], top),
        _changed(document["changed"], top),
    ]
    shown: list[RenderableType] = [compare(document["before"], document["after"]), *costed_by(document)]
    for section in sections:
        if section is not None:
            shown += ["", section]
        if section is not None and section is sections[0]:
            shown.append(Text(_LEGEND, style="dim"))
    if document["rewired"]:
        shown += ["", _rewired(document["rewired"], top)]
    return shown


def _cut(items: Sequence[Any], top: int | None) -> Sequence[Any]:
    return items if top is None else items[:top]


def _title(text: str, total: int, top: int | None) -> str:
    return text if top is None or total <= top else f"{text} (first {top}; --all lists each)"


def _merged(merges: list[Document], top: int | None) -> Section | None:
    if not merges:
        return None
    members = sum(len(merge["members"]) for merge in merges)
    heading = _title(f"merged: {members:,} collectives into {len(merges):,}", len(merges), top)
    numbers = ("of", "span", "launch", "wait")
    table = make_table(heading, "into", "group", *numbers, "members", numbers=numbers, whole=("into",))
    for merge in _cut(merges, top):
        names = merge["members"]
        listed: str | Text = ", ".join(names)
        if top is not None and len(names) > 2:
            listed = cut_short(f"{names[0]} ... {names[-1]}")
        launch, wait = _range(merge["launch_moved"]), _range(merge["wait_moved"])
        table.add_text(merge["into"], merge["group"], count(len(names)), count(merge["span"]), launch, wait, listed)
    return table


def _range(passed: list[int] | None) -> str:
    if passed is None:
        return ""
    low, high = passed
    return _signed(low) if low == high else f"{_signed(low)}..{_signed(high)}"


def _signed(number: int) -> str:
    return f"{number:+,}" if number else "0"


def _split(splits: list[Document], top: int | None) -> Section | None:
    if not splits:
        return None
    table = make_table(_title(f"split: {plural(len(splits), 'collective')}", len(splits), top), "of", "group", "into")
    for split in _cut(splits, top):
        table.add_text(split["source"], split["group"], ", ".join(split["parts"]))
    return table


def _replaced(changes: list[Document], top: int | None) -> Section | None:
    if not changes:
        return None
    title = _title(f"replaced: {plural(len(changes), 'collective')}", len(changes), top)
    table = make_table(title, "before", "after")
    for change in _cut(changes, top):
        table.add_text(change["before"], change["after"])
    return table


def _moved_by_op(moved: list[Document], top: int | None) -> Section | None:
    if not moved:
        return None
    by_op: dict[str, list[int]] = defaultdict(list)
    for move in moved:
        by_op[move["op"]].append(move["passed"])
    ordered = sorted(by_op.items(), key=lambda item: (-len(item[1]), item[0]))
    title = _title(f"moved: {plural(len(moved), 'node')} past others that stayed", len(ordered), top)
    numbers = ("earlier", "later")
    table = make_table(title, "op", *numbers, numbers=numbers)
    for op, passed in _cut(ordered, top):
        table.add_text(op, _reach([-p for p in passed if p < 0]), _reach([p for p in passed if p >= 0]))
    return table


def _reach(distances: list[int]) -> str:
    return f"{len(distances):,}, at most {max(distances):,}" if distances else ""


def _moved(moved: list[Document], top: int | None) -> Section | None:
    if not moved:
        return None
    ordered = moved if top is None else sorted(moved, key=lambda move: (-abs(move["passed"]), move["after"]))
    title = "moved, in the order after" if top is None else _title("moved farthest", len(moved), top)
    table = make_table(title, "node", "passed", "before", "after", numbers=("passed", "before", "after"))
    for move in _cut(ordered, top):
        table.add_text(move["name"], _signed(move["passed"]), count(move["before"]), count(move["after"]))
    return table


def _ops(added: list[Document], removed: list[Document], top: int | None) -> Section | None:
    new, old = ({group["op"]: group["nodes"] for group in groups} for groups in (added, removed))
    ops = sorted({**new, **old}, key=lambda op: (-len(new.get(op, ())) - len(old.get(op, ())), op))
    if not ops:
        return None
    totals = [sum(map(len, side.values())) for side in (new, old)]
    title = _title(f"nodes added: {totals[0]:,}, removed: {totals[1]:,}", len(ops), top)
    table = make_table(title, "op", "added", "removed", "for example", numbers=("added", "removed"), whole=("op",))
    for op in _cut(ops, top):
        names = [*(f"+{name}" for name in new.get(op, ())), *(f"-{name}" for name in old.get(op, ()))]
        counts = (count(len(side[op])) if op in side else "" for side in (new, old))
        table.add_text(op, *counts, ", ".join(names) if top is None else cut_short(names[0]))
    return table


def _renamed(renames: list[Document], top: int | None) -> Section | None:
    if not renames:
        return None
    title = _title(f"renamed: {plural(len(renames), 'node')}", len(renames), top)
    table = make_table(title, "before", "after", "op")
    for rename in _cut(renames, top):
        table.add_text(rename["before"], rename["after"], rename["op"])
    return table


def _changed(changes: list[Document], top: int | None) -> Section | None:
    if not changes:
        return None
    title = _title(f"other constants: {plural(len(changes), 'node')}", len(changes), top)
    table = make_table(title, "node", "before", "after")
    for change in _cut(changes, top):
        table.add_text(change["name"], change["before"], change["after"])
    return table


def _rewired(names: list[str], top: int | None) -> Text:
    shown = names if top is None else names[:3]
    more = f", ... ({len(names) - len(shown):,} more)" if len(shown) < len(names) else ""
    return Text.assemble((f"other operands: {plural(len(names), 'node')}  ", "bold"), ", ".join(shown) + more)
