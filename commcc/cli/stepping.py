"""``commcc run FORWARD BACKWARD``: passes on both halves of a step, judged as one step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from commcc.base.errors import EXIT_OK, OptionError, OutputError
from commcc.base.files import output_folder
from commcc.cli.rewriting import judge

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.cli.rewriting import Request
    from commcc.cli.session import Session
    from commcc.graph.index.outside import Outside
    from commcc.graph.program import Program
    from commcc.run.pipeline import RunResult
    from commcc.run.step import StepRun
    from commcc.timing.snapshot import Snapshot


def rewrite_step(session: Session, request: Request, backward: str) -> int:
    """Run the passes on the forward and on its backward, verify, write both and report the step; the exit code."""
    extras = request.extras
    from commcc.run.pipeline import Job

    stored = any(isinstance(instance, Job) for instance in request.passes)
    if extras.plan_out is not None or extras.dump is not None or stored:
        raise OptionError(
            "plans and --dump-after-each are of one graph", hint="run them on the forward and the backward apart"
        )
    with session.working("loading PyTorch") as say:
        from commcc import serialization
        from commcc.report import rewriting as report
        from commcc.report.stepping import stepping, view
        from commcc.report.tuning import memory_of

        targets = [_target(session, request, graph) for graph in (request.graph, backward)]
        if targets[0] == targets[1]:
            raise OutputError("both halves of the step would be written there", where=str(targets[0]))
        say(f"reading {request.graph}")
        halves = session.load(request.graph), session.load(backward)

        both = Work(session, request, say).both(*halves)
        lost = [
            serialization.save(result.program, target)
            for result, target in zip((both.forward, both.backward), targets, strict=True)
        ]
    for program, gone, result in zip(halves, lost, (both.forward, both.backward), strict=True):
        session.report_notes((*program.notes, *gone))
        for warning in result.warnings:
            session.warn(warning)
    session.report_costs(request.hints, both.first, both.last)
    documents = [
        report.rewriting("run", (graph, str(target)), result, gone, {**extras.said, **memory_of(result, in_step=True)})
        for graph, target, result, gone in zip(
            (request.graph, backward), targets, (both.forward, both.backward), lost, strict=True
        )
    ]
    session.emit(stepping(both, documents, extras.said), brief=[str(target) for target in targets], view=view)
    return EXIT_OK


class Work:
    """The passes of a request, on a graph or on both halves of a step."""

    def __init__(self, session: Session, request: Request, say: Callable[[str], None]) -> None:
        from commcc.run.repro import Repros

        self.session, self.request, self.say = session, request, say
        self.repros = None if request.repro is None else Repros(request.repro, session.warn)

    def one(self, program: Program, outside: Outside | None = None) -> RunResult:
        from commcc.run import pipeline

        extras, doubted = self.request.extras, None if self.repros is None else self.repros.write
        rules = pipeline.Rules(extras.expect_change, extras.keep_if_better, None, doubted, outside)
        result = pipeline.run(
            program,
            self.request.passes,
            progress=self.say,
            model=self.request.cost,
            hints=self.request.hints,
            rules=rules,
        )
        judge(self.session, result, require_proof=self.request.require_proof)
        return result

    def both(self, forward: Program, backward: Program) -> StepRun:
        from commcc.run.step import run_both
        from commcc.timing import snapshot

        def take(program: Program) -> Snapshot:
            self.say("simulating the step")
            return snapshot.take(program, self.request.cost, self.request.hints)

        return run_both(forward, backward, self.one, take)


def _target(session: Session, request: Request, graph: str) -> Path:
    """Where one half is written: next to it, or in the folder that ``-o`` names."""
    from commcc import serialization

    usual = serialization.default_output(graph, request.command)
    if request.output is None:
        return session.output(str(usual), serialization.EXTENSIONS)
    folder = Path(request.output)
    hint = "-o of a forward and a backward is a folder"
    if folder.suffix and not folder.is_dir():
        raise OutputError("is not a folder", where=request.output, hint=hint)
    output_folder(folder, hint if folder.exists() else "choose another with -o").mkdir(parents=True, exist_ok=True)
    return session.output(str(Path(request.output) / usual.name), serialization.EXTENSIONS)
