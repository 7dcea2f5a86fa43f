"""``commcc inspect``: groups, roles, collectives and metrics of one graph, or the graphs in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from commcc.cli.parameters import GRAPH_HELP, common_options, graph_argument, trust_option
from commcc.errors import EXIT_OK

if TYPE_CHECKING:
    from commcc.cli.session import Session

HELP = f"""What is in a graph: process groups and their roles, collectives and bytes, metrics.

{GRAPH_HELP} Without NAME, the graphs of such a file are listed.
"""


@click.pass_obj
def _inspect(session: Session, graph: str, top: int, everything: bool) -> int:
    with session.working("loading PyTorch") as say:
        from commcc import collectives, index, metrics, serialization
        from commcc.report import documents

        say(f"reading {graph}")
        entries = () if serialization.split_spec(graph)[1] else serialization.list_graphs(graph)
        if sum(entry.loadable for entry in entries) > 1:
            return _list(session, graph, entries)
        program = session.load(graph)
        say("identifying collectives")
        made = index.build_index(program)
        ident = collectives.identify(made)
        measured = metrics.measure(made, ident)
        document = documents.inspection(graph, program, made, ident, measured)
    session.report_notes(program.notes)
    for warning in ident.warnings:
        session.warn(warning)
    session.emit(
        document, brief=documents.brief(measured.to_json()), view=lambda: _view(document, None if everything else top)
    )
    return EXIT_OK


def _list(session: Session, graph: str, entries: Any) -> int:
    from commcc.report import documents, inspecting

    document = documents.listing(graph, entries)
    brief = "\n".join(f"{graph}::{entry.name}" for entry in entries)
    session.emit(document, brief=brief, view=lambda: inspecting.listing(document))
    return EXIT_OK


def _view(document: dict[str, Any], top: int | None) -> list[Any]:
    from commcc.report import inspecting

    return inspecting.view(document, top)


command = click.Command(
    "inspect",
    callback=_inspect,
    help=HELP,
    short_help="What is in a graph, or in a file of several",
    params=[
        graph_argument(),
        click.Option(
            ["--top"], type=click.IntRange(min=0), default=5, show_default=True, help="Largest collectives to list."
        ),
        click.Option(
            ["--all", "everything"], is_flag=True, help="List every collective, with the evidence for its role."
        ),
        trust_option(),
        *common_options(),
    ],
)
