"""What ``commcc run FOLDER`` says: a row for each graph, the steps that some of them are, and what trains with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.report.documents import costs, document
from commcc.report.metrics import compare, costed_by
from commcc.report.rewriting import rewriting, verdict
from commcc.report.tuning import graphs_table, line, memory_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from commcc.base.terms import Json
    from commcc.run.pipeline import RunResult
    from commcc.run.step import StepRun


def foldered(
    folder: str,
    places: Mapping[str, Mapping[str, str | None]],
    results: Mapping[str, RunResult],
    steps: Mapping[tuple[str, str], StepRun],
    said: Mapping[str, Json],
) -> dict[str, Json]:
    """The document. places: input, output and plan of each graph. steps: by forward and backward."""
    graphs: list[Json] = []
    halves = {name for pair in steps for name in pair}
    for name, result in results.items():
        files = (str(places[name]["input"]), str(places[name]["output"]))
        more = {"plan_out": places[name]["plan"], **memory_of(result, in_step=name in halves)}
        graphs.append({"graph": name, **rewriting("run", files, result, (), more)})
    proved = all(result.verified == "proved" for result in results.values())
    plans = next((place["plan"] for place in places.values()), None)
    plan_out = None if plans is None else str(Path(plans).parent)
    # Of the job's graphs; files that no capture wrote do not say it.
    levels = {str(result.source.header.get("level", "aot-inductor")) for result in results.values()}
    level = next(iter(levels)) if len(levels) == 1 else "aot-inductor"
    return document(
        "run",
        input=folder,
        output=str(Path(str(next(iter(places.values()))["output"])).parent),
        plan_out=plan_out,
        line=None if plan_out is None else line(level, plan_out),
        **said,
        verified="proved" if proved else "unproved",
        **costs(*(result.last for result in results.values())),
        graphs=graphs,
        steps=[
            {"forward": ahead, "backward": behind, "before": both.first.to_json(), "after": both.last.to_json()}
            for (ahead, behind), both in steps.items()
        ],
    )


def view(document: Mapping[str, Any]) -> list[RenderableType]:
    """The graphs, the steps, then where everything is."""
    shown: list[RenderableType] = [graphs_table(document["graphs"])]
    for step in document["steps"]:
        title = f"the step of {step['forward']} and {step['backward']}"
        shown += ["", compare(step["before"], step["after"], title), *costed_by(document)]
    files = [Text.assemble("written to ", (document["output"], "bold"))]
    if document["plan_out"] is not None:
        files += [Text.assemble("plans in ", (document["plan_out"], "bold"), "; train with"), Text("")]
        files += [Text(f"    {document['line']}", style="bold")]
    return [*shown, "", verdict(document["verified"]), *files]
