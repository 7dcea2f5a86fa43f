"""A lower bound from one collective and the compute that may run beside it.

    beside(events, heads, tails, least)             # compute before a collective
    beside(events.mirrored(), tails, heads, least)  # and behind one

The last reduction of a backward graph begins when its gradient is ready. What else the compute stream could do
meanwhile leads to reductions too, which then come behind the last one: where they take longer than that compute, it had
better run before. Heads and tails do not see that, since for each of these gradients alone there is another one that
could be the last.

Take a transfer t on a stream and any order of the graph. Let A be what ends on the compute stream after t begins; all
else there is over by then, so t begins no sooner than C - c(A), where C is all compute. Transfers on the same stream
that need something of A, L(A), begin after t does, and so after it has ended. The step is at least

    C - c(A) + r(t) + r(L(A)) + tail

with the least tail of t and of the transfers that t does not need. Which A an order has is not known, but t needs
nothing of it. To choose the A that makes this least is to select projects (c) that need tools (r), a maximum closure
(Picard 1976). A simpler choice gains no less: each compute event needs only one of the transfers on the stream that it
leads to, the longest. Then a transfer is paid for where the compute that needs it takes longer than it, and what leads
to none is all in A. Seen from the end of the step, A is what begins before t has ended, and L(A) what that needs.

Limits: a few transfers of each stream are tried, those that end last at the earliest; compute that leads to several
transfers of a stream counts as if it led to one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from commcc.base.jit import compiled, kernel
from commcc.timing.simulate.events import STREAM, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.timing.simulate.events import Events

#: Transfers that are tried: of each stream, and in all, one bit of a word each.
_TRIED, _BITS = 4, 48
#: From so many events on compiling kernels pays.
_MANY = 5000


class _Seen(NamedTuple):
    """needed: by event, the transfers tried that need it, a bit for each. leads: by machine and event, the transfer
    that it leads to there, -1 for none. tails: what follows each event. sums: by event, 0 between two calls.
    """

    needed: Any
    leads: Any
    tails: Any
    sums: Any


def beside(events: Events, heads: Sequence[int], tails: Sequence[int], least: int) -> int:
    """The bound in ns, ``least`` where it is no more. heads, tails: ns before each event and behind it, at least."""
    compute = sum(ns for ns, machine in zip(events.load, events.machine, strict=True) if machine == STREAM)
    tried = _tried(events, heads, tails, least - compute)
    if not tried:
        return least
    count, table = len(events.load), events.table
    needed = [0] * count
    for bit, transfer in enumerate(tried):
        needed[transfer] = 1 << bit
    numbers = needed, [-1] * (count * events.machines), list(tails), [0] * count
    lead, gained = _lead, _gained
    if count < _MANY:
        lead, gained = lead.python, gained.python  # type: ignore[assignment]
        seen, given = _Seen(*numbers), Table(*(c if isinstance(c, int) else c.tolist() for c in table))
    else:
        import numpy as np

        seen, given = _Seen(*(np.array(c, np.int64) for c in numbers)), table
    lead(given, seen, events.machines)
    for bit, transfer in enumerate(tried):
        gain, tail = gained(given, seen, bit, transfer)
        least = max(least, compute - gain + events.load[transfer] + tail)
    return least


def _tried(events: Events, heads: Sequence[int], tails: Sequence[int], more: int) -> list[int]:
    """Transfers that may take more than so many ns besides all compute, those that end last at the earliest first."""
    late: dict[int, list[tuple[int, int]]] = {}
    for event in events.transfers.values():
        if events.load[event] + tails[event] > more:
            late.setdefault(events.machine[event], []).append((-heads[event] - events.load[event], event))
    tried = [each for of_one in late.values() for each in sorted(of_one)[:_TRIED]]
    return [event for _, event in sorted(tried)[:_BITS]]


@kernel
def _lead(given: Table, seen: _Seen, machines: int) -> None:
    """Which transfers need each event, and which it leads to."""
    count = len(given.order)
    for back in range(count):
        event = given.order[count - 1 - back]
        if given.machine[event] != STREAM:
            seen.leads[given.machine[event] * count + event] = event
        for k in range(given.begins[event], given.begins[event + 1]):
            source = given.before[k]
            seen.needed[source] = seen.needed[source] | seen.needed[event]
            for row in range(count, machines * count, count):
                seen.leads[row + source] = _longer(given, seen.leads[row + source], seen.leads[row + event])


@compiled
def _longer(given: Table, one: int, other: int) -> int:
    """The transfer that takes longer, the first one where both do; -1 stands for none."""
    if other < 0 or (one >= 0 and given.load[one] >= given.load[other]):
        return one
    return other


@kernel
def _gained(given: Table, seen: _Seen, bit: int, transfer: int) -> tuple[int, int]:
    """What the compute beside a transfer may gain, all that others then take taken off, and the tail, in ns."""
    gained, tail, row = 0, seen.tails[transfer], given.machine[transfer] * len(given.order)
    for event in given.order:
        if (seen.needed[event] >> bit) & 1:
            continue
        if given.machine[event] == given.machine[transfer]:
            tail = min(tail, seen.tails[event])
        if given.machine[event] == STREAM:
            to = seen.leads[row + event]
            if to < 0:
                gained += given.load[event]
            else:
                seen.sums[to] += given.load[event]
    for event in given.order:
        gained += max(0, seen.sums[event] - given.load[event])
        seen.sums[event] = 0
    return gained, tail
