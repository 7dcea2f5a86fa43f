"""Which op the time of a trace belongs to.

    for key, arguments, ns in op_times(trace): ...

    aten::linear ------------------      CPU only: linear 18 us, addmm 12 us (each with what it calls)
      aten::t --   aten::addmm -----     GPU: a kernel of 500 us launched in addmm counts 500 us for addmm
                       launch            and 500 us for linear, once each

A trace where anything ran on a device counts kernels, copies and fills, wherever on the device they
ran; an op that launched none gives nothing. Otherwise an op counts its duration on the CPU. Kernels of
collectives count for no op. An op inside a call of the same op with the same inputs is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commcc.timing.cost.profiles.measured import OpKey
    from commcc.timing.cost.profiles.trace import Call, Trace


def op_times(trace: Trace) -> Iterator[tuple[OpKey, str, int]]:
    """Every call of an op that can be matched: its key, its other arguments and its time in ns."""
    for calls in trace.calls.values():
        yield from _thread_times(calls, on_device=trace.on_device)


@dataclass(slots=True)
class _Open:
    """A call that has not ended yet, with the device work of what it called so far."""

    call: Call
    outermost: bool
    ns: int
    launched: int


def _thread_times(calls: list[Call], *, on_device: bool) -> Iterator[tuple[OpKey, str, int]]:
    """Calls of one thread; a call is inside another that began no later and has not ended."""
    stack: list[_Open] = []
    keys: set[OpKey] = set()

    def close() -> Iterator[tuple[OpKey, str, int]]:
        done = stack.pop()
        if stack:
            stack[-1].ns += done.ns
            stack[-1].launched += done.launched
        call = done.call
        if call.key is None or not done.outermost:
            return
        keys.discard(call.key)
        if not on_device:
            yield call.key, call.arguments, call.end - call.start
        elif done.launched:
            yield call.key, call.arguments, done.ns

    # Of two that begin together the longer is outside, and of two alike the one with the lower id.
    for call in sorted(calls, key=lambda call: (call.start, -call.end, call.external)):
        while stack and stack[-1].call.end <= call.start:
            yield from close()
        stack.append(_Open(call, call.key not in keys, call.own_ns, call.launched))
        if call.key is not None:
            keys.add(call.key)
    while stack:
        yield from close()
