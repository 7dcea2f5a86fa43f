"""What expert-parallel overlap made of a graph, as data: regions, exchanges before and after, what hides them.

    overlap(result)["regions"][0]["lanes"]      # [["2", "n", ".", "h", ...], ["2", ".", "n", "h", ...]]

A region has one lane for each chunk and as many cells in each. ``D`` and ``C`` launch the exchange of a dispatch and
a combine, ``d`` and ``c`` wait for it; ``n`` exchanges token counts, ``h`` copies them to the host, and ``H`` lets the
host wait; a number is that of the matmuls that are launched between two of these.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from commcc.base.terms import Kind, Role
from commcc.timing.predict import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commcc.base.terms import Json
    from commcc.ep.regions import Region
    from commcc.graph.collectives import Collective
    from commcc.graph.index import GraphIndex
    from commcc.run.pipeline import RunResult
    from commcc.timing.snapshot import Snapshot

NOTHING = "."


def overlap(result: RunResult) -> dict[str, Json]:
    """Keys of the document: ``regions`` of the graph that goes out, ``exchanges`` and ``hidden`` of all graphs, and
    ``fixed``, the sizes that are numbers now.
    """
    from commcc.ep.regions import regions_of
    from commcc.graph.annotations import annotations_of

    last = result.last
    notes = annotations_of(result.program, last.index)
    counting = {n for n in last.index.launches if notes[n].count_exchange}
    regions: list[Json] = [_region(last, each, counting) for each in regions_of(last.index, notes)]
    changed = [step for step in result.steps if step.changed]
    hidden: list[Json] = [_hidden("as it came", result.first)]
    hidden += [_hidden(step.options_text, step.after) for step in changed]
    found = result.program.header.get("fixed")
    fixed: dict[str, Json] = dict(found) if isinstance(found, dict) else {}
    return {"fixed": fixed, "regions": regions, "exchanges": _exchanges(result.first, last), "hidden": hidden}


def _region(seen: Snapshot, region: Region, counting: set[int]) -> dict[str, Json]:
    launches = [n for each in region.exchanges for n in each]
    return {
        "module": region.root,
        "direction": "backward" if region.backward else "forward",
        "chunks": region.chunks,
        "body_nodes": [len(body) for body in region.bodies],
        "exchanges": list(region.labels),
        "lanes": [list(lane) for lane in lanes(seen.index, region, counting)],
        **_times(seen, launches),
    }


def _times(seen: Snapshot, launches: Iterable[int]) -> dict[str, Json]:
    """Milliseconds of launches, exposed ones, and the share that is hidden; nothing without costs."""
    if seen.prediction is None:
        return {}
    timeline = seen.prediction.timeline
    chosen = list(launches)
    total = sum(timeline.spans[n].ns for n in chosen)
    exposed = sum(timeline.exposed.get(n, 0) for n in chosen)
    share = round(1 - exposed / total, 6) if total else None
    return {"ms": milliseconds(total), "exposed_ms": milliseconds(exposed), "hidden_share": share}


def lanes(index: GraphIndex, region: Region, counting: set[int]) -> list[list[str]]:
    """Cells of every chunk in the order of the graph; matmuls between two events share a column."""
    events = _events(index, region, counting)
    columns: list[dict[int, str]] = []
    products: Counter[int] = Counter()
    chunk_of = {node: chunk for chunk, body in enumerate(region.bodies) for node in body}
    for node in sorted(chunk_of):
        if index.compute[node]:
            products[chunk_of[node]] += 1
        if node in events:
            if products:
                columns.append({chunk: str(number) for chunk, number in products.items()})
                products.clear()
            columns.append({chunk_of[node]: events[node]})
    if products:
        columns.append({chunk: str(number) for chunk, number in products.items()})
    return [[column.get(chunk, NOTHING) for column in columns] for chunk in range(region.chunks)]


def _events(index: GraphIndex, region: Region, counting: set[int]) -> dict[int, str]:
    found: dict[int, str] = {}
    for chunk, body in enumerate(region.bodies):
        found.update((node, "n") for node in body if node in counting)
        found.update((node, "h" if index.host_copies[node] else "H") for node in region.count_copies[chunk])
        for label, launch, wait in zip(region.labels, region.exchanges[chunk], region.waits[chunk], strict=True):
            found[launch], found[wait] = label[0].upper(), label[0]
    return found


def _exchanges(first: Snapshot, last: Snapshot) -> dict[str, Json]:
    """All-to-alls before and after, by what they carry and by what they send."""
    both = [[c for c in seen.ident.collectives if c.kind is Kind.ALL_TO_ALL] for seen in (first, last)]
    tokens = [_with_role(each, Role.EP) for each in both]
    counts = [_with_role(each, Role.EP_COUNT) for each in both]
    sent = [Counter(c.input_bytes for c in each) for each in tokens]
    histogram: list[Json] = [
        {"sent_bytes": size, "before": sent[0][size], "after": sent[1][size]}
        for size in sorted(sent[0].keys() | sent[1].keys(), reverse=True)
    ]
    return {
        "token_exchanges": [len(each) for each in tokens],
        "count_exchanges": [len(each) for each in counts],
        "others": [len(a) - len(b) - len(c) for a, b, c in zip(both, tokens, counts, strict=True)],
        "waits": [sum(len(c.waits) for c in each) for each in both],
        "sent_bytes": [sum(c.input_bytes for c in each) for each in tokens],
        "histogram": histogram,
    }


def _with_role(collectives: list[Collective], role: Role) -> list[Collective]:
    return [c for c in collectives if c.role is role]


def _hidden(label: str, seen: Snapshot) -> dict[str, Json]:
    launches = [c.launch for c in seen.ident.collectives if c.kind is Kind.ALL_TO_ALL]
    return {"after": label, "all_to_alls": len(launches), **_times(seen, launches)}
