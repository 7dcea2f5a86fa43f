"""The ``commcc`` program: the table of commands, and how every outcome becomes an exit code.

====  ==========================================================================
code  meaning
====  ==========================================================================
0     done; for ``verify``: the same program
1     findings: not the same program, or not proved to be; for ``lint``: errors; for ``bench``: other results
2     wrong use, or input that cannot be read; nothing was written
3     a bug in commcc, among them a rewrite that did not pass its own verification
130   interrupted
141   the reader of standard output went away
====  ==========================================================================

Errors are one line on standard error; ``--debug`` adds the traceback.
"""

from __future__ import annotations

import errno
import gc
import importlib
import io
import os
import sys
import traceback
from typing import TYPE_CHECKING

import click

from commcc import __version__
from commcc.base.errors import EXIT_BUG, EXIT_OK, EXIT_USAGE, CommccError, closest
from commcc.base.text import Lines, escaped, without_commands
from commcc.cli.session import OutputClosedError, Session, abandon_stdout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Set by the shell's completion script; click then answers and exits by itself.
COMPLETION = "_COMMCC_COMPLETE"
EXIT_INTERRUPTED = 130
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
#: What writing to a full, broken or closed device fails with.
_REFUSED = (errno.EBADF, errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EDQUOT)
EXIT_PIPE = 141

COMMANDS = {
    "capture": "commcc.cli.capture:command",
    "tune": "commcc.cli.tune:command",
    "inspect": "commcc.cli.inspect:command",
    "simulate": "commcc.cli.simulate:command",
    "run": "commcc.cli.run:command",
    "sweep": "commcc.cli.sweep:command",
    "ep-overlap": "commcc.cli.ep_overlap:command",
    "bucket": "commcc.cli.rewriting:pass_command",
    "reorder": "commcc.cli.rewriting:pass_command",
    "tag": "commcc.cli.rewriting:pass_command",
    "groups": "commcc.cli.rewriting:pass_command",
    "dedup": "commcc.cli.rewriting:pass_command",
    "cleanup": "commcc.cli.rewriting:pass_command",
    "ep-chunk": "commcc.cli.rewriting:pass_command",
    "ep-schedule": "commcc.cli.rewriting:pass_command",
    "ep-concretize": "commcc.cli.rewriting:pass_command",
    "ep-dense": "commcc.cli.rewriting:pass_command",
    "async-tp": "commcc.cli.rewriting:pass_command",
    "explain": "commcc.cli.explain:command",
    "lint": "commcc.cli.lint:command",
    "verify": "commcc.cli.verify:command",
    "bench": "commcc.cli.bench:command",
    "profile": "commcc.cli.profile:command",
    "diff": "commcc.cli.diff:command",
    "convert": "commcc.cli.convert:command",
    "passes": "commcc.cli.passes:command",
    "doctor": "commcc.cli.doctor:command",
}

HELP = """Communication compiler for PyTorch training graphs.

Reads a graph with functional collectives from a file (FX text, PyTorch logs, .pt2) without running
anything in it, rewrites it so that communication hides behind compute, and proves that the result
computes the same. FILE::NAME picks one graph of a file that holds several.
"""


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for, and suggests the nearest name.

    table: by name ``module:attribute``; the attribute is a ``click.Command``, or a function from the command's name to
    one. Limits: ``--help`` of the group imports every command module, so these must stay light.
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


def make_group() -> LazyGroup:
    """The root command."""
    group = LazyGroup(table=COMMANDS, name="commcc", help=HELP)
    version = click.version_option(__version__, "--version", prog_name="commcc", message="%(prog)s %(version)s")
    decorated = version(group)
    assert isinstance(decorated, LazyGroup)
    return decorated


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; nothing that happens inside escapes as an exception."""
    session = Session()
    try:
        if not arguments and COMPLETION not in os.environ:
            click.echo(make_group().get_help(click.Context(make_group(), info_name="commcc")), err=True)
            return EXIT_USAGE
        outcome = make_group().main(list(arguments), prog_name="commcc", standalone_mode=False, obj=session)
        session.write("")  # what the stream still holds is written, or refused, here
    except Exception as error:
        return _explain(session, error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return outcome if isinstance(outcome, int) else EXIT_OK


def _explain(session: Session, error: Exception) -> int:
    """Say on standard error what went wrong, and choose the exit code."""
    if isinstance(error, click.Abort):
        return EXIT_INTERRUPTED
    if isinstance(error, OutputClosedError):
        abandon_stdout()
        return EXIT_PIPE
    if session.debug:
        trace = Lines("".join(traceback.format_exception(type(error), error, error.__traceback__)))
        print(without_commands(escaped(trace)), file=sys.stderr, end="")
    if isinstance(error, CommccError):
        session.error(error.render())
        return error.exit_code
    if isinstance(error, click.ClickException):
        session.error(*_usage_line(error))
        return EXIT_USAGE
    if isinstance(error, OSError) and error.filename is not None:
        session.error(f"{error.filename}: {error.strerror or error}")
        return EXIT_USAGE
    if isinstance(error, OSError) and error.errno in _REFUSED:  # files are written elsewhere, and say their names
        abandon_stdout()
        session.error(f"standard output: cannot be written: {error.strerror}")
        return EXIT_USAGE
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        session.error("PyTorch is not installed; pip install 'torch>=2.11'")
        return EXIT_USAGE
    detail = " ".join(f"{type(error).__name__}: {error}".split())
    session.error(f"bug in commcc, please report; run with --debug for the traceback ({detail[:300]})")
    return EXIT_BUG


def _usage_line(error: click.ClickException) -> tuple[str, str]:
    """Click's message on one line, and the command that it is about."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context is not None else "commcc"
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{message}; see '{path} --help'", path


def entry() -> None:
    """Console-script entry point."""
    # Streams that were closed: errors go nowhere, and a result is refused when it is written.
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names may hold what the encoding cannot
            stream.reconfigure(errors="backslashreplace")
    # A graph is millions of objects that stay; looking through them every 700 new ones takes a tenth of a command.
    gc.set_threshold(100_000, 50, 50)
    sys.exit(run(sys.argv[1:]))
