"""What ``commcc profile`` says: what was measured, and how well it predicts the graphs that it was measured on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.text import plural, share, size
from commcc.report.benching import place
from commcc.report.console import make_table
from commcc.report.documents import document
from commcc.report.forecasting import error, times

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from commcc.base.terms import Json
    from commcc.replay.bench.profiling import Profiled
    from commcc.report.console import Section

_SHOWN = 8


def profiled(graphs: Sequence[str], output: str, found: Profiled) -> dict[str, Json]:
    """The JSON of a profile."""
    data = found.to_json()
    data["cost"] = found.cost.replace("{}", output)
    return document("profile", inputs=list(graphs), output=output, **data)


def view(data: Mapping[str, Any]) -> list[RenderableType]:
    """Ops and collectives that take longest, the predictions, and how to use the file."""
    where = place(data)
    heading = f"{plural(len(data['ops']), 'op')} and {plural(len(data['collectives']), 'collective')} on {where}"
    shown: list[RenderableType] = [Text(heading, style="bold"), ""]
    shown += [_ops(data["ops"]), ""] if data["ops"] else []
    shown += [_collectives(data["collectives"]), ""] if data["collectives"] else []
    shown += [_graphs(data["graphs"]), ""]
    shown.append(Text(f"written to {data['output']}; use it with"))
    shown.append(Text(f"  --cost {data['cost']}", style="bold"))
    return shown + [Text(f"- {note}", style="dim") for note in data["notes"]]


def _ops(ops: Sequence[Mapping[str, Any]]) -> Section:
    """Those that take most of the time together."""
    listed = sorted(ops, key=lambda op: op["us"] * op["count"], reverse=True)[:_SHOWN]
    name = "ops" if len(listed) == len(ops) else f"the {len(listed)} ops with the most time"
    table = make_table(name, "op", "inputs", "median", "times", numbers=("median", "times"))
    for op in listed:
        table.add_text(op["op"], ", ".join(op["inputs"]), _us(op["us"]), f"{op['count']:,}")
    return table


def _collectives(collectives: Sequence[Mapping[str, Any]]) -> Section:
    listed = sorted(collectives, key=lambda each: each["us"] * each["count"], reverse=True)[:_SHOWN]
    name = "collectives" if len(listed) == len(collectives) else f"the {len(listed)} collectives with the most time"
    numbers = ("ranks", "sends", "median", "times")
    table = make_table(name, "kind", *numbers, numbers=numbers)
    for each in listed:
        sends = size(each["input_bytes"])
        table.add_text(each["kind"], str(each["group_size"]), sends, _us(each["us"]), f"{each['count']:,}")
    return table


def _graphs(graphs: Sequence[Mapping[str, Any]]) -> Section:
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
