"""What ``commcc explain`` says: two streams drawn, what could hide the collective, why it is exposed, what would help.

The drawing is as wide as the terminal. Its cells are stretches of equal time; a cell shows what fills most of it, and
the collective wherever it takes any of it::

              L                              E
    compute   =====..........................======
    group 0        ##########################
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from commcc.base.text import least_size, milliseconds, plural
from commcc.report.console import cut_short, make_table
from commcc.report.documents import costs, document
from commcc.timing.snapshot import cost_warnings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from commcc.base.terms import Json
    from commcc.explain import Explanation, Limits
    from commcc.timing.snapshot import Snapshot

    Document = Mapping[str, Any]

WIDEST = 100
NARROWEST = 20
SIGNS = {"compute": ("=", "green"), "stall": (".", "red"), "this": ("#", "bold cyan"), "other": ("-", "dim")}
LEGEND = "= compute  . compute stalls  # this collective  - others in its queue"


def explanations(graph: str, seen: Snapshot, explained: Sequence[Explanation], limits: Limits) -> dict[str, Json]:
    """The document; the most exposed collective first."""
    peak = 0 if seen.prediction is None else seen.prediction.memory.peak_bytes
    return document(
        "explain",
        input=graph,
        fingerprint=seen.index.fingerprint,
        **costs(seen),
        limits={**limits.to_json(), "memory_budget": limits.budget(peak)},
        graph=seen.to_json(),
        collectives=[explanation.to_json() for explanation in explained],
        warnings=[*seen.ident.warnings, *cost_warnings(seen)],
    )


def brief(explained: Sequence[Explanation]) -> list[str]:
    """One line for each collective; one that says so when none is exposed."""
    return [explanation.summary for explanation in explained] or ["no collective is exposed"]


def view(document: Document) -> list[RenderableType]:
    """One collective in full; several as a table and in short."""
    collectives = document["collectives"]
    model = document["cost_model"]
    source = f"simulated with {model['name']} ({model['hash']}), step {milliseconds(document['graph']['step_ms'])}"
    head: list[RenderableType] = [Text.assemble((document["input"], "bold"), f"  {source}"), ""]
    if not collectives:
        return [*head, Text("no collective is exposed", style="bold green")]
    if len(collectives) == 1:
        (entry,) = collectives
        shown = [*head, _title(entry), "", _about(entry, document["graph"]), "", Drawing(entry), ""]
        shown += [_heading("what could hide it"), _hiding(entry)]
        return [*shown, "", *_reasons(entry, paths=True), "", *_knobs(entry)] if entry["exposed_ms"] else shown
    shown = [*head, _overview(collectives, document["graph"])]
    for entry in collectives:
        shown += ["", _title(entry), *_reasons(entry, paths=False), *_knobs(entry)]
    return [*shown, "", Text("one in full: commcc explain GRAPH COLLECTIVE", style="dim")]


def _overview(collectives: Sequence[Document], graph: Document) -> RenderableType:
    together = sum(entry["exposed_ms"] for entry in collectives)
    heading = f"{plural(len(collectives), 'collective')} with most exposed time: {milliseconds(together)}"
    heading += f" of {milliseconds(graph['exposed_ms'])} in the step"
    numbers = ("exposed", "of")
    table = make_table(heading, "name", "group", "role", *numbers, "reasons", numbers=numbers, whole=("name",))
    table.spare = ("role",)
    for entry in collectives:
        kinds = ", ".join(dict.fromkeys(reason["kind"].replace("_", " ") for reason in entry["reasons"]))
        exposed, total = milliseconds(entry["exposed_ms"]), milliseconds(entry["total_ms"])
        table.add_text(entry["name"], entry["group"], entry["role"], exposed, total, cut_short(kinds))
    return table


def _title(entry: Document) -> Text:
    exposed, total = entry["exposed_ms"], entry["total_ms"]
    state = (
        f"{milliseconds(exposed)} of {milliseconds(total)} exposed"
        if exposed
        else f"hidden, all of its {milliseconds(total)}"
    )
    style = "bold red" if exposed else "bold green"
    return Text.assemble((entry["name"], "bold"), "  ", (state, style))


def _heading(text: str) -> Text:
    return Text(text, style="bold")


def _grid(rows: Iterable[tuple[str, str | Text]]) -> RenderableType:
    """Labels on the left, sentences that wrap on the right."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(Text(label), text if isinstance(text, Text) else Text(text))
    return Padding(table, (0, 0, 0, 2))


def _about(entry: Document, graph: Document) -> RenderableType:
    ranks = "" if entry["group_size"] is None else f" ({plural(entry['group_size'], 'rank')})"
    module = f", {entry['module']}" if entry["module"] else ""
    what = f"{entry['kind']} for {entry['role']} on group {entry['group']}{ranks}{module}"
    unknown = "unknown_size" in entry
    sent, got = (least_size(entry[key], unknown, brief=True) for key in ("input_bytes", "output_bytes"))
    moved = f"{sent} in, {got} out, one rank"
    price = f"{milliseconds(entry['total_ms'])}, {milliseconds(entry['latency_ms'])} of it latency"
    told = ", ".join(filter(None, [f"by {entry['priced_by']}" if entry["priced_by"] else "", entry["how"]]))
    rows = [("what", what), ("bytes", moved), ("time", f"{price} ({told})" if told else price)]
    if entry["exposed_ms"]:
        step, saved = milliseconds(graph["step_ms"]), milliseconds(entry["cost_ms"])
        rows.append(("costs", f"without it the step of {step} would be {saved} shorter"))
    return _grid(rows)


def _hiding(entry: Document) -> RenderableType:
    overlap, possible = entry["beside"], entry["possible"]
    now = "nothing overlaps it"
    if overlap["nodes"]:
        work = (
            f"overlapped by {milliseconds(overlap['ms'])} of work, {plural(overlap['compute_nodes'], 'compute node')}"
        )
        more = ", ..." if overlap["nodes"] > len(overlap["largest"]) else ""
        now = f"{work}: {', '.join(overlap['largest'])}{more}"
    could = f"{milliseconds(possible['ms'])} of work in the graph is independent of it, "
    could += plural(possible["compute_nodes"], "compute node")
    rows: list[tuple[str, str | Text]] = [("now", now), ("possible", could)]
    for label, key in (("  before it", "before"), ("  after it", "after")):
        if possible[key]:
            rows.append((label, ", ".join(f"{near['name']} ({milliseconds(near['ms'])})" for near in possible[key])))
    up, down = entry["launch_side"], entry["wait_side"]
    first = f"after {up['limit']}" if up["limit"] else "at the start of the graph"
    last = f"before {down['limit']}" if down["limit"] else "at the end of the graph"
    launch = f"could go up past {_passed(up)}, {first}" if up["ms"] else f"stands as early as it may, {first}"
    wait = f"could go down past {_passed(down)}, {last}" if down["ms"] else f"stands as late as it may, {last}"
    return _grid([*rows, ("launch", launch), ("wait", wait if entry["waits"] else "nobody waits for it")])


def _passed(side: Document) -> str:
    return f"{plural(side['compute_nodes'], 'compute node')} ({milliseconds(side['ms'])} of work)"


def _reasons(entry: Document, *, paths: bool) -> list[RenderableType]:
    """The reasons with what each costs; with ``paths``, those that the text shortens or leaves out, once."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    shown: set[str] = set()
    for reason in entry["reasons"]:
        text = Text(reason["text"])
        path = " -> ".join(reason["path"])
        if paths and path and path not in shown and path not in reason["text"]:
            text.append(f"\npath: {path}", style="dim")
            shown.add(path)
        saves = Text(milliseconds(reason["saves_ms"]) if reason["saves_ms"] else "", style="red")
        table.add_row(saves, Text(reason["kind"].replace("_", " "), style="bold"), text)
    return [_heading("why it is exposed, and what the step would gain without that"), Padding(table, (0, 0, 0, 2))]


def _knobs(entry: Document) -> list[RenderableType]:
    rows = []
    for knob in entry["knobs"]:
        style = "green" if knob["saves_ms"] or knob["pass"] else ""
        rows.append(("besides" if knob["besides"] else "-", Text(knob["text"], style=style)))
    return [_heading("what would change it"), _grid(rows)]


class Drawing:
    """Both streams around one collective; ``entry`` is its JSON."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.entry = entry
        self.picture = entry["picture"]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(NARROWEST, min(WIDEST, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        stream = self.entry["lane"]
        label = f"group {stream}" if stream == self.entry["group"] else stream
        label = label if len(label) <= 16 else f"{label[:13]}..."
        indent = 4 + max(len("compute"), len(label))
        cells = max(NARROWEST, min(WIDEST, options.max_width) - indent)
        rows = (("", self._marks(cells)), ("compute", self._row("compute", cells)), (label, self._row("lane", cells)))
        for name, row in rows:
            yield Text.assemble("  ", (name.ljust(indent - 2), "dim"), row, no_wrap=True, overflow="crop")
        yield Text(f"  {LEGEND}", style="dim")
        timing = self.entry["timing"]
        parts = [f"L launched {milliseconds(timing['launched_at_ms'])}"]
        if timing["queued_ms"]:
            parts.append(f"queued for {milliseconds(timing['queued_ms'])}")
        if timing["wait_at_ms"] is not None:
            parts.append(f"W waited for from {milliseconds(timing['wait_at_ms'])}")
        yield Text("  " + ", ".join([*parts, f"E ended {milliseconds(timing['end_ms'])}"]))

    def _cell(self, ms: float, cells: int) -> int:
        start, end = self.picture["start_ms"], self.picture["end_ms"]
        return min(cells - 1, max(0, int((ms - start) / max(1e-9, end - start) * cells)))

    def _row(self, stream: str, cells: int) -> Text:
        row = [" "] * cells
        for what in ("other", "compute", "stall", "this"):  # this collective last, so that it is never hidden
            sign = SIGNS[what][0]
            for begin, end in ((s[1], s[2]) for s in self.picture[stream] if s[0] == what):
                first, last = self._cell(begin, cells), self._cell(end, cells)
                row[first : max(first + 1, last)] = sign * max(1, last - first)
        styles = dict(SIGNS.values())
        return Text.assemble(*((sign, styles.get(sign, "")) for sign in row))

    def _marks(self, cells: int) -> Text:
        """``L`` launched, ``W`` waited for, ``E`` ended; a mark moves right where its cell is taken."""
        row = [" "] * cells
        timing = self.entry["timing"]
        events = [("L", timing["launched_at_ms"]), ("W", timing["wait_at_ms"]), ("E", timing["end_ms"])]
        inside = [(sign, ms) for sign, ms in events if ms is not None and ms <= self.picture["end_ms"]]
        for sign, ms in sorted(inside, key=lambda event: event[1]):
            at = self._cell(ms, cells)
            free = [cell for cell in range(at, cells) if row[cell] == " "] or [cells - 1]
            row[free[0]] = sign
        return Text("".join(row), style="bold")
