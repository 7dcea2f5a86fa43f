"""Work on large graphs without pauses of Python's garbage collector.

Usage::

    with no_collection():
        program = read(...)       # a third faster: nothing that is made here is garbage yet

    @no_collection()
    def build(program): ...

    context.with_resource(no_collection(stays=True))      # for the rest of a command

Limits: cycles that become garbage inside the block stay until after it, with ``stays`` until a full collection.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def no_collection(*, stays: bool = False) -> Iterator[None]:
    """Switch the collector off in the block, and on again after it if it was on.

    stays: what there is at the end of the block counts as old then, and is not looked through at once.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if stays and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        if was_enabled:
            gc.enable()
