"""What a long computation is doing, told from deep inside to whoever shows it.

    with shown(spinner.update) as say:          # a command
        say("reorder: planning")
        detail("schedule 3 of at most 40")      # the search: "reorder: planning: schedule 3 of at most 40"
        with detailed("compiling"): ...         # and behind it what was shown before

Nobody has to listen: without :func:`shown` nothing happens. What is told never changes what is computed.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Shown:
    """text: what a command does. detail: what goes on inside of it."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self.show = show
        self.text = self.detail = ""

    def say(self, text: str) -> None:
        self.text, self.detail = text, ""
        self.show(text)

    def tell(self, detail: str) -> None:
        self.detail = detail
        self.show(": ".join(filter(None, (self.text, detail))))


_CURRENT: ContextVar[_Shown | None] = ContextVar("progress", default=None)


@contextmanager
def shown(show: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Pass what is told inside to ``show``; the value is told what the command itself does."""
    current = _Shown(show)
    before = _CURRENT.set(current)
    try:
        yield current.say
    finally:
        _CURRENT.reset(before)


def detail(text: str) -> None:
    """Tell what goes on inside of what the command said last."""
    current = _CURRENT.get()
    if current is not None:
        current.tell(text)


@contextmanager
def detailed(text: str) -> Iterator[None]:
    """As :func:`detail` for the block, and then again what was told before it."""
    current = _CURRENT.get()
    if current is None:
        yield
        return
    before = current.detail
    current.tell(text)
    try:
        yield
    finally:
        current.tell(before)
