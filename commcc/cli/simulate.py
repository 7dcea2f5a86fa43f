"""``commcc simulate``: the predicted timeline of a graph, or of a graph before and after."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from commcc.base.errors import EXIT_OK, OptionError
from commcc.cli import configured
from commcc.cli.costing import report_costs
from commcc.cli.outputs import check_output
from commcc.cli.parameters import (
    GRAPH_HELP,
    common_options,
    cost_option,
    graph_argument,
    hint_option,
    trust_option,
)
from commcc.cli.rewriting import judge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from commcc.base.terms import Json
    from commcc.cli.session import Session
    from commcc.graph.program import Program
    from commcc.passes.base import Pass
    from commcc.report.perfetto import Track
    from commcc.timing.cost import CostModel

HELP = f"""The predicted timeline of a graph: step time, exposed communication, memory, lower bounds.

{GRAPH_HELP} With AFTER, or with --passes, the two graphs are shown side by side. --passes rewrites
GRAPH in memory and verifies the result; nothing is written but the reports asked for.
"""
TRACES = (".json", ".json.gz")
PAGES = (".html",)
#: Collectives that the page explains.
EXPLAINED = 10


@dataclass(frozen=True)
class Request:
    """What was asked for. after, passes: at most one of them."""

    graph: str
    after: str | None
    passes: Sequence[Pass]
    cost: CostModel
    hints: Mapping[str, int]
    trace: Path | None
    page: Path | None


@click.pass_obj
def _simulate(
    session: Session, /, graph: str, after: str | None, cost: CostModel, hints: dict[str, int], **more: Any
) -> int:
    request = Request(
        graph,
        after,
        _passes(session, more["passes"], after),
        cost,
        hints,
        _target(session, more["trace"], TRACES, "--trace"),
        _target(session, more["page"], PAGES, "--html"),
    )
    with session.working("loading PyTorch") as say:
        from commcc.report import simulating, simulation

        program = session.load(graph)
        tracks, verified = _tracks(session, request, program, say)
        if request.trace is not None:
            say(f"writing {request.trace}")
            write_trace_file(request.trace, tracks)
        if request.page is not None:
            say(f"writing {request.page}")
            write_page(request.page, tracks, _sources(request), cost, hints)
    session.report_notes(program.notes)
    for warning in dict.fromkeys(w for track in tracks for w in track.seen.ident.warnings):
        session.warn(warning)
    report_costs(session, hints, *(track.seen for track in tracks), brief_has_times=True)
    written: dict[str, Json] = {"trace": _text(request.trace), "html": _text(request.page)}
    document = simulation.simulation(tracks, **_sources(request), verified=verified, **written)
    session.emit(document, brief=simulation.brief(document), view=lambda shown: simulating.view(shown, more["top"]))
    return EXIT_OK


def _passes(session: Session, text: str | None, after: str | None) -> Sequence[Pass]:
    from commcc.passes.options import parse_pipeline

    if text is None:
        return ()
    if after is not None:
        raise OptionError("AFTER and --passes both say what comes after", hint="give one of them")
    passes = parse_pipeline(text, configured.defaults(session))
    configured.remember(session, passes)
    return passes


def _target(session: Session, path: str | None, extensions: Sequence[str], flag: str) -> Path | None:
    return None if path is None else check_output(session, path, extensions, flag)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _sources(request: Request) -> dict[str, Json]:
    from commcc.passes.options import to_text

    passes = ",".join(map(to_text, request.passes)) or None
    return {"input": request.graph, "after": request.after, "passes": passes}


def _tracks(
    session: Session, request: Request, program: Program, say: Callable[[str], None]
) -> tuple[list[Track], str | None]:
    """The graphs with their predictions, and the verdict on a rewrite that was made here."""
    from commcc.report.perfetto import Track
    from commcc.run import pipeline
    from commcc.timing import snapshot

    if request.passes:
        result = pipeline.run(program, request.passes, progress=say, model=request.cost, hints=request.hints)
        judge(session, result)
        return [Track("before", result.first), Track("after", result.last)], result.verified
    say("simulating")
    first = snapshot.take(program, request.cost, request.hints)
    if request.after is None:
        return [Track("graph", first)], None
    say(f"reading {request.after}")
    later = session.load(request.after)
    session.report_notes(later.notes, f"{request.after}: ")
    say("simulating")
    return [Track("before", first), Track("after", snapshot.take(later, request.cost, request.hints))], None


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
    from commcc.base.files import replace_file
    from commcc.explain import explain_worst
    from commcc.report.simulation_data import side
    from commcc.report.simulation_html import write_html

    sides = [side(track.seen.index, track.seen.ident, track.prediction, track.label) for track in tracks]
    last = tracks[-1]
    worst = explain_worst(last.seen.index, last.seen.ident, last.prediction, cost, count=EXPLAINED)
    options: dict[str, Json] = {
        **sources,
        "cost": {"name": cost.name, "hash": cost.hash, **cost.settings.to_json()},
        "hints": dict(hints),
    }
    title = " and ".join(Path(name).name for name in (str(sources["input"]), sources["after"]) if isinstance(name, str))
    page = write_html(sides, title=title, options=options, explanations=[each.to_json() for each in worst])
    replace_file(target, lambda stream: stream.write(page.encode()))


def _path_option(names: list[str], metavar: str, text: str) -> click.Option:
    return click.Option(names, type=click.Path(path_type=str), metavar=metavar, help=text)


command = click.Command(
    "simulate",
    callback=_simulate,
    help=HELP,
    short_help="The predicted timeline of a graph, or before and after",
    params=[
        graph_argument(),
        graph_argument("after", required=False),
        click.Option(
            ["--passes"],
            metavar="TEXT",
            help="Show what these passes make of the graph, as in 'tag,bucket{bucket_cap_mb=25}'.",
        ),
        _path_option(["--trace"], "OUT", "Write a trace for ui.perfetto.dev; .json or .json.gz."),
        _path_option(["--html", "page"], "OUT", "Write a report as one self-contained page; .html."),
        cost_option(required=True),
        hint_option(),
        click.Option(
            ["--top"], type=click.IntRange(min=0), default=10, show_default=True, help="Exposed collectives to list."
        ),
        trust_option(),
        *common_options(),
    ],
)
