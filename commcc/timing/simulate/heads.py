"""The earliest moment at which each event of a graph can begin, in any order of the graph.

    heads(Events.of(index, costs))              # for each event, ns from the start of the step
    heads(Events.of(index, costs).mirrored())   # for each event, ns that must follow its end

Two rules, applied to the events in order, so that each uses the results of all before it:

path
    An event begins after each event before it has begun and taken its time.
one machine
    Take the ancestors of an event that run on one machine and cannot begin before ``t``. They run one
    at a time and all end before the event begins, so it begins no earlier than ``t`` and all their
    times together. The best ``t`` is the head of one of them.

The second rule is what two branches, each of them short, cost when they meet. It is applied where it
can say something new: for the compute stream at transfers, for other streams at events at which branches with
different transfers meet.

Ancestors are kept in one bit each, and only the last few thousand of each machine, so that time and
memory grow with the graph and not with its square. What is forgotten makes a head smaller, never wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commcc.base.gc_pause import no_collection
from commcc.timing.simulate import heads_kernels
from commcc.timing.simulate.events import STREAM

if TYPE_CHECKING:
    from commcc.timing.simulate.events import Events

#: Ancestors on the compute stream that are remembered, at least; up to twice as many are.
STREAM_WINDOW = 4096
#: The same for a stream of collectives.
COLLECTIVE_WINDOW = 1024
#: From so many events on compiling a kernel pays.
_MANY = 5000


@no_collection()
def heads(events: Events) -> list[int]:
    """For each event a time before which it cannot begin, whatever the order."""
    if len(events.ns) >= _MANY:
        return heads_kernels.heads(events, (STREAM_WINDOW, COLLECTIVE_WINDOW))
    walk = _Walk(events)
    for event in events.order:
        walk.visit(event)
    return walk.head


@dataclass
class _Machine:
    """Events of one machine in the order of the walk: heads and loads; the first ``begin`` are forgotten."""

    head: Any
    load: Any
    window: int
    begin: int = 0
    end: int = 0


class _Walk:
    """ancestors[event]: for each machine the bits of the event and of what must end before it.

    Only events that others still ask for are in it, so that forgetting does not go through the whole graph.
    """

    def __init__(self, events: Events) -> None:
        import numpy as np

        self.events = events
        self.head = [0] * len(events.ns)
        self.ancestors: dict[int, dict[int, int]] = {}
        self.waiting = [0] * len(events.ns)
        for sources in events.before:
            for source in sources:
                self.waiting[source] += 1
        counts = [0] * events.machines
        for machine, load in zip(events.machine, events.load, strict=True):
            counts[machine] += load > 0
        windows = [STREAM_WINDOW] + [COLLECTIVE_WINDOW] * (events.machines - 1)
        self.machines = [
            _Machine(np.zeros(count, np.int64), np.zeros(count, np.int64), window)
            for count, window in zip(counts, windows, strict=True)
        ]

    def visit(self, event: int) -> None:
        ns, ancestors = self.events.ns, dict[int, int]()
        head, met = 0, set[int]()
        for source in self.events.before[event]:
            head = max(head, self.head[source] + ns[source])
            for machine, bits in self.ancestors[source].items():
                known = ancestors.get(machine, 0)
                if known | bits == bits:
                    met.discard(machine)
                    ancestors[machine] = bits
                elif known | bits != known:
                    met.add(machine)
                    ancestors[machine] = known | bits
            self.waiting[source] -= 1
            if not self.waiting[source]:
                # Nobody will ask for these ancestors again.
                del self.ancestors[source]
        # At a transfer the compute stream is asked even where no branches meet: what is before ran there, one by one.
        if event >= self.events.nodes:
            met.add(STREAM)
        else:
            met.discard(STREAM)
        for machine in met:
            if machine in ancestors:
                head = max(head, _one_after_another(self.machines[machine], ancestors[machine]))
        self.head[event] = head
        if self.waiting[event]:
            self.ancestors[event] = ancestors
        if self.events.load[event]:
            self._remember(event, ancestors)

    def _remember(self, event: int, ancestors: dict[int, int]) -> None:
        """Give the event a bit of its machine, in ``ancestors``."""
        number = self.events.machine[event]
        machine = self.machines[number]
        # Bits are dropped a window at a time, so that shifting costs next to nothing for each event.
        if machine.end - machine.begin == 2 * machine.window:
            machine.begin += machine.window
            for known in self.ancestors.values():
                if number in known:
                    known[number] >>= machine.window
        machine.head[machine.end] = self.head[event]
        machine.load[machine.end] = self.events.load[event]
        ancestors[number] = ancestors.get(number, 0) | 1 << (machine.end - machine.begin)
        machine.end += 1


def _one_after_another(machine: _Machine, bits: int) -> int:
    """When the machine is done with the events in ``bits`` at the earliest."""
    import numpy as np

    raw = np.frombuffer(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), dtype=np.uint8)
    chosen = np.flatnonzero(np.unpackbits(raw, bitorder="little")) + machine.begin
    if not len(chosen):
        return 0
    head = machine.head[chosen]
    latest_first = np.argsort(head, kind="stable")[::-1]
    return int((head[latest_first] + np.cumsum(machine.load[chosen][latest_first])).max())
