"""``commcc passes``: the passes and their options, from the same fields that the flags come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commcc.base.errors import EXIT_OK
from commcc.cli import completing
from commcc.cli.parameters import common_options
from commcc.passes import registry

if TYPE_CHECKING:
    from commcc.cli.session import Session

HELP = """The passes and their options with types, defaults and what none means; the presets of 'commcc run'.

In a pipeline an option is written NAME{option=value,option=value}; as a flag of the pass's own
command it is --option value.
"""


@click.pass_obj
def passes(session: Session, name: str | None) -> int:
    from commcc.report import passes as report
    from commcc.run.forms import PRESETS

    presets = [preset for preset in PRESETS if name in (None, preset.name)]
    chosen = registry.names() if name is None else () if presets else (name,)
    document = report.listed([registry.get(pass_name) for pass_name in chosen], presets)
    brief = chosen or presets[0].text
    session.emit(document, brief=brief, view=report.overview if name is None else report.detail)
    return EXIT_OK


command = click.Command(
    "passes",
    callback=passes,
    help=HELP,
    short_help="The passes and their options",
    params=[click.Argument(["name"], required=False, shell_complete=completing.pass_or_preset), *common_options()],
)
