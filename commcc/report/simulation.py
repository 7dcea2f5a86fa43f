"""The document of ``commcc simulate``: one graph, or the graph before and after.

``graphs`` has one entry for each: metrics, bounds by name, streams, families of ops, what each source
priced, and all collectives with their costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.text import milliseconds as written
from commcc.base.text import share
from commcc.report import costs, documents
from commcc.timing.predict import milliseconds
from commcc.timing.simulate.breakdown import families, streams
from commcc.timing.snapshot import cost_warnings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from commcc.base.terms import Json
    from commcc.report.perfetto import Track


def simulation(tracks: Sequence[Track], **fields: Json) -> dict[str, Json]:
    """The document; ``fields`` are put after the schema and the command."""
    seen = [track.seen for track in tracks]
    warnings = [*dict.fromkeys(w for each in seen for w in each.ident.warnings), *cost_warnings(*seen)]
    graphs: list[Json] = [_graph(track) for track in tracks]
    return documents.document("simulate", **fields, **costs.costs(*seen), graphs=graphs, warnings=[*warnings])


def _graph(track: Track) -> dict[str, Json]:
    seen, prediction = track.seen, track.prediction
    timeline, bound = prediction.timeline, prediction.bound
    parts: dict[str, Json] = {name: milliseconds(ns) for name, ns in bound.parts.items()}
    return {
        "label": track.label,
        "fingerprint": seen.index.fingerprint,
        "metrics": seen.to_json(),
        "launch_ms": milliseconds(timeline.launch_ns),
        "slowed_ms": milliseconds(timeline.slowed_ns),
        "bound": {"name": bound.name, "ms": milliseconds(bound.ns), "parts": parts},
        "streams": _streams(track),
        "families": [
            {
                "name": each.name,
                "nodes": each.nodes,
                "ms": milliseconds(each.ns),
                "largest": [{"op": op, "ms": milliseconds(ns)} for op, ns in each.largest],
            }
            for each in families(seen.index, prediction.costs)
        ],
        "sources": prediction.model_json()["sources"],
        "peak_at": None if prediction.memory.peak_at is None else seen.index.names[prediction.memory.peak_at],
        "input_bytes": prediction.memory.input_bytes,
        "collectives": [documents.collective(seen, each) for each in seen.ident.collectives],
    }


def _streams(track: Track) -> list[Json]:
    step = track.prediction.timeline.step_ns
    described = {group.name: group.description for group in track.seen.ident.groups}
    found: list[Json] = []
    for each in streams(track.seen.index, track.prediction.costs, track.prediction.timeline):
        entry: dict[str, Json] = {"name": each.name, "groups": list(each.groups), "jobs": each.jobs}
        entry["ms"] = milliseconds(each.busy_ns)
        entry["busy_share"] = round(each.busy_ns / step, 6) if step else None
        if each.groups:
            noun = "group" if len(each.groups) == 1 else "groups"
            shared = f"{noun} {', '.join(each.groups)}"
            entry["about"] = described[each.name] if each.groups == (each.name,) else shared
            entry["exposed_ms"] = milliseconds(each.exposed_ns)
            entry["hidden_share"] = round(1 - each.exposed_ns / each.busy_ns, 6) if each.busy_ns else None
        found.append(entry)
    return found


def brief(document: Mapping[str, Any]) -> str:
    """The step in one line, ``before -> after`` where there are two."""
    sides = [graph["metrics"] for graph in document["graphs"]]
    shown = {
        "step": [written(side["step_ms"]) for side in sides],
        "exposed": [written(side["exposed_ms"]) for side in sides],
        "hidden": [share(side["hidden_share"]) or "-" for side in sides],
        "lower bound": [written(side["lower_bound_ms"]) for side in sides],
    }
    model = document["cost_model"]
    figures = ", ".join(f"{name} {' -> '.join(values)}" for name, values in shown.items())
    return f"{figures} ({model['name']}, hash {model['hash']})"
