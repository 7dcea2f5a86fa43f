"""What ``commcc explain`` shows: a drawing of the two streams, what could hide the collective, why it is
exposed, and what would change that. Drawn from the JSON document, see :mod:`commcc.report.explaining_data`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from commcc.base.text import milliseconds, plural, size
from commcc.report.console import cut_short, make_table
from commcc.report.explaining_picture import Drawing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import RenderableType

    Document = Mapping[str, Any]


def view(document: Document) -> list[RenderableType]:
    """One collective in full; several as a table and in short."""
    found = document["collectives"]
    model = document["cost_model"]
    source = f"simulated with {model['name']} ({model['hash']}), step {milliseconds(document['graph']['step_ms'])}"
    head: list[RenderableType] = [Text.assemble((document["input"], "bold"), f"  {source}"), ""]
    if not found:
        return [*head, Text("no collective is exposed", style="bold green")]
    if len(found) == 1:
        return [*head, *_full(found[0], document["graph"])]
    shown: list[RenderableType] = [*head, *_overview(found, document["graph"])]
    for each in found:
        shown += ["", _title(each), *_reasons(each, paths=False), *_knobs(each)]
    return [*shown, "", Text("one in full: commcc explain GRAPH COLLECTIVE", style="dim")]


def _overview(found: Sequence[Document], graph: Document) -> list[RenderableType]:
    together = sum(each["exposed_ms"] for each in found)
    heading = f"{plural(len(found), 'collective')} with most exposed time: {milliseconds(together)}"
    heading += f" of {milliseconds(graph['exposed_ms'])} in the step"
    numbers = ("exposed", "of")
    table = make_table(heading, "name", "group", "role", *numbers, "reasons", numbers=numbers, whole=("name",))
    for each in found:
        kinds = ", ".join(dict.fromkeys(_words(reason["kind"]) for reason in each["reasons"]))
        exposed, total = milliseconds(each["exposed_ms"]), milliseconds(each["total_ms"])
        table.add_text(each["name"], each["group"], each["role"], exposed, total, cut_short(kinds))
    return [table]


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _title(each: Document) -> Text:
    exposed, total = each["exposed_ms"], each["total_ms"]
    state = (
        f"{milliseconds(exposed)} of {milliseconds(total)} exposed"
        if exposed
        else f"hidden, all of its {milliseconds(total)}"
    )
    style = "bold red" if exposed else "bold green"
    return Text.assemble((each["name"], "bold"), "  ", (state, style))


def _full(each: Document, graph: Document) -> list[RenderableType]:
    shown: list[RenderableType] = [_title(each), "", *_about(each, graph), "", Drawing(each), ""]
    shown += [_heading("what could hide it"), *_hiding(each)]
    if each["exposed_ms"]:
        shown += ["", *_reasons(each, paths=True), "", *_knobs(each)]
    return shown


def _heading(text: str) -> Text:
    return Text(text, style="bold")


def _grid(rows: Iterable[tuple[str, str | Text]]) -> RenderableType:
    """Labels on the left, sentences that wrap on the right."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(Text(label), text if isinstance(text, Text) else Text(text))
    return _indented(table)


def _indented(table: Table) -> RenderableType:
    return Padding(table, (0, 0, 0, 2))


def _about(each: Document, graph: Document) -> list[RenderableType]:
    ranks = "" if each["group_size"] is None else f" ({plural(each['group_size'], 'rank')})"
    module = f", {each['module']}" if each["module"] else ""
    what = f"{each['kind']} for {each['role']} on group {each['group']}{ranks}{module}"
    moved = f"{size(each['input_bytes'])} in, {size(each['output_bytes'])} out, one rank"
    price = f"{milliseconds(each['total_ms'])}, {milliseconds(each['latency_ms'])} of it latency"
    told = ", ".join(filter(None, [f"by {each['priced_by']}" if each["priced_by"] else "", each["how"]]))
    rows = [("what", what), ("bytes", moved), ("time", f"{price} ({told})" if told else price)]
    if each["exposed_ms"]:
        saved = (
            f"without it the step of {milliseconds(graph['step_ms'])} would be {milliseconds(each['cost_ms'])} shorter"
        )
        rows.append(("costs", saved))
    return [_grid(rows)]


def _hiding(each: Document) -> list[RenderableType]:
    beside, possible = each["beside"], each["possible"]
    now = "nothing runs beside it"
    if beside["nodes"]:
        now = f"{milliseconds(beside['ms'])} of work runs beside it, {plural(beside['compute_nodes'], 'compute node')}"
        now += f": {', '.join(beside['largest'])}" + (", ..." if beside["nodes"] > len(beside["largest"]) else "")
    could = f"{milliseconds(possible['ms'])} of work in the graph is independent of it, "
    could += plural(possible["compute_nodes"], "compute node")
    rows: list[tuple[str, str | Text]] = [("now", now), ("possible", could)]
    for label, key in (("  before it", "before"), ("  after it", "after")):
        if possible[key]:
            rows.append((label, ", ".join(f"{near['name']} ({milliseconds(near['ms'])})" for near in possible[key])))
    rows.append(("launch", _launch_side(each["launch_side"])))
    rows.append(("wait", _wait_side(each["wait_side"], each["waits"])))
    return [_grid(rows)]


def _launch_side(side: Document) -> str:
    after = f"after {side['limit']}" if side["limit"] else "at the start of the graph"
    if not side["ms"]:
        return f"stands as early as it may, {after}"
    return f"could go up past {_passed(side)}, {after}"


def _wait_side(side: Document, waits: Sequence[str]) -> str:
    if not waits:
        return "nobody waits for it"
    before = f"before {side['limit']}" if side["limit"] else "at the end of the graph"
    if not side["ms"]:
        return f"stands as late as it may, {before}"
    return f"could go down past {_passed(side)}, {before}"


def _passed(side: Document) -> str:
    return f"{plural(side['compute_nodes'], 'compute node')} ({milliseconds(side['ms'])} of work)"


def _reasons(each: Document, *, paths: bool) -> list[RenderableType]:
    """The reasons with what each costs; with ``paths``, those that the text shortens or leaves out, once."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    shown: set[str] = set()
    for reason in each["reasons"]:
        text = Text(reason["text"])
        path = " -> ".join(reason["path"])
        if paths and path and path not in shown and path not in reason["text"]:
            text.append(f"\npath: {path}", style="dim")
            shown.add(path)
        saves = Text(milliseconds(reason["saves_ms"]) if reason["saves_ms"] else "", style="red")
        table.add_row(saves, Text(_words(reason["kind"]), style="bold"), text)
    return [_heading("why it is exposed, and what the step would gain without that"), _indented(table)]


def _knobs(each: Document) -> list[RenderableType]:
    rows = []
    for knob in each["knobs"]:
        style = "green" if knob["saves_ms"] or knob["pass"] else ""
        rows.append(("besides" if knob["besides"] else "-", Text(knob["text"], style=style)))
    return [_heading("what would change it"), _grid(rows)]
