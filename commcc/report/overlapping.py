"""What expert-parallel overlap did to a graph: regions, exchanges before and after, what hides them::

    layers.1.moe ... layers.26.moe forward: 26 alike, 2 chunks of 91 nodes, 93.1 % hidden
      chunk 0   2 n . h . D . 6 d 3 C . . . c .
      chunk 1   2 . n . H . D 6 . . . d 3 C . c

A region has one line for each chunk and as many cells in each, in the order of the graph. ``D`` and ``C`` launch the
exchange of a dispatch and a combine, ``d`` and ``c`` wait for it; ``n`` exchanges token counts, ``h`` copies them to
the host, and ``H`` lets the host wait; a number is that of the matmuls that are launched between two of these.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.terms import Kind, Role
from commcc.base.text import count, least_size, milliseconds, plural, share, size
from commcc.report.console import make_table
from commcc.report.documents import launches_costs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from commcc.base.terms import Json
    from commcc.ep.regions import Region
    from commcc.graph.annotations import Annotation
    from commcc.graph.collectives import Collective
    from commcc.graph.index import GraphIndex
    from commcc.report.console import Section
    from commcc.run.pipeline import RunResult
    from commcc.timing.snapshot import Snapshot

    Document = Mapping[str, Any]

NOTHING = "."
#: A step that is longer by less than this is not called so.
_LONGER = 1.001
_LEGEND = (
    "D C: dispatch, combine launched; d c: waited for; 6: number of matmuls; n: token counts exchanged; "
    "h: copied to the host; H: the host waits"
)
_STYLES = {"D": "bold green", "C": "bold green", "d": "yellow", "c": "yellow", "H": "bold red", NOTHING: "dim"}


def overlap(result: RunResult) -> dict[str, Json]:
    """Keys of the document: ``regions`` of the graph that goes out, ``exchanges`` and ``hidden`` of all graphs, and
    ``fixed``, the sizes that are numbers now.
    """
    from commcc.ep.regions import regions_of
    from commcc.graph.annotations import annotations_of

    last = result.last
    notes = annotations_of(result.program, last.index)
    counting = {n for n in last.index.launches if notes[n].count_exchange}
    exchanges = _exchanges((result.first, annotations_of(result.source, result.first.index)), (last, notes))
    regions: list[Json] = [
        {
            "module": region.root,
            "direction": "backward" if region.backward else "forward",
            "chunks": region.chunks,
            "body_nodes": [len(body) for body in region.bodies],
            "exchanges": list(region.labels),
            "lanes": [list(cells) for cells in chunk_cells(last.index, region, counting)],
            **launches_costs(last.prediction, [n for exchange in region.exchanges for n in exchange]),
        }
        for region in regions_of(last.index, notes)
    ]
    changed = [step for step in result.steps if step.changed]
    hidden: list[Json] = [_hidden("input graph", result.first)]
    hidden += [_hidden(step.options_text, step.after) for step in changed]
    header = result.program.header.get("fixed")
    fixed: dict[str, Json] = dict(header) if isinstance(header, dict) else {}
    return {"fixed": fixed, "regions": regions, "exchanges": exchanges, "hidden": hidden}


def longer(result: RunResult) -> str:
    """What a step that is predicted to be longer than that of the input graph pays, and for what; else empty."""
    before, after = result.first.prediction, result.last.prediction
    if before is None or after is None or after.timeline.step_ns <= before.timeline.step_ns * _LONGER:
        return ""
    old, new = before.timeline, after.timeline
    steps = f"{milliseconds(_ms(old.step_ns))} -> {milliseconds(_ms(new.step_ns))}"
    computed, exposed = new.compute_ns - old.compute_ns, old.exposed_ns - new.exposed_ns
    pays = f"kernels of chunks compute for {milliseconds(_ms(computed))} more in all" if computed > 0 else ""
    hides = f"{milliseconds(_ms(abs(exposed)))} {'less' if exposed >= 0 else 'more'} of communication is exposed"
    return f"the predicted step gets longer, {steps}: {', and '.join(part for part in (pays, hides) if part)}"


def _ms(ns: int) -> float:
    return round(ns / 1e6, 6)


def chunk_cells(index: GraphIndex, region: Region, counting: set[int]) -> list[list[str]]:
    """Cells of every chunk in the order of the graph; matmuls between two events share a column."""
    events: dict[int, str] = {}
    for chunk, body in enumerate(region.bodies):
        events.update((node, "n") for node in body if node in counting)
        events.update((node, "h" if index.host_copies[node] else "H") for node in region.count_copies[chunk])
        for label, launch, wait in zip(region.labels, region.exchanges[chunk], region.waits[chunk], strict=True):
            events[launch], events[wait] = label[0].upper(), label[0]
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


def _exchanges(*sides: tuple[Snapshot, Sequence[Annotation]]) -> dict[str, Json]:
    """All-to-alls before and after, by what they carry and by what they send.

    What the graph does not tell of them by itself is what the passes take them for.
    """
    both = [[c for c in seen.ident.collectives if c.kind is Kind.ALL_TO_ALL] for seen, _ in sides]
    tokens: list[list[Collective]] = []
    counts: list[list[Collective]] = []
    for side, (_, notes) in zip(both, sides, strict=True):
        counts.append([c for c in side if c.role is Role.EP_COUNT or notes[c.launch].count_exchange])
        rest = [c for c in side if c not in counts[-1]]
        tokens.append([c for c in rest if c.role is Role.EP or notes[c.launch].exchange is not None])
    sent = [Counter(c.input_bytes for c in side) for side in tokens]
    histogram: list[Json] = [
        {"sent_bytes": size, "before": sent[0][size], "after": sent[1][size]}
        for size in sorted(sent[0].keys() | sent[1].keys(), reverse=True)
    ]
    return {
        "token_exchanges": [len(side) for side in tokens],
        "count_exchanges": [len(side) for side in counts],
        "others": [len(a) - len(b) - len(c) for a, b, c in zip(both, tokens, counts, strict=True)],
        "waits": [sum(len(c.waits) for c in side) for side in both],
        "sent_bytes": [sum(c.input_bytes for c in side) for side in tokens],
        "histogram": histogram,
    }


def _hidden(label: str, seen: Snapshot) -> dict[str, Json]:
    launches = [c.launch for c in seen.ident.collectives if c.kind is Kind.ALL_TO_ALL]
    return {"after": label, "all_to_alls": len(launches), **launches_costs(seen.prediction, launches)}


def view(document: Document) -> list[RenderableType]:
    """Tables and chunks for the keys that :func:`overlap` makes."""
    shown: list[RenderableType] = [_hiding(document["hidden"]), "", _exchange_counts(document["exchanges"])]
    alike: dict[str, list[Document]] = {}
    for region in document["regions"]:
        alike.setdefault(repr((region["direction"], region["body_nodes"], region["lanes"])), []).append(region)
    for group in alike.values():
        shown += ["", Chunks.of(group)]
    if document["fixed"]:
        sizes = ", ".join(f"{name} = {number}" for name, number in document["fixed"].items())
        shown += ["", Text(f"for inputs with {sizes} only: other sizes need a graph of their own", "yellow")]
    if not document["regions"]:
        shown += ["", Text("no module is cut: the simulated step is shortest without chunks", "yellow")]
    if document["regions"]:
        shown += ["", Text(_LEGEND, style="dim")]
    return shown


def _hiding(rows: Sequence[Document]) -> Section:
    costed = bool(rows) and "ms" in rows[0]
    names = ("all-to-alls", *(("time", "exposed", "hidden") if costed else ()))
    table = make_table("", "all-to-alls after", *names, numbers=names)
    for before, row in zip([{}, *rows], rows, strict=False):
        # Passes that leave the exchanges alone are not listed.
        # The first row is compared with nothing, so the input graph always shows.
        if {**before, "after": ""} == {**row, "after": ""}:
            continue
        times = [milliseconds(row[key]) for key in ("ms", "exposed_ms") if key in row]
        table.add_text(
            row["after"], count(row["all_to_alls"]), *times, *([share(row["hidden_share"])] if costed else ())
        )
    return table


def _exchange_counts(exchanges: Document) -> Section:
    table = make_table("", "exchanges", "before", "after", numbers=("before", "after"))
    labels = {
        "token_exchanges": "token exchanges",
        "count_exchanges": "count exchanges",
        "others": "other all-to-alls",
        "waits": "waits",
    }
    for key, label in labels.items():
        if key != "others" or any(exchanges[key]):
            table.add_text(label, *map(count, exchanges[key]))
    unsized = [row for row in exchanges["histogram"] if not row["sent_bytes"]]
    missing = [sum(row[side] for row in unsized) for side in ("before", "after")]
    sent = zip(exchanges["sent_bytes"], missing, strict=True)
    table.add_text("sent by a rank", *(least_size(total, unknown, brief=True) for total, unknown in sent))
    for row in exchanges["histogram"]:
        name = f"  of {size(row['sent_bytes'])} each" if row["sent_bytes"] else "  of unknown size"
        table.add_text(name, count(row["before"]), count(row["after"]))
    return table


@dataclass(frozen=True)
class Chunks:
    """One line for each chunk; where these are wider than the console, in several blocks."""

    heading: str
    cells: Sequence[Sequence[str]]

    @classmethod
    def of(cls, alike: Sequence[Document]) -> Chunks:
        """The chunks of a region, under a heading for all regions that are like it."""
        first, last = alike[0], alike[-1]
        names = first["module"] if len(alike) == 1 else f"{first['module']} ... {last['module']}"
        bodies = sorted(set(first["body_nodes"]))
        nodes = f"{bodies[0]}" if len(bodies) == 1 else f"{bodies[0]} to {bodies[-1]}"
        number = "" if len(alike) == 1 else f"{count(len(alike))} alike, "
        heading = f"{names} {first['direction']}: {number}{plural(first['chunks'], 'chunk')} of {nodes} nodes"
        total, exposed = (sum(region.get(key) or 0.0 for region in alike) for key in ("ms", "exposed_ms"))
        if total:
            heading += f", {share(1 - exposed / total)} hidden"
        return cls(heading, first["lanes"])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.heading, style="bold")
        label = max(len(f"  chunk {len(self.cells) - 1}  "), 10)
        widths = [max(map(len, column)) for column in zip(*self.cells, strict=True)]
        start = 0
        while start < len(widths):
            end, used = start, label
            while end < len(widths) and (end == start or used + widths[end] + 1 <= options.max_width):
                used += widths[end] + 1
                end += 1
            if start:
                yield Text("")
            for chunk, cells in enumerate(self.cells):
                text = Text(f"  chunk {chunk}".ljust(label), no_wrap=True)
                for cell, width in zip(cells[start:end], widths[start:end], strict=True):
                    text.append(cell.rjust(width) + " ", style=_STYLES.get(cell, ""))
                text.rstrip()
                yield text
            start = end
