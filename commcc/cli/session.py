"""One run of one command: what the user asked for, which files it touches, and what is said on which stream.

Standard output gets the result and nothing else: tables, one line (``--quiet``) or one JSON
document (``--json``). Standard error gets notes, warnings, errors and progress.

    session.emit(document, brief="out.fx.txt", view=view)       # view(document) is what rich can print
    session.cost("h100", none_allowed=True)                     # the configuration's cost text, if it has one
    session.used                                                # {'cost': 'a100'}: what took effect of it

Limits: progress is shown on a terminal only, once work has taken longer than a second.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commcc.base.errors import OutputError, closest
from commcc.base.files import check_folder, same_file
from commcc.base.options import options_of
from commcc.base.text import escaped, json_text, listed, one_line, without_commands
from commcc.passes.options import applicable, build

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.console import Console, RenderableType
    from rich.status import Status
    from rich.text import Text

    from commcc.base.errors import CommccError
    from commcc.base.terms import Json
    from commcc.cli.config import Config
    from commcc.graph.ops.described import Description
    from commcc.graph.program import Note, Program
    from commcc.passes.base import Pass
    from commcc.timing.snapshot import Snapshot

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
        #: Modules that register ops, and the file that describes ops, as the command line names them.
        self.imports: tuple[str, ...] = ()
        self.ops: str | None = None
        self._descriptions: dict[str, Description] | None = None
        self.no_config = False
        #: Nothing is said at all: another process says it.
        self.silent = False
        self.inputs: list[Path] = []
        #: Defaults from the configuration that took effect, by key.
        self.used: dict[str, Json] = {}
        #: Whether anything of a result was printed.
        self._written = False
        self._config: Config | None = None
        self._looked = False
        #: What is to be said once the spinner is gone; None while there is none.
        self._held: list[tuple[str, str, str]] | None = None

    # Defaults from the project's configuration: the command line wins.

    @property
    def config(self) -> Config | None:
        """The project's configuration, read when it is first asked for; None without one or with ``--no-config``.

        Its file counts as one that the command reads. Raises :class:`commcc.base.errors.InputError` for a file that is
        wrong.
        """
        if not self._looked and not self.no_config:
            from commcc.cli.config import find_config

            self._looked = True
            try:
                folder = Path.cwd()
            except OSError:  # the folder is gone
                return None
            self._config = find_config(folder)
            if self._config is not None:
                self.inputs.append(Path(self._config.path))
        return self._config

    def cost(self, usual: str, *, none_allowed: bool) -> str:
        """The cost text for a command that was given none."""
        config = self.config
        if config is None or config.cost is None or (config.cost == "none" and not none_allowed):
            return usual
        self.used["cost"] = config.cost
        return config.cost

    def with_hints(self, given: dict[str, int]) -> dict[str, int]:
        """The hints that were given, then those of the configuration for other symbols."""
        config = self.config
        more = {} if config is None else {key: value for key, value in config.hints.items() if key not in given}
        if more:
            self.used["hints"] = dict(more)
        return {**given, **more}

    @property
    def defaults(self) -> Mapping[str, Mapping[str, Any]]:
        """Options of the configuration by pass."""
        return {} if self.config is None else self.config.options

    def build_pass(self, cls: type[Pass], given: Mapping[str, Any]) -> Pass:
        """A pass from the options that were given, and defaults for the others."""
        result = build(cls, {**applicable(cls, given, self.defaults.get(cls.name, {})), **given})
        self.remember([result])
        return result

    def remember(self, passes: Iterable[Pass]) -> None:
        """Note which defaults are the effective options of these passes."""
        effective: dict[str, Json] = {}
        for instance in passes:
            options = options_of(type(instance))
            texts = self.defaults.get(instance.name, {})
            # An option that the command line or a preset sets to another value did not come from there.
            held = {key: text for key, text in texts.items() if options[key].read(text) == getattr(instance, key)}
            if held:
                effective[instance.name] = held
        if effective:
            self.used["options"] = effective

    # Files.

    def load(self, path: str) -> Program:
        """Read a graph, trusting the file with code of its choice only when told to. Ops that it calls are those of
        PyTorch, of the modules that were named to be imported, and those that a file describes.
        """
        from commcc import serialization

        program = serialization.load(path, trust=self.trust, descriptions=self.descriptions())
        if self.imports and self.ops is not None:
            from commcc.serialization.op_files import check

            for name in check(program, self.descriptions().values()):
                self.note(f"{name} could not be run here: its description in {self.ops} is believed")
        return program

    @property
    def ops_file(self) -> str | None:
        """The file that describes ops, for processes that may run in another folder."""
        return None if self.ops is None else str(Path(self.ops).resolve())

    def descriptions(self) -> dict[str, Description]:
        """Ops that a file describes, by name; the modules that register ops are imported before."""
        if self._descriptions is None:
            from commcc.serialization.op_files import read_with

            self._descriptions = read_with(self.ops, self.imports)
        return self._descriptions

    def output(self, path: str, extensions: Sequence[str], flag: str = "-o") -> Path:
        """The path to write to; refused before any work is done if the writer would refuse it after."""
        target = Path(path)
        if not target.name.lower().endswith(tuple(extensions)):
            raise OutputError("unknown extension", where=path, hint=f"use {', '.join(extensions)}")
        for source in self.inputs:
            if source.exists() and target.exists() and same_file(target, source):
                raise OutputError("would overwrite the input", where=path, hint=f"choose another name with {flag}")
        if target.is_dir():
            raise OutputError("is a folder", where=path, hint=f"name a file with {flag}")
        check_folder(target.parent, path, f"choose another with {flag}")
        return target

    def report_file(self, path: str | None, extensions: Sequence[str], flag: str) -> Path | None:
        """As :meth:`output`, of a file that need not be asked for."""
        return None if path is None else self.output(path, extensions, flag)

    # The result, on standard output.

    def emit(self, document: dict[str, Json], *, brief: str | Sequence[str], view: View) -> None:
        """Print the result in the form that was asked for.

        brief: the one line of ``--quiet``, or several. view: draws the document for people; it gets one in which every
        text is on one line and without control characters. Defaults of the configuration that took effect are part of
        the result: ``config`` in JSON, a line below the tables.
        """
        if self.used and self.config is not None:
            document["config"] = {"file": self.config.path, "used": self.used}
        if self.json:
            self.write(json_text(document))
        elif self.quiet:
            lines = [brief] if isinstance(brief, str) else brief
            self.write(without_commands("".join(f"{one_line(line)}\n" for line in lines)))
        else:
            from commcc.report.console import config_line, drawn

            safe = escaped(document)
            shown = [*view(safe), *([config_line(safe["config"])] if "config" in safe else [])]
            self.write(without_commands(drawn(_console(sys.stdout), shown)))

    def write(self, text: str) -> None:
        """Print a result that has a form of its own."""
        if self.silent:
            return
        self._written = self._written or bool(text)
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise OutputClosedError from error
        except OSError as error:
            abandon_stdout()
            raise OutputError(f"cannot be written: {error.strerror}", where="standard output") from None

    def emit_error(self, command: str, error: CommccError) -> None:
        """With ``--json``, in place of the result that there is none of: what went wrong, as a document."""
        if not self._written:
            kind = type(error).__name__.removesuffix("Error").lower()
            said: dict[str, Json] = {
                "kind": kind if kind != "commcc" else "setup",
                "message": error.render(),
                "what": error.what,
                "where": error.where,
                "hint": error.hint,
                "exit_code": error.exit_code,
            }
            self.write(json_text({"schema": 1, "command": command, "error": said}))

    # Everything else, on standard error.

    def note(self, text: str) -> None:
        """Something the user may want to know; not shown with ``--quiet``."""
        if not self.quiet:
            self._say("note", "cyan", text)

    def warn(self, text: str) -> None:
        """Something the user should act on; always shown."""
        self._say("warning", "yellow", text)

    def error(self, text: str) -> None:
        """Why the command failed, on one line."""
        self._say("commcc: error", "bold red", text)

    def report_notes(self, notes: Iterable[Note], source: str = "") -> None:
        """Notes of a reader or writer; equal ones are said once, with their number and the first node."""
        counts: dict[str, list[str]] = {}
        for note in notes:
            counts.setdefault(note.text, []).append(note.node or "")
        for text, nodes in counts.items():
            named = not nodes[0] or re.search(rf"(?<!\w){re.escape(nodes[0])}(?!\w)", text)
            where = "" if named else f"{nodes[0]}: "
            more = f" ({len(nodes):,} times)" if len(nodes) > 1 else ""
            self.note(f"{source}{where}{text}{more}")

    def report_costs(self, hints: Mapping[str, int], *snapshots: Snapshot, brief_has_times: bool = False) -> None:
        """One note on the sizes that hints stand for, a warning for each assumption and each useless hint.

        What the model assumed is not said with ``--quiet``, unless the one line that it prints has times.
        """
        from commcc.report.documents import hints_note
        from commcc.timing.snapshot import cost_warnings, hints_used, sizes_without_hint

        used = hints_used(*snapshots)
        note = hints_note(used)
        if note is not None:
            self.note(note)
        assumed = () if self.quiet and not brief_has_times else cost_warnings(*snapshots)
        arrivals = [snapshot.index.names[i] for snapshot in snapshots for i in snapshot.index.estimates.arrivals]
        symbols = [*(hint.symbol for hint in used), *sizes_without_hint(*snapshots), *arrivals]
        self.warn_of_costs(hints, symbols, assumed)

    def warn_of_costs(self, hints: Mapping[str, int], symbols: Sequence[str], assumed: Iterable[str]) -> None:
        """Warn of hints that fit none of the symbols, and of what the cost model had to assume."""
        of_config = self.used.get("hints")
        for pattern in hints:
            # Hints of the configuration need not fit every graph of the project.
            if isinstance(of_config, dict) and pattern in of_config:
                continue
            if not any(fnmatchcase(symbol, pattern) for symbol in symbols):
                near = closest(pattern, symbols) or (f"; there are {listed(symbols)}" if symbols else "; there is none")
                self.warn(f"hint '{pattern}' fits no size that is known only at run time{near}")
        for text in assumed:
            self.warn(f"cost model: {text}")

    @contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show a spinner if the work inside takes long; the value changes its text, :mod:`commcc.base.progress` adds to
        it.
        """
        if self.quiet or not sys.stderr.isatty():
            yield lambda _text: None
            return
        from commcc.base.progress import shown

        spinner = _Spinner(text)
        # A line in the middle of the spinner's would be drawn over.
        self._held = []
        try:
            with shown(spinner.update) as say:
                yield say
        finally:
            spinner.stop()
            held, self._held = self._held, None
            for label, style, said in held:
                self._say(label, style, said)

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
            # The work may have ended between the timer's last look and the lock.
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
