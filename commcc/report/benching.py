"""What ``commcc bench`` says: a row for each graph, a verdict for each but the first, ranks on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.text import milliseconds, plural, share, size
from commcc.report import forecasting
from commcc.report.console import make_table
from commcc.report.documents import document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from commcc.base.terms import Json
    from commcc.replay.bench.benchmark import Benchmark
    from commcc.report.console import Section

_STYLES = {"faster": "bold green", "slower": "bold red", "not distinguishable": "bold yellow"}
_RESULTS = {
    "equal": "the results are the same to the bit",
    "within tolerance": "the results are the same within rounding",
    "inconclusive": "the results of graph 1 are partly no numbers, so that equality proves nothing",
    "different": "the results are different",
}
_COLUMNS = ("median", "p10", "p90", "exposed", "of it", "peak memory")


def benchmark(graphs: list[str], found: Benchmark) -> dict[str, Json]:
    """The JSON of a bench; ``inputs`` is empty for the small graph."""
    return document("bench", inputs=list(graphs), **found.to_json())


def brief(data: Mapping[str, Any]) -> str:
    """On one line: verdicts, or the one graph's time."""
    if not data["comparisons"]:
        return f"{milliseconds(data['graphs'][0]['wall_ms']['median'])}"
    return "; ".join(
        f"graph {each['graph']} {each['verdict']} ({each['ratio']:.3f}), results {each['results']['status']}"
        for each in data["comparisons"]
    )


def view(data: Mapping[str, Any], *, ranks: bool = False, collectives: int = 5) -> list[RenderableType]:
    """Graphs, verdicts, remarks; with ``ranks`` every rank as well; of recorded runs what was predicted of them.

    collectives: how many to list of each graph.
    """
    where = place(data, data["cost"])
    heading = f"{where}, {plural(data['repeat'], 'repetition')} in turns, seed {data['seed']}"
    table = make_table(heading, "", "graph", *_COLUMNS, "predicted", numbers=(*_COLUMNS, "predicted"))
    for number, graph in enumerate(data["graphs"], 1):
        table.add_text(str(number), graph["name"], *_cells(graph), milliseconds(graph["predicted"]["step_ms"]))
    shown: list[RenderableType] = [table]
    if ranks:
        shown += ["", _ranks(data)]
    shown.append("")
    for number, graph in enumerate(data["graphs"], 1):
        if graph["forecast"] is not None:
            named = f"graph {number}: measured, and predicted with {data['cost']}"
            shown += forecasting.tables(graph, named, most=collectives)
    for each in data["comparisons"]:
        shown += _comparison(each)
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


def _ranks(data: Mapping[str, Any]) -> Section:
    table = make_table("every rank", "graph", "rank", *_COLUMNS, numbers=("rank", *_COLUMNS))
    for number, graph in enumerate(data["graphs"], 1):
        for rank, times in enumerate(graph["ranks"]):
            table.add_text(str(number), str(rank), *_cells(times))
    return table


def _comparison(each: Mapping[str, Any]) -> list[RenderableType]:
    against = f"graph {each['graph']} against graph {each['against']}"
    results, status = each["results"], each["results"]["status"]
    lines = [
        Text(f"{against}: {each['verdict']}, {each['ratio']:.3f} times its time", style=_STYLES[each["verdict"]]),
        Text(f"  {_interval(each)}"),
        Text(
            f"  {_RESULTS[status]} ({plural(results['compared'], 'value')} of each rank)",
            style="" if status in ("equal", "within tolerance") else "bold red",
        ),
    ]
    if status == "different":
        worst = results["values"][0]["name"] if results["values"] else "everything"
        lines.append(Text(f"  {worst} is; commcc verify --numeric says where it comes from"))
    return [*lines]


def _interval(each: Mapping[str, Any]) -> str:
    if each["low"] is None:
        return f"{plural(each['pairs'], 'pair')} of runs are too few for an interval; 6 are enough"
    interval = f"{each['low']:.3f} to {each['high']:.3f}"
    return f"median ratio {interval} with {share(each['confidence'])} confidence, from {each['pairs']} pairs of runs"


def _explanations(data: Mapping[str, Any]) -> list[str]:
    """What the columns mean."""
    many = data["ranks"] > 1 and not data["emulated"]
    slowest = ["times are those of the slowest rank of each repetition"] if many else []
    return [
        *slowest,
        "exposed: time in waits for communication",
        f"predicted: simulated for {data['cost']}",
        *_compiled(data["graphs"]),
        *(_emulated(number, graph["emulated"]) for number, graph in enumerate(data["graphs"], 1) if graph["emulated"]),
    ]


def _compiled(graphs: list[Mapping[str, Any]]) -> list[str]:
    """How graphs through Inductor are predicted."""
    told = "compiled: by Inductor; chains of pointwise ops are predicted as one kernel, unless --cost says fused=no"
    return [told] if any(graph["order"] is not None for graph in graphs) else []


def _emulated(number: int, found: Mapping[str, Any]) -> str:
    """How well communication kept to its model."""
    times = f"{milliseconds(found['modelled_ms'])} modelled, {milliseconds(found['took_ms'])} taken"
    return f"graph {number}: {plural(found['launches'], 'collective')}, {times}"
