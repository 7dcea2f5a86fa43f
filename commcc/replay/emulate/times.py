"""How long emulated collectives are to take, and how long they took.

::

    durations = Durations(prepared.index, load_model("h100"))
    durations.stream(node)                # 'network': the stream of its group
    durations.ns(node, sent=4096, received=32768)

    totals = [CommTotals.of(transport.take_times()), ...]             # of each repetition
    totals_json(totals)     # {"launches": 34, "modelled_ms": 8.42, "took_ms": 8.421}

A collective of the size that the graph states has the price that the simulator uses. One whose size is known only at
run time is priced when it runs, once for each size.

Limits: the model's slow-down of compute beside communication is not part of a collective's time. Of runs that count
only the sums are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.base.terms import Json
    from commcc.graph.index import GraphIndex
    from commcc.timing.cost import CostModel, Costs, Transfer

#: From which share on communication is late enough to be told.
_LATE = 1.1


@dataclass(frozen=True)
class Durations:
    """Prices of the launches of one graph, given by their node number."""

    index: GraphIndex
    model: CostModel
    _seen: dict[Transfer, int] = field(default_factory=dict)

    @cached_property
    def costs(self) -> Costs:
        return self.model.price(self.index)

    def stream(self, node: int) -> str:
        """The stream that its group waits in; groups that share a link have one."""
        group = self.index.launches[node].group
        return self.costs.lanes.get(group, group)

    def ns(self, node: int, sent: int, received: int) -> int:
        """Nanoseconds of a launch that sends and receives this many bytes on each rank."""
        stated = self._stated[node]
        if (stated.input_bytes, stated.output_bytes) == (sent, received):
            return self.costs.ns[node]
        real = replace(stated, input_bytes=sent, output_bytes=received)
        if real not in self._seen:
            self._seen[real] = self.model.transfer(real).ns
        return self._seen[real]

    @cached_property
    def _stated(self) -> dict[int, Transfer]:
        return {node: self.model.transfer_of(self.index, node)[0] for node in self.index.launches}


class CommTime(NamedTuple):
    """One collective. took_ns: from start to end, as measured; more than modelled where writing its result took longer
    than the modelled time.
    """

    modelled_ns: int
    took_ns: int


@dataclass(frozen=True)
class CommTotals:
    """The sums over all collectives of one run."""

    launches: int
    modelled_ns: int
    took_ns: int

    @staticmethod
    def of(run: Mapping[str, CommTime]) -> CommTotals:
        """The sums of one run, given by node."""
        times = run.values()
        return CommTotals(len(run), sum(t.modelled_ns for t in times), sum(t.took_ns for t in times))


def totals_json(runs: Sequence[CommTotals]) -> dict[str, Json] | None:
    """Medians of all repetitions, milliseconds; None where nothing was emulated."""
    if not runs:
        return None
    return {
        "launches": runs[0].launches,
        "modelled_ms": round(median(run.modelled_ns for run in runs) / 1e6, 6),
        "took_ms": round(median(run.took_ns for run in runs) / 1e6, 6),
    }


def remarks(world: int, model: str, graphs: Sequence[Sequence[CommTotals]]) -> tuple[str, ...]:
    """What the reader of an emulated bench must know."""
    told = [
        f"one process stands for {world} {'rank' if world == 1 else 'ranks'}: it receives what it would if all others"
        " sent what it sends",
        f"communication is emulated: its times are modelled ({model}), and only compute, copies and launches measured",
    ]
    for number, runs in enumerate(graphs, 1):
        took = median([run.took_ns for run in runs] or [0])
        modelled = median([run.modelled_ns for run in runs] or [0])
        if took > _LATE * modelled:
            told.append(
                f"graph {number}: communication took {took / 1e6:,.3f} ms where {modelled / 1e6:,.3f} ms are modelled:"
                " results could not be written in that time here"
            )
    return tuple(told)
