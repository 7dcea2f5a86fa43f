"""A click group that imports a command when it is asked for, and suggests the nearest name::

    $ commcc bukcet g.pt2
    commcc: error: no such command 'bukcet' (did you mean 'bucket'?); see 'commcc --help'

Limits: ``--help`` of the group imports every command module, so these must stay light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import click

from commcc.base.errors import closest

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class LazyGroup(click.Group):
    """A group whose commands are given as ``module:attribute``.

    The attribute is a ``click.Command``, or a function from the command's name to one.
    """

    def __init__(self, *, table: Mapping[str, str], name: str, help: str) -> None:
        super().__init__(name=name, help=help, no_args_is_help=False, context_settings=SETTINGS)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        address = self.table.get(cmd_name)
        if address is None:
            return None
        module, attribute = address.split(":")
        found = getattr(importlib.import_module(module), attribute)
        command = found if isinstance(found, click.Command) else found(cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.table and not name.startswith("-"):
            ctx.fail(f"no such command '{name}'{closest(name, list(self.table))}")
        return super().resolve_command(ctx, args)
