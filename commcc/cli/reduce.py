"""``commcc reduce``: the smallest pair on which ``verify`` and ``verify --numeric`` say different things."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from commcc.base.errors import EXIT_OK, FindingError
from commcc.base.files import output_folder, replace_text
from commcc.cli import numeric
from commcc.cli.parameters import FILE, common_options, graph_argument, reading_options

if TYPE_CHECKING:
    from commcc.cli.session import Session
    from commcc.graph.program import Program
    from commcc.replay.numeric import Numeric

HELP = """Shrink a pair on which verify and the numbers disagree: what a bug report needs.

The two say different things where one of them is wrong, or cannot decide: proved with different
numbers, or not proved with equal ones. DIR gets before.fx.txt, after.fx.txt and verdict.json; the
pair is a contradiction by itself. Exits with 1, and writes nothing, where the two agree.
"""
MOST_TRIES = 100_000


@click.pass_obj
def reduce(session: Session, /, before: str, after: str, output: str, tries: int, **options: Any) -> int:
    folder = output_folder(output, "name one with -o")
    request = numeric.read(click.get_current_context(), {**options, "numeric": True})
    assert request is not None
    with session.working("loading PyTorch") as say:
        from commcc.replay.numeric import verify_numeric
        from commcc.replay.numeric.reduction import asked, settings_within, shrunk
        from commcc.report import reducing
        from commcc.serialization import save

        def run(old: Program, new: Program) -> Numeric:
            whole = (old, new) == pair  # a group that nothing uses is a mistake there
            return verify_numeric(old, new, settings if whole else settings_within(settings, old, new))

        numeric.import_ops(request.imports)
        settings = numeric.settings_of(request)
        say("reading both graphs")
        pair = session.load(before), session.load(after)
        say("verifying and running both graphs")
        opinion = asked(*pair, run)
        if opinion.contradiction is None:
            said = f"verify says {opinion.verify}, the numbers are {opinion.numeric}"
            raise FindingError(f"the two do not contradict each other: {said}", hint="nothing was written")
        say("reducing")
        small = shrunk(*pair, run, opinion, tries)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{which}.fx.txt" for which in ("before", "after")]
        for program, path in zip(small, paths, strict=True):
            save(program, path)
        # What was written is what is reported.
        again = asked(session.load(str(paths[0])), session.load(str(paths[1])), run)
        document = reducing.reduction((before, after), pair, small, (opinion, again), str(folder))
        replace_text(folder / "verdict.json", json.dumps(document, indent=2) + "\n")
    if not opinion.same(again):
        session.warn("the pair shows something else once it is written and read: report both graphs as they are")
    session.emit(document, brief=str(folder), view=reducing.view)
    return EXIT_OK


command = click.Command(
    "reduce",
    callback=reduce,
    help=HELP,
    short_help="Shrink a pair on which verify and the numbers disagree",
    params=[
        graph_argument("before"),
        graph_argument("after"),
        click.Option(
            ["-o", "--output"],
            type=FILE,
            metavar="DIR",
            required=True,
            help="A folder.",
        ),
        click.Option(
            ["--tries"],
            type=click.IntRange(1, MOST_TRIES),
            default=400,
            show_default=True,
            metavar="N",
            help="Smaller pairs to try at most.",
        ),
        *(option for option in numeric.options() if option.name != "numeric"),
        *reading_options(imports=False),
        *common_options(),
    ],
)
