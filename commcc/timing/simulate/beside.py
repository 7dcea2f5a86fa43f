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

Shards that were reduced may be reduced among copies next, on another stream (HSDP). So take a transfer u on another
stream that needs t as well. It begins after t has ended, and so does whatever there needs one of L(A). The same holds
with r(t) + r(u) for r(t), and with what A leads to on u's stream through t's stream for L(A).

Limits: a few transfers of each stream are tried, those that end last at the earliest, and with those of other streams
the longest that needs them on the stream of the last of all; compute that leads to several transfers of a stream counts
as if it led to one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from commcc.base.jit import compiled, kernel
from commcc.timing.simulate.events import STREAM, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.timing.simulate.events import Events

#: Transfers that are tried: of each stream, and in all, one bit of a word each. With more streams than _STREAMS only
#: what is on one of them is looked at.
_TRIED, _BITS, _STREAMS = 4, 48, 4
#: From so many events on compiling kernels pays.
_MANY = 5000


class _Seen(NamedTuple):
    """needed: by event, the transfers tried that need it, a bit for each. leads: by row and event, the transfer that it
    leads to, -1 for none: on one stream (``on``) through another one (``via``), which may be the same one. tails: what
    follows each event. sums: by event, 0 between two calls.
    """

    needed: Any
    leads: Any
    tails: Any
    sums: Any
    via: Any
    on: Any


def beside(events: Events, heads: Sequence[int], tails: Sequence[int], least: int) -> int:
    """The bound in ns, ``least`` where it is no more. heads, tails: ns before each event and behind it, at least."""
    compute = sum(ns for ns, machine in zip(events.load, events.machine, strict=True) if machine == STREAM)
    tried = _tried(events, heads, tails, least - compute)
    if not tried:
        return least
    import numpy as np

    count = len(events.load)
    streams, last = range(1, events.machines), events.machine[tried[0]]
    rows = [(each, each) for each in streams]
    rows += [(each, last) for each in streams if each != last and len(streams) <= _STREAMS]
    needed, sums = np.zeros((2, count), np.int64)
    needed[tried] = 1 << np.arange(len(tried))
    given, (via, on) = events.table, np.ascontiguousarray(np.transpose(rows))
    seen = _Seen(needed, np.full(count * len(rows), -1), np.array(tails), sums, via, on)
    lead, gained = _lead, _gained
    if count < _MANY:
        lead, gained = lead.python, gained.python  # type: ignore[assignment]
        given, seen = Table(*map(_plain, given)), _Seen(*map(_plain, seen))
    lead(given, seen)
    for bit, transfer in enumerate(tried):
        for row in [row for row, (stream, _) in enumerate(rows) if stream == events.machine[transfer]]:
            end = int(seen.leads[row * count + transfer])
            if end >= 0:
                gain, tail = gained(given, seen, row, bit, end)
                ahead = events.load[transfer] if end != transfer else 0
                least = max(least, compute - gain + ahead + events.load[end] + tail)
    return least


def _plain(column: Any) -> Any:
    """For Python, which takes items out of lists in a fifth of the time."""
    return column if isinstance(column, int) else column.tolist()


def _tried(events: Events, heads: Sequence[int], tails: Sequence[int], more: int) -> list[int]:
    """Transfers that may take more than so many ns besides all compute, those that end last at the earliest first."""
    late: dict[int, list[tuple[int, int]]] = {}
    for event in events.transfers.values():
        if events.load[event] + tails[event] > more:
            late.setdefault(events.machine[event], []).append((-heads[event] - events.load[event], event))
    tried = [each for of_one in late.values() for each in sorted(of_one)[:_TRIED]]
    return [event for _, event in sorted(tried)[:_BITS]]


@kernel
def _lead(given: Table, seen: _Seen) -> None:
    """Which transfers need each event, and which it leads to."""
    count = len(given.order)
    for back in range(count):
        event = given.order[count - 1 - back]
        for row in range(len(seen.via)):
            if seen.via[row] == given.machine[event]:
                direct = seen.leads[(seen.on[row] - 1) * count + event]  # rows of one stream come first
                seen.leads[row * count + event] = event if seen.on[row] == seen.via[row] else direct
        for k in range(given.begins[event], given.begins[event + 1]):
            source = given.before[k]
            seen.needed[source] = seen.needed[source] | seen.needed[event]
            for row in range(0, len(seen.via) * count, count):
                seen.leads[row + source] = _longer(given, seen.leads[row + source], seen.leads[row + event])


@compiled
def _longer(given: Table, one: int, other: int) -> int:
    """The transfer that takes longer, the first one where both do; -1 stands for none."""
    if other < 0 or (one >= 0 and given.load[one] >= given.load[other]):
        return one
    return other


@kernel
def _gained(given: Table, seen: _Seen, row: int, bit: int, last: int) -> tuple[int, int]:
    """What the compute beside a transfer may gain, all that others then take taken off, and the tail, in ns. last: the
    transfer itself, or one behind it on another stream.
    """
    gained, tail, first = 0, seen.tails[last], row * len(given.order)
    for event in given.order:
        if (seen.needed[event] >> bit) & 1:
            continue
        if given.machine[event] == seen.on[row]:
            tail = min(tail, seen.tails[event])
        if given.machine[event] == STREAM:
            to = seen.leads[first + event]
            if to < 0 or to == last:
                gained += given.load[event]
            else:
                seen.sums[to] += given.load[event]
    for event in given.order:
        gained += max(0, seen.sums[event] - given.load[event])
        seen.sums[event] = 0
    return gained, tail
