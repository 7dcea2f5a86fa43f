"""The steps of a program with their collectives on emulated streams instead of process groups.

::

    transport = Transport(prepared, layout, model, streams)
    transport.prepared                   # to be run as rank 0
    place.synchronize()
    transport.take_times()               # {'all_gather_3': CommTime(modelled_ns=250_000, took_ns=250_000), ...}

    totals = [CommTotals.of(transport.take_times()), ...]             # of each repetition
    totals_json(totals)                  # {"launches": 34, "modelled_ms": 8.42, "took_ms": 8.421}

A launch returns its result at once; a wait for it, or for a view of it, waits for all that is on its way to that
storage. A collective that returns only when it is done is launched and waited for. A last step waits for what nobody
has waited for, so that a run ends when all of its communication has.

A collective of the size that the graph states has the price that the simulator uses. One whose size is known only at
run time is priced when it runs, once for each size.

Limits: the model's slow-down of overlapped compute is not part of a collective's time. Of runs that count
only the sums are kept. There is one process, which is rank 0 and whose peers send what it sends
(:mod:`commcc.replay.emulate.fills`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from commcc.graph.ops import argument, collective_of
from commcc.replay.emulate.fills import Peers, Receive, receive
from commcc.replay.emulate.streams import Pace, make_streams
from commcc.replay.prepare import Step
from commcc.replay.values import storage, tensors_in
from commcc.timing.cost.types import Transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from commcc.base.terms import Json
    from commcc.graph.index import GraphIndex
    from commcc.graph.ops.collective_table import CollectiveOp
    from commcc.replay.bench.graph_set import GraphSet
    from commcc.replay.emulate.streams import Stream, Streams
    from commcc.replay.layout import Layout
    from commcc.replay.place import Place
    from commcc.replay.prepare import Prepared
    from commcc.timing.cost import CostModel, Costs

_RANK = 0
_END = "end_of_communication"
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
        return self.costs.streams.get(group, group)

    def ns(self, node: int, sent: int, received: int) -> int:
        """Nanoseconds of a launch that sends and receives this many bytes on each rank."""
        stated = self._stated[node]
        if (stated.input_bytes, stated.output_bytes) == (sent, received):
            return self.costs.ns[node]
        return self.transfer_ns(replace(stated, input_bytes=sent, output_bytes=received))

    def transfer_ns(self, transfer: Transfer) -> int:
        """Nanoseconds of a collective that is no launch of the graph itself."""
        if transfer not in self._seen:
            self._seen[transfer] = self.model.transfer(transfer).ns
        return self._seen[transfer]

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


class _Launch(NamedTuple):
    """A launch of the run. receive: keeps what is sent and received until it has been waited for."""

    stream: Stream
    ticket: Any
    receive: Receive

    def wait(self) -> None:
        self.stream.wait(self.ticket)


class _Timed(NamedTuple):
    """What there is to ask of a launch at the end of the run. ns: modelled."""

    node: str
    stream: Stream
    ticket: Any
    ns: int


@dataclass
class Transport:
    """Collectives of one program; streams may be shared with others. real: the program with its own collectives."""

    real: Prepared
    layout: Layout
    model: CostModel
    streams: Streams
    _flights: dict[int, list[_Launch]] = field(default_factory=dict)
    _run: list[_Timed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.durations = Durations(self.real.index, self.model)
        node = fx.Graph().create_node("call_function", self._join, name=_END)
        self.end = Step(node, self._join, (), {}, None, (node,), waits=True)
        steps = (*map(self.step, self.real.steps), self.end)
        self.prepared = replace(self.real, steps=steps, nodes=(*self.real.nodes, node), network=self._inside)

    def take_times(self) -> dict[str, CommTime]:
        """What each collective of the last run took, by node; the place must have been synchronized."""
        result: dict[str, CommTime] = {}
        for node, stream, ticket, ns in self._run:
            # A sub-graph may launch the same node again and again.
            name = node if node not in result else f"{node}, {len(result)}"
            result[name] = CommTime(ns, stream.took_ns(ticket))
        self._run.clear()
        return result

    def step(self, step: Step) -> Step:
        """A step as it is, or on a stream if it communicates."""
        if step.fact is not None:
            return replace(step, call=self._launching(step))
        return replace(step, call=self._wait) if step.waits else step

    def _inside(self, node: fx.Node, _: Callable[..., Any]) -> Callable[..., Any]:
        """What a launch or a wait of a sub-graph calls."""
        fact = collective_of(node.target)
        if fact is None:
            return self._wait
        group = str(argument(node, "group_name"))
        peers, uneven = self._peers(group), bool(argument(node, "output_split_sizes"))

        def price(sent: int, received: int) -> int:
            dtype = str(tensors_in(node.meta.get("val"))[0].dtype).removeprefix("torch.")
            stated = Transfer(fact.kind, group, peers.size, sent, received, dtype, uneven=uneven)
            return self.durations.transfer_ns(stated)

        stream = self.streams[self.durations.costs.streams.get(group, group)]
        return self._launched(fact, f"{node.name} in a sub-graph", stream, peers, price)

    def at_once(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """What a launch or a wait returns, with everything there at once and no stream."""
        fact = collective_of(op)
        if fact is None:
            return args[0]
        call = dict(zip(fact.arguments, args, strict=False)) | kwargs
        received = receive(fact, call, self._peers(call["group_name"]))
        received.fill()
        return received.results if fact.coalesced else received.results[0]

    def _launching(self, step: Step) -> Callable[..., Any]:
        fact = step.fact
        assert fact is not None
        index = self.real.index
        node = index.position[step.name]
        stream = self.streams[self.durations.stream(node)]
        peers = self._peers(index.launches[node].group)
        return self._launched(fact, step.name, stream, peers, partial(self.durations.ns, node))

    def _launched(
        self, fact: CollectiveOp, name: str, stream: Stream, peers: Peers, price: Callable[[int, int], int]
    ) -> Callable[..., Any]:
        """A launch on a stream. price: its ns by the bytes that leave and arrive."""
        pace, run = Pace(), self._run

        def launch(*args: Any, **kwargs: Any) -> Any:
            received = receive(fact, dict(zip(fact.arguments, args, strict=False)) | kwargs, peers)
            ns = price(*received.nbytes)
            flight = _Launch(stream, stream.launch(received.fill, ns, pace), received)
            run.append(_Timed(name, stream, flight.ticket, ns))
            if not fact.asynchronous:
                flight.wait()
            for result in received.results if fact.asynchronous else ():
                self._flights.setdefault(storage(result), []).append(flight)
            return received.results if fact.coalesced else received.results[0]

        return launch

    def _wait(self, tensor: Any) -> Any:
        """Wait for what comes into this storage; for anything else it does nothing."""
        for flight in self._flights.pop(storage(tensor), ()) if isinstance(tensor, torch.Tensor) else ():
            flight.wait()
        return tensor

    def _join(self) -> None:
        """Wait for what is still on its way."""
        flights = [flight for pending in self._flights.values() for flight in pending]
        self._flights.clear()
        for flight in flights:
            flight.wait()

    def _peers(self, group: str) -> Peers:
        part = self.layout.mine(group, _RANK)
        return Peers(len(part), part.index(_RANK))


def make_transports(graphs: GraphSet, place: Place, model: CostModel) -> list[Transport]:
    """One for each graph, with streams in common."""
    streams = make_streams(place)
    return [Transport(prepared, graphs.layout, model, streams) for prepared in graphs.prepared]
