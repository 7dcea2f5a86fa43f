"""The line of a model in a stack trace.

    innermost('  File "model.py", line 98, in forward\\n ...')        # 'model.py:98'

The innermost frame counts that was reached without going through PyTorch or other installed packages; calls of
modules do not count as going through.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.fx import Node

_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')
_CALL = re.compile(r"(^|[/\\])torch[/\\]nn[/\\]modules[/\\]module\.py$")
_FOREIGN = re.compile(r"(^|[/\\])(torch|site-packages|dist-packages)[/\\]")


def innermost(trace: str) -> str | None:
    """``llama.py:98`` of a stack trace, None when it has no frames."""
    chosen = None
    for file, line in _FRAME.findall(trace):
        if _CALL.search(file):
            continue
        if _FOREIGN.search(file) and chosen is not None:
            break
        chosen = f"{file}:{line}"
    return chosen


def source_of(node: Node) -> str | None:
    """The line that a node comes from; that of what it reads first where it has none of its own."""
    for origin in (node, *node.all_input_nodes[:1]):
        trace = origin.meta.get("stack_trace")
        if isinstance(trace, str) and (line := innermost(trace)) is not None:
            return line
    return None
