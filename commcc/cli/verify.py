"""``commcc verify``: is AFTER the same program as BEFORE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from commcc.cli.parameters import common_options, graph_argument, trust_option
from commcc.errors import EXIT_FINDINGS, EXIT_OK

if TYPE_CHECKING:
    from commcc.cli.session import Session

HELP = """Is AFTER the same program as BEFORE, whoever rewrote it.

Exits with 0 when that is proved. Exits with 1 when the two differ, and also when they could not be
proved equal: the first line says which, and --json has it under "verified" (proved, different,
unproved).
"""


@click.pass_obj
def _verify(session: Session, before: str, after: str) -> int:
    with session.working("loading PyTorch") as say:
        from commcc.report import documents
        from commcc.verify import verify

        say(f"reading {before}")
        old = session.load(before)
        say(f"reading {after}")
        new = session.load(after)
        say("verifying")
        verdict = verify(old, new)
    session.report_notes(old.notes, f"{before}: ")
    session.report_notes(new.notes, f"{after}: ")
    document = documents.verification(before, after, verdict)
    session.emit(document, brief=verdict.status, view=lambda: _view(document))
    return EXIT_OK if verdict.status == "proved" else EXIT_FINDINGS


def _view(document: dict[str, Any]) -> list[Any]:
    from commcc.report import verifying

    return verifying.view(document)


command = click.Command(
    "verify",
    callback=_verify,
    help=HELP,
    short_help="Is AFTER the same program as BEFORE",
    params=[graph_argument("before"), graph_argument("after"), trust_option(), *common_options()],
)
