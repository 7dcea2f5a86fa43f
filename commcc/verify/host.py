"""Copies to the host that nobody has waited for: reading one too early is an event.

::

    a = _to_copy(x, device=cpu, non_blocking=True)     on its way
    b = _to_copy(y, device=cpu)                        the host waits: a has arrived
    n = item(a)                                        fine here; ahead of b it would be a finding

A copy is therefore the same term whether it blocks or not. Asking for a number on a device waits as well.
Views do not read. Limits: where the device of an operand is not known, nothing waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.graph.ops import aliasing, is_host_sync
from commcc.verify.shapes import to_host
from commcc.verify.values import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx

    from commcc.verify.trace import Tracer


class HostCopies:
    """Storages on the host that a copy may still be filling, each with the copy's name and content."""

    def __init__(self) -> None:
        self.coming: dict[int, tuple[str, int]] = {}

    def copied(self, path: str, node: fx.Node, arguments: dict[str, Any], made: Tensor) -> None:
        """Take note of a conversion that has been made."""
        source = arguments.get("self")
        if path != "aten._to_copy.default" or not to_host(arguments) or not _on_device(source):
            return
        if arguments.get("non_blocking"):
            self.coming[made.root] = (node.name, made.content)
        else:
            self.coming.clear()

    def asked(self, node: fx.Node, operands: Iterable[Tensor]) -> None:
        """Take note of an op that may make the host wait for its operands."""
        if self.coming and is_host_sync(node.target) and any(map(_on_device, operands)):
            self.coming.clear()

    def check(self, tracer: Tracer, tensor: Tensor, reader: fx.Node) -> None:
        """Report a read of what has not arrived."""
        copy = self.coming.get(tensor.root)
        if copy is None or (reader.op == "call_function" and aliasing(reader.target).views):
            return
        text = f"reads '{copy[0]}' before the host has waited for that copy"
        tracer.event("wait", reader, text, ("early", copy[1], str(reader.target)))


def _on_device(value: object) -> bool:
    return isinstance(value, Tensor) and value.meta.device is not None and not value.meta.device.startswith("cpu")
