"""What ``commcc simulate`` says of one graph, or of the graph before and after.

``graphs`` of the document has one entry for each: metrics, bounds by name, streams, families of ops, what each source
priced, and all collectives with their costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.text import change, count, milliseconds, plural, share
from commcc.report.console import cut_short, make_table
from commcc.report.documents import carried_line, collective, costs, cut_ends, cut_lines, document
from commcc.report.inspecting import collectives_table
from commcc.report.metrics import compare, costed_by, single, unknown_in
from commcc.report.rewriting import verdict
from commcc.timing.predict import milliseconds as in_ms
from commcc.timing.simulate.breakdown import families, streams
from commcc.timing.snapshot import cost_warnings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from commcc.base.terms import Json
    from commcc.report.console import Section
    from commcc.report.perfetto import Track

    Document = Mapping[str, Any]


def simulation(tracks: Sequence[Track], **fields: Json) -> dict[str, Json]:
    """The document; ``fields`` are put after the schema and the command."""
    seen = [track.seen for track in tracks]
    warnings = [*dict.fromkeys(w for snapshot in seen for w in snapshot.ident.warnings), *cost_warnings(*seen)]
    graphs: list[Json] = [_graph_json(track) for track in tracks]
    return document("simulate", **fields, **costs(*seen), graphs=graphs, warnings=[*warnings])


def _graph_json(track: Track) -> dict[str, Json]:
    seen, prediction = track.seen, track.prediction
    timeline, bound = prediction.timeline, prediction.bound
    parts: dict[str, Json] = {name: in_ms(ns) for name, ns in bound.parts.items()}
    return {
        "label": track.label,
        "fingerprint": seen.index.fingerprint,
        "metrics": seen.to_json(),
        "launch_ms": in_ms(timeline.launch_ns),
        "slowed_ms": in_ms(timeline.slowed_ns),
        "bound": {"name": bound.name, "ms": in_ms(bound.ns), "parts": parts},
        "streams": _streams_json(track),
        "families": [
            {
                "name": family.name,
                "nodes": family.nodes,
                "ms": in_ms(family.ns),
                "largest": [{"op": op, "ms": in_ms(ns)} for op, ns in family.largest],
            }
            for family in families(seen.index, prediction.costs)
        ],
        "sources": prediction.model_json()["sources"],
        "peak_at": None if prediction.memory.peak_at is None else seen.index.names[prediction.memory.peak_at],
        "input_bytes": prediction.memory.input_bytes,
        "collectives": [collective(seen, family) for family in seen.ident.collectives],
        **cut_ends(seen),
        "tail_ms": in_ms(timeline.step_ns - max(timeline.end, default=0)),
    }


def _streams_json(track: Track) -> list[Json]:
    step = track.prediction.timeline.step_ns
    described = {group.name: group.description for group in track.seen.ident.groups}
    result: list[Json] = []
    for stream in streams(track.seen.index, track.prediction.costs, track.prediction.timeline):
        entry: dict[str, Json] = {"name": stream.name, "groups": list(stream.groups), "jobs": stream.jobs}
        entry["ms"] = in_ms(stream.busy_ns)
        entry["busy_share"] = round(stream.busy_ns / step, 6) if step else None
        if stream.groups:
            shared = f"{'group' if len(stream.groups) == 1 else 'groups'} {', '.join(stream.groups)}"
            entry["about"] = described[stream.name] if stream.groups == (stream.name,) else shared
            entry["exposed_ms"] = in_ms(stream.exposed_ns)
            entry["hidden_share"] = round(1 - stream.exposed_ns / stream.busy_ns, 6) if stream.busy_ns else None
        result.append(entry)
    return result


def brief(document: Mapping[str, Any]) -> str:
    """The step in one line, ``before -> after`` where there are two."""
    sides = [graph["metrics"] for graph in document["graphs"]]
    shown = {
        "step": [milliseconds(side["step_ms"]) for side in sides],
        "exposed": [milliseconds(side["exposed_ms"]) for side in sides],
        "hidden": [share(side["hidden_share"]) or "-" for side in sides],
        "lower bound": [milliseconds(side["lower_bound_ms"]) for side in sides],
    }
    model = document["cost_model"]
    figures = ", ".join(f"{name} {' -> '.join(values)}" for name, values in shown.items())
    missing = unknown_in(document)
    known = f", {plural(missing, 'size')} unknown" if missing else ""
    return f"{figures} ({model['name']}, hash {model['hash']}{known})"


def view(document: Document, top: int) -> list[RenderableType]:
    """Metrics, bounds, streams, families, sources and the ``top`` most exposed collectives of each graph."""
    graphs = document["graphs"]
    metrics = [graph["metrics"] for graph in graphs]
    sections = [
        single(metrics[0]) if len(graphs) == 1 else compare(metrics[0], metrics[1]),
        _bounds(graphs),
        _streams(graphs),
        _families(graphs),
        _sources(graphs),
        *(_exposed(graph, top, named=len(graphs) > 1) for graph in graphs if top and graph["collectives"]),
    ]
    shown: list[RenderableType] = []
    for section in sections:
        shown += [section, *costed_by(document), ""] if section is sections[0] else [section, ""]
    shown += [*costed_by(document), *(Text(line) for graph in graphs for line in cut_lines(graph))]
    shown += carried_line(document)
    if document["verified"] is not None:
        shown.append(verdict(document["verified"]))
    labels = {"trace": "trace", "html": "page"}
    written = [(label, document[key]) for key, label in labels.items() if document[key] is not None]
    return [*shown, *(Text.assemble(f"{name} written to ", (path, "bold")) for name, path in written)]


def _labels(graphs: Sequence[Document]) -> tuple[str, ...]:
    """Columns of values: one, or before and after."""
    return ("value",) if len(graphs) == 1 else ("before", "after")


def _bounds(graphs: Sequence[Document]) -> Section:
    """Every lower bound; the largest of each graph is the one that counts."""
    labels = _labels(graphs)
    table = make_table("lower bounds of the step, whatever the order", "", *labels, numbers=labels)
    for name in graphs[0]["bound"]["parts"]:
        cells = [
            Text(milliseconds(graph["bound"]["parts"][name]), style="bold" if graph["bound"]["name"] == name else "")
            for graph in graphs
        ]
        table.add_text(name, *cells)
    steps = [(graph["bound"]["ms"], graph["metrics"]["step_ms"]) for graph in graphs]
    table.add_text("step time above the largest", *(change(*step) if step[0] else "" for step in steps))
    return table


def _streams(graphs: Sequence[Document]) -> Section:
    """A line for each stream and graph, those of one stream next to each other."""
    several = len(graphs) > 1
    numbers = ("jobs", "busy", "share", "exposed", "hidden")
    head = ("stream", "graph") if several else ("stream",)
    table = make_table("streams, and their share of the step", *head, *numbers, "about", numbers=numbers, whole=head)
    by_name = [{stream["name"]: stream for stream in graph["streams"]} for graph in graphs]
    for name in dict.fromkeys(name for side in by_name for name in side):
        for label, side in zip(_labels(graphs), by_name, strict=True):
            stream = side.get(name)
            if stream is None:
                continue
            shown = f"group {name}" if stream["groups"] == [name] else name
            cells = [shown, *([label] if several else [])]
            cells += [count(stream["jobs"]), milliseconds(stream["ms"]), share(stream["busy_share"])]
            if "exposed_ms" in stream:  # of process groups; the compute stream has neither
                cells += [milliseconds(stream["exposed_ms"]), share(stream["hidden_share"]) or "-", stream["about"]]
            table.add_text(*cells)
    return table


def _families(graphs: Sequence[Document]) -> Section:
    labels = _labels(graphs)
    numbers = ("nodes", "time", "share") if len(graphs) == 1 else ("nodes after", *labels, "change")
    table = make_table("time on the compute stream", "", *numbers, "largest", numbers=numbers)
    by_name = [{family["name"]: family for family in graph["families"]} for graph in graphs]
    totals = [graph["metrics"]["compute_ms"] for graph in graphs]
    for name in dict.fromkeys(name for side in by_name for name in side):
        last = by_name[-1].get(name, {"nodes": 0, "largest": []})
        times = [side[name]["ms"] if name in side else 0.0 for side in by_name]
        extra = share(times[0] / totals[0] if totals[0] else None) if len(times) == 1 else change(*times)
        # Of two graphs the ops named are those of the second, which is the one at hand.
        largest = ", ".join(f"{family['op']} {family['ms']:,.1f}" for family in last["largest"])
        table.add_text(name, count(last["nodes"]), *map(milliseconds, times), extra, cut_short(largest))
    for key, name in (("launch_ms", "launching collectives"), ("slowed_ms", "slowed by collectives")):
        times = [graph[key] for graph in graphs]
        if any(times):
            extra = "" if len(times) == 1 else change(*times)
            table.add_text(name, "", *map(milliseconds, times), extra, "")
    return table


def _sources(graphs: Sequence[Document]) -> Section:
    labels = _labels(graphs)
    several = len(graphs) > 1
    numbers = tuple(f"{what} {label}" if several else what for label in labels for what in ("nodes", "time"))
    table = make_table("priced by", "source", *numbers, numbers=numbers)
    for place, source in enumerate(graphs[0]["sources"]):
        priced = [graph["sources"][place] for graph in graphs]
        table.add_text(
            source["name"],
            *(cell for figures in priced for cell in (count(figures["nodes"]), milliseconds(figures["ms"]))),
        )
    return table


def _exposed(graph: Document, top: int, *, named: bool) -> Section:
    collectives = graph["collectives"]
    worst = [entry for entry in collectives if entry["exposed_ms"]]
    worst = sorted(worst, key=lambda entry: (-entry["exposed_ms"], entry["position"]))[:top]
    label = f"{graph['label']}: " if named else ""
    heading = f"{label}most exposed {len(worst)} of {plural(len(collectives), 'collective')}"
    return collectives_table(heading, worst, costed=True)
