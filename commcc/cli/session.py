"""One run of one command: what the user asked to hear, and on which stream.

Standard output gets the result and nothing else: tables, one line (``--quiet``) or one JSON
document (``--json``). Standard error gets notes, warnings, errors and progress.

    session.emit(document, brief="out.fx.txt", view=view)       # view(document) is what rich can print

Limits: progress is shown on a terminal only, once work has taken longer than a second.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from commcc.base.errors import OutputError
from commcc.base.text import escaped, json_text, one_line, without_commands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from rich.console import Console, RenderableType
    from rich.status import Status
    from rich.text import Text

    from commcc.base.terms import Json
    from commcc.cli.config import Config
    from commcc.graph.program import Note, Program

    View = Callable[[Any], Sequence[RenderableType]]

PATIENCE_SECONDS = 1.0


class OutputClosedError(Exception):
    """Whoever read standard output (``head``, a pager) has stopped reading."""


class Session:
    """What the common options said, the files that the command reads, and the two output streams."""

    def __init__(self) -> None:
        self.json = False
        self.quiet = False
        self.debug = False
        self.trust = False
        self.no_config = False
        #: Nothing is said at all: another process says it.
        self.silent = False
        self.inputs: list[Path] = []
        #: Defaults from the configuration that took effect, by key.
        self.used: dict[str, Json] = {}
        self._config: Config | None = None
        self._looked = False
        #: What is to be said once the spinner is gone; None while there is none.
        self._held: list[tuple[str, str, str]] | None = None

    @property
    def used_hints(self) -> frozenset[str]:
        """Hints of the configuration; they need not fit every graph."""
        hints = self.used.get("hints")
        return frozenset(hints) if isinstance(hints, dict) else frozenset()

    @property
    def config(self) -> Config | None:
        """The project's configuration, read when it is first asked for; None without one or with ``--no-config``.

        Raises :class:`commcc.base.errors.InputError` for a file that is wrong.
        """
        if not self._looked and not self.no_config:
            from commcc.cli.configured import find

            self._looked = True
            self._config = find(self)
        return self._config

    def emit(self, document: dict[str, Json], *, brief: str | Sequence[str], view: View) -> None:
        """Print the result in the form that was asked for.

        brief: the one line of ``--quiet``, or several. view: draws the document for people; it gets one in which every
        text is on one line and without control characters. Defaults of the configuration that took effect are part of
        the result: ``config`` in JSON, a line below the tables.
        """
        if self.used and self.config is not None:
            document["config"] = {"file": self.config.path, "used": self.used}
        if self.json:
            self._write(json_text(document))
        elif self.quiet:
            lines = [brief] if isinstance(brief, str) else brief
            self._write(without_commands("".join(f"{one_line(line)}\n" for line in lines)))
        else:
            from commcc.report.configured import line
            from commcc.report.console import drawn, make_console

            safe = escaped(document)
            shown = [*view(safe), *([line(safe["config"])] if "config" in safe else [])]
            self._write(without_commands(drawn(make_console(sys.stdout), shown)))

    def write(self, text: str) -> None:
        """Print a result that has a form of its own, which is not that of :meth:`emit`."""
        self._write(text)

    def load(self, path: str) -> Program:
        """Read a graph, trusting the file with code of its choice only when told to."""
        from commcc import serialization

        return serialization.load(path, trust=self.trust)

    def flush(self) -> None:
        self._write("")

    def note(self, text: str) -> None:
        """Something the user may want to know; not shown with ``--quiet``."""
        if not self.quiet:
            self._say("note", "cyan", text)

    def report_notes(self, notes: Iterable[Note], source: str = "") -> None:
        """Notes of a reader or writer; equal ones are said once, with their number and the first node."""
        counts: dict[str, list[str]] = {}
        for note in notes:
            counts.setdefault(note.text, []).append(note.node or "")
        for text, nodes in counts.items():
            where = f"{nodes[0]}: " if nodes[0] else ""
            more = f" ({len(nodes):,} times)" if len(nodes) > 1 else ""
            self.note(f"{source}{where}{text}{more}")

    def warn(self, text: str) -> None:
        """Something the user should act on; always shown."""
        self._say("warning", "yellow", text)

    def error(self, text: str, source: str = "commcc") -> None:
        """Why the command failed, on one line."""
        self._say(f"{source}: error", "bold red", text)

    @contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show a spinner if the work inside takes long; the value changes its text."""
        if self.quiet or not sys.stderr.isatty():
            yield _ignore
            return
        spinner = _Spinner(text)
        self._held = []
        try:
            yield spinner.update
        finally:
            spinner.stop()
            held, self._held = self._held, None
            for label, style, said in held:
                self._say(label, style, said)

    def _write(self, text: str) -> None:
        if self.silent:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise OutputClosedError from error
        except OSError as error:
            abandon_stdout()
            raise OutputError(f"cannot be written: {error.strerror}", where="standard output") from None

    def _say(self, label: str, style: str, text: str) -> None:
        if self.silent:
            return
        if self._held is not None:
            self._held.append((label, style, text))
            return
        line = one_line(" ".join(text.split()))
        with suppress(OSError):  # where nobody can be told, the exit code still says it
            if not sys.stderr.isatty():
                print(f"{label}: {line}", file=sys.stderr)
                return
            from rich.text import Text

            _console(sys.stderr).print(Text.assemble((f"{label}: ", style), line))


def abandon_stdout() -> None:
    """Point standard output nowhere, so that the interpreter's own flush at exit stays silent."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _ignore(_text: str) -> None:
    """Progress that nobody looks at."""


class _Spinner:
    """A rich status line that appears only after ``PATIENCE_SECONDS``."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lock = threading.Lock()
        self._status: Status | None = None
        self._timer = threading.Timer(PATIENCE_SECONDS, self._appear)
        self._timer.daemon = True
        self._timer.start()

    def _appear(self) -> None:
        with self._lock:
            if not self._timer.finished.is_set():
                self._status = _console(sys.stderr).status(_plain(self._text))
                self._status.start()

    def update(self, text: str) -> None:
        with self._lock:
            self._text = text
            if self._status is not None:
                self._status.update(_plain(text))

    def stop(self) -> None:
        self._timer.cancel()
        with self._lock:
            if self._status is not None:
                self._status.stop()


def _console(stream: Any) -> Console:
    from commcc.report.console import make_console

    return make_console(stream)


def _plain(text: str) -> Text:
    """Rich takes a bare string for markup, and file names may hold anything."""
    from rich.text import Text

    return Text(one_line(text))
