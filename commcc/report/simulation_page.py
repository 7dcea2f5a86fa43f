"""The page of ``commcc simulate --html``: one file with its style, its script and its data in it.

    before = side(index, ident, prediction, "before")
    before.to_json()["nodes"]["ns"][:3]         # nanoseconds on the compute stream, in order of execution
    text = write_html([before, after], title="llama3_8b", options={...}, explanations=[...])

The sources are the files of ``commcc/report/html``: ``shell.html`` and ``main.html`` are the frame, ``style.css``
the style, and the scripts are joined in the order of ``SCRIPTS`` (:mod:`commcc.report.page`). The page loads
nothing, and nothing in it is ever taken for markup or script that did not come with commcc.

In the data nodes are columns in the order in which they ran, and everything else points at them by position in
that order. Words that repeat (ops, modules, results) are numbers into tables; times and bytes are
stored as differences to the node before, which keeps the text short and loses nothing.

The same sides give the same page to the byte. Limits: needs a browser of 2022 or later; the family of a compute node
decides its colour only, and is read off the name of its op.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.graph.metrics import measure
from commcc.report.documents import result_text
from commcc.report.metrics import figures
from commcc.report.page import Page, assemble

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from commcc.base.terms import Json
    from commcc.graph.collectives import Identification
    from commcc.graph.index import GraphIndex
    from commcc.timing.predict import Prediction

SCHEMA = 1

#: Each may use what the ones before it define.
SCRIPTS = (
    "format.js",
    "dom.js",
    "model.js",
    "palette.js",
    "view.js",
    "paint.js",
    "rows.js",
    "track.js",
    "highlight.js",
    "overview.js",
    "gestures.js",
    "facts.js",
    "tooltip.js",
    "details.js",
    "search.js",
    "legend.js",
    "tables.js",
    "cards.js",
    "worst.js",
    "sections.js",
    "collectives.js",
    "main.js",
)
PAGE = Page(
    command="simulate",
    main="html/main.html",
    picture="timeline",
    pictures="timelines",
    skip_to="figures",
    styles=("html/style.css",),
    scripts=tuple(f"html/{name}" for name in SCRIPTS),
)


#: What a node does on the compute stream; ``nodes.family`` holds positions in this list.
FAMILIES = ("nothing", "matmul", "attention", "other", "pointwise", "launch", "wait")


@dataclass(frozen=True)
class Words:
    """A column of repeated words: the words, and for each node its position among them (-1 for none)."""

    table: tuple[str, ...]
    column: tuple[int, ...]

    @staticmethod
    def of(words: Iterable[str | None]) -> Words:
        """Words in order of first use."""
        known: dict[str, int] = {}
        column = tuple(-1 if word is None else known.setdefault(word, len(known)) for word in words)
        return Words(tuple(known), column)

    def to_json(self) -> dict[str, Json]:
        return {"table": list(self.table), "column": list(self.column)}


@dataclass(frozen=True)
class NodeColumns:
    """One entry for each node, in order of execution.

    gap: ns between the end of the node before and this start; ns: on the compute stream, waiting
    included. stall: ns of waiting, by position. flops: by position. source: position among the cost
    model's sources, -1 for nodes that run nothing. live, in_flight: bytes.
    """

    name: tuple[str, ...]
    op: Words
    module: Words
    result: Words
    family: tuple[int, ...]
    source: tuple[int, ...]
    gap: tuple[int, ...]
    ns: tuple[int, ...]
    live: tuple[int, ...]
    in_flight: tuple[int, ...]
    stall: Mapping[int, int]
    flops: Mapping[int, int]

    @classmethod
    def of(cls, index: GraphIndex, prediction: Prediction) -> NodeColumns:
        """The columns of one graph."""
        timeline, costs = prediction.timeline, prediction.costs
        order = timeline.order
        ends = (0, *(timeline.end[node] for node in order))
        flops, stalls = index.estimates.flops, timeline.stalls
        return cls(
            name=tuple(index.names[node] for node in order),
            op=Words.of(index.ops[node] for node in order),
            module=Words.of(index.modules[node] for node in order),
            result=Words.of(result_text(index.tensors[node]) for node in order),
            family=tuple(FAMILIES.index(_family(index, node)) for node in order),
            source=tuple(costs.priced_by[node] for node in order),
            gap=tuple(timeline.start[node] - ends[place] for place, node in enumerate(order)),
            ns=tuple(timeline.end[node] - timeline.start[node] for node in order),
            live=prediction.memory.live,
            in_flight=timeline.in_flight,
            stall={place: stalls[node] for place, node in enumerate(order) if node in stalls},
            flops={place: flops[node] for place, node in enumerate(order) if flops.get(node)},
        )

    def to_json(self) -> dict[str, Json]:
        return {
            "name": list(self.name),
            "op": self.op.to_json(),
            "module": self.module.to_json(),
            "result": self.result.to_json(),
            "family": list(self.family),
            "source": list(self.source),
            "gap": list(self.gap),
            "ns": list(self.ns),
            "live": _differences(self.live),
            "in_flight": _differences(self.in_flight),
            "stall": _sparse(self.stall),
            "flops": _sparse(self.flops),
        }


@dataclass(frozen=True)
class CollectiveRow:
    """One collective. Times in ns from the start of the step; node, waits, ready, needed: positions.

    bytes: sent by one rank. ready: the last node on the compute stream that has to run before the
    launch; needed: the first one that needs the result; None where there is none. how, latency_ns:
    as the cost model says. merged: names of the collectives that were merged into this one.
    """

    node: int
    kind: str
    role: str
    group: str
    stream: str
    queued: int
    start: int
    end: int
    exposed: int
    bytes: int
    unknown: bool
    dtype: str
    waits: tuple[int, ...]
    ready: int | None
    needed: int | None
    how: str
    latency_ns: int
    merged: tuple[str, ...]

    @classmethod
    def rows(cls, index: GraphIndex, ident: Identification, prediction: Prediction) -> tuple[CollectiveRow, ...]:
        """A row for each collective, in order of launch."""
        timeline, costs = prediction.timeline, prediction.costs
        position = {node: place for place, node in enumerate(timeline.order)}
        near = slack(index, prediction)
        rows: list[CollectiveRow] = []
        for launch in timeline.order:
            known = ident.by_launch.get(launch)
            if known is None:
                continue
            span = timeline.spans[launch]
            ready, needed = near[launch]
            row = cls(
                node=position[launch],
                kind=str(known.kind),
                role=str(known.role),
                group=known.group,
                stream=span.stream,
                queued=span.queued_at,
                start=span.start,
                end=span.end,
                exposed=timeline.exposed.get(launch, 0),
                bytes=known.wire_bytes,
                unknown=known.unknown,
                dtype=known.dtype,
                waits=tuple(position[wait] for wait in known.waits),
                ready=None if ready is None else position[ready],
                needed=None if needed is None else position[needed],
                how=costs.how.get(launch, ""),
                latency_ns=costs.latency_ns.get(launch, 0),
                merged=index.merged_from.get(launch, ()),
            )
            rows.append(row)
        return tuple(rows)

    def to_json(self) -> dict[str, Json]:
        return {
            "node": self.node,
            "kind": self.kind,
            "role": self.role,
            "group": self.group,
            "lane": self.stream,
            "queued": self.queued,
            "start": self.start,
            "end": self.end,
            "exposed": self.exposed,
            "bytes": self.bytes,
            **({"unknown": True} if self.unknown else {}),
            "dtype": self.dtype,
            "waits": list(self.waits),
            "ready": self.ready,
            "needed": self.needed,
            "how": self.how,
            "latency": self.latency_ns,
            "merged": list(self.merged),
        }


@dataclass(frozen=True)
class Side:
    """One graph on the page.

    metrics: as in the JSON of all commands. model: name, hash and sources. bound: ns, name and parts.
    peak: position of the node at the memory peak. hints: numbers used for sizes known at run time.
    """

    label: str
    nodes: NodeColumns
    collectives: tuple[CollectiveRow, ...]
    step_ns: int
    peak: int | None
    metrics: Mapping[str, Json]
    model: Mapping[str, Json]
    bound: Mapping[str, Json]
    groups: tuple[Mapping[str, Json], ...]
    hints: tuple[Mapping[str, Json], ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Json]:
        return {
            "label": self.label,
            "step": self.step_ns,
            "peak": self.peak,
            "metrics": dict(self.metrics),
            "model": dict(self.model),
            "bound": dict(self.bound),
            "groups": [dict(group) for group in self.groups],
            "hints": [dict(hint) for hint in self.hints],
            "warnings": list(self.warnings),
            "families": list(FAMILIES),
            "nodes": self.nodes.to_json(),
            "collectives": [row.to_json() for row in self.collectives],
        }


def side(index: GraphIndex, ident: Identification, prediction: Prediction, label: str) -> Side:
    """Everything that the page shows of one graph; ``label`` is what it is called there."""
    bound = prediction.bound
    peak = prediction.memory.peak_at
    return Side(
        label=label,
        nodes=NodeColumns.of(index, prediction),
        collectives=CollectiveRow.rows(index, ident, prediction),
        step_ns=prediction.timeline.step_ns,
        peak=None if peak is None else prediction.timeline.order.index(peak),
        metrics={**measure(index, ident).to_json(), **prediction.to_json()},
        model=prediction.model_json(),
        bound={
            "ns": bound.ns,
            "name": bound.name,
            "parts": dict(bound.parts),
        },
        groups=tuple({"name": g.name, "size": g.size, "description": g.description} for g in ident.groups),
        hints=tuple({"symbol": h.symbol, "value": h.value, "source": h.source} for h in index.estimates.hints),
        warnings=tuple(dict.fromkeys((*prediction.costs.warnings, *index.warnings, *ident.warnings))),
    )


def _family(index: GraphIndex, node: int) -> str:
    if node in index.launches:
        return "launch"
    if node in index.wait_of:
        return "wait"
    work, op = index.estimates.work[node].value, index.ops[node]
    if work == "free":
        return "nothing"
    if not index.compute[node]:
        return "pointwise" if work == "fusable" else "other"
    if "attention" in op:
        return "attention"
    return "other" if "conv" in op else "matmul"


def _differences(values: Sequence[int]) -> list[Json]:
    return [now - earlier for now, earlier in zip(values, (0, *values), strict=False)]


def _sparse(values: Mapping[int, int]) -> list[Json]:
    """``[[positions], [values]]``; JSON has no integer keys."""
    return [list(values), list(values.values())]


def slack(index: GraphIndex, prediction: Prediction) -> dict[int, tuple[int | None, int | None]]:
    """How early a collective could have been launched, and when its result is first needed: node numbers, or None.

    ready: of all nodes that must come before the launch and take time, the one that ends last. needed: of all nodes
    that need the result, the first that takes time, launches or returns it. Nodes that take no time (views, casts that
    a compiler fuses away) are looked through. Facts about the order as it is; ``commcc explain`` says what could be
    changed.
    """
    order = prediction.timeline.order
    place = {node: position for position, node in enumerate(order)}
    takes_time = [
        node in index.wait_of or (node not in index.launches and prediction.costs.ns[node] > 0)
        for node in range(len(index))
    ]
    latest = [-1] * len(index)  # the last place among what must run before a node and takes time
    for node in order:
        for p in index.preds(node):
            # A synchronous launch holds the stream until it is done.
            held = p in index.launches and not index.launches[p].asynchronous
            latest[node] = max(latest[node], place[p] if held or takes_time[p] else latest[p])
    first = [-1] * len(index)  # the first place among the users of a result that do something with it
    for node in reversed(order):
        places = []
        for user in index.users[node]:
            acts = user in index.launches or index.ops[user] == "output" or takes_time[user]
            places.append(place[user] if acts else first[user])
        first[node] = min((at for at in places if at >= 0), default=-1)
    result: dict[int, tuple[int | None, int | None]] = {}
    for node, launch in index.launches.items():
        # Without a wait the users of the launch itself need the result.
        users = [first[wait] for wait in launch.waits or (node,) if first[wait] >= 0]
        ready = latest[node]
        result[node] = (order[ready] if ready >= 0 else None, order[min(users)] if users else None)
    return result


def write_html(
    sides: Sequence[Side],
    *,
    title: str,
    options: Mapping[str, Json],
    explanations: Sequence[Mapping[str, Json]],
) -> str:
    """The text of the page, ASCII only. One side, or the graph before and after.

    options: what took effect, as JSON; nested mappings are shown as one row for each leaf.
    explanations: of the most exposed collectives, with the keys ``name``, ``kind``, ``group``,
    ``role``, ``exposed_ms``, ``total_ms``, ``reasons`` and ``knobs``; any of them may be missing.
    """
    if not 1 <= len(sides) <= 2:
        raise ValueError(f"a page shows one graph or two, not {len(sides)}")
    document: dict[str, Json] = {
        "schema": SCHEMA,
        "title": title,
        "options": dict(options),
        # In the words and units of all other reports.
        "figures": [list(row) for row in figures(sides[0].metrics, sides[-1].metrics)],
        "explanations": [dict(explanation) for explanation in explanations],
        "sides": [side.to_json() for side in sides],
    }
    return assemble(PAGE, title=title, document=document)
