"""Runs passes: index, identify, plan, apply, verify, record.

    result = run(program, parse_pipeline("tag,bucket{bucket_cap_mb=25}"))
    result.program, result.before, result.after, result.steps[1].report

The result of every pass is verified against the graph it came from, by code that shares nothing
with passes and apply; a difference is a bug in commcc and nothing is returned.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from commcc.collectives import identify
from commcc.errors import InternalError
from commcc.index import build_index
from commcc.metrics import GraphMetrics, measure
from commcc.passes.options import to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from commcc.passes.base import Pass
    from commcc.plan import Plan
    from commcc.program import Program
    from commcc.terms import Json
    from commcc.verify import Verdict


@dataclass(frozen=True)
class StepResult:
    """What one pass did. seconds: planning, applying and verifying, by name."""

    name: str
    options_text: str
    changed: bool
    seconds: Mapping[str, float]
    report: Mapping[str, Json]
    plan: Plan


@dataclass(frozen=True)
class RunResult:
    """A finished run. verdicts: one for each pass that changed something."""

    program: Program
    before: GraphMetrics
    after: GraphMetrics
    steps: tuple[StepResult, ...]
    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...]

    @property
    def changed(self) -> bool:
        return any(step.changed for step in self.steps)

    @property
    def verified(self) -> str:
        """``proved`` when every step was, else ``unproved``."""
        return "proved" if all(v.status == "proved" for v in self.verdicts) else "unproved"


def run(program: Program, passes: Sequence[Pass], *, progress: Callable[[str], None] | None = None) -> RunResult:
    """Run ``passes`` in order. ``progress`` is told what happens next.

    Raises :class:`InternalError` when a result is not the same program.
    """
    tell = progress or (lambda _text: None)
    tell("indexing")
    index = build_index(program)
    ident = identify(index)
    before = after = measure(index, ident)
    warnings = ident.warnings
    steps: list[StepResult] = []
    verdicts: list[Verdict] = []
    for made in passes:
        clock = _Clock()
        tell(f"{made.name}: planning")
        plan = made.plan(index, ident)
        clock.lap("plan")
        if plan.changes:
            tell(f"{made.name}: applying and verifying")
            program, verdict = _apply(program, index, plan, clock)
            verdicts.append(verdict)
            index = build_index(program)
            ident = identify(index)
            after = measure(index, ident)
            clock.lap("index")
        steps.append(StepResult(made.name, to_text(made), plan.changes, clock.seconds, plan.report, plan))
    return RunResult(program, before, after, tuple(steps), tuple(verdicts), warnings)


def _apply(program: Program, index: Any, plan: Plan, clock: _Clock) -> tuple[Program, Verdict]:
    from commcc.apply import apply_plan
    from commcc.verify import verify

    entry: dict[str, Json] = {"pass": plan.pass_text, "input": index.fingerprint}
    after = apply_plan(program, index, plan)
    after = replace(after, provenance=(*program.provenance, entry))
    clock.lap("apply")
    verdict = verify(program, after)
    clock.lap("verify")
    if verdict.status == "different":
        first = verdict.findings[0]
        raise InternalError(
            f"the result is not the same program ({first.rule}: {first.text})",
            where=plan.pass_text,
            hint="nothing was written; please report this with the graph",
        )
    return after, verdict


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now
