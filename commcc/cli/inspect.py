"""``commcc inspect``: groups, roles, collectives and metrics of one graph, or the graphs in a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commcc.base.errors import EXIT_OK, CommccError, InputError
from commcc.base.gc_pause import no_collection
from commcc.cli.folder import no_graphs
from commcc.cli.parameters import GRAPH_HELP, common_options, cost_option, graph_argument, hint_option, reading_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.cli.session import Session
    from commcc.report.inspecting import Listed
    from commcc.timing.cost import CostModel

HELP = f"""What is in a graph: process groups and their roles, collectives and bytes, metrics.

{GRAPH_HELP} Without NAME, the graphs of such a file are listed, or those of a folder.
"""


@click.pass_obj
def inspect(session: Session, /, graph: str, cost: CostModel | None, hints: dict[str, int], **given: Any) -> int:
    with session.working("loading PyTorch") as say:
        from commcc.report import inspecting
        from commcc.timing import snapshot

        say(f"reading {graph}")
        several = _several(graph)
        if several:
            read = _read(session, several, cost, hints, say)
            if all(entry.error is not None for entry in read):
                first = f"{read[0].entry.name}: {read[0].error}"
                raise InputError("none of the graphs could be read", where=graph, hint=first)
            document = inspecting.listing(graph, read)
            session.emit(document, brief=[entry.graph for entry in several], view=inspecting.view_listing)
            return EXIT_OK
        click.get_current_context().with_resource(no_collection(stays=True))
        program = session.load(graph)
        say("identifying collectives")
        seen = snapshot.take(program, cost, hints)
        document = inspecting.inspection(graph, program, seen)
    session.report_notes(program.notes)
    for warning in seen.ident.warnings:
        session.warn(warning)
    session.report_costs(hints, seen)
    top = None if given["everything"] else given["top"]
    session.emit(document, brief=inspecting.brief(seen.to_json()), view=lambda shown: inspecting.view(shown, top))
    return EXIT_OK


#: Of several graphs so many are read for their collectives and times, as long as they have so many nodes together.
MOST_GRAPHS, MOST_NODES = 200, 40_000


def _several(graph: str) -> list[Listed]:
    """The graphs of a file or folder that holds more than one; nothing for a graph."""
    from commcc import serialization
    from commcc.report.inspecting import Listed

    folder = Path(graph)
    graphs = _graph_files(folder) if folder.is_dir() else []
    if graphs:
        return graphs
    try:
        file, name = serialization.split_spec(graph)
        entries = () if name else serialization.list_graphs(file, least=2)
    except InputError:
        if not folder.is_dir():
            raise
        graphs = _texts(folder)
        if not graphs:
            raise no_graphs(graph) from None
        return graphs
    return [Listed(entry, f"{file}::{entry.name}") for entry in entries]


def _graph_files(folder: Path) -> list[Listed]:
    """Graph files anywhere below a folder: where there are some, lint too looks at nothing else."""
    from commcc.base.files import GRAPH_FILES
    from commcc.lint.expand import files_below
    from commcc.report.inspecting import Listed
    from commcc.serialization.logs.graph_text import GraphEntry

    paths = files_below(folder, GRAPH_FILES)
    return [Listed(GraphEntry(str(Path(path).relative_to(folder)), "file", None), path) for path in paths]


def _texts(folder: Path) -> list[Listed]:
    """Graphs in texts and logs below a folder that no tool of PyTorch's laid out."""
    from commcc.lint.expand import expand
    from commcc.report.inspecting import Listed
    from commcc.serialization.logs.graph_text import GraphEntry

    graphs = [item.graph for item in expand([str(folder)]) if item.error is None]
    return [Listed(GraphEntry(str(Path(path).relative_to(folder)), "text", None), path) for path in graphs]


def _read(
    session: Session, several: list[Listed], cost: CostModel | None, hints: dict[str, int], say: Callable[[str], None]
) -> list[Listed]:
    """The first graphs with what is in them; reading all of a large folder would take minutes."""
    from commcc.timing import snapshot

    result: list[Listed] = []
    nodes = 0
    for number, listed in enumerate(several):
        too_many = number >= MOST_GRAPHS or nodes + (listed.entry.nodes or 0) > MOST_NODES
        if not listed.entry.loadable or too_many:
            result.append(listed)
            continue
        say(f"{number + 1}/{len(several)} reading {listed.graph}")
        try:
            seen = snapshot.take(session.load(listed.graph), cost, hints)
        except CommccError as error:
            result.append(replace(listed, error=error.what))
            continue
        nodes += len(seen.index)
        result.append(replace(listed, seen=seen))
    return result


command = click.Command(
    "inspect",
    callback=inspect,
    help=HELP,
    short_help="What is in a graph, or in a file of several",
    params=[
        graph_argument(),
        click.Option(
            ["--top"],
            metavar="N",
            type=click.IntRange(min=0),
            default=5,
            show_default=True,
            help="Largest collectives to list.",
        ),
        click.Option(
            ["--all", "everything"], is_flag=True, help="List every collective, with the evidence for its role."
        ),
        cost_option(),
        hint_option(),
        *reading_options(),
        *common_options(),
    ],
)
