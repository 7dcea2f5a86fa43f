"""``commcc inspect``: groups, roles, collectives and metrics of one graph, or the graphs in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from commcc.base.errors import EXIT_OK
from commcc.cli.parameters import GRAPH_HELP, common_options, cost_option, graph_argument, hint_option, reading_options

if TYPE_CHECKING:
    from commcc.cli.session import Session
    from commcc.timing.cost import CostModel

HELP = f"""What is in a graph: process groups and their roles, collectives and bytes, metrics.

{GRAPH_HELP} Without NAME, the graphs of such a file are listed.
"""


@click.pass_obj
def inspect(session: Session, /, graph: str, cost: CostModel | None, hints: dict[str, int], **given: Any) -> int:
    with session.working("loading PyTorch") as say:
        from commcc import serialization
        from commcc.report import inspecting
        from commcc.timing import snapshot

        say(f"reading {graph}")
        entries = () if serialization.split_spec(graph)[1] else serialization.list_graphs(graph)
        if sum(entry.loadable for entry in entries) > 1:
            document = inspecting.listing(graph, entries)
            brief = [f"{graph}::{entry.name}" for entry in entries]
            session.emit(document, brief=brief, view=inspecting.view_listing)
            return EXIT_OK
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


command = click.Command(
    "inspect",
    callback=inspect,
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
        cost_option(),
        hint_option(),
        *reading_options(),
        *common_options(),
    ],
)
