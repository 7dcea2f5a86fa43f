"""``commcc verify``: is AFTER the same program as BEFORE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from commcc.cli import numeric
from commcc.cli.parameters import common_options, graph_argument, trust_option
from commcc.errors import EXIT_FINDINGS, EXIT_OK

if TYPE_CHECKING:
    from commcc.cli.session import Session

HELP = """Is AFTER the same program as BEFORE, whoever rewrote it.

Exits with 0 when that is proved. Exits with 1 when the two differ, and also when they could not be
proved equal: the first line says which, and --json has it under "verified" (proved, different,
unproved).

With --numeric both graphs are run as well, on inputs worked out from BEFORE, and everything they give
back is compared to the bit. Exits with 0 when the structure shows no difference and the numbers are
equal, or differ by no more than the rounding of sums that AFTER makes of other parts.
"""


@click.pass_obj
def _verify(session: Session, /, before: str, after: str, **options: Any) -> int:
    request = numeric.read(click.get_current_context(), options)
    with session.working("loading PyTorch") as say:
        from commcc.report import documents
        from commcc.verify import verify

        say(f"reading {before}")
        old = session.load(before)
        say(f"reading {after}")
        new = session.load(after)
        say("verifying")
        verdict = verify(old, new)
        if request is not None:
            say("running both graphs")
        ran = numeric.run(request, old, new) if request is not None else None
    session.report_notes(old.notes, f"{before}: ")
    session.report_notes(new.notes, f"{after}: ")
    document = documents.verification(before, after, verdict, ran)
    session.emit(document, brief=verdict.status + _brief(document), view=lambda: _view(document))
    fine = verdict.status == "proved" if ran is None else verdict.status != "different" and ran.fine
    return EXIT_OK if fine else EXIT_FINDINGS


def _brief(document: dict[str, Any]) -> str:
    from commcc.report.numeric import brief

    return brief(document["numeric"])


def _view(document: dict[str, Any]) -> list[Any]:
    from commcc.report import verifying

    return verifying.view(document)


command = click.Command(
    "verify",
    callback=_verify,
    help=HELP,
    short_help="Is AFTER the same program as BEFORE",
    params=[
        graph_argument("before"),
        graph_argument("after"),
        *numeric.options(),
        trust_option(),
        *common_options(),
    ],
)
