"""Commands that make a new graph: read, rewrite, verify, write, report.

``pass_command("bucket")`` is the whole command line of the pass called ``bucket``. Nothing is written
unless the verifier agrees: a result that differs is a bug in commcc (exit code 3), one that it cannot
prove is written with a warning, or not at all with ``--require-proof`` (exit code 1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from commcc.base.errors import EXIT_OK, VerifyError
from commcc.base.text import plural, sentence
from commcc.cli import configured
from commcc.cli.costing import report_costs
from commcc.cli.dumping import Dumps
from commcc.cli.outputs import check_output
from commcc.cli.parameters import (
    GRAPH_HELP,
    common_options,
    cost_option,
    graph_argument,
    hint_option,
    output_option,
    pass_options,
    trust_option,
)
from commcc.passes import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from commcc.base.terms import Json
    from commcc.cli.session import Session
    from commcc.passes.base import Pass
    from commcc.run.pipeline import Job, RunResult
    from commcc.timing.cost import CostModel

PLANS = (".yaml", ".yml")


@dataclass(frozen=True)
class Extras:
    """What only ``run`` asks for. plan_out: where to write the plans. dump: folder for the graph after each pass.

    said: keys for the document. report: makes more of them from the result.
    """

    plan_out: str | None = None
    dump: str | None = None
    expect_change: bool = False
    keep_if_better: bool = False
    said: Mapping[str, Json] = field(default_factory=dict)
    report: Callable[[RunResult], Mapping[str, Json]] | None = None


@dataclass(frozen=True)
class Request:
    """What a rewriting command was asked to do; ``cost`` is None for no simulated times."""

    command: str
    passes: Sequence[Pass | Job]
    graph: str
    output: str | None
    require_proof: bool
    cost: CostModel | None
    hints: Mapping[str, int]
    extras: Extras = Extras()


def pass_command(name: str) -> click.Command:
    """The command that applies one pass; its flags are the fields of the pass."""
    cls = registry.get(name)

    @click.pass_obj
    def callback(session: Session, /, **given: Any) -> int:
        shared = {key: given.pop(key) for key in ("graph", "output", "require_proof", "cost", "hints")}
        made = configured.build_pass(session, cls, {key: value for key, value in given.items() if value is not None})
        return rewrite(session, Request(name, (made,), **shared))

    return click.Command(
        name,
        callback=callback,
        help=f"{sentence(cls.summary)}\n\n{GRAPH_HELP} The result is verified before it is written.",
        short_help=sentence(cls.summary).rstrip("."),
        params=[
            graph_argument(),
            output_option(default=f"STEM.{name}.EXT beside GRAPH"),
            *pass_options(cls),
            require_proof_option(),
            cost_option(),
            hint_option(),
            trust_option(),
            *common_options(),
        ],
    )


def require_proof_option() -> click.Option:
    """``--require-proof``."""
    text = "Write nothing, and exit with 1, when the verifier cannot prove all of the result."
    return click.Option(["--require-proof"], is_flag=True, help=text)


def rewrite(session: Session, request: Request) -> int:
    """Run the passes on the graph, verify, write and report; the exit code."""
    with session.working("loading PyTorch") as say:
        from commcc import serialization
        from commcc.report import documents
        from commcc.report import rewriting as report
        from commcc.run import pipeline

        target, extras = choose_output(session, request), request.extras
        plan_target = None if extras.plan_out is None else check_output(session, extras.plan_out, PLANS, "--plan-out")
        dumps = None if extras.dump is None else Dumps(session, extras.dump, target, [p.name for p in request.passes])
        say(f"reading {request.graph}")
        program = session.load(request.graph)
        rules = pipeline.Rules(extras.expect_change, extras.keep_if_better, None if dumps is None else dumps.write)
        result = pipeline.run(
            program, request.passes, progress=say, model=request.cost, hints=request.hints, rules=rules
        )
        judge(session, result, require_proof=request.require_proof)
        say(f"writing {target}")
        lost = serialization.save(result.program, target)
        if plan_target is not None:
            write_plan(plan_target, result)
        more = {} if extras.report is None else extras.report(result)
    session.report_notes((*program.notes, *lost))
    for warning in result.warnings:
        session.warn(warning)
    report_costs(session, request.hints, result.first, result.last)
    written = _written(plan_target, dumps) if request.command == "run" else {}
    said = {**extras.said, **written, **more}
    document = documents.rewriting(request.command, (request.graph, str(target)), result, lost, said)
    session.emit(document, brief=str(target), view=report.view)
    return EXIT_OK


def write_plan(target: Path, result: RunResult) -> None:
    """The plans of a run as a file, whole or not at all."""
    from commcc.base.files import replace_file
    from commcc.run.planfile import plan_text

    data = plan_text(result).encode()
    replace_file(target, lambda stream: stream.write(data))


def _written(plan: Path | None, dumps: Dumps | None) -> dict[str, Json]:
    graphs: list[Json] = [] if dumps is None else [str(path) for path in dumps.written]
    return {"plan_out": None if plan is None else str(plan), "dumped": graphs}


def choose_output(session: Session, request: Request) -> Path:
    """Where to write: as asked, or beside the input."""
    from commcc import serialization

    chosen = request.output or serialization.default_output(request.graph, request.command)
    return check_output(session, str(chosen), serialization.EXTENSIONS)


def judge(session: Session, result: RunResult, *, require_proof: bool = False) -> None:
    """Let a result pass whose proof has a gap, with a warning, or refuse it when proof is required.

    A result that differs does not come this far: the pipeline raises.
    """
    if result.verified == "proved":
        return
    unproved = [gap for verdict in result.verdicts for gap in verdict.unproved]
    text = f"not proved to be the same program ({plural(len(unproved), 'gap')}, the first: {unproved[0]})"
    if require_proof:
        raise VerifyError(text, hint="nothing was written")
    session.warn(text)
