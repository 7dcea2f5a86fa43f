"""What the report of the reorder pass says, in lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.base.text import count, milliseconds, plural, share, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Document = Mapping[str, Any]


def lines(report: Document) -> Iterator[tuple[str, str]]:
    """Lines about the report of the reorder pass; what the table of metrics says is not said again."""
    before, after = report["step_ms"]
    yield "moved", f"{plural(report['moved_nodes'], 'node')}, {count(report['moved_launches'])} of them launches"
    bound = f"{share(report['over_bound'])} above the lower bound of {milliseconds(report['lower_bound_ms'])}"
    yield "step", f"{milliseconds(before)} before, {milliseconds(after)} after: {bound}"
    budget, peak = report["memory_budget_bytes"], report["peak_bytes"][1]
    if budget is not None:
        spare = f"{size(budget - peak)} to spare" if peak <= budget else f"{size(peak - budget)} too much"
        yield "budget", f"{size(budget)}: {spare}"
    if report.get("control_edges"):
        yield "control edges", count(report["control_edges"])
    yield "search", f"{plural(report['schedules_tried'], 'schedule')}{_settings(report['settings'])}"
    for remark in report["remarks"]:
        yield "remark", remark


def _settings(rounds: list[list[int]]) -> str:
    """How the best one was made."""
    if not rounds:
        return "; none is better than the order that is there"
    made = ", then ".join(f"target {target / 1000:g} and lead {lead / 1000:g}" for target, lead, *_ in rounds)
    return f"; the best with {made}"
