"""``commcc diff``: what a rewrite merged, split, moved, added and removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from commcc.base.errors import EXIT_OK
from commcc.base.files import replace_text
from commcc.cli.parameters import (
    PAGES,
    common_options,
    cost_option,
    graph_argument,
    hint_option,
    page_option,
    reading_options,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.cli.session import Session
    from commcc.timing.cost import CostModel

HELP = """What changed from BEFORE to AFTER: collectives merged and split, nodes moved, added and removed.

Nodes are matched by name, and renamed ones by structure. The most nodes that are in the same order in
both graphs count as having stayed, and others as moved; the distance is the number of nodes that
stayed which a node passed. Says nothing about whether the change is right: that is 'commcc verify'.
"""


@click.pass_obj
def compare(
    session: Session, /, before: str, after: str, cost: CostModel | None, hints: Mapping[str, int], **given: Any
) -> int:
    page = session.report_file(given["page"], PAGES, "--html")
    with session.working("loading PyTorch") as say:
        from commcc.diff import diff
        from commcc.report import differing

        say(f"reading {before}")
        old = session.load(before)
        say(f"reading {after}")
        new = session.load(after)
        say("comparing")
        difference = diff(old, new, model=cost, hints=hints)
        document = differing.difference(before, after, difference)
        if page is not None:
            from commcc.report.diff_page import write_html

            say(f"writing {page}")
            replace_text(page, write_html(document, difference))
            document["html"] = str(page)
    session.report_costs(hints, difference.first, difference.last)
    top = None if given["everything"] else given["top"]
    brief = differing.brief(document)
    session.emit(document, brief=brief, view=lambda shown: differing.view(shown, top))
    return EXIT_OK


command = click.Command(
    "diff",
    callback=compare,
    help=HELP,
    short_help="What changed from BEFORE to AFTER",
    params=[
        graph_argument("before"),
        graph_argument("after"),
        click.Option(
            ["--top"],
            metavar="N",
            type=click.IntRange(min=0),
            default=10,
            show_default=True,
            help="Lines of each list.",
        ),
        click.Option(["--all", "everything"], is_flag=True, help="Show every line of every list."),
        page_option("Write everything that changed, and a picture of it, as one self-contained page; .html."),
        cost_option(),
        hint_option(),
        *reading_options(),
        *common_options(),
    ],
)
