"""What ``commcc bench`` and ``commcc profile`` say of graphs that ran on ranks.

Of a bench: a row for each graph, a verdict for each but the first, ranks on demand; of recorded runs, what was
predicted next to what was measured. Of a profile: what was measured, and how well it predicts the graphs that it was
measured on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.text import least_size, milliseconds, plural, share, size
from commcc.report.console import make_table
from commcc.report.documents import document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from commcc.base.terms import Json
    from commcc.replay.bench.benchmark import Benchmark
    from commcc.replay.bench.profiling import Profiled
    from commcc.report.console import Section

_STYLES = {"faster": "bold green", "slower": "bold red", "not distinguishable": "bold yellow"}
_RESULTS = {
    "equal": "the results are the same to the bit",
    "within tolerance": "the results are the same within rounding",
    "inconclusive": "the results of graph 1 are partly no numbers, so that equality proves nothing",
    "different": "the results are different",
}
_PARTS = (
    ("step", "step_ms"),
    ("  compute", "compute_ms"),
    ("  launches", "launches_ms"),
    ("  exposed", "exposed_ms"),
    ("  rest", "rest_ms"),
    ("communication", "communication_ms"),
)
_PAIR = ("measured", "predicted", "error")
#: Ops and collectives of a profile that are listed.
_MOST_LISTED = 8
_COLUMNS = ("median", "p10", "p90", "exposed", "of it", "peak memory")


def benchmark(graphs: list[str], result: Benchmark) -> dict[str, Json]:
    """The JSON of a bench; ``inputs`` is empty for the small graph."""
    return document("bench", inputs=list(graphs), **result.to_json())


def brief(data: Mapping[str, Any]) -> str:
    """On one line: verdicts, or the one graph's time."""
    if not data["comparisons"]:
        return f"{milliseconds(data['graphs'][0]['wall_ms']['median'])}"
    return "; ".join(
        f"graph {pair['graph']} {pair['verdict']} ({pair['ratio']:.3f}), results {pair['results']['status']}"
        for pair in data["comparisons"]
    )


def view(data: Mapping[str, Any], *, ranks: bool = False, collectives: int = 5) -> list[RenderableType]:
    """Graphs, verdicts, remarks; with ``ranks`` every rank as well; of recorded runs what was predicted of them.

    collectives: how many to list of each graph.
    """
    where = place(data, data["cost"])
    heading = f"{where}, {plural(data['repeat'], 'repetition')} in turns, seed {data['seed']}"
    table = make_table(heading, "", "graph", *_COLUMNS, "predicted", numbers=(*_COLUMNS, "predicted"))
    table.spare = ("p10", "p90")
    for number, graph in enumerate(data["graphs"], 1):
        table.add_text(str(number), graph["name"], *_cells(graph), milliseconds(graph["predicted"]["step_ms"]))
    shown: list[RenderableType] = [table]
    if ranks:
        every = make_table("every rank", "graph", "rank", *_COLUMNS, numbers=("rank", *_COLUMNS))
        for number, graph in enumerate(data["graphs"], 1):
            for rank, times in enumerate(graph["ranks"]):
                every.add_text(str(number), str(rank), *_cells(times))
        shown += ["", every]
    shown.append("")
    for number, graph in enumerate(data["graphs"], 1):
        if graph["forecast"] is not None:
            named = f"graph {number}: measured, and predicted with {data['cost']}"
            shown += forecast(graph, named, most=collectives)
    for comparison in data["comparisons"]:
        shown += _comparison(comparison)
    shown += [Text(line, style="dim") for line in _explanations(data)]
    shown.append(Text(f"{data['seconds']:.1f} s in all", style="dim"))
    return shown + [Text(f"- {note}", style="dim") for note in data["notes"]]


def place(data: Mapping[str, Any], cost: str = "") -> str:
    """Who ran on what; cost: the model that emulated communication follows."""
    ranks = plural(data["ranks"], "rank")
    if data["emulated"]:
        return f"one process on {data['device']} for {ranks}, communication modelled" + (f" ({cost})" if cost else "")
    return f"{ranks} on {data['device']} with {data['backend']}"


def _cells(times: Mapping[str, Any]) -> tuple[str, ...]:
    wall = times["wall_ms"]
    exposed = None if times["exposed_ms"] is None else times["exposed_ms"]["median"]
    return (
        milliseconds(wall["median"]),
        milliseconds(wall["p10"]),
        milliseconds(wall["p90"]),
        "-" if exposed is None else milliseconds(exposed),
        "-" if exposed is None else share(exposed / wall["median"]),
        size(times["peak_bytes"]),
    )


def _comparison(pair: Mapping[str, Any]) -> list[RenderableType]:
    against = f"graph {pair['graph']} against graph {pair['against']}"
    results, status = pair["results"], pair["results"]["status"]
    if pair["low"] is None:
        interval = f"{plural(pair['pairs'], 'pair')} of runs are too few for an interval; 6 are enough"
    else:
        interval = f"median ratio {pair['low']:.3f} to {pair['high']:.3f} with {share(pair['confidence'])} confidence, "
        interval += f"from {pair['pairs']} pairs of runs"
    lines = [
        Text(f"{against}: {pair['verdict']}, {pair['ratio']:.3f} times its time", style=_STYLES[pair["verdict"]]),
        Text(f"  {interval}"),
        Text(
            f"  {_RESULTS[status]} ({plural(results['compared'], 'value')} of each rank)",
            style="" if status in ("equal", "within tolerance") else "bold red",
        ),
    ]
    if status == "different":
        worst = results["values"][0]["name"] if results["values"] else "everything"
        lines.append(Text(f"  {worst} is; commcc verify --numeric says where it comes from"))
    return [*lines]


def _explanations(data: Mapping[str, Any]) -> list[str]:
    """What the columns mean."""
    lines = ["exposed: time in waits for communication", f"predicted: simulated for {data['cost']}"]
    if data["ranks"] > 1 and not data["emulated"]:
        lines.insert(0, "times are those of the slowest rank of each repetition")
    if any(graph["order"] is not None for graph in data["graphs"]):
        lines.append(
            "compiled: by Inductor; chains of pointwise ops are predicted as one kernel, unless --cost says fused=no"
        )
    for number, graph in enumerate(data["graphs"], 1):
        emulated = graph["emulated"]
        if emulated:  # how well communication kept to its model
            times = f"{milliseconds(emulated['modelled_ms'])} modelled, {milliseconds(emulated['took_ms'])} taken"
            lines.append(f"graph {number}: {plural(emulated['launches'], 'collective')}, {times}")
    return lines


def forecast(graph: Mapping[str, Any], heading: str, *, most: int) -> list[RenderableType]:
    """One graph's forecast; most: how many collectives to list."""
    run = graph["forecast"]
    table = make_table(heading, "", *_PAIR, numbers=_PAIR)
    for name, key in _PARTS:
        table.add_text(name, *times(run[key]))
    for kind in run["kinds"]:
        of = f"{kind['count']}" if kind["count"] == kind["of"] else f"{kind['count']} of {kind['of']}"
        table.add_text(f"  {of} x {kind['kind']}", *times(kind["transfer_ms"]))
    # Only runs of several ranks tell who was late.
    if run["late_ranks_ms"]["measured"] is not None:
        table.add_text("  late ranks, outliers", milliseconds(run["late_ranks_ms"]["measured"]), "", "")
    hidden = run["hidden_share"]
    table.add_text("hidden share", share(hidden["measured"]), share(hidden["predicted"]), "")
    shown: list[RenderableType] = [table, ""]
    known = [collective for collective in run["collectives"] if collective["transfer_ms"]["measured"] is not None]
    pairs = [(collective["transfer_ms"], collective) for collective in known]
    pairs.sort(key=lambda pair: abs(float(pair[0]["predicted"]) - float(pair[0]["measured"])), reverse=True)
    listed = [collective for _, collective in pairs[:most]]
    return [*shown, _forecasts(listed, len(run["collectives"])), ""] if listed else shown


def times(pair: Mapping[str, Any]) -> tuple[str, str, str]:
    """Cells: measured, predicted, error."""
    return milliseconds(pair["measured"]), milliseconds(pair["predicted"]), error(pair["error"])


def error(value: float | None) -> str:
    """``-12.3 %``; a dash where there is none."""
    return "-" if value is None else f"{100 * value:+,.1f} %"


def _forecasts(listed: Sequence[Mapping[str, Any]], count: int) -> Section:
    columns = ("sends", *_PAIR, "exposed", "predicted ")
    which = "every collective"
    if len(listed) < count:
        which = f"the {len(listed)} of {count:,} collectives with the largest error"
    table = make_table(which, "node", "kind", "group", *columns, numbers=columns)
    for entry in listed:
        exposed = entry["exposed_ms"]
        table.add_text(
            entry["node"],
            entry["kind"],
            entry["group"],
            least_size(entry["bytes"], "unknown_size" in entry, brief=True),
            *times(entry["transfer_ms"]),
            milliseconds(exposed["measured"]),
            milliseconds(exposed["predicted"]),
        )
    return table


def profiled(graphs: Sequence[str], output: str, result: Profiled) -> dict[str, Json]:
    """The JSON of a profile."""
    data = result.to_json()
    data["cost"] = result.cost.replace("{}", output)
    return document("profile", inputs=list(graphs), output=output, **data)


def view_profile(data: Mapping[str, Any]) -> list[RenderableType]:
    """Ops and collectives that take longest, the predictions, and how to use the file."""
    where = place(data)
    heading = f"{plural(len(data['ops']), 'op')} and {plural(len(data['collectives']), 'collective')} on {where}"
    shown: list[RenderableType] = [Text(heading, style="bold"), ""]
    shown += [_profiled_ops(data["ops"]), ""] if data["ops"] else []
    shown += [_profiled_collectives(data["collectives"]), ""] if data["collectives"] else []
    shown += [_profiled_graphs(data["graphs"]), ""]
    shown.append(Text(f"written to {data['output']}; use it with"))
    shown.append(Text(f"  --cost {data['cost']}", style="bold"))
    return shown + [Text(f"- {note}", style="dim") for note in data["notes"]]


def _profiled_ops(ops: Sequence[Mapping[str, Any]]) -> Section:
    """Those that take most of the time together."""
    listed = sorted(ops, key=lambda op: op["us"] * op["count"], reverse=True)[:_MOST_LISTED]
    name = "ops" if len(listed) == len(ops) else f"the {len(listed)} ops with the most time"
    table = make_table(name, "op", "inputs", "median", "times", numbers=("median", "times"))
    for op in listed:
        table.add_text(op["op"], ", ".join(op["inputs"]), _us(op["us"]), f"{op['count']:,}")
    return table


def _profiled_collectives(collectives: Sequence[Mapping[str, Any]]) -> Section:
    listed = sorted(collectives, key=lambda entry: entry["us"] * entry["count"], reverse=True)[:_MOST_LISTED]
    name = "collectives" if len(listed) == len(collectives) else f"the {len(listed)} collectives with the most time"
    numbers = ("ranks", "sends", "median", "times")
    table = make_table(name, "kind", *numbers, numbers=numbers)
    for entry in listed:
        sends = size(entry["input_bytes"])
        table.add_text(entry["kind"], str(entry["group_size"]), sends, _us(entry["us"]), f"{entry['count']:,}")
    return table


def _profiled_graphs(graphs: Sequence[Mapping[str, Any]]) -> Section:
    columns = ("measured", "without", "error", "with it", "error ", "priced by it")
    table = make_table("step, predicted without the profile and with it", "", "graph", *columns, numbers=columns)
    for number, graph in enumerate(graphs, 1):
        measured, without, off = times(graph["without"]["step_ms"])
        _, with_profile, _ = times(graph["with_profile"]["step_ms"])
        table.add_text(
            str(number),
            graph["name"],
            measured,
            without,
            off,
            with_profile,
            error(graph["with_profile"]["step_ms"]["error"]),
            share(graph["priced_share"]),
        )
    return table


def _us(value: float) -> str:
    return f"{value:,.1f} us"
