"""JSON document of ``commcc explain``, and its one line for each collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.report import costs
from commcc.report.documents import document
from commcc.timing.snapshot import cost_warnings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.base.terms import Json
    from commcc.explain import Explanation, Limits
    from commcc.timing.snapshot import Snapshot


def explanations(graph: str, seen: Snapshot, found: Sequence[Explanation], limits: Limits) -> dict[str, Json]:
    """``explain``; the most exposed collective first."""
    peak = 0 if seen.prediction is None else seen.prediction.memory.peak_bytes
    return document(
        "explain",
        input=graph,
        fingerprint=seen.index.fingerprint,
        **costs.costs(seen),
        limits={**limits.to_json(), "memory_budget": limits.budget(peak)},
        graph=seen.to_json(),
        collectives=[each.to_json() for each in found],
        warnings=[*seen.ident.warnings, *cost_warnings(seen)],
    )


def brief(found: Sequence[Explanation]) -> list[str]:
    """One line for each collective; one that says so when none is exposed."""
    return [each.summary for each in found] or ["no collective is exposed"]
