"""Tables of ``commcc inspect``."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.report.console import make_table, one_line
from commcc.report.metrics import single
from commcc.report.units import count, plural, printable, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from commcc.report.console import Section

    Document = Mapping[str, Any]


def view(document: Document, top: int | None) -> list[RenderableType]:
    """Groups, collectives by role and the largest ``top`` of them; every one when ``top`` is None."""
    graph, collectives = document["graph"], document["collectives"]
    shown: list[RenderableType] = [
        Text.assemble((document["input"], "bold"), f"  ({document['format']})"),
        "",
        single(graph),
        "",
    ]
    if not collectives:
        return [*shown, Text("no collectives", style="dim")]
    shown += [_groups(document), "", _by_role(collectives), ""]
    if top is None:
        shown.append(_each(collectives))
    elif top:
        largest = sorted(collectives, key=lambda each: (-each["wire_bytes"], each["position"]))[:top]
        shown.append(_largest(largest, len(collectives)))
    return shown


def listing(document: Document) -> list[RenderableType]:
    """The graphs in a file that holds several."""
    graphs = document["graphs"]
    table = make_table(
        f"{document['input']} holds {plural(len(graphs), 'graph')}", "name", "kind", "nodes", numbers=("nodes",)
    )
    for graph in graphs:
        kind = graph["kind"] if graph["loadable"] else f"{graph['kind']}, cannot be loaded"
        table.add_text(graph["name"], kind, count(graph["nodes"]))
    first = next(graph["name"] for graph in graphs if graph["loadable"])
    return [table, "", Text(printable(f"choose one: commcc inspect {document['input']}::{first}"))]


def _groups(document: Document) -> Section:
    table = make_table(
        "process groups", "group", "size", "roles", "launches", "on the wire", "about", numbers=("size", "on the wire")
    )
    for group in document["groups"]:
        about = [group["description"]] if group["description"] else []
        if group["name"] == document["primary"]:
            about.insert(0, "primary")
        if group["ranks"]:
            about.append(f"ranks {_ranks(group['ranks'])}")
        if group["same_ranks_as"] is not None:
            about.append(f"same ranks as {group['same_ranks_as']}")
        roles, kinds = _counted(group["roles"]), _counted(group["kinds"])
        table.add_text(group["name"], count(group["size"]), roles, kinds, size(group["wire_bytes"]), ", ".join(about))
    return table


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.items() if number)


def _ranks(ranks: list[int]) -> str:
    """``0-63``, ``0-56 step 8``, or the list itself, cut short."""
    steps = {later - earlier for earlier, later in pairwise(ranks)}
    if len(ranks) > 2 and len(steps) == 1:
        step = steps.pop()
        return f"{ranks[0]}-{ranks[-1]}" + (f" step {step}" if step != 1 else "")
    return ",".join(map(str, ranks[:8])) + (",..." if len(ranks) > 8 else "")


def _by_role(collectives: list[Document]) -> Section:
    parts: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for each in collectives:
        kind = each["kind"] if each["reduction"] is None else f"{each['kind']} {each['reduction']}"
        parts[each["role"], each["group"], kind, each["dtype"]].append(each["wire_bytes"])
    numbers = ("count", "total", "median", "largest")
    table = make_table("collectives, bytes on the wire", "role", "group", "kind", "dtype", *numbers, numbers=numbers)
    for (role, group, kind, dtype), sizes in sorted(parts.items(), key=lambda item: (-sum(item[1]), item[0])):
        middle = size(int(median(sizes)))
        table.add_text(role, group, kind, dtype, count(len(sizes)), size(sum(sizes)), middle, size(max(sizes)))
    return table


def _largest(collectives: list[Document], total: int) -> Section:
    title = f"largest {len(collectives)} of {total:,} collectives (--all lists each)"
    table = make_table(
        title, "name", "group", "role", "on the wire", "module", numbers=("on the wire",), whole=("name",)
    )
    for each in collectives:
        table.add_text(
            each["name"], each["group"], each["role"], size(each["wire_bytes"]), one_line(each["module"] or "")
        )
    return table


def _each(collectives: list[Document]) -> Section:
    numbers = ("at", "on the wire")
    table = make_table(
        "collectives", "at", "name", "group", "role", "on the wire", "module", "evidence", numbers=numbers
    )
    for each in collectives:
        merged = f"; merged from {len(each['merged_from'])}" if each["merged_from"] else ""
        table.add_text(
            count(each["position"]),
            each["name"],
            each["group"],
            each["role"],
            size(each["wire_bytes"]),
            each["module"] or "",
            each["evidence"] + merged,
        )
    return table
