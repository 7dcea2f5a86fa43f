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

Errors are one line on standard error; ``--debug`` adds the traceback. With ``--json`` standard output holds one JSON
document whatever happens: where there is no result, the error.
"""

from __future__ import annotations

import errno
import gc
import importlib
import io
import os
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from commcc import __version__
from commcc.base.errors import (
    EXIT_OK,
    EXIT_USAGE,
    CommccError,
    InputError,
    OptionError,
    OutputError,
    bug,
    closest,
)
from commcc.base.text import Lines, escaped, without_commands
from commcc.cli.interrupts import EXIT_INTERRUPTED, leave_while_loading
from commcc.cli.session import OutputClosedError, Session, abandon_stdout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Set by the shell's completion script; click then answers and exits by itself.
COMPLETION = "_COMMCC_COMPLETE"
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
#: Click's words for values of a wrong type, and plain ones.
_PLAINER = {
    "is not a valid integer range": "is not a whole number",
    "is not a valid integer": "is not a whole number",
    "is not a valid float range": "is not a number",
    "is not a valid float": "is not a number",
}
#: What writing to a full, broken or closed device fails with.
_REFUSED = (errno.EBADF, errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EDQUOT)
EXIT_PIPE = 141

#: Every command by what it is for, in the order of the help.
GROUPS = {
    "Look": {
        "inspect": "commcc.cli.inspect:command",
        "simulate": "commcc.cli.simulate:command",
        "explain": "commcc.cli.explain:command",
        "diff": "commcc.cli.diff:command",
    },
    "Rewrite": {
        "tune": "commcc.cli.tune:command",
        "run": "commcc.cli.run:command",
        "sweep": "commcc.cli.sweep:command",
        "ep-overlap": "commcc.cli.ep_overlap:command",
        "bucket": "commcc.cli.rewriting:pass_command",
        "reorder": "commcc.cli.rewriting:pass_command",
        "async-tp": "commcc.cli.rewriting:pass_command",
        "split": "commcc.cli.rewriting:pass_command",
        "inline": "commcc.cli.rewriting:pass_command",
        "tag": "commcc.cli.rewriting:pass_command",
        "groups": "commcc.cli.rewriting:pass_command",
        "dedup": "commcc.cli.rewriting:pass_command",
        "cleanup": "commcc.cli.rewriting:pass_command",
        "ep-chunk": "commcc.cli.rewriting:pass_command",
        "ep-schedule": "commcc.cli.rewriting:pass_command",
        "ep-concretize": "commcc.cli.rewriting:pass_command",
        "ep-dense": "commcc.cli.rewriting:pass_command",
    },
    "Judge": {
        "verify": "commcc.cli.verify:command",
        "lint": "commcc.cli.lint:command",
        "reduce": "commcc.cli.reduce:command",
    },
    "Run": {
        "bench": "commcc.cli.bench:command",
        "profile": "commcc.cli.profile:command",
    },
    "Set up": {
        "capture": "commcc.cli.capture:command",
        "convert": "commcc.cli.convert:command",
        "passes": "commcc.cli.passes:command",
        "doctor": "commcc.cli.doctor:command",
    },
}
COMMANDS = {name: address for group in GROUPS.values() for name, address in group.items()}

HELP = """Communication compiler for PyTorch training graphs.

Reads a graph with functional collectives from a file (FX text, PyTorch logs, .pt2) without running
anything in it, rewrites it so that communication hides behind compute, and proves that the result
computes the same. FILE::NAME picks one graph of a file that holds several. 'commcc COMMAND -h' has
the options of a command.
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
        loaded = getattr(importlib.import_module(module), attribute)
        command = loaded if isinstance(loaded, click.Command) else loaded(cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One list for each of :data:`GROUPS`, and one for other commands of the table."""
        grouped = {name for names in GROUPS.values() for name in names}
        lists = {**GROUPS, "Commands": [name for name in self.table if name not in grouped]}
        limit = formatter.width - 6 - max(map(len, self.table))
        for title, names in lists.items():
            rows = [(name, self._short_help(ctx, name, limit)) for name in names if name in self.table]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _short_help(self, ctx: click.Context, name: str, limit: int) -> str:
        command = self.get_command(ctx, name)
        return "" if command is None else command.get_short_help_str(limit)

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
    if COMPLETION in os.environ:
        from click.shell_completion import add_completion_class

        from commcc.cli import completing

        for shell in (completing.Bash, completing.Zsh, completing.Fish):
            add_completion_class(shell)
    # Errors of parsing come before the option has set it.
    session.json = "--json" in arguments
    try:
        if not arguments and COMPLETION not in os.environ:
            group = make_group()
            click.echo(group.get_help(group.make_context("commcc", [])), err=True)
            return EXIT_USAGE
        outcome = make_group().main(list(arguments), prog_name="commcc", standalone_mode=False, obj=session)
        session.write("")  # what the stream still holds is written, or refused, here
    except Exception as error:
        return _explain(session, error, next((word for word in arguments if word in COMMANDS), "commcc"))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return outcome if isinstance(outcome, int) else EXIT_OK


def _explain(session: Session, error: Exception, command: str) -> int:
    """Say what went wrong, on standard error and with ``--json`` as a document; the exit code."""
    if isinstance(error, click.Abort):
        return EXIT_INTERRUPTED
    if isinstance(error, OutputClosedError):
        abandon_stdout()
        return EXIT_PIPE
    if session.debug:
        trace = Lines("".join(traceback.format_exception(type(error), error, error.__traceback__)))
        print(without_commands(escaped(trace)), file=sys.stderr, end="")
    told = _as_told(error, command)
    session.error(told.render())
    if isinstance(error, OSError) and error.filename is None and error.errno in _REFUSED:
        abandon_stdout()
    elif session.json:
        with suppress(CommccError, OutputClosedError):  # the line has said it
            session.emit_error(command, told)
    return told.exit_code


def _as_told(error: Exception, command: str) -> CommccError:
    """Any exception as an error that says what, where and what to do; command: what was typed, or ``commcc``."""
    if isinstance(error, CommccError):
        return error
    if isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        path = context.command_path if context is not None else " ".join(dict.fromkeys(["commcc", command]))
        said = error.format_message().rstrip(".")
        if isinstance(error, click.NoSuchOption) and context is not None:  # click compares the dashes too
            flags = [flag for parameter in context.command.params for flag in parameter.opts if flag.startswith("--")]
            said = f"no such option '{error.option_name}'{closest(error.option_name, flags)}"
        for words, plain in _PLAINER.items():
            said = said.replace(words, plain)
        return OptionError(said, hint=f"see '{path} -h'")
    if isinstance(error, OSError) and error.filename is not None:
        return InputError(error.strerror or str(error), where=str(error.filename))
    if isinstance(error, OSError) and error.errno in _REFUSED:  # files are written elsewhere, and say their names
        return OutputError(f"cannot be written: {error.strerror}", where="standard output")
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return CommccError("PyTorch is not installed", hint="pip install 'torch>=2.11'")
    return bug(error, "run with --debug for the traceback")


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
    # A graph is millions of objects that stay; looking through them every 700 new ones takes a tenth of a command, and
    # every million still a twentieth.
    gc.set_threshold(3_000_000, 50, 50)
    leave_while_loading()
    code = run(sys.argv[1:])
    try:
        sys.stderr.flush()
    except OSError:  # Python would try again at exit, and end with a code of its own
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    # At exit Python looks for cycles in all that is left, several times: a quarter of a command on 8,000 nodes. Triton
    # needs that (PyTorch 2.15 has a Triton that prints a page about types which are left over).
    if "triton" not in sys.modules:
        gc.freeze()
    sys.exit(code)
