"""``commcc convert``: write a graph in another format, and say what that format could not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commcc.base.errors import EXIT_OK
from commcc.cli.parameters import GRAPH_HELP, common_options, graph_argument, output_option, reading_options

if TYPE_CHECKING:
    from commcc.cli.session import Session

HELP = f"""Write a graph in another format, and say what that format could not hold.

{GRAPH_HELP} Node order, names, arguments and metadata stay as they are.
"""


@click.pass_obj
def convert(session: Session, graph: str, output: str) -> int:
    with session.working("loading PyTorch") as say:
        from commcc import serialization
        from commcc.report import converting

        target = session.output(output, serialization.EXTENSIONS)
        say(f"reading {graph}")
        program = session.load(graph)
        say(f"writing {target}")
        lost = serialization.save(program, target)
    document = converting.conversion(graph, str(target), program, lost)
    session.emit(document, brief=str(target), view=converting.view)
    return EXIT_OK


command = click.Command(
    "convert",
    callback=convert,
    help=HELP,
    short_help="Write a graph in another format",
    params=[graph_argument(), output_option(required=True), *reading_options(), *common_options()],
)
