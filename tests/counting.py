"""Work counted in calls, which are the same on every machine, where a time would depend on what else runs.

with at_most(20_000) as work:
    parse_text(text, "some.txt")
work.calls
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Work:
    """How many functions were called, those of Python and built-in ones."""

    calls: int = 0


@contextmanager
def at_most(calls: int) -> Iterator[Work]:
    """Fail as soon as the block makes more calls. Loops inside one built-in function count as one call."""
    work = Work()

    def count(_frame: object, event: str, _argument: Any) -> None:
        if event in ("call", "c_call"):
            work.calls += 1
            if work.calls > calls:
                sys.setprofile(None)
                raise AssertionError(f"more than {calls} calls")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield work
    finally:
        sys.setprofile(before)
