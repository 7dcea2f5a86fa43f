"""Runs passes: index, identify, plan, apply, verify, record.

    result = run(program, parse_pipeline("tag,bucket{bucket_cap_mb=25}"))
    result.program, result.before, result.after, result.steps[1].report
    run(program, passes, model=load_model("h100")).predictions      # of the first and the last graph

The result of every pass is verified against the graph it came from, by code that shares nothing
with passes and apply; a difference is a bug in commcc and nothing is returned.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from commcc.errors import InternalError
from commcc.index import build_index
from commcc.passes.options import to_text
from commcc.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from commcc.cost import CostModel
    from commcc.index import GraphIndex
    from commcc.metrics import GraphMetrics
    from commcc.passes.base import Pass
    from commcc.plan import Plan
    from commcc.predict import Prediction
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
    """A finished run. first, last: the graph that came in and the one that goes out; the same object
    when no pass changed anything. verdicts: one for each pass that changed something.
    """

    program: Program
    first: Snapshot
    last: Snapshot
    steps: tuple[StepResult, ...]
    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...]

    @property
    def before(self) -> GraphMetrics:
        return self.first.metrics

    @property
    def after(self) -> GraphMetrics:
        return self.last.metrics

    @property
    def predictions(self) -> tuple[Prediction, Prediction] | None:
        """What the cost model says of both graphs; None without one."""
        before, after = self.first.prediction, self.last.prediction
        return None if before is None or after is None else (before, after)

    @property
    def changed(self) -> bool:
        return any(step.changed for step in self.steps)

    @property
    def verified(self) -> str:
        """``proved`` when every step was, else ``unproved``."""
        return "proved" if all(v.status == "proved" for v in self.verdicts) else "unproved"


def run(
    program: Program,
    passes: Sequence[Pass],
    *,
    progress: Callable[[str], None] | None = None,
    model: CostModel | None = None,
    hints: Mapping[str, int] | None = None,
) -> RunResult:
    """Run ``passes`` in order. ``progress`` is told what happens next.

    model: prices the first and the last graph, and what passes decide by price. hints: numbers for symbolic sizes
    (:mod:`commcc.index.hints`), which change estimates only.
    Raises :class:`InternalError` when a result is not the same program.
    """
    tell = progress or (lambda _text: None)
    tell("indexing")
    first = last = Snapshot.of(build_index(program, hints))
    steps: list[StepResult] = []
    verdicts: list[Verdict] = []
    for made in passes:
        clock = _Clock()
        tell(f"{made.name}: planning")
        plan = made.plan(last.index, last.ident, model)
        clock.lap("plan")
        if plan.changes:
            tell(f"{made.name}: applying and verifying")
            program, verdict = _apply(program, last.index, plan, clock)
            verdicts.append(verdict)
            last = Snapshot.of(build_index(program, hints))
            clock.lap("index")
        steps.append(StepResult(made.name, to_text(made), plan.changes, clock.seconds, plan.report, plan))
    if model is not None:
        tell("simulating")
        unchanged = last is first
        first = first.priced(model)
        last = first if unchanged else last.priced(model)
    return RunResult(program, first, last, tuple(steps), tuple(verdicts), first.ident.warnings)


def _apply(program: Program, index: GraphIndex, plan: Plan, clock: _Clock) -> tuple[Program, Verdict]:
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
