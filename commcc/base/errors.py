"""Errors that commcc raises on purpose, with the exit code each one ends a command with.

Every message is one line that says what is wrong, where, and what to do about it::

    model.pt2: models/model.json: node 'mm_3' uses 'x9' before it is defined; dump the graph again

Anything else that escapes is a bug in commcc (exit code 3).
"""

from __future__ import annotations

import difflib
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EXIT_OK = 0
EXIT_FINDINGS = 1
EXIT_USAGE = 2
EXIT_BUG = 3


class CommccError(Exception):
    """Base of all deliberate errors; ``exit_code`` is what the command line returns."""

    exit_code = EXIT_USAGE

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.what = what
        self.where = where
        self.hint = hint
        super().__init__(self.render())

    def render(self) -> str:
        """The whole message on one line: ``where: what; hint``."""
        text = self.what if self.where is None else f"{self.where}: {self.what}"
        if self.hint is not None:
            text = f"{text}; {self.hint}"
        return " ".join(text.split())


class InputError(CommccError):
    """A file that cannot be read, or that does not describe a graph."""


class OptionError(CommccError):
    """Wrong options; all that are wrong are named in one message."""


class OutputError(CommccError):
    """A result that cannot be written in the format asked for."""


class GraphError(CommccError):
    """A graph that was read but breaks a rule that every pass relies on."""


class VerifyError(CommccError):
    """A rewritten graph that is not the same program as the graph it came from."""

    exit_code = EXIT_FINDINGS


class FindingError(CommccError):
    """Something that was asked to be an error: a pass that changed nothing, a figure above its limit."""

    exit_code = EXIT_FINDINGS


class InternalError(CommccError):
    """A broken promise inside commcc."""

    exit_code = EXIT_BUG


def bug(error: Exception, traceback: str) -> InternalError:
    """An exception that nobody raised on purpose, in the words for one. traceback: what to do to see where it was."""
    detail = " ".join(f"{type(error).__name__}: {error}".split())
    return InternalError("bug in commcc, please report", hint=f"{traceback} ({detail[:300]})")


@contextmanager
def located(where: str) -> Iterator[None]:
    """Say of what is wrong with a file in the block that it is at ``where``, unless the error says so already."""
    try:
        yield
    except (InputError, GraphError) as error:
        if error.where is not None:
            raise
        raise InputError(error.what, where=where, hint=error.hint) from None


#: Characters of a word for which a near one is looked for.
_LONGEST_WORD = 64


def closest(word: str, known: Sequence[str]) -> str:
    """`` (did you mean 'x'?)``, or nothing when no known word is near: misspelt, or ``cap`` for ``bucket_cap_mb``."""
    # What is longer is no slip of the finger, and comparing takes the product of both lengths.
    if len(word) > _LONGEST_WORD:
        return ""
    plain = {name.lstrip("-"): name for name in known}  # the dashes of flags would make all of them alike
    part = re.compile(rf"(?:^|[-_]){re.escape(word.strip('-_'))}(?:[-_]|$)")
    holding = [name for name in plain if part.search(name)] if word.strip("-_") else []
    near = [plain[name] for name in difflib.get_close_matches(word.lstrip("-"), plain, n=1) or holding[:1]]
    return f" (did you mean '{near[0]}'?)" if near else ""
