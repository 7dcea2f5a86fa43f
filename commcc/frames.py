"""The line of a model in a stack trace.

    innermost('  File "model.py", line 98, in forward\\n ...')        # 'model.py:98'

The innermost frame outside PyTorch and other installed packages counts.
"""

from __future__ import annotations

import re

_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')
_FOREIGN = re.compile(r"(^|[/\\])(torch|site-packages|dist-packages)[/\\]")


def innermost(trace: str) -> str | None:
    """``layers/attention.py:98``; None when the text holds no frame."""
    frames = _FRAME.findall(trace)
    own = [frame for frame in frames if not _FOREIGN.search(frame[0])]
    chosen = (own or frames)[-1:]
    return f"{chosen[0][0]}:{chosen[0][1]}" if chosen else None
