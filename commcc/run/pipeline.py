"""Runs passes: index, identify, plan, apply, verify, record.

    result = run(program, parse_pipeline("tag,bucket{bucket_cap_mb=25}"))
    result.program, result.before, result.after, result.steps[1].report
    run(program, passes, model=load_model("h100")).predictions      # of the first and the last graph
    run(program, passes, model=model, rules=Rules(keep_if_better=True)).steps[1].dropped

The result of every pass is verified against the graph it came from, by code that shares with passes and
apply only the table of op facts (:mod:`commcc.graph.ops`), which is tested against execution; a difference
is a bug in commcc and nothing is returned. Plans that were stored (:mod:`commcc.run.planfile`) run as jobs
like passes do, with the same checks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from commcc.base.errors import FindingError, GraphError, InputError, InternalError, OptionError
from commcc.base.gc_pause import no_collection
from commcc.base.options import options_of
from commcc.base.record import plain
from commcc.base.terms import GIB
from commcc.graph.index import build_index
from commcc.passes.base import PlanContext
from commcc.passes.options import to_text
from commcc.plan import TagEntry
from commcc.planning.headroom import in_gib
from commcc.run import provenance
from commcc.timing.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from commcc.base.terms import Json
    from commcc.graph.index import GraphIndex
    from commcc.graph.index.outside import Outside
    from commcc.graph.metrics import GraphMetrics
    from commcc.graph.program import Program
    from commcc.passes.base import Pass
    from commcc.plan import Plan
    from commcc.timing.cost import CostModel
    from commcc.timing.predict import Prediction
    from commcc.verify import Verdict

#: What to do about a result that cannot be used.
_REPORT = "nothing was written; please report this with what --repro DIR stores"


@dataclass(frozen=True)
class Job:
    """One step to run. text: as in a pipeline. options: all of them, by name.

    stored_in: file and line of a plan that was stored and is only applied; what is wrong with it is then wrong with
    the file. dropped: why such a plan was dropped when it was made.
    """

    name: str
    text: str
    options: Mapping[str, Json]
    plan: Callable[[PlanContext], Plan]
    stored_in: str | None = None
    dropped: str | None = None


@dataclass(frozen=True)
class Rules:
    """What a run may and must do.

    expect_change: a pass that changed nothing is a :class:`FindingError`. keep_if_better: a pass that makes the
    simulated step longer is dropped. after_step: told the number of each step from 1, the step, and the program
    that the pass made, dropped or not. doubted: told the number and name of each step that is not proved, the
    graphs around it and the verdict, before the run ends if it ends there. outside: what the rest of the step does to
    the graph; None where the graph is the step.
    """

    expect_change: bool = False
    keep_if_better: bool = False
    after_step: Callable[[int, StepResult, Program], None] | None = None
    doubted: Callable[[int, str, tuple[Program, Program], Verdict], None] | None = None
    outside: Outside | None = None


@dataclass(frozen=True)
class StepResult:
    """What one pass did. seconds: planning, applying and verifying, by name.

    options_text: the pass as in a pipeline; options: all of them. before, after: the graphs around it, the same
    object when nothing was changed. dropped: why its result was thrown away; ``changed`` is then False.
    """

    name: str
    options_text: str
    changed: bool
    seconds: Mapping[str, float]
    plan: Plan
    options: Mapping[str, Json]
    before: Snapshot
    after: Snapshot
    dropped: str | None = None

    @property
    def report(self) -> dict[str, Json]:
        """The pass's own account."""
        return self.plan.report.to_json()


@dataclass(frozen=True)
class RunResult:
    """A finished run. first, last: the graph that came in and the one that goes out; the same object
    when no pass changed anything. verdicts: one for each pass that changed something. source: the program that
    came in.
    """

    program: Program
    first: Snapshot
    last: Snapshot
    steps: tuple[StepResult, ...]
    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...]
    source: Program

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


def job_of(instance: Pass) -> Job:
    """A pass as a step to run."""
    return Job(instance.name, to_text(instance), option_values(instance), instance.plan)


def option_values(instance: Pass) -> dict[str, Json]:
    """The effective options of a pass, defaults too."""
    return {name: plain(getattr(instance, name)) for name in options_of(type(instance))}


def run(
    program: Program,
    passes: Sequence[Pass | Job],
    *,
    progress: Callable[[str], None] | None = None,
    model: CostModel | None = None,
    hints: Mapping[str, int] | None = None,
    rules: Rules | None = None,
) -> RunResult:
    """Run ``passes`` in order. ``progress`` is told what happens next.

    model: prices every graph, and what passes decide by price. hints: numbers for symbolic sizes
    (:mod:`commcc.graph.index.hints`), which change estimates only.
    Raises :class:`InternalError` when a result is not the same program, :class:`InputError` when a stored plan
    does not fit, and :class:`FindingError` for what ``rules`` do not allow.
    """
    return _Run(program, model, hints, rules or Rules(), progress or (lambda _text: None)).all(passes)


class _Run:
    """One run: the program and its snapshot as they are after the steps so far."""

    def __init__(
        self,
        program: Program,
        model: CostModel | None,
        hints: Mapping[str, int] | None,
        rules: Rules,
        tell: Callable[[str], None],
    ) -> None:
        if rules.keep_if_better and model is None:
            raise OptionError("keeping what is better takes a cost model", hint="name one, as in --cost h100")
        self.program, self.model, self.hints, self.rules, self.tell = program, model, hints, rules, tell
        self.verdicts: list[Verdict] = []
        #: Which of the passes is run, for progress.
        self.place = ""
        self.cost_model: Json = None if model is None else {"name": model.name, "hash": model.hash}

    @no_collection()
    def all(self, passes: Sequence[Pass | Job]) -> RunResult:
        self.tell("indexing")
        source = self.program
        first = last = Snapshot.of(build_index(self.program, self.hints, self.rules.outside)).priced(self.model)
        self.first = first.index
        jobs = [each if isinstance(each, Job) else job_of(each) for each in passes]
        steps: list[StepResult] = []
        for number, job in enumerate(jobs, 1):
            self.place = f"{number}/{len(jobs)} " if len(jobs) > 1 else ""
            step = self._step(number, job, last, tuple(other.name for other in jobs[number:]))
            steps.append(step)
            last = step.after
        warnings = (*first.ident.warnings, *_over_budget(steps, last))
        return RunResult(self.program, first, last, tuple(steps), tuple(self.verdicts), warnings, source)

    def _step(self, number: int, job: Job, before: Snapshot, behind: tuple[str, ...]) -> StepResult:
        clock = _Clock()
        self.tell(f"{self.place}{job.name}: planning")
        context = PlanContext(
            self.program, before.index, before.ident, self.model, self.first, before.prediction, behind
        )
        plan = job.plan(context)
        clock.lap("plan")
        result, kept, dropped = self.program, before, job.dropped
        if plan.changes:
            self.tell(f"{self.place}{job.name}: applying and verifying")
            result, verdict = self._apply(number, job, before.index, plan, clock)
            after = Snapshot.of(self._indexed(job, result, plan.pass_text))
            self.tell(f"{self.place}{job.name}: simulating")
            if plan.of(TagEntry) and after.index.fingerprint == before.index.fingerprint:
                after = replace(after, prediction=before.prediction)  # tags have no price
            else:
                after = after.priced(self.model)
            clock.lap("index")
            dropped = _longer(before, after) if self.rules.keep_if_better else None
            if dropped is None:
                kept = after
                self.verdicts.append(verdict)
        changed = plan.changes and dropped is None
        entry = provenance.entry(plan, before, kept, job.options, self.cost_model, dropped=dropped)
        history = (*self.program.provenance, entry)
        step = StepResult(job.name, job.text, changed, clock.seconds, plan, job.options, before, kept, dropped)
        self.program = replace(result if changed else self.program, provenance=history)
        if self.rules.after_step is not None:
            self.rules.after_step(number, step, replace(result, provenance=history))
        if self.rules.expect_change and not changed:
            why = "changed nothing" if dropped is None else f"was dropped: {dropped}"
            raise FindingError(
                f"{job.text} {why}", hint="every pass was expected to change something; nothing was written"
            )
        return step

    def _indexed(self, job: Job, result: Program, pass_text: str) -> GraphIndex:
        """The index of what a step made: what is wrong with that is not wrong with the user's graph."""
        try:
            return build_index(result, self.hints, self.rules.outside)
        except GraphError as error:
            what = f"the result is no graph that commcc takes ({error.what})"
            if job.stored_in is not None:
                raise InputError(f"{job.name}: {what}", where=job.stored_in, hint="nothing was written") from error
            raise InternalError(what, where=pass_text, hint=_REPORT) from error

    def _apply(self, number: int, job: Job, index: GraphIndex, plan: Plan, clock: _Clock) -> tuple[Program, Verdict]:
        from commcc.apply import apply_plan
        from commcc.verify import contradictions, verify

        try:
            after = apply_plan(self.program, index, plan)
        except Exception as error:
            if job.stored_in is None:
                raise
            # Whatever a file says that apply does not expect is the file's fault: passes never plan it.
            what = error.what if isinstance(error, InternalError) else f"{type(error).__name__}: {error}"
            raise InputError(f"{job.name}: the plan cannot be applied ({what})", where=job.stored_in) from error
        clock.lap("apply")
        verdict = verify(self.program, after)
        clock.lap("verify")
        if verdict.status != "proved" and self.rules.doubted is not None:
            self.rules.doubted(number, job.name, (self.program, after), verdict)
        if verdict.status == "different":
            first = verdict.findings[0]
            what = f"the result is not the same program ({first.rule}: {first.text})"
            if job.stored_in is not None:
                raise InputError(f"{job.name}: {what}", where=job.stored_in, hint="nothing was written")
            wrong = contradictions(self.program)
            if wrong:  # then no result can be right
                raise InputError(
                    f"the graph contradicts itself: '{wrong[0].node}': {wrong[0].text}",
                    where=None if self.program.source is None else str(self.program.source),
                    hint="nothing was written",
                )
            raise InternalError(what, where=plan.pass_text, hint=_REPORT)
        return after, verdict


def _over_budget(steps: Sequence[StepResult], last: Snapshot) -> list[str]:
    """Memory budgets in GiB that the result passes; ``reorder`` says so itself, of those that it has too."""
    budgets = [(step.name, step.options.get("memory_budget")) for step in steps]
    asked = {name: budget for name, budget in budgets if isinstance(budget, (int, float)) and name != "reorder"}
    said = {budget for name, budget in budgets if name == "reorder"}
    if not asked:
        return []
    peak = last.memory.peak_bytes
    return [
        f"pass '{name}': the result takes {in_gib(peak)} at its peak, more than memory_budget={budget:g}"
        for name, budget in sorted(asked.items())
        if peak > budget * GIB and budget not in said
    ]


def _longer(before: Snapshot, after: Snapshot) -> str | None:
    """Why a result is not kept: the simulated step became longer."""
    assert before.prediction is not None and after.prediction is not None
    old, new = before.prediction.timeline.step_ns, after.prediction.timeline.step_ns
    return f"the simulated step grew from {old / 1e6:.3f} to {new / 1e6:.3f} ms" if new > old else None


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now
