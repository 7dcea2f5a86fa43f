"""A drawing of the compute stream and of a collective's queue, as wide as the terminal.

              L                              E
    compute   =====..........................======
    group 0        ##########################

Cells are stretches of equal time; a cell shows what fills most of it, and the collective wherever it
takes any of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.measure import Measurement
from rich.text import Text

from commcc.base.text import milliseconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

WIDEST = 100
NARROWEST = 20
SIGNS = {"compute": ("=", "green"), "stall": (".", "red"), "this": ("#", "bold cyan"), "other": ("-", "dim")}
LEGEND = "= compute  . compute stands still  # this collective  - others in its queue"


class Drawing:
    """Both streams around one collective; ``each`` is its JSON."""

    def __init__(self, each: Mapping[str, Any]) -> None:
        self.each = each
        self.picture = each["picture"]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(NARROWEST, min(WIDEST, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lane = self.each["lane"]
        label = f"group {lane}" if lane == self.each["group"] else lane
        label = label if len(label) <= 16 else f"{label[:13]}..."
        indent = 4 + max(len("compute"), len(label))
        cells = max(NARROWEST, min(WIDEST, options.max_width) - indent)
        rows = (("", self._marks(cells)), ("compute", self._row("compute", cells)), (label, self._row("lane", cells)))
        for name, row in rows:
            yield Text.assemble("  ", (name.ljust(indent - 2), "dim"), row, no_wrap=True, overflow="crop")
        yield Text(f"  {LEGEND}", style="dim")
        yield Text(f"  {self._times()}")

    def _cell(self, ms: float, cells: int) -> int:
        start, end = self.picture["start_ms"], self.picture["end_ms"]
        return min(cells - 1, max(0, int((ms - start) / max(1e-9, end - start) * cells)))

    def _row(self, stream: str, cells: int) -> Text:
        row = [" "] * cells
        for what, signs in _layers(self.picture[stream]):
            for begin, end in signs:
                first, last = self._cell(begin, cells), self._cell(end, cells)
                row[first : max(first + 1, last)] = what * max(1, last - first)
        styles = dict(SIGNS.values())
        return Text.assemble(*((sign, styles.get(sign, "")) for sign in row))

    def _marks(self, cells: int) -> Text:
        """``L`` launched, ``W`` waited for, ``E`` ended; a mark moves right where its cell is taken."""
        row = [" "] * cells
        for sign, ms in self._events():
            at = self._cell(ms, cells)
            free = [cell for cell in range(at, cells) if row[cell] == " "] or [cells - 1]
            row[free[0]] = sign
        return Text("".join(row), style="bold")

    def _events(self) -> list[tuple[str, float]]:
        timing = self.each["timing"]
        events = [("L", timing["launched_at_ms"]), ("W", timing["wait_at_ms"]), ("E", timing["end_ms"])]
        shown = [(sign, ms) for sign, ms in events if ms is not None]
        inside = [(sign, ms) for sign, ms in shown if ms <= self.picture["end_ms"]]
        return sorted(inside, key=lambda event: event[1])

    def _times(self) -> str:
        timing = self.each["timing"]
        parts = [f"L launched {milliseconds(timing['launched_at_ms'])}"]
        if timing["queued_ms"]:
            parts.append(f"queued for {milliseconds(timing['queued_ms'])}")
        if timing["wait_at_ms"] is not None:
            parts.append(f"W waited for from {milliseconds(timing['wait_at_ms'])}")
        return ", ".join([*parts, f"E ended {milliseconds(timing['end_ms'])}"])


def _layers(segments: Sequence[Sequence[Any]]) -> list[tuple[str, list[tuple[float, float]]]]:
    """Signs in the order in which they are drawn: this collective last, so that it is never hidden."""
    order = ("other", "compute", "stall", "this")
    return [(SIGNS[what][0], [(s[1], s[2]) for s in segments if s[0] == what]) for what in order]
