"""``commcc tune``: from the function that builds a model to plans for its training job."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commcc.base.errors import EXIT_OK
from commcc.base.files import output_folder, replace_text
from commcc.capture.request import capture
from commcc.cli.capture import capture_options, request_of, say_notes
from commcc.cli.parameters import FILE, common_options, cost_option, hint_option
from commcc.cli.rewriting import judge, proof_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.cli.session import Session
    from commcc.run.pipeline import RunResult
    from commcc.timing.cost import CostModel

HELP = """Capture a model, choose the best passes for each of its graphs, prove the results, and write plans.

TARGET is as for 'commcc capture', whose code is run. DIR gets the graphs as they are (graphs), as they are rewritten
(tuned), and the plans (plan), which 'commcc.backend(plan=...)' applies in the training job.
"""


@click.pass_obj
def tune(session: Session, /, cost: CostModel, hints: dict[str, int], **given: Any) -> int:
    folder = Path(given["output"])
    request = request_of(session, given, graphs=("forward", "backward"), output=str(folder / "graphs"))
    with session.working(f"capturing {request.target}") as say:
        for name in ("tuned", "plan"):
            output_folder(folder / name, "choose another with -o")
        answer = capture(request)
        say("loading PyTorch")
        from commcc import serialization
        from commcc.report import tuning as report
        from commcc.run import pipeline
        from commcc.run.forms import from_preset
        from commcc.run.planfile import plan_text
        from commcc.run.repro import Repros

        repros = None if given["repro"] is None else Repros(given["repro"], session.warn)
        rules = pipeline.Rules(doubted=None if repros is None else repros.write)
        runs: list[tuple[dict[str, Any], RunResult]] = []
        files = [file for file in answer["files"] if file["collectives"]]
        for number, said in enumerate(files, 1):
            graph = f"{number}/{len(files)} {Path(said['file']).name}"
            say(graph)
            tell = partial(_tell, say, graph)
            program = session.load(said["file"])
            passes = from_preset(given["preset"], session.defaults)
            result = pipeline.run(program, passes, progress=tell, model=cost, hints=hints, rules=rules)
            judge(session, result, require_proof=given["require_proof"])
            name = Path(said["file"]).name
            tuned, plan = folder / "tuned" / name, folder / "plan" / f"{name.removesuffix(request.extension)}.yaml"
            serialization.save(result.program, tuned)
            replace_text(plan, plan_text(result))
            runs.append(({**said, "tuned": str(tuned), "plan": str(plan)}, result))
    say_notes(session, answer)
    for _, result in runs:
        for warning in result.warnings:
            session.warn(warning)
    session.report_costs(hints, *(result.last for _, result in runs))
    document = report.tuning(request, given["preset"], runs, str(folder / "plan"))
    session.emit(document, brief=str(folder / "plan"), view=report.view)
    return EXIT_OK


def _tell(say: Callable[[str], None], graph: str, text: str) -> None:
    say(f"{graph}: {text}")


command = click.Command(
    "tune",
    callback=tune,
    help=HELP,
    short_help="From a model to plans for its training job",
    params=[
        *capture_options(),
        click.Option(["-o", "--output"], type=FILE, required=True, metavar="DIR", help="Folder to write to."),
        click.Option(["--preset"], default="auto", show_default=True, metavar="NAME", help="As of 'commcc run'."),
        *proof_options(),
        cost_option(required=True),
        hint_option(),
        *common_options(),
    ],
)
