"""Earliest times of the events of a large graph; kernels.

    heads(Events.of(index, costs), (4096, 1024))

The same as :func:`commcc.timing.simulate.heads.heads` gives, which says by which rules, and tested against it. It takes
a sixth of the time, once it is compiled, which takes as long as a graph of some thousand nodes without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from commcc.base.jit import compiled, kernel
from commcc.timing.simulate.events import STREAM

if TYPE_CHECKING:
    from commcc.timing.simulate.events import Events, Table

#: Bits in a word, which is 1 shifted by so much.
_SHIFT = 5
#: Of a machine: its words in a row of ancestors, its events among those of all machines, how many there are, the first
#: that is not forgotten, how many ancestors are remembered at least, and where those are listed by their heads.
_MACHINE = ("word", "words", "event", "events", "begin", "window", "listed")


class _Known(NamedTuple):
    """What is known so far. head, waiting (how many events still ask for its ancestors), row: by event. rows: of
    ancestors, a bit for each. unused: rows, as many as ``unused[-1]`` says. met: by machine. heads, loads: of the
    events of each machine in the order of the walk. listed: of those that are not forgotten, by rising heads.
    """

    head: Any
    waiting: Any
    row: Any
    rows: Any
    unused: Any
    met: Any
    machines: Any
    heads: Any
    loads: Any
    listed: Any


def heads(events: Events, windows: tuple[int, int]) -> list[int]:
    """For each event a time before which it cannot begin. windows: multiples of 32, see there; of the compute stream
    and of each other one.
    """
    import numpy as np

    given = events.table
    known = _known(events, given, np.array(windows[:1] + windows[1:] * (events.machines - 1), np.int64))
    _walk(given, known)
    times: list[int] = known.head.tolist()
    return times


def _known(events: Events, given: Table, windows: Any) -> _Known:
    import numpy as np

    count = len(given.ns)
    sizes = np.bincount(given.machine[given.load > 0], minlength=events.machines)
    machines = np.zeros(events.machines, np.dtype([(name, np.int64) for name in _MACHINE])).view(np.recarray)
    words = (2 * windows >> _SHIFT) + 1
    machines.words, machines.window = words, windows
    machines.word, machines.event, machines.listed = (np.cumsum(n) - n for n in (words, sizes, 2 * windows + 1))
    # A row is in use from its event to the last that asks for it.
    place, last = np.empty(count, np.int64), np.empty(count, np.int64)
    place[given.order] = last[given.order] = np.arange(count)
    np.maximum.at(last, given.before, np.repeat(place, np.diff(given.begins)))
    rows = (
        int(np.cumsum(np.bincount(place, minlength=count + 2) - np.bincount(last + 1, minlength=count + 2)).max()) + 1
    )
    numbers = (np.zeros(count, np.int64), np.bincount(given.before, minlength=count), np.zeros(count, np.int64))
    return _Known(
        *numbers,
        rows=np.zeros((rows, int(words.sum())), np.int64),
        unused=np.append(np.arange(rows), rows),
        met=np.zeros(events.machines, np.int64),
        machines=machines,
        heads=np.zeros(len(given.ns), np.int64),
        loads=np.zeros(len(given.ns), np.int64),
        listed=np.zeros(int((2 * windows + 1).sum()), np.int64),
    )


@kernel
def _walk(given: Table, known: _Known) -> None:
    for event in given.order:
        last = len(known.unused) - 1
        known.unused[last] -= 1
        known.row[event] = known.unused[known.unused[last]]
        head = _joined(given, known, event)
        for number in range(len(known.machines)):
            # At a transfer the compute stream is asked even where no branches meet: what is before ran there, one by
            # one.
            asked = int(event >= given.nodes) if number == STREAM else known.met[number]
            if asked:
                head = max(head, _one_after_another(known, known.machines[number], known.row[event]))
        known.head[event] = head
        if given.load[event]:
            _remember(known, known.machines[given.machine[event]], event, given.load[event])
        if not known.waiting[event]:
            _forget(known, event)


@compiled
def _joined(given: Table, known: _Known, event: int) -> int:
    """Ancestors of an event, and where branches with different ones meet; its head as far as paths tell."""
    row, head = known.row[event], 0
    for number in range(len(known.machines)):
        known.met[number] = 0
    for k in range(given.begins[event], given.begins[event + 1]):
        source = given.before[k]
        head = max(head, known.head[source] + given.ns[source])
        for number in range(len(known.machines)):
            machine, other = known.machines[number], known.row[source]
            mine, more = 0, 0  # what the one has and the other has not
            for word in range(machine.word, machine.word + machine.words):
                both = known.rows[row, word] | known.rows[other, word]
                mine += both - known.rows[other, word]
                more += both - known.rows[row, word]
                known.rows[row, word] = both
            if not mine:
                known.met[number] = 0
            elif more:
                known.met[number] = 1
        known.waiting[source] -= 1
        if not known.waiting[source]:
            _forget(known, source)
    return int(head)


@compiled
def _forget(known: _Known, event: int) -> None:
    """Nobody will ask for these ancestors again."""
    row, last = known.row[event], len(known.unused) - 1
    for word in range(len(known.rows[row])):
        known.rows[row, word] = 0
    known.unused[known.unused[last]] = row
    known.unused[last] += 1


@compiled
def _one_after_another(known: _Known, machine: Any, row: int) -> int:
    """When the machine is done with these of its events at the earliest."""
    best = load = 0
    for back in range(machine.events - machine.begin):
        event = known.listed[machine.listed + machine.events - machine.begin - 1 - back]
        bit = event - machine.begin
        if (known.rows[row, machine.word + (bit >> _SHIFT)] >> (bit & 31)) & 1:
            load += known.loads[machine.event + event]
            best = max(best, known.heads[machine.event + event] + load)
    return int(best)


@compiled
def _remember(known: _Known, machine: Any, event: int, load: int) -> None:
    """Give the event a bit of its machine, among its own ancestors."""
    # Bits are dropped a window at a time, so that shifting costs next to nothing for each event.
    if machine.events - machine.begin == 2 * machine.window:
        _drop(known, machine)
    number, head = machine.events, known.head[event]
    known.heads[machine.event + number], known.loads[machine.event + number] = head, load
    at = machine.listed + number - machine.begin
    while at > machine.listed and known.heads[machine.event + known.listed[at - 1]] > head:
        known.listed[at] = known.listed[at - 1]
        at -= 1
    known.listed[at] = number
    bit = number - machine.begin
    known.rows[known.row[event], machine.word + (bit >> _SHIFT)] += 1 << (bit & 31)
    machine.events += 1


@compiled
def _drop(known: _Known, machine: Any) -> None:
    """Forget the first events of a machine."""
    begin, words = machine.begin + machine.window, machine.window >> _SHIFT
    for row in range(len(known.rows)):
        for word in range(machine.word, machine.word + machine.words):
            here = word + words < machine.word + machine.words
            known.rows[row, word] = known.rows[row, word + words * here] * here
    kept = machine.listed
    for at in range(machine.listed, machine.listed + machine.events - machine.begin):
        if known.listed[at] >= begin:
            known.listed[kept] = known.listed[at]
            kept += 1
    machine.begin = begin
