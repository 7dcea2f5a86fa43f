"""What the reports of passes for expert and tensor parallelism say, in lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.report.units import count, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Document = Mapping[str, Any]

#: How many pairs are named.
_SHOWN = 4


def fusions(report: Document) -> Iterator[tuple[str, str]]:
    """Lines about the report of the async-tp pass."""
    made = ", ".join(f"{count(number)} {kind}" for kind, number in report["fused"].items())
    total = report["collectives"]
    yield "fused", f"{made or 'none'} of {plural(total, 'collective')}, {plural(report['matmuls_fused'], 'matmul')}"
    pairs = report["pairs"]
    for pair in pairs[:_SHOWN]:
        yield "", f"{pair['launch']} with {', '.join(pair['matmuls'])}"
    if len(pairs) > _SHOWN:
        yield "", f"and {len(pairs) - _SHOWN:,} more"
    label = f"left {sum(report['left'].values()):,}"
    for reason, number in report["left"].items():
        yield label, f"{number:,} x {reason}"
        label = ""
    for remark in report["remarks"]:
        yield "remark", remark
