"""What ``commcc inspect`` says; with columns of simulated times when there are costs."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.text import count, least_size, milliseconds, plural, share
from commcc.graph.ops.libraries import fenced
from commcc.report.console import cut_short, make_table
from commcc.report.documents import collective, costs, cut_ends, cut_lines, document, launches_costs, notes_json
from commcc.report.metrics import costed_by, single
from commcc.timing.snapshot import cost_warnings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import RenderableType

    from commcc.base.terms import Json
    from commcc.graph.collectives import GroupFacts
    from commcc.graph.program import Program
    from commcc.report.console import Section
    from commcc.serialization import GraphEntry
    from commcc.timing.snapshot import Snapshot

    Document = Mapping[str, Any]


#: What a graph says of itself whose step takes at least the time that is shown.
_LACKING = ("unknown_sizes", "loops_counted_once")
#: Why a graph of a distributed job may have none.
NO_COLLECTIVES = (
    "no collectives: FSDP2's fully_shard gathers in hooks, outside of compiled graphs, and DDP reduces there. Graphs "
    "hold collectives where parameters are DTensors or gathered in the forward (tensor parallelism, SimpleFSDP, "
    "AutoParallel) and the step is compiled or exported as a whole"
)
#: Why figures of collectives leave out some that there are.
IN_SUB_GRAPHS = (
    "no collectives but those that sub-graphs launch: they stay where they are. 'commcc inline' makes those of regions "
    "(nested_compile_region) part of the graph; compiled without the branch or loop around them, others are too"
)


def inspection(graph: str, program: Program, seen: Snapshot) -> dict[str, Json]:
    """The document of one graph."""
    return document(
        "inspect",
        input=graph,
        format=program.format,
        fingerprint=seen.index.fingerprint,
        **costs(seen),
        graph=seen.to_json(),
        primary=seen.ident.primary,
        groups=[_group(seen, group) for group in seen.ident.groups],
        collectives=[collective(seen, facts) for facts in seen.ident.collectives],
        **cut_ends(seen),
        **_inside(seen),
        **_unknown(seen),
        provenance=list(program.provenance),
        warnings=[*seen.ident.warnings, *cost_warnings(seen)],
        notes=notes_json(program.notes),
    )


def _inside(seen: Snapshot) -> dict[str, Json]:
    """Nodes whose sub-graphs communicate; no key where there are none."""
    nodes: list[Json] = []
    for node, inside in seen.index.inside.items():
        shown: dict[str, Json] = {"name": seen.index.names[node], "kinds": dict(inside.kinds)}
        shown |= {"runs": inside.runs, "one_of_them": inside.one, "at_least": inside.at_least}
        if seen.prediction is not None:
            within = seen.prediction.costs.within[node]
            shown |= {
                "ms": seen.prediction.costs.ns[node] / 1e6,
                "communication_ms": within.communication_ns / 1e6,
                "exposed_ms": within.exposed_ns / 1e6,
            }
        nodes.append(shown)
    return {"in_sub_graphs": nodes} if nodes else {}


def _unknown(seen: Snapshot) -> dict[str, Json]:
    """Nodes that communicate in a way that is not understood; no key where there are none."""
    index = seen.index
    nodes = [n for n in index.barriers if n not in index.inside and fenced(index.ops[n]) is None]
    return {"unknown_communication": [index.names[node] for node in nodes]} if nodes else {}


def _group(seen: Snapshot, group: GroupFacts) -> dict[str, Json]:
    launches = (facts.launch for facts in seen.ident.collectives if facts.group == group.name)
    return {
        "name": group.name,
        "size": group.size,
        "ranks": None if group.ranks is None else list(group.ranks),
        "description": group.description,
        "roles": {str(role): number for role, number in group.roles.items()},
        "kinds": {str(kind): number for kind, number in group.kinds.items()},
        "wire_bytes": group.wire_bytes,
        "same_ranks_as": group.same_ranks_as,
        "origin": group.origin,
        "high_priority": group.high_priority,
        **launches_costs(seen.prediction, launches),
    }


def brief(metrics: Mapping[str, Any]) -> str:
    """Metrics on one line: ``5,937 nodes, 290 all_gather, 291 reduce_scatter``."""
    launches = [f"{number:,} {kind}" for kind, number in metrics["collectives"].items() if number]
    launches += [f"{number:,} {kind} in sub-graphs" for kind, number in metrics.get("in_sub_graphs", {}).items()]
    return ", ".join([f"{metrics['nodes']:,} nodes", *(launches or ["no collectives"])])


@dataclass(frozen=True)
class Listed:
    """One graph of several. graph: as commands take it. seen: None where it was not read, and error says why if it
    could not be.
    """

    entry: GraphEntry
    graph: str
    seen: Snapshot | None = None
    error: str | None = None

    def to_json(self) -> dict[str, Json]:
        entry, seen = self.entry, self.seen
        nodes = entry.nodes if seen is None else len(seen.index)
        shown: dict[str, Json] = {
            "name": entry.name,
            "graph": self.graph,
            "kind": entry.kind,
            "nodes": nodes,
            "loadable": entry.loadable,
        }
        if seen is not None:
            metrics = seen.to_json()
            keys = ("collectives", "in_sub_graphs", "step_ms", "exposed_ms", *_LACKING)
            shown |= {key: metrics[key] for key in keys if key in metrics}
        return {**shown, "error": self.error} if self.error else shown


def listing(graph: str, entries: Iterable[Listed]) -> dict[str, Json]:
    """The document of a file or folder that holds several graphs."""
    return document("inspect", input=graph, graphs=[entry.to_json() for entry in entries])


def view_listing(document: Document) -> list[RenderableType]:
    """The graphs in a file that holds several."""
    graphs = document["graphs"]
    heading = f"{document['input']} holds {plural(len(graphs), 'graph')}"
    numbers = ("nodes", "collectives", "step", "exposed")
    kinds = [graph["kind"] if graph["loadable"] else f"{graph['kind']}, cannot be loaded" for graph in graphs]
    about = () if set(kinds) == {"file"} else ("kind",)  # of a folder of files it would say nothing
    table = make_table(heading, "name", *about, *numbers, numbers=numbers)
    for graph, kind in zip(graphs, kinds, strict=True):
        inside = sum(graph.get("in_sub_graphs", {}).values())
        launches = count(sum(graph["collectives"].values()) + inside) if "collectives" in graph else ""
        times = [milliseconds(graph[key]) if key in graph else "" for key in ("step_ms", "exposed_ms")]
        if times[0] and not graph.keys().isdisjoint(_LACKING):
            times[0] = f">= {times[0]}"
        table.add_text(graph["name"], *(kind for _ in about), count(graph["nodes"]), launches, *times)
    shown: list[RenderableType] = [table, ""]
    shown += [Text(f"{graph['name']}: {graph['error']}") for graph in graphs if "error" in graph]
    if any("unknown_sizes" in graph for graph in graphs):
        shown.append(Text("times with >= lack sizes that are known only at run time: --hint gives them", style="dim"))
    unread = sum(graph["loadable"] and graph.keys().isdisjoint({"collectives", "error"}) for graph in graphs)
    if unread:
        shown.append(Text(f"{plural(unread, 'graph')} not read: name one to see more of it", style="dim"))
    # A file may also list what holds no graph that can be loaded; the one that is exposed most is worth a look first.
    usable = [graph for graph in graphs if graph["loadable"] and "error" not in graph]
    first = max(usable, key=lambda graph: graph.get("exposed_ms", 0.0), default=None)
    return shown if first is None else [*shown, Text(f"choose one: commcc inspect {first['graph']}")]


def view(document: Document, top: int | None) -> list[RenderableType]:
    """Groups, collectives by role and the largest ``top`` of them; every one when ``top`` is None."""
    graph, collectives = document["graph"], document["collectives"]
    head = Text.assemble((document["input"], "bold"), f"  ({document['format']})")
    shown: list[RenderableType] = [head, "", single(graph), *costed_by(document), ""]
    if "in_sub_graphs" in document:
        shown += [_sub_graphs(document["in_sub_graphs"]), ""]
    unknown = document.get("unknown_communication", [])
    if unknown:
        ops = f"{plural(len(unknown), 'op')} communicate{'s' if len(unknown) == 1 else ''} in an unknown way"
        names = ", ".join(unknown[:3]) + (", ..." if unknown[3:] else "")
        shown += [Text(f"{ops} ({names}): no figure counts the time and bytes of that"), ""]
    cut = cut_lines(document)
    shown += [*map(Text, cut), ""] if cut else []
    told = [entry for entry in document.get("provenance", ()) if isinstance(entry.get("pass"), str)]
    if told:
        shown += [_history(told), ""]
    if not collectives and unknown:
        return shown[:-1]
    if not collectives:
        hint = IN_SUB_GRAPHS if "in_sub_graphs" in document else NO_COLLECTIVES
        return [*shown, Text(hint, style="dim")]
    shown += [_groups(document), "", _by_role(collectives)]
    costed = document.get("cost_model") is not None
    if costed:
        shown += ["", _times(document)]
    if top is None:
        shown += ["", _every(collectives, costed)]
    elif top:
        shown += ["", _largest(collectives, top, costed)]
    return [*shown, *costed_by(document)]


def _history(entries: Sequence[Any]) -> Section:
    """The passes that wrote the graph, with what a step took after each; a file may say anything there."""
    table = make_table("written by", "pass", "step after it", "cost model", numbers=("step after it",))
    for entry in entries:
        metrics, model = entry.get("metrics"), entry.get("cost_model")
        step = metrics.get("step_ms") if isinstance(metrics, dict) else None
        took = milliseconds(step) if isinstance(step, (int, float)) else "?"
        table.add_text(entry["pass"], took, str(model.get("name", "")) if isinstance(model, dict) else "")
    return table


def _sub_graphs(entries: Sequence[Any]) -> Section:
    """Nodes whose sub-graphs communicate, with what they take in all their runs."""
    numbers = ("runs", *(("time", "communication", "exposed") if "ms" in entries[0] else ()))
    table = make_table("sub-graphs that communicate", "node", "launches", *numbers, numbers=numbers, whole=("node",))
    for entry in entries:
        least = ">= " if entry["at_least"] else ""
        times = [least + milliseconds(entry[key]) for key in ("ms", "communication_ms", "exposed_ms") if key in entry]
        runs = "one of them" if entry["one_of_them"] else f"{least}{count(entry['runs'])}"
        table.add_text(entry["name"], _counted(entry["kinds"]), runs, *times)
    return table


def _groups(document: Document) -> Section:
    table = make_table(
        "process groups", "group", "size", "roles", "launches", "on the wire", "about", numbers=("size", "on the wire")
    )
    for group in document["groups"]:
        about = [group["description"]] if group["description"] else []
        if group["name"] == document["primary"]:
            about.insert(0, "primary")
        if group["ranks"]:
            about.append(f"ranks {ranks_text(group['ranks'])}")
        if group["origin"] is not None:
            about.append(f"split off {group['origin']}{', high priority' if group['high_priority'] else ''}")
        # A group that was split off has the same ranks on purpose.
        elif group["same_ranks_as"] is not None:
            about.append(f"same ranks as {group['same_ranks_as']}")
        roles, kinds = _counted(group["roles"]), _counted(group["kinds"])
        unknown = sum("unknown_size" in entry for entry in document["collectives"] if entry["group"] == group["name"])
        wire = least_size(group["wire_bytes"], unknown, brief=True)
        table.add_text(group["name"], count(group["size"]), roles, kinds, wire, ", ".join(about))
    return table


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.items() if number)


def ranks_text(ranks: list[int]) -> str:
    """``0-63``, ``0-56 step 8``, or the list itself, cut short."""
    steps = {later - earlier for earlier, later in pairwise(ranks)}
    if len(ranks) > 2 and len(steps) == 1:
        step = steps.pop()
        return f"{ranks[0]}-{ranks[-1]}" + (f" step {step}" if step != 1 else "")
    return ",".join(map(str, ranks[:8])) + (",..." if len(ranks) > 8 else "")


def _by_role(collectives: list[Document]) -> Section:
    parts: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    missing: Counter[tuple[str, str, str, str]] = Counter()
    for entry in collectives:
        kind = entry["kind"] if entry["reduction"] is None else f"{entry['kind']} {entry['reduction']}"
        parts[entry["role"], entry["group"], kind, entry["dtype"]].append(entry["wire_bytes"])
        missing[entry["role"], entry["group"], kind, entry["dtype"]] += "unknown_size" in entry
    numbers = ("count", "total", "median", "largest")
    table = make_table("collectives, bytes on the wire", "role", "group", "kind", "dtype", *numbers, numbers=numbers)
    for (role, group, kind, dtype), sizes in sorted(parts.items(), key=lambda item: (-sum(item[1]), item[0])):
        unknown = missing[role, group, kind, dtype]
        figures = [least_size(n, unknown, brief=True) for n in (sum(sizes), int(median(sizes)), max(sizes))]
        table.add_text(role, group, kind, dtype, count(len(sizes)), *figures)
    return table


def _times(document: Document) -> Section:
    """Simulated time by group; a line of its own for the whole group where it has several."""
    by_group: dict[str, list[Document]] = defaultdict(list)
    for entry in document["collectives"]:
        by_group[entry["group"]].append(entry)
    numbers = ("count", "time", "exposed", "hidden")
    heading = "collectives, simulated time"
    table = make_table(heading, "group", "role", "kind", *numbers, "priced by", numbers=numbers, whole=("kind",))
    for group in sorted(document["groups"], key=lambda entry: -entry["ms"]):
        parts: dict[tuple[str, str, str], list[Document]] = defaultdict(list)
        for entry in by_group[group["name"]]:
            parts[entry["role"], entry["kind"], entry["priced_by"]].append(entry)
        longest_first = sorted(parts.items(), key=lambda item: (-sum(entry["ms"] for entry in item[1]), item[0]))
        for (role, kind, source), members in longest_first:
            table.add_text(group["name"], role, kind, *_time_cells(members), source)
        # With one part the line of the whole would say the same again.
        if len(parts) > 1:
            table.add_text(group["name"], "all", "", *_time_cells(by_group[group["name"]]), "")
    return table


def _time_cells(members: list[Document]) -> tuple[str, str, str, str]:
    total, exposed = (sum(entry[key] for entry in members) for key in ("ms", "exposed_ms"))
    hidden = share(1 - exposed / total) if total else "-"
    return count(len(members)), milliseconds(total), milliseconds(exposed), hidden


def _largest(collectives: list[Document], top: int, costed: bool) -> Section:
    key = "exposed_ms" if costed else "wire_bytes"
    largest = sorted(collectives, key=lambda entry: (-entry[key], -entry["wire_bytes"], entry["position"]))[:top]
    word = "most exposed" if costed else "largest"
    title = f"{word} {len(largest)} of {len(collectives):,} collectives (--all lists each)"
    return collectives_table(title, largest, costed=costed)


def collectives_table(title: str, entries: Iterable[Document], *, costed: bool) -> Section:
    """A line for each collective: name, group, role, bytes, its times where they were simulated, and its module."""
    whole = ("name", "group", "role")
    numbers = ("on the wire", *(("time", "exposed") if costed else ()))
    table = make_table(title, *whole, *numbers, "module", numbers=numbers, whole=whole)
    table.spare = ("on the wire", "role") if costed else ("role",)
    for entry in entries:
        times = (milliseconds(entry["ms"]), milliseconds(entry["exposed_ms"])) if costed else ()
        size = least_size(entry["wire_bytes"], "unknown_size" in entry, brief=True)
        table.add_text(entry["name"], entry["group"], entry["role"], size, *times, cut_short(entry["module"] or ""))
    return table


def _every(collectives: list[Document], costed: bool) -> Section:
    times = ("time", "exposed", "hidden") if costed else ()
    numbers = ("at", "on the wire", *times)
    last = (*(("priced by", "how") if costed else ()), "module", "evidence")
    table = make_table(
        "collectives", "at", "name", "group", "role", "on the wire", *times, *last, numbers=numbers, whole=("name",)
    )
    table.spare = ("how", "priced by")
    for entry in collectives:
        merged = f"; merged from {len(entry['merged_from'])}" if entry["merged_from"] else ""
        wire, place = least_size(entry["wire_bytes"], "unknown_size" in entry, brief=True), count(entry["position"])
        cells = [place, entry["name"], entry["group"], entry["role"], wire]
        if costed:
            cells += [
                milliseconds(entry["ms"]),
                milliseconds(entry["exposed_ms"]),
                share(entry["hidden_share"]),
            ]
            cells += [entry["priced_by"], entry["how"]]
        table.add_text(*cells, entry["module"] or "", entry["evidence"] + merged)
    return table
