"""Copies between the host and a device for which the host does not wait.

::

    a = _to_copy(x, device=cpu, non_blocking=True)     on its way
    b = _to_copy(y, device=cpu)                        the host waits: a has arrived
    n = item(a)                                        fine here; ahead of b it would be a finding

What such a copy fills is not there before the host has waited for its device, and what it sends must not be written
before. A copy that blocks, and what asks for a number on the device, wait for all copies from and to that one.

Limits: where the device of an operand is not known, the host waits for nothing. Memory on the host is taken to be
pinned: of other memory, PyTorch waits for the copy after all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from commcc.graph.index.host import same_device
from commcc.graph.ops import facts
from commcc.verify.terms import Tensor, all_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx

    from commcc.verify.memory import Memory
    from commcc.verify.terms import Value

#: What an op that copies is handed: what tells that it does not block, where it writes, what it copies.
_UNBLOCKED, _INTO, _SOURCES = "non_blocking", "src", ("src", "self", "a")


class Copy(NamedTuple):
    """A copy on its way: the node, what it brings, the device that it is from or to."""

    node: str
    content: int
    device: str


class HostCopies:
    """Storages on the host that copies may still be filling, or sending, each with the copy."""

    def __init__(self) -> None:
        self.coming: dict[int, Copy] = {}
        self.sending: dict[int, Copy] = {}

    def copied(self, node: fx.Node, arguments: dict[str, Any], result: Value) -> None:
        """Take note of what an op copied; one that blocks waits for all others."""
        if _UNBLOCKED not in arguments:
            return
        sources = all_tensors(next((arguments[name] for name in _SOURCES if name in arguments), ()))
        targets = all_tensors(arguments.get("self") if _INTO in arguments else result)
        for source, target in zip(sources, targets, strict=False):
            ends = source.meta.device, target.meta.device
            if None in ends or _on_device(source) == _on_device(target):
                continue
            device = str(ends[_on_device(target)])
            if not arguments[_UNBLOCKED]:
                self._arrived(device)
            elif _on_device(source):
                self.coming[target.root] = Copy(node.name, target.content, device)
            else:
                self.sending[source.root] = Copy(node.name, source.content, device)

    def asked(self, node: fx.Node, operands: Iterable[Tensor]) -> None:
        """Take note of an op that may make the host wait for its operands."""
        if (self.coming or self.sending) and facts(node.target).host_sync:
            for operand in filter(_on_device, operands):
                self._arrived(str(operand.meta.device))

    def uses(self, memory: Memory, written: Tensor) -> list[Copy]:
        """Copies that still fill or send these storages of the host, where what is written there is not a copy too."""
        if _on_device(written):
            return []
        on_their_way = (self.coming, self.sending)
        return [copy for copies in on_their_way for root, copy in copies.items() if memory.together(root, written.root)]

    def _arrived(self, device: str) -> None:
        for copies in (self.coming, self.sending):
            for root in [root for root, copy in copies.items() if same_device(copy.device, device)]:
                del copies[root]


def copies_across(arguments: dict[str, Any]) -> bool:
    """Whether an op with these arguments copies from one device to another, where that is known."""
    tensors = all_tensors(arguments)
    return _UNBLOCKED in arguments and len({_on_device(tensor) for tensor in tensors}) > 1


def _on_device(value: object) -> bool:
    return isinstance(value, Tensor) and value.meta.device is not None and not value.meta.device.startswith("cpu")
