"""Work on large graphs without pauses of Python's garbage collector.

Usage::

    with no_collection():
        program = read(...)       # a third faster: nothing that is made here is garbage yet

    @no_collection()
    def build(program): ...

    context.with_resource(no_collection(stays=True))      # for the rest of a command

Nearly all that is made in a block is still there at its end, so that is not looked through then: it counts as old. Once
a million objects have gone that way, what is garbage by then is collected.

Limits: cycles that become garbage inside the block stay until then, with ``stays`` until Python collects all there is.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


#: Objects that were not looked through, and how many of them lead to a look at all there is. Python itself looks at all
#: when old ones have grown by a quarter.
_unseen, _MOST = 0, 1_000_000


@contextmanager
def no_collection(*, stays: bool = False) -> Iterator[None]:
    """Switch the collector off in the block, and on again after it if it was on.

    stays: nothing of it is looked through later, where the process ends soon.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled or stays:
            _keep(stays=stays)
        if was_enabled:
            gc.enable()


def _keep(*, stays: bool) -> None:
    """Count what there is as old, or look through all of it."""
    global _unseen
    if not stays:
        made = gc.get_count()[0]
        if made <= gc.get_threshold()[0]:  # nothing would be looked through
            return
        _unseen += made
        if _unseen > _MOST:
            _unseen = 0
            gc.collect()
            return
    if not gc.get_freeze_count():  # what others have frozen is to stay so
        gc.freeze()
        gc.unfreeze()
