"""Consoles and tables as all reports use them.

On a terminal, tables fit its width; in a pipe or a file they are as wide as they need to be, without colours, so that
no cell is wrapped or cut, and :class:`Prose` is a page wide. Names from graphs are never read as markup; that they are
on one line and hold no control characters is seen to before a document is drawn (:func:`commcc.base.text.escaped`).
"""

from __future__ import annotations

import os
import re
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, TextIO

    from rich.console import ConsoleOptions, RenderableType, RenderResult
    from rich.table import Column

UNBOUNDED = 10_000
#: Width of prose where there is no terminal to say one.
PAGE = 100


def make_console(stream: TextIO) -> Console:
    """A console on ``stream``; ``NO_COLOR``, ``FORCE_COLOR``, ``TERM=dumb`` and ``COLUMNS`` work as usual."""
    # A pipe has no width: a table that wraps there could not be read by grep or cut.
    free = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(file=stream, width=UNBOUNDED if free else None, highlight=False, markup=False, emoji=False)


def drawn(console: Console, shown: Iterable[RenderableType]) -> str:
    """What the console would print, as a text; off a terminal without blanks at the ends of its lines."""
    with console.capture() as captured:
        for part in shown:
            console.print(part)
    text = captured.get()
    return text if console.is_terminal else "".join(line.rstrip() + "\n" for line in text.splitlines())


#: What a name may take of a terminal of 80 columns, next to four columns of numbers.
LONG_NAME = 36
#: Names that are folded to less than this cannot be read.
SHORT_NAME = 16


class Section(Table):
    """A table under a heading, which may be wider than the table."""

    heading: str = ""
    #: Columns that give way first, in this order, where the others would be cut or folded.
    spare: tuple[str, ...] = ()

    def add_text(self, *cells: str | Text | Settings) -> None:
        """Add a row. A column with a longer name than others have is folded, or its numbers would have no space."""
        row: list[Text | Folded] = []
        for column, cell in zip(self.columns, cells, strict=False):  # a row may be short
            folded = column.justify != "right" and column.overflow == "fold"
            if folded and (isinstance(cell, Settings) or len(cell) > LONG_NAME):
                column.no_wrap = False
            as_text = Words if folded and "\n" not in str(cell) else Text
            row.append(as_text(cell) if isinstance(cell, str) else cell)
        self.add_row(*row)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.heading:
            yield Text(self.heading, style="bold")
        shown, left_out = self._fitting(options.max_width)
        yield from super(Section, shown).__rich_console__(console, options)
        if left_out:
            yield Text(f"too narrow for {', '.join(left_out)}", style="dim")

    def _fitting(self, width: int) -> tuple[Section, list[str]]:
        """The table with the columns that fit, and the names of the others: numbers that are cut say nothing."""
        kept = list(range(len(self.columns)))
        whole = [min(_longest(column), LONG_NAME) + 2 for column in self.columns]
        for name in self.spare:
            if sum(whole[position] for position in kept) - 2 > width:
                kept = [position for position in kept if self.columns[position].header != name]
        least = [_least_width(column) + 2 for column in self.columns]
        for number in reversed(kept[1:]):
            if sum(least[position] for position in kept) - 2 > width and self.columns[number].justify == "right":
                kept.remove(number)
        if len(kept) == len(self.columns):
            return self, []
        shown = copy(self)
        shown.columns = [replace(self.columns[position], _index=place) for place, position in enumerate(kept)]
        return shown, [str(column.header) for number, column in enumerate(self.columns) if number not in kept]


def _least_width(column: Column) -> int:
    """What a column needs for its numbers, or to be read at all."""
    widest = _longest(column)
    return widest if column.justify == "right" else min(widest, SHORT_NAME)


def _longest(column: Column) -> int:
    """What a column takes where its cells stay as they are, or are folded between settings."""
    cells = [cell.longest if isinstance(cell, Settings) else str(cell) for cell in column._cells]
    return max(map(cell_len, [str(column.header), *cells]))


class Folded:
    """A cell whose lines end between the pieces of its text where it does not fit."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(cell_len(self.longest), cell_len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = ""
        for piece in self._pieces(options.max_width):
            if line and cell_len((line + piece).rstrip()) > options.max_width:
                yield Text(line.rstrip(), overflow="fold")
                line = ""
            line += piece
        yield Text(line.rstrip(), overflow="fold")

    @property
    def longest(self) -> str:
        """What takes most space of what stays on one line."""
        return max((piece.rstrip() for piece in self._pieces(0)), key=cell_len)

    def _pieces(self, width: int) -> list[str]:
        """What stays on one line. width: of the cell."""
        raise NotImplementedError


class Settings(Folded):
    """A pass with its options in a cell: a line ends behind an option and not within one."""

    def _pieces(self, width: int) -> list[str]:
        return re.findall(r"\([^)]*\)\s*|[^{,\s]+[{,]?\s*|\s+|[{,]", self.text) or [self.text]


class Words(Folded):
    """A text with names: a line ends between words, or behind a ``_``, ``.`` or ``/`` of a name that is too long."""

    def _pieces(self, width: int) -> list[str]:
        pieces: list[str] = []
        for word in re.findall(r"\S+\s*|\s+", self.text):
            fits = cell_len(word.rstrip()) <= width
            pieces += [word] if fits else re.findall(r"[^_./]*[_./]+\s*|[^_./]+", word)
        return pieces or [self.text]


class Prose:
    """What is read and not cut into columns by another program: it never is wider than a page off a terminal."""

    def __init__(self, *shown: RenderableType) -> None:
        self.shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = PAGE if options.max_width == UNBOUNDED else options.max_width
        for part in self.shown:
            yield from console.render(part, options.update(width=width))


def make_table(heading: str, *columns: str, numbers: tuple[str, ...] = (), whole: tuple[str, ...] = ()) -> Section:
    """A table with a plain header.

    Columns named in ``numbers`` are aligned to the right; these and the ones in ``whole`` give way
    last when the terminal is narrow.
    """
    table = Section(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="bold")
    table.heading = heading
    for name in columns:
        if name in numbers:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold", no_wrap=name in whole)
    return table


def config_line(config: Mapping[str, Any]) -> Text:
    """``defaults from commcc.yaml: cost a100, bucket{bucket_cap_mb=25}``, from ``config`` of a document."""
    parts = []
    for key, value in config["used"].items():
        if key == "options":
            for name, options in value.items():
                texts = {k: ":".join(map(str, v)) if isinstance(v, list) else v for k, v in options.items()}
                parts.append(f"{name}{{{','.join(f'{k}={v}' for k, v in texts.items())}}}")
        elif isinstance(value, dict):
            parts.append(f"{key} {' '.join(f'{name}={number}' for name, number in value.items())}")
        else:
            parts.append(f"{key} {value}")
    return Text(f"defaults from {config['file']}: {', '.join(parts)}", style="dim")


def cut_short(text: str) -> Text:
    """A cell that is cut short, not wrapped, where the terminal is too narrow."""
    return Text(text, no_wrap=True, overflow="ellipsis")
