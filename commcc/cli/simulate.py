"""``commcc simulate``: the predicted timeline of a graph, or of a graph before and after."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from commcc.base.errors import EXIT_OK, OptionError
from commcc.cli import completing
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
from commcc.cli.rewriting import judge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from commcc.base.terms import Json
    from commcc.cli.session import Session
    from commcc.graph.index.outside import Outside
    from commcc.graph.program import Program
    from commcc.passes.base import Pass
    from commcc.report.perfetto import Track
    from commcc.timing.cost import CostModel
    from commcc.timing.snapshot import Snapshot

HELP = f"""The predicted timeline of a graph: step time, exposed communication, memory, lower bounds.

{GRAPH_HELP} With AFTER, or with --passes, the two graphs are shown side by side. --passes rewrites
GRAPH in memory and verifies the result; nothing is written but the reports asked for. With --html GRAPH may also be
a folder, a pattern or a log of several graphs: a page for each, and one that lists them. A forward followed by its
backward is one step: collectives that the forward launches and the backward waits for carry over, and memory is that
of the step.
"""
TRACES = (".json", ".json.gz")
#: Collectives that the page explains.
EXPLAINED = 10


@dataclass(frozen=True)
class Request:
    """What to simulate in addition to the graph. step: whether ``after`` is its backward; None where names decide."""

    after: str | None
    passes: Sequence[Pass]
    cost: CostModel
    hints: Mapping[str, int]
    step: bool | None


@click.pass_obj
def simulate(
    session: Session, /, graph: str, after: str | None, cost: CostModel, hints: dict[str, int], **more: Any
) -> int:
    from commcc.passes.options import parse_pipeline, to_text

    passes = [] if more["passes"] is None else parse_pipeline(more["passes"], session.defaults)
    session.remember(passes)
    trace = session.report_file(more["trace"], TRACES, "--trace")
    page = session.report_file(more["page"], PAGES, "--html")
    if page is not None and after is None:
        from commcc.cli.simulate_all import graphs_of, simulate_all

        items = graphs_of(graph)
        if items and trace is not None:
            raise OptionError("a trace shows one graph", hint="name one of those in the folder, or leave --trace out")
        if items:
            return simulate_all(session, graph, items, Request(None, passes, cost, hints, None), page)
    sources: dict[str, Json] = {"input": graph, "after": after, "passes": ",".join(map(to_text, passes)) or None}
    with session.working("loading PyTorch") as say:
        from commcc.report import simulating

        program = session.load(graph)
        tracks, verified, carried = tracks_of(session, Request(after, passes, cost, hints, more["step"]), program, say)
        if carried is not None:
            sources.update({"after": None, "backward": after, "carried_over": list(carried)})
        if trace is not None:
            say(f"writing {trace}")
            write_trace_file(trace, tracks)
        if page is not None:
            say(f"writing {page}")
            write_page(page, tracks, sources, cost, hints)
    session.report_notes(program.notes)
    for warning in dict.fromkeys(w for track in tracks for w in track.seen.ident.warnings):
        session.warn(warning)
    session.report_costs(hints, *(track.seen for track in tracks), brief_has_times=True)
    written = {"trace": text_of(trace), "html": text_of(page)}
    document = simulating.simulation(tracks, **sources, verified=verified, **written)
    session.emit(document, brief=simulating.brief(document), view=lambda shown: simulating.view(shown, more["top"]))
    return EXIT_OK


def tracks_of(
    session: Session, request: Request, program: Program, say: Callable[[str], None]
) -> tuple[list[Track], str | None, tuple[str, ...] | None]:
    """The graphs with their predictions, the verdict on a rewrite made here, and of steps what is in flight between."""
    from commcc.report.perfetto import Track
    from commcc.run import pipeline
    from commcc.timing import snapshot

    later = None
    if request.after is not None:
        say(f"reading {request.after}")
        later = session.load(request.after)
        session.report_notes(later.notes, f"{request.after}: ")
        if is_step(program, later, request.step):
            return _step_tracks(session, request, (program, later), say)
    if request.passes and later is not None:
        raise OptionError("AFTER and --passes both say what comes after", hint="give one of them")
    if request.passes:
        result = pipeline.run(program, request.passes, progress=say, model=request.cost, hints=request.hints)
        judge(session, result)
        return [Track("before", result.first), Track("after", result.last)], result.verified, None
    say("simulating")
    first = snapshot.take(program, request.cost, request.hints)
    if later is None:
        return [Track("graph", first)], None, None
    return [Track("before", first), Track("after", snapshot.take(later, request.cost, request.hints))], None, None


def _step_tracks(
    session: Session, request: Request, halves: tuple[Program, Program], say: Callable[[str], None]
) -> tuple[list[Track], str | None, tuple[str, ...] | None]:
    """The same of a forward and its backward, as one step."""
    from commcc.report.perfetto import Track
    from commcc.run import pipeline, step
    from commcc.timing import snapshot

    def take(program: Program) -> Snapshot:
        say("simulating")
        return snapshot.take(program, request.cost, request.hints)

    def run(program: Program, outside: Outside) -> pipeline.RunResult:
        rules = pipeline.Rules(outside=outside)
        result = pipeline.run(
            program, request.passes, progress=say, model=request.cost, hints=request.hints, rules=rules
        )
        judge(session, result)
        return result

    if not request.passes:
        both = step.join(*halves, step.link(*halves))
        return [Track("step", take(both.program))], None, both.carried_over
    result = step.run_both(*halves, run, take)
    return [Track("before", result.first), Track("after", result.last)], result.verified, result.carried_over


def is_step(program: Program, later: Program, said: bool | None) -> bool:
    """Whether two graphs are a forward and its backward, as the user said or as the names of its inputs do."""
    from commcc.run.step import is_backward_of

    return is_backward_of(program, later) if said is None else said


def step_option() -> click.Option:
    """``--step`` and ``--no-step``."""
    return click.Option(
        ["--step/--no-step"],
        default=None,
        help="The second graph is the backward of the first, or is not. [default: as the names of its inputs say]",
    )


def text_of(path: Path | None) -> str | None:
    """A path as documents have it."""
    return None if path is None else str(path)


def write_trace_file(target: Path, tracks: Sequence[Track]) -> None:
    """A trace of the graphs, packed where the name says so."""
    from commcc.base.files import replace_file
    from commcc.report.perfetto import write_trace

    def write(stream: BinaryIO) -> None:
        if not target.name.lower().endswith(".gz"):
            write_trace(stream, tracks)
            return
        with gzip.GzipFile(filename="", mode="wb", fileobj=stream, compresslevel=6, mtime=0) as packed:
            write_trace(packed, tracks)

    replace_file(target, write)


def write_page(
    target: Path, tracks: Sequence[Track], sources: Mapping[str, Json], cost: CostModel, hints: Mapping[str, int]
) -> None:
    """The graphs as one page, with the worst collectives of the last one explained."""
    from commcc.base.files import replace_text
    from commcc.base.text import short_names
    from commcc.explain import Context, explain_worst
    from commcc.report.simulation_page import side, write_html

    sides = [side(track.seen.index, track.seen.ident, track.prediction, track.label) for track in tracks]
    last = tracks[-1]
    worst = explain_worst(Context(last.seen.index, last.seen.ident, last.prediction, cost), EXPLAINED)
    options: dict[str, Json] = {
        **sources,
        "cost": {"name": cost.name, "hash": cost.hash, **cost.settings.to_json()},
        "hints": dict(hints),
    }
    names = (str(sources["input"]), sources["after"] or sources.get("backward"))
    title = " and ".join(short_names([name for name in names if isinstance(name, str)]))
    page = write_html(
        sides, title=title, options=options, explanations=[explanation.to_json() for explanation in worst]
    )
    replace_text(target, page)


def picture_options(what: str) -> list[click.Option]:
    """``--trace`` and ``--html``; what: is shown in them."""
    trace = f"Write a trace{what} for ui.perfetto.dev; .json or .json.gz."
    return [
        click.Option(["--trace"], type=FILE, metavar="FILE", help=trace),
        page_option(f"Write a report{what} as one self-contained page; .html."),
    ]


command = click.Command(
    "simulate",
    callback=simulate,
    help=HELP,
    short_help="The predicted timeline of a graph, or before and after",
    params=[
        graph_argument(),
        graph_argument("after", required=False),
        click.Option(
            ["--passes"],
            metavar="TEXT",
            shell_complete=completing.passes,
            help="Show what these passes make of the graph, as in 'tag,bucket{bucket_cap_mb=25}'.",
        ),
        *picture_options(""),
        cost_option(required=True),
        hint_option(),
        step_option(),
        click.Option(
            ["--top"],
            metavar="N",
            type=click.IntRange(min=0),
            default=10,
            show_default=True,
            help="Exposed collectives to list.",
        ),
        *reading_options(),
        *common_options(),
    ],
)
