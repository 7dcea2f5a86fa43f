"""``commcc diff``: what a rewrite merged, split, moved, added and removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from commcc.cli.parameters import common_options, graph_argument, trust_option
from commcc.errors import EXIT_OK

if TYPE_CHECKING:
    from commcc.cli.session import Session

HELP = """What changed from BEFORE to AFTER: collectives merged and split, nodes moved, added and removed.

Nodes are matched by name. A node counts as moved when its place among the nodes that are in both
graphs changed; the distance is the number of those nodes that it passed. Says nothing about whether
the change is right: that is 'commcc verify'.
"""


@click.pass_obj
def _diff(session: Session, before: str, after: str, top: int, everything: bool) -> int:
    with session.working("loading PyTorch") as say:
        from commcc.diff import diff
        from commcc.report import documents

        say(f"reading {before}")
        old = session.load(before)
        say(f"reading {after}")
        new = session.load(after)
        say("comparing")
        document = documents.difference(before, after, diff(old, new))
    brief = documents.difference_brief(document)
    session.emit(document, brief=brief, view=lambda: _view(document, None if everything else top))
    return EXIT_OK


def _view(document: dict[str, Any], top: int | None) -> list[Any]:
    from commcc.report import differing

    return differing.view(document, top)


command = click.Command(
    "diff",
    callback=_diff,
    help=HELP,
    short_help="What changed from BEFORE to AFTER",
    params=[
        graph_argument("before"),
        graph_argument("after"),
        click.Option(["--top"], type=click.IntRange(min=0), default=10, show_default=True, help="Lines of each list."),
        click.Option(["--all", "everything"], is_flag=True, help="Show every line of every list."),
        trust_option(),
        *common_options(),
    ],
)
