"""``commcc doctor``: versions, devices, hooks, and what works on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commcc.base.errors import EXIT_FINDINGS, EXIT_OK
from commcc.cli.parameters import common_options

if TYPE_CHECKING:
    from commcc.cli.session import Session

HELP = """What is installed here, which parts of PyTorch commcc's hooks need are there, and what works.

Exits with 1 when something that commcc builds on is missing. Nothing is compiled, and no process group is made.
"""


@click.pass_obj
def doctor(session: Session) -> int:
    with session.working("loading PyTorch"):
        from commcc.live.checks import all_checks
        from commcc.report import doctoring as report

        checks = all_checks()
    missing = [check.name for check in checks if check.good is False]
    brief = f"missing: {', '.join(missing)}" if missing else "all there"
    session.emit(report.doctoring(checks), brief=brief, view=report.view)
    return EXIT_FINDINGS if missing else EXIT_OK


command = click.Command(
    "doctor", callback=doctor, help=HELP, short_help="What works on this machine", params=[*common_options()]
)
