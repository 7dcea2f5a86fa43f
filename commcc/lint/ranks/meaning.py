"""What a value is, as a digest: the expression over the graph's inputs that makes it.

    wait_tensor(all_gather_into_tensor(_to_copy(primals_3)))    and, on another rank,
    wait_1 = wait_tensor(ag_7) with ag_7 of _to_copy(arg2_1)    have one digest when both inputs are third

Names of nodes and groups, device numbers and metadata do not count. Limits: what a buffer holds after a write in
place is not told from what it held before; a number that differs from rank to rank (where a shard begins) makes
another expression of all that depends on it.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.graph import ops

if TYPE_CHECKING:
    from collections.abc import Sequence

_DEVICE = re.compile(r"\b(cuda|xpu|hpu|npu|mtia|privateuseone):\d+")
_GROUPS = ("group_name", "process_group")


def meanings(nodes: Sequence[fx.Node]) -> dict[fx.Node, str]:
    """A digest for every node."""
    found: dict[fx.Node, str] = {}
    inputs = 0
    for node in nodes:
        if node.op == "placeholder":
            text, inputs = f"input {inputs}", inputs + 1
        elif node.op == "call_function":
            text = _call(node, found)
        else:
            text = f"{node.op} {node.target}"
        found[node] = _digest(text)
    return found


def sent_by(node: fx.Node, argument: str, known: dict[fx.Node, str]) -> str:
    """A digest of what a launch sends."""
    return _digest(f"{ops.op_name(node.target)} {_text(ops.argument(node, argument), known)}")


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def _call(node: fx.Node, known: dict[fx.Node, str]) -> str:
    names = ops.argument_names(node.target)
    group = {i for i, name in enumerate(names) if name in _GROUPS} if len(names) >= len(node.args) else set()
    positional = (_text(value, known) for i, value in enumerate(node.args) if i not in group)
    keywords = (f"{key}={_text(value, known)}" for key, value in sorted(node.kwargs.items()) if key not in _GROUPS)
    overload = getattr(node.target, "_overloadname", "")
    return f"{ops.op_name(node.target)}.{overload}({', '.join((*positional, *keywords))})"


def _text(value: Any, known: dict[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return f"%{known[value]}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_text(each, known) for each in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_text(each, known)}' for key, each in value.items())}}}"
    if isinstance(value, torch.device):
        return value.type
    if isinstance(value, str):
        return _DEVICE.sub(r"\1", value)
    return repr(value)
