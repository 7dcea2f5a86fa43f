"""Commands that make a new graph: read, rewrite, verify, write, report.

``pass_command("bucket")`` is the whole command line of the pass called ``bucket``. Nothing is written
unless the verifier agrees: a result that differs is a bug in commcc (exit code 3), one that it cannot
prove is written with a warning, or not at all with ``--require-proof`` (exit code 1).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from commcc.base.errors import EXIT_OK, OutputError, VerifyError
from commcc.base.files import output_folder, replace_text
from commcc.base.text import plural, sentence
from commcc.cli.parameters import (
    FILE,
    GRAPH_HELP,
    common_options,
    cost_option,
    graph_argument,
    hint_option,
    output_option,
    pass_options,
    reading_options,
)
from commcc.passes import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from commcc.base.terms import Json
    from commcc.cli.session import Session
    from commcc.graph.program import Program
    from commcc.passes.base import Pass
    from commcc.run.pipeline import Job, RunResult, StepResult
    from commcc.timing.cost import CostModel

PLANS = (".yaml", ".yml")
_DUMP_FLAG = "--dump-after-each"
_EXTENSIONS = (".fx.txt.gz", ".fx.txt", ".txt.gz", ".txt", ".pt2")
_DUMP = re.compile(r"\d{2,}-[\w-]+(\.dropped)?(\.fx)?\.(txt|txt\.gz|pt2)")


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
    repro: str | None
    cost: CostModel | None
    hints: Mapping[str, int]
    extras: Extras = Extras()


def pass_command(name: str) -> click.Command:
    """The command that applies one pass; its flags are the fields of the pass."""
    cls = registry.get(name)

    @click.pass_obj
    def callback(session: Session, /, **given: Any) -> int:
        shared = {key: given.pop(key) for key in ("graph", "output", "require_proof", "repro", "cost", "hints")}
        chosen = session.build_pass(cls, {key: value for key, value in given.items() if value is not None})
        return rewrite(session, Request(name, (chosen,), **shared))

    return click.Command(
        name,
        callback=callback,
        help=f"{sentence(cls.summary)}\n\n{GRAPH_HELP} The result is verified before it is written.",
        short_help=sentence(cls.summary).rstrip("."),
        params=[
            graph_argument(),
            output_option(default=f"STEM.{name}.EXT next to GRAPH"),
            *pass_options(cls),
            *proof_options(),
            cost_option(),
            hint_option(),
            *reading_options(),
            *common_options(),
        ],
    )


def proof_options() -> list[click.Option]:
    """``--require-proof`` and ``--repro``."""
    return [
        click.Option(
            ["--require-proof"],
            is_flag=True,
            help="Write nothing, and exit with 1, when the verifier cannot prove all of the result.",
        ),
        click.Option(
            ["--repro"],
            type=FILE,
            metavar="DIR",
            help="Store in DIR the graphs before and after each pass whose result is wrong or not proved, reduced to "
            "what shows it: what a bug report needs.",
        ),
    ]


def rewrite(session: Session, request: Request) -> int:
    """Run the passes on the graph, verify, write and report; the exit code."""
    with session.working("loading PyTorch") as say:
        from commcc import serialization
        from commcc.report import rewriting as report
        from commcc.run import pipeline
        from commcc.run.planfile import plan_text
        from commcc.run.repro import Repros

        extras = request.extras
        output = request.output or serialization.default_output(request.graph, request.command)
        target = session.output(str(output), serialization.EXTENSIONS)
        plan_target = session.report_file(extras.plan_out, PLANS, "--plan-out")
        dumps = None if extras.dump is None else Dumps(session, extras.dump, target, [p.name for p in request.passes])
        repros = None if request.repro is None else Repros(request.repro, session.warn)
        say(f"reading {request.graph}")
        program = session.load(request.graph)
        rules = pipeline.Rules(
            extras.expect_change,
            extras.keep_if_better,
            None if dumps is None else dumps.write,
            None if repros is None else repros.write,
        )
        result = pipeline.run(
            program, request.passes, progress=say, model=request.cost, hints=request.hints, rules=rules
        )
        judge(session, result, require_proof=request.require_proof)
        say(f"writing {target}")
        lost = serialization.save(result.program, target)
        if plan_target is not None:
            replace_text(plan_target, plan_text(result))
        more = {} if extras.report is None else extras.report(result)
    session.report_notes((*program.notes, *lost))
    for warning in result.warnings:
        session.warn(warning)
    session.report_costs(request.hints, result.first, result.last)
    said = {**extras.said, **more}
    if request.command == "run":
        said["plan_out"] = None if plan_target is None else str(plan_target)
        said["dumped"] = [] if dumps is None else [str(path) for path in dumps.written]
    document = report.rewriting(request.command, (request.graph, str(target)), result, lost, said)
    session.emit(document, brief=str(target), view=report.view)
    return EXIT_OK


class Dumps:
    """``--dump-after-each DIR``: the graph after every pass, for whoever looks for the pass that did it::

        DIR/01-tag.fx.txt.gz  DIR/02-bucket.fx.txt.gz  DIR/03-reorder.dropped.fx.txt.gz

    Graphs are written as the passes go, in the format of the output, so that they are there when a later
    pass fails. The folder is made if need be. written: their paths so far.
    """

    def __init__(self, session: Session, folder: str, target: Path, passes: Sequence[str]) -> None:
        self.session = session
        self.folder = output_folder(folder, f"name one with {_DUMP_FLAG}")
        self.extension = next(extension for extension in _EXTENSIONS if target.name.lower().endswith(extension))
        self.written: list[Path] = []
        wanted = {self._name(n, name, d) for n, name in enumerate(passes, 1) for d in (False, True)}
        there = sorted(entry.name for entry in self.folder.iterdir()) if self.folder.exists() else []
        # What an earlier run of the same passes left is overwritten; of other passes it would pass for this run's.
        others = [name for name in there if _DUMP.fullmatch(name) and name not in wanted]
        if others:
            raise OutputError(
                f"holds '{others[0]}' of another run", where=str(self.folder), hint="empty the folder, or name another"
            )

    def _name(self, number: int, name: str, dropped: bool) -> str:
        return f"{number:02}-{name}{'.dropped' if dropped else ''}{self.extension}"

    def write(self, number: int, step: StepResult, program: Program) -> None:
        """Write what a pass made, with ``.dropped`` in its name if it was not kept."""
        from commcc import serialization

        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / self._name(number, step.name, step.dropped is not None)
        if path.exists():
            self.session.output(str(path), _EXTENSIONS, _DUMP_FLAG)
        # The same pass may have been kept before, and be dropped now.
        other = self.folder / self._name(number, step.name, step.dropped is None)
        other.unlink(missing_ok=True)
        serialization.save(program, path)
        self.written.append(path)


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
