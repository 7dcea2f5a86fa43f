"""What ``commcc tune`` says: the graphs before and after, the plans, and the line to put into the script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.text import change, least_size, milliseconds, size
from commcc.report.console import make_table
from commcc.report.documents import costs, document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from commcc.base.terms import Json
    from commcc.capture.request import Request
    from commcc.run.pipeline import RunResult

INNER = {"aot": "aot_eager", "aot-inductor": "inductor"}


def tuning(
    request: Request, preset: str, runs: Sequence[tuple[Mapping[str, Any], RunResult]], folder: str
) -> dict[str, Json]:
    """The document. runs: what the capture says of each graph, with ``plan`` and ``tuned``, and its result."""
    graphs: list[Json] = [
        {
            "graph": said["graph"],
            "file": said["file"],
            "tuned": said["tuned"],
            "plan": said["plan"],
            "changed": result.changed,
            "verified": result.verified,
            **memory_of(result, in_step=False),
            "before": result.first.to_json(),
            "after": result.last.to_json(),
        }
        for said, result in runs
    ]
    mesh: dict[str, Json] = dict(request.mesh)
    return document(
        "tune",
        target=request.target,
        mesh=mesh,
        level=request.level,
        preset=preset,
        **costs(*(result.last for _, result in runs)),
        graphs=graphs,
        plans=folder,
        line=line(request.level, folder),
    )


def line(level: str, folder: str) -> str:
    """What trains with the plans."""
    if level not in INNER:
        return f"torch._inductor.config.post_grad_custom_post_pass = commcc.inductor_pass(plan={folder!r})"
    inner = "" if level == "aot-inductor" else f", inner={INNER[level]!r}"
    return f"model = torch.compile(model, backend=commcc.backend(plan={folder!r}{inner}))"


def memory_of(result: RunResult, *, in_step: bool) -> dict[str, Json]:
    """What the peaks of ``before`` and ``after`` are of, and what the passes let the graph take at most.

    in_step: the graph is half of a step, and what the step holds besides counts as long as it is held.
    """
    budgets = [step.report.get("memory_budget_bytes") for step in result.steps]
    known = [budget for budget in budgets if isinstance(budget, int)]
    return {"peak_of": "step" if in_step else "graph", "memory_budget_bytes": max(known, default=None)}


def graphs_table(graphs: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each graph: what it launches, takes and needs, before and after."""
    limited = any(graph["memory_budget_bytes"] is not None for graph in graphs)
    within = ("budget",) if limited else ()
    numbers = ("launches", "step time")
    table = make_table("", "graph", "launches", "step time", "", "exposed", "peak memory", *within, "", numbers=numbers)
    for graph in graphs:
        before, after = graph["before"], graph["after"]
        counts = [sum(side["collectives"].values()) for side in (before, after)]
        steps = [side.get("step_ms") for side in (before, after)]
        table.add_text(
            graph["graph"],
            f"{counts[0]:,} -> {counts[1]:,}",
            f"{milliseconds(steps[0])} -> {milliseconds(steps[1])}",
            change(steps[0], steps[1]),
            f"{milliseconds(before.get('exposed_ms'))} -> {milliseconds(after.get('exposed_ms'))}",
            " -> ".join(map(_peak, (before, after))) + (" in the step" if graph["peak_of"] == "step" else ""),
            *([size(graph["memory_budget_bytes"])] if limited else []),
            "proved" if graph["verified"] == "proved" else "NOT PROVED",
        )
    return table


def _peak(metrics: Mapping[str, Any]) -> str:
    return least_size(metrics.get("peak_bytes"), metrics.get("unknown_sizes", {}).get("values", 0), brief=True)


def view(document: Mapping[str, Any]) -> list[RenderableType]:
    """A row for each graph, then where the plans are and what to do with them."""
    plans = Text.assemble("plans in ", (document["plans"], "bold"), "; train with")
    return [graphs_table(document["graphs"]), "", plans, "", Text(f"    {document['line']}", style="bold")]
