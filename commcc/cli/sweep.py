"""``commcc sweep``: one pipeline with many settings of its options, side by side."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from commcc.base.errors import EXIT_FINDINGS, EXIT_OK, OptionError
from commcc.base.files import replace_text
from commcc.cli.parameters import (
    FILE,
    GRAPH_HELP,
    PAGES,
    common_options,
    cost_option,
    graph_argument,
    hint_option,
    page_option,
    reading_options,
)
from commcc.cli.run import choose, passes_of, pipeline_options, said
from commcc.cli.simulate import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from commcc.cli.session import Session
    from commcc.passes.base import Pass
    from commcc.timing.cost import CostModel

HELP = f"""Run a pipeline with every combination of settings, and show which are best.

{GRAPH_HELP} The pipeline is given as for 'commcc run'. Every result is verified; no graph is written.
A setting is on the Pareto front when no other is as good in step time, peak memory and max
consecutive compute, and better in one of them. The best has the shortest step.
"""
_YAML = (".yaml", ".yml")


@click.pass_obj
def sweep(session: Session, /, graph: str, cost: CostModel, hints: dict[str, int], **given: Any) -> int:
    from commcc.run.sweep import make_grid

    named = choose(session, {kind: given[kind] for kind in ("passes", "pipeline", "preset")})
    if named.kind == "plan":
        raise OptionError("a plan has no options to vary", hint="give --passes, --pipeline or --preset")
    passes: list[Pass] = list(passes_of(session, named))  # type: ignore[arg-type]
    grid = make_grid(passes, given["params"])
    best_out = session.report_file(given["output"], _YAML, "-o")
    page = session.report_file(given["page"], PAGES, "--html")
    with session.working("loading PyTorch") as say:
        from commcc.run import sweep as sweeping

        say(f"reading {graph}")
        program = session.load(graph)
    task = sweeping.Task(graph, session.trust, cost, hints, session.ops, session.imports)
    with _bar(session, len(grid.points)) as progress:
        result = sweeping.sweep(grid, task, program, jobs=given["jobs"], progress=progress)
    from commcc.report import sweeping as report

    document = report.sweeping(graph, said(named, passes), result, best_out=text_of(best_out), html=text_of(page))
    if best_out is not None and document["best"] is not None:
        replace_text(best_out, str(document["best_yaml"]))
    if page is not None:
        replace_text(page, report.write_html(document))
    session.report_notes(program.notes)
    for warning in result.first.ident.warnings:
        session.warn(warning)
    session.report_costs(hints, result.first)
    best = result.best
    session.emit(document, brief="" if best is None else result.point(best).text, view=report.view)
    return EXIT_OK if best is not None else EXIT_FINDINGS


@contextmanager
def _bar(session: Session, total: int) -> Iterator[Callable[[int], None] | None]:
    """A progress bar on a terminal."""
    if session.quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from commcc.report.console import make_console

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=make_console(sys.stderr), transient=True) as shown:
        bar = shown.add_task("settings", total=total)
        yield lambda done: shown.update(bar, completed=done)


command = click.Command(
    "sweep",
    callback=sweep,
    help=HELP,
    short_help="A pipeline with many settings, side by side",
    params=[
        graph_argument(),
        *pipeline_options(plan=False),
        click.Option(
            ["--param", "params"],
            multiple=True,
            metavar="PASS.OPTION=VALUE,...",
            help="Values of one option, as in 'bucket.max_topo_span=500,1000,none'; a list is 10:25. bucket#2 is the "
            "second pass of that name. Can be given several times: every combination is run.",
        ),
        click.Option(
            ["--jobs"],
            type=click.IntRange(min=0),
            default=0,
            metavar="N",
            help="Processes to run at a time, each with the graph in memory. [default: one for each core]",
        ),
        click.Option(
            ["-o", "--output"],
            type=FILE,
            metavar="FILE",
            help="Write the best setting as a pipeline; .yaml.",
        ),
        page_option("Write a plot of all settings as one self-contained page; .html."),
        cost_option(required=True),
        hint_option(),
        *reading_options(),
        *common_options(),
    ],
)
