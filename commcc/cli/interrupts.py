"""Ctrl-C while PyTorch is loaded ends the program at once.

Python raises ``KeyboardInterrupt`` wherever it is, and PyTorch's C++ code, which imports modules while it starts, does
not hand it on: it goes on with half a numpy, says that something is nested too deeply, or aborts. Nothing is open yet
then, and what a kill would leave behind is removed by the next run as always.

Limits: on the main thread, and where nobody has chosen another handler (``nohup``, a job in the background).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

EXIT_INTERRUPTED = 130
_LOADED = "torch"


def leave_while_loading() -> None:
    """From now on an interrupt ends the program at once while PyTorch is loaded, and raises as ever otherwise."""
    on_main = threading.current_thread() is threading.main_thread()
    if on_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)


def _interrupted(_number: int, frame: FrameType | None) -> None:
    if not loading(frame):
        raise KeyboardInterrupt
    with suppress(OSError, ValueError):
        sys.stderr.write("\n")  # the prompt comes behind the ^C of the terminal
        sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)


def loading(frame: FrameType | None) -> bool:
    """Whether the body of one of PyTorch's modules is running in this frame or one that called it."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if frame.f_code.co_name == "<module>" and module.partition(".")[0] == _LOADED:
            return True
        frame = frame.f_back
    return False
